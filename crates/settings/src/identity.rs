//! Which namespace, and which device, a change is of: what is there now under its name
//! may be another one.
//!
//! A namespace is known by its cookie, which the kernel gives once in a boot; its inode
//! number only leads to it. A device is known by its index within that namespace and by
//! its address; its name may have been changed.

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

/// The machine's first one, as a place; `None` where it cannot be told.
pub(crate) fn first_place(label: &str) -> Option<Namespace> {
    let place = Namespace::of(&first()?, Some(FIRST.to_owned()), label);
    place.ok()
}

/// A namespace, by the path that it had or, where another one is there by now, by
/// whatever else leads to it; `None`: it is gone.
pub(crate) fn open(place: &Namespace) -> Result<Option<NetNs>, sys::Error> {
    let is_it = |netns: &NetNs| match place.cookie {
        _ if netns.inode() != place.inode => Ok(false),
        // The inode number of one that is gone is given to another.
        Some(cookie) => Ok::<_, sys::Error>(netns.cookie()? == Some(cookie)),
        // No cookie: an entry of before, or a kernel before 5.14. [`pin`] and [`sure`] refuse
        // where that is not enough.
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
        _ => None,
    })
}

/// The namespace that a path leads to; `None`: something else by now. The path may lead
/// through another process's root, where its owner chooses what is there: that is looked
/// at before it is opened.
fn open_path(path: &str) -> Result<Option<NetNs>, sys::Error> {
    let failed = |operation| move |errno| sys::Error::new(operation, path, errno);
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let seen = match nix::fcntl::open(path, flags, Mode::empty()) {
        // The name is gone, or the process (`ESRCH`) through which it led.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ESRCH | Errno::ELOOP) => return Ok(None),
        seen => seen.map_err(failed("open"))?,
    };
    // Something else took the name: it is no namespace, whatever it holds.
    if fstatfs(&seen).map_err(failed("fstatfs"))?.filesystem_type() != NSFS_MAGIC {
        return Ok(None);
    }
    let again = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let opened = File::open(again).map_err(|error| sys::Error::io("open", path, &error))?;
    NetNs::from_fd(opened.into()).map(Some)
}

/// Runs in the change's namespace.
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

/// The namespace that a setting of the machine is written in: those of the network can
/// be read in some, and written in the first only.
fn of_the_machine(setting: &Setting) -> Result<NetNs, Error> {
    match setting {
        Setting::Sysctl { path, .. } if path.starts_with("net/") => {
            // Without the right to it the answer is the file's.
            first().map_or_else(|| Ok(NetNs::current()?), Ok)
        }
        _ => Ok(NetNs::current()?),
    }
}

/// The change with everything in it that its namespace and device are known again by.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Unknown`] where this kernel cannot tell a namespace from
/// one that is made later.
pub(crate) fn pin(change: &Change) -> Result<Change, Error> {
    let mut pinned = change.clone();
    if let Some(place) = &mut pinned.place {
        let netns = open(place)?.ok_or_else(|| gone(change, place))?;
        *place = Namespace::of(&netns, place.path.clone(), &place.label)?;
        if place.cookie.is_none() && !place.first {
            let object = change.object();
            let reason = "this kernel does not tell a namespace from one that is made later \
                          (SO_NETNS_COOKIE, Linux 5.14)";
            return Err(Error::Unknown { object, reason: reason.to_owned() });
        }
    }
    let known = within(&pinned, |_| {
        let device = match &pinned.setting {
            Setting::Sysctl { path, .. } => match device_in(path) {
                // Where there is no such device the kernel says so.
                Some(name) => {
                    Netlink::open()?.links()?.iter().find(|l| l.name == name).map(Device::of)
                }
                None => None,
            },
            setting => setting.device().cloned(),
        };
        let Some(device) = device else { return Ok(None) };
        let link = find(change, &device)?;
        // Many drivers keep none. The link-layer address has to do then.
        let permanent = Ethtool::open()?.permanent_address(&link.name).ok().flatten();
        Ok(Some(Device { permanent, ..Device::of(&link) }))
    })?;
    if let Some(device) = known {
        pinned.setting.set_device(device);
    }
    Ok(pinned)
}

/// Whether the change's namespace can only be the one that it was made in.
///
/// # Errors
/// [`Error::Unknown`] where its entry has no cookie, and it is not the machine's first
/// one; [`Error::Gone`].
pub(crate) fn sure(change: &Change) -> Result<(), Error> {
    let Some(place) = change.place.as_ref().filter(|place| place.cookie.is_none()) else {
        return Ok(());
    };
    let netns = open(place)?.ok_or_else(|| gone(change, place))?;
    if is_first(&netns) { Ok(()) } else { Err(unsure(change, place)) }
}

/// What is said where an entry does not tell its namespace from another.
pub(crate) fn unsure(change: &Change, place: &Namespace) -> Error {
    let reason = format!(
        "its entry is of an earlier version, and does not tell namespace net:[{}] from one \
         that was made later",
        place.inode
    );
    Error::Unknown { object: change.object(), reason }
}

/// What is said of a namespace that is gone.
pub(crate) fn gone(change: &Change, place: &Namespace) -> Error {
    let cookie = place.cookie.map_or_else(String::new, |cookie| format!(" (cookie {cookie})"));
    let reason = format!("namespace net:[{}]{cookie} is gone", place.inode);
    Error::Gone { object: change.object(), reason }
}

/// The device, if it is still the same one; under the name that it has now.
///
/// # Errors
/// [`Error::Gone`]; [`Error::Unknown`] where there is one that may be another.
pub(crate) fn find(change: &Change, device: &Device) -> Result<Interface, Error> {
    let links = Netlink::open()?.links()?;
    let (name, index) = (&device.name, device.index);
    let unknown = |reason: String| Error::Unknown { object: change.object(), reason };
    let Some(link) = links.into_iter().find(|link| link.index == index) else {
        let reason = format!("device {name} (index {index}) is gone");
        return Err(Error::Gone { object: change.object(), reason });
    };
    if device.kind.is_some() && link.kind != device.kind {
        let kind = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "none".to_owned());
        let (was, is) = (kind(&device.kind), kind(&link.kind));
        let now = &link.name;
        return Err(unknown(format!(
            "device {name} (index {index}, kind {was}): at that index is {now}, kind {is}"
        )));
    }
    if let Some(was) = &device.permanent {
        let is = Ethtool::open()?.permanent_address(&link.name)?;
        return match is.as_ref() == Some(was) {
            true => Ok(link),
            false => Err(unknown(other(device, &link, was, is.as_deref()))),
        };
    }
    let is = link.mac.map(|mac| mac.to_string());
    match &device.address {
        // Unless somebody gives them one, they have that of a port, or a random one.
        _ if link.name == *name && takes_address(&link) => Ok(link),
        Some(was) if is.as_ref() == Some(was) => Ok(link),
        Some(was) => Err(unknown(other(device, &link, was, is.as_deref()))),
        // Without an address to compare, index and name have to do.
        None if link.name == *name => Ok(link),
        None => Err(unknown(format!("device {name} (index {index}) is called {}", link.name))),
    }
}

fn other(device: &Device, link: &Interface, was: &str, is: Option<&str>) -> String {
    let (name, index, now) = (&device.name, device.index, &link.name);
    let is = is.unwrap_or("none");
    format!(
        "device {name} (index {index}) had the address {was}; {now} at that index has {is}: \
         it was made anew, or was given another address"
    )
}

fn takes_address(link: &Interface) -> bool {
    link.kind
        .as_deref()
        .is_some_and(|kind| ["bridge", "bond", "team", "openvswitch"].contains(&kind))
}

/// Which part of a path is the device that the setting is of: `net/ipv4/conf/NAME/…`,
/// `net/ipv6/neigh/NAME/…`, `class/net/NAME/…`.
fn place_of_device(parts: &[&str]) -> Option<usize> {
    match parts {
        ["net", "ipv4" | "ipv6" | "mpls", "conf" | "neigh", name, _] => {
            (!["all", "default"].contains(name)).then_some(3)
        }
        ["class", "net", _, _, ..] => Some(2),
        _ => None,
    }
}

/// The device that a sysctl is of.
fn device_in(path: &str) -> Option<&str> {
    let parts: Vec<&str> = path.split('/').collect();
    place_of_device(&parts).filter(|at| *at == 3).map(|at| parts[at])
}

/// The path of a setting of a device, under the name that the device has now. Other parts of
/// it may have the device's old name, too: a device may be called `conf`.
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
    fn sysctls_of_devices_are_told() {
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
