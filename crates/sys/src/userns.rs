//! User namespaces, with which an ordinary user gets own network namespaces.

use std::fs;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use crate::{Error, Result};

/// Returns whether this process may create network namespaces: effective `CAP_SYS_ADMIN` and
/// `CAP_NET_ADMIN` (capabilities(7): bits 21 and 12).
pub fn may_administer_networks() -> bool {
    const WANTED: u64 = 1 << 21 | 1 << 12;
    effective_capabilities().is_some_and(|effective| effective & WANTED == WANTED)
}

/// Returns whether the process is in the initial user namespace (its UID map is the identity over
/// all 2³² − 1 IDs).
pub fn in_initial_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().collect::<Vec<_>>() == ["0", "0", "4294967295"])
}

fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Moves the process into a new user namespace in which the caller is root. Must be called while
/// the process has only one thread.
///
/// # Errors
/// `EINVAL` with several threads, `EPERM` or `ENOSPC` if the machine forbids user namespaces, or if
/// the ID maps cannot be written.
pub fn enter_new() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(|e| Error::new("unshare(CLONE_NEWUSER)", "user namespace", e))?;
    // user_namespaces(7): an unprivileged process must deny setgroups before it writes the maps.
    write("/proc/self/setgroups", "deny")?;
    write("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write("/proc/self/gid_map", &format!("0 {gid} 1"))
}

fn write(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| Error::io("write", path, &e))
}
