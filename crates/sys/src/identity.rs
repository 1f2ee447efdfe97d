//! Permanently switches to another user and group.
//!
//! A root process that has dropped its capabilities still owns root's files and may send signals to
//! root's processes. Therefore it switches to the system user [`USER`] if that exists. Otherwise it
//! uses an unassigned ID from [`RANGES`] that has no entry in the user database and no process.
//! Each process gets its own ID, so that two of them cannot affect each other.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, getgroups, setgroups};

use crate::{Error, Result};

/// The system user that is used if it exists.
pub const USER: &str = "overlane";

/// User IDs that are not assigned to users, in the order of use. Sources: systemd's `UIDS-GIDS.md`
/// (60578–61183 and 65536–524287 are unused; 61184–65519 are for `DynamicUser=`, above 524288 are
/// containers), `SUB_UID_MIN` of login.defs(5) (100000). The second range is for containers that
/// have only the first 65,536 IDs.
pub const RANGES: [RangeInclusive<u32>; 2] = [65_536..=99_999, 60_578..=61_183];

/// The identity of the process after the switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    Changed {
        /// The new user ID.
        uid: u32,
        /// The new group ID.
        gid: u32,
        /// Whether it is the user [`USER`].
        named: bool,
    },
    /// The user has not changed.
    Kept {
        /// User ID in the user namespace of the process.
        uid: u32,
        /// Why the user has not changed.
        why: String,
    },
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Changed { uid, named: true, .. } => write!(f, "user {USER} ({uid})"),
            Identity::Changed { uid, .. } => write!(f, "user {uid}"),
            Identity::Kept { uid, why } => write!(f, "user {uid} ({why})"),
        }
    }
}

/// Switches to another user and group without supplementary groups if the process is root and has
/// the capabilities for it; an ordinary user stays unchanged. This applies to all threads.
///
/// # Errors
/// If the kernel refuses for a reason other than a missing capability or a user namespace without
/// such IDs.
pub fn become_unprivileged() -> Result<Identity> {
    let uid = geteuid();
    if !uid.is_root() {
        return Ok(Identity::Kept { uid: uid.as_raw(), why: "not root".to_owned() });
    }
    let kept = |why: String| Ok(Identity::Kept { uid: uid.as_raw(), why });
    let (to, group, named) = match choose() {
        Ok(chosen) => chosen,
        // The process runs on with its user, and its status shows the reason.
        Err(why) => return kept(why),
    };
    match setgroups(&[]) {
        // There was nothing to drop: setgroups is denied in a user's own namespace.
        Err(Errno::EPERM) if no_groups() => {}
        Err(Errno::EPERM) => return kept("CAP_SETGID is missing".to_owned()),
        other => other.map_err(|e| Error::new("setgroups", "no groups", e))?,
    }
    // glibc changes all threads. The group must be set first, because that is not allowed after the
    // user has changed.
    for (call, id, done) in [
        ("setresgid", group.as_raw(), nix::unistd::setresgid(group, group, group)),
        ("setresuid", to.as_raw(), nix::unistd::setresuid(to, to, to)),
    ] {
        match done {
            Err(Errno::EPERM) if call == "setresgid" => {
                return kept("CAP_SETGID is missing".to_owned());
            }
            // Without the capability the group may have changed, but not the user.
            Err(Errno::EPERM) => return kept("CAP_SETUID is missing".to_owned()),
            other => other.map_err(|e| Error::new(call, id.to_string(), e))?,
        }
    }
    // Check that the process cannot switch back.
    if geteuid() != to || getegid() != group || nix::unistd::setresuid(uid, uid, uid).is_ok() {
        return Err(Error::new("setresuid", format!("back to {uid}"), Errno::EINVAL));
    }
    Ok(Identity::Changed { uid: to.as_raw(), gid: group.as_raw(), named })
}

fn no_groups() -> bool {
    getgroups().is_ok_and(|groups| groups.iter().all(|group| *group == getegid()))
}

/// Selects a user and a group, and reports whether they belong to the system user. The error is the
/// reason why there are none.
fn choose() -> std::result::Result<(Uid, Gid, bool), String> {
    if let Ok(Some(user)) = User::from_name(USER)
        && !user.uid.is_root()
        && user.gid.as_raw() != 0
    {
        return Ok((user.uid, user.gid, true));
    }
    let maps = [mapped("uid_map"), mapped("gid_map")];
    let fits = |range: &RangeInclusive<u32>| {
        maps.iter().all(|map| {
            map.iter().any(|part| part.contains(range.start()) && part.contains(range.end()))
        })
    };
    let range = RANGES.into_iter().find(fits).ok_or_else(|| {
        format!("this user namespace has no ids {} to {}", RANGES[0].start(), RANGES[0].end())
    })?;
    let taken = in_use();
    let count = range.end() - range.start() + 1;
    // A random start, so that two processes that start together rarely try the same ID.
    let start = RandomState::new().hash_one(std::process::id()) % u64::from(count);
    let free = |id: &u32| {
        !taken.contains(id)
            && User::from_uid(Uid::from_raw(*id)).is_ok_and(|user| user.is_none())
            && Group::from_gid(Gid::from_raw(*id)).is_ok_and(|group| group.is_none())
    };
    let id = (0..count).map(|n| range.start() + (start as u32 + n) % count).find(free);
    let id = id.ok_or("all IDs of the range are in use")?;
    Ok((Uid::from_raw(id), Gid::from_raw(id), false))
}

/// Returns the ID ranges that a map of this user namespace contains (user_namespaces(7)).
fn mapped(map: &str) -> Vec<RangeInclusive<u32>> {
    let text = std::fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
    let part = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let (first, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(first..=first.checked_add(count.checked_sub(1)?)?)
    };
    text.lines().filter_map(part).collect()
}

/// Returns the user and group IDs that are in use by visible processes.
fn in_use() -> BTreeSet<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter(|entry| {
        entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit)
    });
    let mut ids = BTreeSet::new();
    for process in processes {
        // The process may have ended.
        let status = std::fs::read_to_string(process.path().join("status")).unwrap_or_default();
        for line in status.lines().filter(|l| l.starts_with("Uid:") || l.starts_with("Gid:")) {
            ids.extend(line.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_nobodys() {
        let (uid, gid, named) = choose().unwrap();
        assert!(named || RANGES.iter().any(|range| range.contains(&uid.as_raw())));
        assert!(uid.as_raw() != 0 && gid.as_raw() != 0);
    }

    #[test]
    fn maps_are_read() {
        assert!(!mapped("uid_map").is_empty());
        assert!(in_use().contains(&geteuid().as_raw()));
    }
}
