//! Identifies the namespace and the device of a change, because another one may have taken over the
//! name.
//!
//! A namespace is identified by its cookie, which is unique in one boot; the inode number only
//! helps to find it. A device is identified by its index in that namespace and by its address,
//! because it may have been renamed.

use std::fs::File;
use std::os::fd::AsRawFd;

use netstate::Netlink;
use netstate::interface::Interface;
use netstate::namespace::{discover, first};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};
use sys::errno::Errno;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;

use crate::change::{Change, Device, Namespace, Setting, is_first};
use crate::error::Error;

/// Path of the machine's first namespace (see [`first`]).
const FIRST: &str = "/proc/2/ns/net";

/// Returns the machine's first namespace as a place; `None` if it is unknown.
pub(crate) fn first_place(label: &str) -> Option<Namespace> {
    let place = Namespace::of(&first()?, Some(FIRST.to_owned()), label);
    place.ok()
}

/// Opens a namespace by its path or, if the path now leads to another namespace, by searching all
/// namespaces. `None` if it is gone.
pub(crate) fn open(place: &Namespace) -> Result<Option<NetNs>, sys::Error> {
    let is_it = |netns: &NetNs| match place.cookie {
        _ if netns.inode() != place.inode => Ok(false),
        // The kernel reuses inode numbers of namespaces that are gone.
        Some(cookie) => Ok::<_, sys::Error>(netns.cookie()? == Some(cookie)),
        // No cookie: the entry is from an earlier version or the kernel is older than 5.14. [`pin`]
        // and [`sure`] refuse if that is not enough.
        None => Ok(true),
    };
    let netns = match &place.path {
        None => Some(NetNs::current()?),
        Some(path) => open_path(path)?,
    };
    if let Some(netns) = netns
        && is_it(&netns)?
    {
        return Ok(Some(netns));
    }
    let found = discover()?.namespaces.remove(&place.inode).map(|found| found.netns);
    Ok(match found {
        Some(netns) if is_it(&netns)? => Some(netns),
        // An inode number is reused: only the cookie shows that it is the same namespace.
        _ => None,
    })
}

/// Opens the namespace at a path; `None` if the path now leads to something else. The path may lead
/// through another process's root, where an untrusted user controls the file, so its type is
/// checked before it is opened.
fn open_path(path: &str) -> Result<Option<NetNs>, sys::Error> {
    let failed = |operation| move |errno| sys::Error::new(operation, path, errno);
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let seen = match nix::fcntl::open(path, flags, Mode::empty()) {
        // The name is gone, or the process in the path (`ESRCH`).
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ESRCH | Errno::ELOOP) => return Ok(None),
        seen => seen.map_err(failed("open"))?,
    };
    // Another file has the name now: it is no namespace.
    if fstatfs(&seen).map_err(failed("fstatfs"))?.filesystem_type() != NSFS_MAGIC {
        return Ok(None);
    }
    let again = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let opened = File::open(again).map_err(|error| sys::Error::io("open", path, &error))?;
    NetNs::from_fd(opened.into()).map(Some)
}

/// Runs a function in the change's namespace.
pub(crate) fn within<T: Send>(
    change: &Change,
    work: impl FnOnce(&NetNs) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let netns = match &change.place {
        None => of_the_machine(&change.setting)?,
        Some(place) => open(place)?.ok_or_else(|| gone(change, place))?,
    };
    netns.run(|| work(&netns))?
}

/// Returns the namespace in which to write a setting of the machine. Some network settings can be
/// read in several namespaces, but written in the first one only.
fn of_the_machine(setting: &Setting) -> Result<NetNs, Error> {
    match setting {
        Setting::Sysctl { path, .. } if path.starts_with("net/") => {
            // If it cannot be entered, the file's own error is reported.
            first().map_or_else(|| Ok(NetNs::current()?), Ok)
        }
        _ => Ok(NetNs::current()?),
    }
}

/// Adds to a change the data that identifies its namespace and device later.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Unknown`] if this kernel cannot distinguish a namespace from one
/// created later.
pub(crate) fn pin(change: &Change) -> Result<Change, Error> {
    let mut pinned = change.clone();
    if let Some(place) = &mut pinned.place {
        let netns = open(place)?.ok_or_else(|| gone(change, place))?;
        *place = Namespace::of(&netns, place.path.clone(), &place.label)?;
        if place.cookie.is_none() && !place.first {
            let object = change.object();
            // Without a cookie, undo could change another namespace that got the same inode number.
            let reason = "this kernel cannot distinguish a namespace from one created later \
                (SO_NETNS_COOKIE, Linux 5.14)";
            return Err(Error::Unknown { object, reason: reason.to_owned() });
        }
    }
    let known = within(&pinned, |_| {
        let device = match &pinned.setting {
            Setting::Sysctl { path, .. } => match device_in(path) {
                // If the device does not exist, the kernel reports it.
                Some(name) => {
                    Netlink::open()?.links()?.iter().find(|l| l.name == name).map(Device::of)
                }
                None => None,
            },
            setting => setting.device().cloned(),
        };
        // The setting belongs to no device.
        let Some(device) = device else { return Ok(None) };
        let link = find(change, &device)?;
        // Many drivers have no permanent address. Then the link-layer address must suffice.
        let permanent = Ethtool::open()?.permanent_address(&link.name).ok().flatten();
        Ok(Some(Device { permanent, ..Device::of(&link) }))
    })?;
    if let Some(device) = known {
        pinned.setting.set_device(device);
    }
    Ok(pinned)
}

/// Checks that the change's namespace is certainly the one it was made in.
///
/// # Errors
/// [`Error::Unknown`] if its entry has no cookie and it is not the machine's first namespace;
/// [`Error::Gone`].
pub(crate) fn sure(change: &Change) -> Result<(), Error> {
    // With a cookie, the namespace is known to be the same.
    let Some(place) = change.place.as_ref().filter(|place| place.cookie.is_none()) else {
        return Ok(());
    };
    let netns = open(place)?.ok_or_else(|| gone(change, place))?;
    if is_first(&netns) { Ok(()) } else { Err(unsure(change, place)) }
}

/// Error for an entry that does not identify its namespace.
pub(crate) fn unsure(change: &Change, place: &Namespace) -> Error {
    let reason = format!(
        "its entry is from an earlier version, which does not distinguish namespace net:[{}] from \
         one created later",
        place.inode
    );
    Error::Unknown { object: change.object(), reason }
}

pub(crate) fn gone(change: &Change, place: &Namespace) -> Error {
    let cookie = place.cookie.map_or_else(String::new, |cookie| format!(" (cookie {cookie})"));
    let reason = format!("namespace net:[{}]{cookie} is gone", place.inode);
    Error::Gone { object: change.object(), reason }
}

/// Returns the device if it is still the same, with its present name.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Unknown`] if the device may be another one.
pub(crate) fn find(change: &Change, device: &Device) -> Result<Interface, Error> {
    let links = Netlink::open()?.links()?;
    let (name, index) = (&device.name, device.index);
    let unknown = |reason: String| Error::Unknown { object: change.object(), reason };
    let Some(link) = links.into_iter().find(|link| link.index == index) else {
        let reason = format!("device {name} (index {index}) is gone");
        return Err(Error::Gone { object: change.object(), reason });
    };
    // The index was reused by another kind of device.
    if device.kind.is_some() && link.kind != device.kind {
        let kind = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "none".to_owned());
        let (was, is) = (kind(&device.kind), kind(&link.kind));
        let now = &link.name;
        // Indexes are reused: a device of another kind is not the one that was changed.
        return Err(unknown(format!(
            "device {name} (index {index}, kind {was}): that index now belongs to {now}, kind {is}"
        )));
    }
    // A permanent address identifies hardware better than a configurable one.
    if let Some(was) = &device.permanent {
        let is = Ethtool::open()?.permanent_address(&link.name)?;
        return match is.as_ref() == Some(was) {
            true => Ok(link),
            false => Err(unknown(other(device, &link, was, is.as_deref()))),
        };
    }
    let is = link.mac.map(|mac| mac.to_string());
    match &device.address {
        // Without a configured address, these devices use a port's address or a random one, so it
        // identifies nothing.
        _ if link.name == *name && takes_address(&link) => Ok(link),
        Some(was) if is.as_ref() == Some(was) => Ok(link),
        Some(was) => Err(unknown(other(device, &link, was, is.as_deref()))),
        // Without an address to compare, index and name must suffice.
        None if link.name == *name => Ok(link),
        None => Err(unknown(format!("device {name} (index {index}) is now named {}", link.name))),
    }
}

fn other(device: &Device, link: &Interface, was: &str, is: Option<&str>) -> String {
    let (name, index, now) = (&device.name, device.index, &link.name);
    let is = is.unwrap_or("none");
    format!(
        "device {name} (index {index}) had the address {was}; {now} at that index has {is}: \
         it was created again, or was given another address"
    )
}

fn takes_address(link: &Interface) -> bool {
    link.kind
        .as_deref()
        .is_some_and(|kind| ["bridge", "bond", "team", "openvswitch"].contains(&kind))
}

/// Returns the position of the device's name in a path: `net/ipv4/conf/NAME/…`,
/// `net/ipv6/neigh/NAME/…`, `class/net/NAME/…`.
fn place_of_device(parts: &[&str]) -> Option<usize> {
    match parts {
        ["net", "ipv4" | "ipv6" | "mpls", "conf" | "neigh", name, _] => {
            (!["all", "default"].contains(name)).then_some(3)
        }
        ["class", "net", _, _, ..] => Some(2),
        // Other files below /sys concern no network device.
        _ => None,
    }
}

/// Returns the device in a sysctl's path.
fn device_in(path: &str) -> Option<&str> {
    let parts: Vec<&str> = path.split('/').collect();
    place_of_device(&parts).filter(|at| *at == 3).map(|at| parts[at])
}

/// Replaces the device's name in a path by its present name. Other parts may equal the old name and
/// stay: a device may be named `conf`.
pub(crate) fn renamed(path: &str, device: &Device, link: &Interface) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    if let Some(at) = place_of_device(&parts).filter(|at| parts[*at] == device.name) {
        parts[at] = &link.name;
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctls_of_devices_are_recognised() {
        assert_eq!(device_in("net/ipv4/conf/eth0.12/rp_filter"), Some("eth0.12"));
        assert_eq!(device_in("net/ipv6/neigh/br0/gc_stale_time"), Some("br0"));
        assert_eq!(device_in("net/ipv4/conf/all/rp_filter"), None);
        assert_eq!(device_in("net/core/netdev_budget"), None);
        let device = Device { name: "eth0".to_owned(), ..Device::default() };
        let link = Interface { name: "lan0".to_owned(), ..Interface::default() };
        let path = renamed("class/net/eth0/gro_flush_timeout", &device, &link);
        assert_eq!(path, "class/net/lan0/gro_flush_timeout");
        for (name, path, expected) in [
            ("conf", "net/ipv4/conf/conf/rp_filter", "net/ipv4/conf/lan0/rp_filter"),
            ("net", "class/net/net/gro_flush_timeout", "class/net/lan0/gro_flush_timeout"),
            ("ipv4", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/rp_filter"),
        ] {
            let device = Device { name: name.to_owned(), ..Device::default() };
            assert_eq!(renamed(path, &device, &link), expected);
        }
    }
}
