//! Reads and writes a setting in its namespace.

use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use netstate::Netlink;
use netstate::interface::{Interface, vxlan_overhead};
use netstate::proc::read_value;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use sys::sysfs::Sysfs;

use crate::change::{Attribute, Change, Device, Queues, Setting, same};
pub use crate::error::Error;
use crate::identity::{find, renamed, within};

/// A setting's value, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(String);

impl Value {
    /// Whether it means the same value as another text, which may be formatted differently
    /// ([`Change::is_so`]).
    pub fn is(&self, other: &str) -> bool {
        same(&self.0, other)
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the setting's present value.
///
/// # Errors
/// [`Error::Gone`] if the namespace or device no longer exists.
pub fn read(change: &Change) -> Result<Value, Error> {
    within(change, |netns| read_here(change, netns)).map(Value)
}

/// Writes the setting. A command runs in the current directory.
///
/// # Errors
/// As [`read`], and errors of the kernel; [`Error::Command`].
pub fn write(change: &Change, value: &str) -> Result<(), Error> {
    write_from(change, value, Path::new("."))
}

/// As [`write()`], but a command runs in `directory`.
pub(crate) fn write_from(change: &Change, value: &str, directory: &Path) -> Result<(), Error> {
    within(change, |netns| write_here(change, netns, value, directory))
}

/// Checks before a change that the setting still has the value that was read, and that the kernel
/// would accept that value again.
///
/// # Errors
/// [`Error::Changed`], [`Error::OneWay`]; as [`read`].
pub(crate) fn check(change: &Change) -> Result<(), Error> {
    let now = read(change)?;
    // Someone changed the setting since it was read, so an undo would restore a stale value.
    if !now.is(&change.from) {
        return Err(changed(change, &change.from, &now));
    }
    can_be_taken_back(change)
}

/// Writes the new value and reads it back. A command runs in `directory`, and its effect cannot be
/// read.
///
/// # Errors
/// As [`write()`]; [`Error::NotTaken`], whose text promises that the caller undoes the change.
pub(crate) fn make(change: &Change, directory: &Path) -> Result<(), Error> {
    write_from(change, &change.to, directory)?;
    // A command has no value that could be read back.
    if change.setting == Setting::Command {
        return Ok(());
    }
    let got = read(change)?;
    // The kernel may accept a value and keep another one, so it was read back.
    if got.is(&change.to) {
        return Ok(());
    }
    let (object, wanted) = (change.object(), change.to.clone());
    Err(Error::NotTaken { object, wanted, got: got.to_string() })
}

/// Restores the earlier value, unless someone else changed the setting. Returns whether there was
/// anything to restore.
///
/// # Errors
/// [`Error::Changed`]; as [`read`] and [`write()`].
pub(crate) fn put_back(change: &Change) -> Result<bool, Error> {
    let now = read(change)?;
    if now.is(&change.from) {
        return Ok(false);
    }
    // Someone set a third value since. Do not overwrite it.
    if !now.is(&change.to) {
        return Err(changed(change, &change.to, &now));
    }
    write(change, &change.from)?;
    let got = read(change)?;
    match got.is(&change.from) {
        true => Ok(true),
        false => Err(changed(change, &change.from, &got)),
    }
}

fn changed(change: &Change, expected: &str, got: &Value) -> Error {
    let (object, expected) = (change.object(), expected.to_owned());
    Error::Changed { object, expected, got: got.to_string() }
}

/// Checks that the kernel would accept the earlier value again, as far as that can be known.
///
/// # Errors
/// [`Error::OneWay`] if it would not; as [`read`].
fn can_be_taken_back(change: &Change) -> Result<(), Error> {
    // Other settings can be written back to any earlier value.
    let Setting::Link { device, attribute: Attribute::Mtu } = &change.setting else {
        return Ok(());
    };
    within(change, |_| {
        let links = Netlink::open()?.links()?;
        // The caller has just read the setting. If the device disappeared since, the write reports
        // it.
        let reason = match links.iter().find(|link| link.index == device.index) {
            Some(link) => mtu_is_above(link, &links, &change.from),
            // The write reports a device that is gone.
            None => None,
        };
        reason.map_or(Ok(()), |reason| {
            let (object, from) = (change.object(), change.from.clone());
            Err(Error::OneWay { object, from, reason })
        })
    })
}

/// Returns why a device would reject this MTU. The limit of a device on top of another one is that
/// device's MTU, minus its own headers (`vxlan_change_mtu`, `macvlan_change_mtu`,
/// `vlan_dev_change_mtu`). It keeps a larger MTU if the lower device's MTU is reduced later.
pub fn mtu_is_above(link: &Interface, links: &[Interface], mtu: &str) -> Option<String> {
    let mtu: u32 = mtu.parse().ok()?;
    // The lower device is in another namespace and its MTU was not read: leave it to the kernel.
    if link.link_netns.is_some() {
        return None;
    }
    let (index, added) = match link.kind.as_deref()? {
        "vxlan" => {
            let vxlan = link.vxlan.as_ref()?;
            // Without an address the tunnel runs over IPv4.
            let any = vxlan.remote.or(vxlan.local).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            (vxlan.device?, vxlan_overhead(any))
        }
        "macvlan" | "ipvlan" | "vlan" => (link.link?, 0),
        // Limits of other kinds are unknown: leave it to the kernel.
        _ => return None,
    };
    let below = links.iter().find(|link| link.index == index)?;
    let most = below.mtu.saturating_sub(added);
    (mtu > most).then(|| format!("MTU of {} is {}: at most {most}", below.name, below.mtu))
}

/// Runs a shell command to its end, in the calling thread's namespaces.
fn run(command: &str, directory: &Path) -> Result<(), Error> {
    /// Most bytes of its error output in a message.
    const SAID: usize = 300;
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", command]).current_dir(directory).stdin(Stdio::null()).stdout(Stdio::null());
    // Background processes of the command must neither hold a pipe open nor write to a terminal.
    let log = sys::memfd::create("overlane-command")?;
    let written = std::fs::File::from(log);
    let copy = written.try_clone().map_err(|e| sys::Error::io("dup", "command's log", &e))?;
    let status = sys::program::end_with_thread(shell.stderr(copy)).status();
    let failed = |status: String, said: Option<String>| Error::Command {
        command: command.to_owned(),
        status,
        said,
    };
    let status = status.map_err(|error| failed(error.to_string(), None))?;
    // Output of a successful command is not needed.
    if status.success() {
        return Ok(());
    }
    let mut said = vec![0; SAID];
    // If its output cannot be read, the status must suffice.
    let length = written.read_at(&mut said, 0).unwrap_or(0);
    let said = String::from_utf8_lossy(&said[..length]).trim().to_owned();
    Err(failed(status.to_string(), (!said.is_empty()).then_some(said)))
}

fn read_here(change: &Change, netns: &NetNs) -> Result<String, Error> {
    let (change, link) = named(change)?;
    match &change.setting {
        Setting::Sysctl { path, .. } => Ok(read_value(format!("/proc/sys/{path}"))?),
        Setting::Feature { device, feature } => {
            let features = Ethtool::open()?.features(&device.name)?;
            let state = features.get(feature).ok_or_else(|| Error::Form {
                object: change.object(),
                expected: "a feature that the kernel knows",
                got: feature.clone(),
            })?;
            Ok(if state.active { "on" } else { "off" }.to_owned())
        }
        Setting::Link { attribute, .. } => {
            let value = link.and_then(|link| match attribute {
                Attribute::Mtu => Some(link.mtu.to_string()),
                Attribute::Txqueuelen => Some(link.tx_queue_len.to_string()),
                Attribute::GsoMaxSize => {
                    link.gso_ipv4_max_size.or(link.gso_max_size).map(|size| size.to_string())
                }
                Attribute::GsoMaxSegs => link.gso_max_segs.map(|most| most.to_string()),
                Attribute::State => Some(if link.up { "up" } else { "down" }.to_owned()),
            });
            value.ok_or_else(|| Error::Form {
                object: change.object(),
                expected: "a number",
                got: "nothing".to_owned(),
            })
        }
        Setting::ReceiveRing { device } => {
            Ok(Ethtool::open()?.rings(&device.name)?.rx.now.to_string())
        }
        Setting::TransmitRing { device } => {
            Ok(Ethtool::open()?.rings(&device.name)?.tx.now.to_string())
        }
        Setting::Channels { device, which } => {
            let channels = Ethtool::open()?.channels(&device.name)?;
            let amount = match which {
                Queues::Rx => channels.rx,
                Queues::Tx => channels.tx,
                Queues::Combined => channels.combined,
            };
            Ok(amount.now.to_string())
        }
        Setting::Coalesce { device, parameter } => {
            Ok(Ethtool::open()?.coalesce(&device.name, parameter)?.to_string())
        }
        Setting::Sysfs { path, .. } => Ok(Sysfs::of(netns)?.read(path)?),
        Setting::Command => Err(Error::Form {
            object: change.object(),
            expected: "a setting that can be read",
            got: "a command".to_owned(),
        }),
        Setting::Rps { device, queue } => Ok(Sysfs::of(netns)?.read(&rps_file(device, *queue))?),
    }
}

fn write_here(change: &Change, netns: &NetNs, value: &str, directory: &Path) -> Result<(), Error> {
    let (change, _) = named(change)?;
    let number = || {
        value.parse::<u32>().map_err(|_| Error::Form {
            object: change.object(),
            expected: "a number of 32 bits",
            got: value.to_owned(),
        })
    };
    let within = |most: u32| match number()? {
        // The kernel's `EINVAL` would not name the limit.
        wanted if wanted > most => Err(Error::TooMany { object: change.object(), wanted, most }),
        wanted => Ok(wanted),
    };
    match &change.setting {
        Setting::Sysctl { path, .. } => {
            let file = format!("/proc/sys/{path}");
            std::fs::write(&file, value).map_err(|e| sys::Error::io("write", file, &e))?;
        }
        Setting::Feature { device, feature } => {
            Ethtool::open()?.set_features(&device.name, &[(feature.as_str(), value == "on")])?;
        }
        Setting::Link { device, attribute } => {
            let netlink = Netlink::open()?;
            match attribute {
                Attribute::Mtu => netlink.set_mtu(&device.name, number()?)?,
                Attribute::Txqueuelen => netlink.set_tx_queue_len(&device.name, number()?)?,
                Attribute::GsoMaxSize => netlink.set_gso_max_size(&device.name, number()?)?,
                Attribute::GsoMaxSegs => netlink.set_gso_max_segs(&device.name, number()?)?,
                Attribute::State if value == "up" => netlink.set_up(&device.name)?,
                Attribute::State => netlink.set_down(&device.name)?,
            }
        }
        Setting::ReceiveRing { device } => {
            let ethtool = Ethtool::open()?;
            let rings = ethtool.rings(&device.name)?;
            ethtool.set_rings(&device.name, within(rings.rx.most)?, rings.tx.now)?;
        }
        Setting::TransmitRing { device } => {
            let ethtool = Ethtool::open()?;
            let rings = ethtool.rings(&device.name)?;
            ethtool.set_rings(&device.name, rings.rx.now, within(rings.tx.most)?)?;
        }
        Setting::Channels { device, which } => {
            let ethtool = Ethtool::open()?;
            let now = ethtool.channels(&device.name)?;
            let (mut rx, mut tx, mut combined) = (now.rx.now, now.tx.now, now.combined.now);
            match which {
                Queues::Rx => rx = within(now.rx.most)?,
                Queues::Tx => tx = within(now.tx.most)?,
                Queues::Combined => combined = within(now.combined.most)?,
            }
            ethtool.set_channels(&device.name, rx, tx, combined)?;
        }
        Setting::Coalesce { device, parameter } => {
            Ethtool::open()?.set_coalesce(&device.name, parameter, number()?)?;
        }
        Setting::Sysfs { path, .. } => {
            Sysfs::of(netns)?.write(path, value)?;
        }
        Setting::Command => run(value, directory)?,
        Setting::Rps { device, queue } => {
            Sysfs::of(netns)?.write(&rps_file(device, *queue), value)?;
        }
    }
    Ok(())
}

fn rps_file(device: &Device, queue: u32) -> String {
    format!("class/net/{}/queues/rx-{queue}/rps_cpus", device.name)
}

/// Returns the change with its device's present name, and the device, if it has one.
fn named(change: &Change) -> Result<(Change, Option<Interface>), Error> {
    let mut change = change.clone();
    // A setting without a device has no name to update.
    let Some(device) = change.setting.device().cloned() else { return Ok((change, None)) };
    let link = find(&change, &device)?;
    if let Setting::Sysctl { path, .. } | Setting::Sysfs { path, .. } = &mut change.setting {
        *path = renamed(path, &device, &link);
    }
    change.setting.set_device(Device { name: link.name.clone(), ..device });
    Ok((change, Some(link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_by_what_they_mean() {
        assert!(Value("00000003".to_owned()).is("3"));
        assert!(Value("00000000,00000003".to_owned()).is("3"));
        assert!(Value("4096\t131072\t6291456".to_owned()).is("4096 131072 6291456"));
        assert!(Value("0".to_owned()).is("00"));
        assert!(!Value("1500".to_owned()).is("1450"));
        assert!(!Value("on".to_owned()).is("off"));
        assert!(!Value(String::new()).is("0"));
    }
}
