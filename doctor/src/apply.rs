//! Reading and writing one setting, where it is.

use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use netstate::Netlink;
use netstate::interface::Interface;
use netstate::namespace::{discover, first};
use netstate::proc::read_value;
use sys::errno::Errno;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use sys::sysfs::Sysfs;

use crate::change::{Attribute, Change, Device, Place, Queues, Setting};
use crate::view::vxlan_overhead;

/// Why a setting could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call.
    #[error(transparent)]
    Sys(#[from] sys::Error),
    /// Netlink.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// What it is a setting of is not there any more.
    #[error("{object}: {reason}")]
    Gone {
        /// The setting.
        object: String,
        /// What is gone.
        reason: String,
    },
    /// A command that failed, or could not be run.
    #[error("{command}: {status}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Command {
        /// The command.
        command: String,
        /// How it ended.
        status: String,
        /// The end of what it wrote to standard error.
        said: Option<String>,
    },
    /// A value that could not be put back.
    #[error("{object}: not changed, as {from} could not be put back: {reason}")]
    OneWay {
        /// The setting.
        object: String,
        /// The value there is.
        from: String,
        /// What the kernel would say to it.
        reason: String,
    },
    /// Another form than expected.
    #[error("{object}: expected {expected}, got {got:?}")]
    Form {
        /// The setting.
        object: String,
        /// What was expected.
        expected: &'static str,
        /// What was there.
        got: String,
    },
}

/// A setting's value, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(String);

impl Value {
    /// Whether it is the same as another one, which may be written otherwise: the
    /// kernel pads masks with zeros and separates columns with tabs.
    pub fn is(&self, other: &str) -> bool {
        let plain = |text: &str| {
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            words.join(" ")
        };
        let mask = |text: &str| text.replace(',', "").trim_start_matches('0').to_owned();
        let (a, b) = (plain(&self.0), plain(other));
        a == b
            || !a.is_empty() && !b.is_empty() && is_mask(&a) && is_mask(&b) && mask(&a) == mask(&b)
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_mask(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b',')
}

/// Reads the setting now.
///
/// # Errors
/// [`Error::Gone`] when the namespace or device is not there any more.
pub fn read(change: &Change) -> Result<Value, Error> {
    within(change, |netns| read_here(change, netns)).map(Value)
}

/// Writes the setting; a command is run.
///
/// # Errors
/// As [`read`], and what the kernel answers; [`Error::Command`].
pub fn write(change: &Change, value: &str) -> Result<(), Error> {
    within(change, |netns| write_here(change, netns, value))
}

/// Whether the kernel would take the earlier value again, as far as that can be known
/// before.
///
/// # Errors
/// [`Error::OneWay`] where it would not; as [`read`].
pub(crate) fn can_be_taken_back(change: &Change) -> Result<(), Error> {
    let Setting::Link { device, attribute: Attribute::Mtu } = &change.setting else {
        return Ok(());
    };
    within(change, |_| {
        let links = Netlink::open()?.links()?;
        let reason = match links.iter().find(|link| link.index == device.index) {
            Some(link) => mtu_is_above(link, &links, &change.from),
            None => None,
        };
        reason.map_or(Ok(()), |reason| {
            let (object, from) = (change.object(), change.from.clone());
            Err(Error::OneWay { object, from, reason })
        })
    })
}

/// Why a device would not take this MTU: one that was made on another device may have
/// its MTU at the most, less what it adds (`vxlan_change_mtu`, `macvlan_change_mtu`,
/// `vlan_dev_change_mtu`). It keeps a larger one when that device's is lowered later.
pub(crate) fn mtu_is_above(link: &Interface, links: &[Interface], mtu: &str) -> Option<String> {
    let mtu: u32 = mtu.parse().ok()?;
    if link.link_netns.is_some() {
        return None;
    }
    let (index, added) = match link.kind.as_deref()? {
        "vxlan" => {
            let vxlan = link.vxlan.as_ref()?;
            // With neither address it is IPv4's.
            let any = vxlan.remote.or(vxlan.local).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            (vxlan.device?, vxlan_overhead(any))
        }
        "macvlan" | "ipvlan" | "vlan" => (link.link?, 0),
        _ => return None,
    };
    let below = links.iter().find(|link| link.index == index)?;
    let most = below.mtu.saturating_sub(added);
    (mtu > most).then(|| format!("{} has {}: at most {most}", below.name, below.mtu))
}

/// Runs in the change's namespace.
fn within<T: Send>(
    change: &Change,
    work: impl FnOnce(&NetNs) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let netns = match &change.place {
        None => of_the_machine(&change.setting)?,
        Some(place) => {
            let reason = || format!("namespace net:[{}] is gone", place.inode);
            open(place)?.ok_or_else(|| Error::Gone { object: change.object(), reason: reason() })?
        }
    };
    netns.run(|| work(&netns))?
}

/// The namespace that a setting of the machine is written in: those of the network can
/// be read in some, and written in the first only.
fn of_the_machine(setting: &Setting) -> Result<NetNs, Error> {
    match setting {
        Setting::Sysctl { path } if path.starts_with("net/") => {
            // Without the right to it the answer is the file's.
            first().map_or_else(|| Ok(NetNs::current()?), Ok)
        }
        _ => Ok(NetNs::current()?),
    }
}

/// A namespace, by the path that it had or, where another one is there by now, by
/// whatever else leads to it.
pub(crate) fn open(place: &Place) -> Result<Option<NetNs>, Error> {
    let netns = match &place.path {
        None => Some(NetNs::current()?),
        Some(path) => match NetNs::open(path.as_ref()) {
            Err(error) if error.errno == Errno::ENOENT => None,
            answer => Some(answer?),
        },
    };
    if let Some(netns) = netns.filter(|netns| netns.inode() == place.inode) {
        return Ok(Some(netns));
    }
    Ok(discover()?.namespaces.remove(&place.inode).map(|found| found.netns))
}

/// Runs a command for a shell to its end, in the calling thread's namespaces.
fn run(command: &str) -> Result<(), Error> {
    /// As much of what it said as a message can hold, bytes.
    const SAID: usize = 300;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null());
    // What it leaves running must neither hold a pipe open nor write to a terminal.
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
    if status.success() {
        return Ok(());
    }
    let mut said = vec![0; SAID];
    let length = written.read_at(&mut said, 0).unwrap_or(0);
    let said = String::from_utf8_lossy(&said[..length]).trim().to_owned();
    Err(failed(status.to_string(), (!said.is_empty()).then_some(said)))
}

fn read_here(change: &Change, netns: &NetNs) -> Result<String, Error> {
    match &change.setting {
        Setting::Sysctl { path } => {
            let file = format!("/proc/sys/{path}");
            read_value(&file).map_err(|error| Error::Form {
                object: change.object(),
                expected: "a value",
                got: error.to_string(),
            })
        }
        Setting::Feature { device, feature } => {
            interface(change, device)?;
            let features = Ethtool::open()?.features(&device.name)?;
            let state = features.get(feature).ok_or_else(|| Error::Form {
                object: change.object(),
                expected: "a feature that the kernel knows",
                got: feature.clone(),
            })?;
            Ok(if state.active { "on" } else { "off" }.to_owned())
        }
        Setting::Link { device, attribute } => {
            let link = interface(change, device)?;
            let number = match attribute {
                Attribute::Mtu => Some(link.mtu),
                Attribute::Txqueuelen => Some(link.tx_queue_len),
                Attribute::GsoMaxSize => link.gso_ipv4_max_size.or(link.gso_max_size),
                Attribute::GsoMaxSegs => link.gso_max_segs,
                Attribute::State => {
                    return Ok(if link.up { "up" } else { "down" }.to_owned());
                }
            };
            let number = number.map(|number| number.to_string());
            number.ok_or_else(|| Error::Form {
                object: change.object(),
                expected: "a number",
                got: "nothing".to_owned(),
            })
        }
        Setting::ReceiveRing { device } => {
            interface(change, device)?;
            Ok(Ethtool::open()?.rings(&device.name)?.rx.now.to_string())
        }
        Setting::TransmitRing { device } => {
            interface(change, device)?;
            Ok(Ethtool::open()?.rings(&device.name)?.tx.now.to_string())
        }
        Setting::Channels { device, which } => {
            interface(change, device)?;
            let channels = Ethtool::open()?.channels(&device.name)?;
            let amount = match which {
                Queues::Rx => channels.rx,
                Queues::Tx => channels.tx,
                Queues::Combined => channels.combined,
            };
            Ok(amount.now.to_string())
        }
        Setting::Coalesce { device, parameter } => {
            interface(change, device)?;
            Ok(Ethtool::open()?.coalesce(&device.name, parameter)?.to_string())
        }
        Setting::Sysfs { device, path } => {
            device.as_ref().map(|device| interface(change, device)).transpose()?;
            Ok(Sysfs::of(netns)?.read(path)?)
        }
        Setting::Command => Err(Error::Form {
            object: change.object(),
            expected: "a setting that can be read",
            got: "a command".to_owned(),
        }),
        Setting::Rps { device, queue } => {
            interface(change, device)?;
            Ok(Sysfs::of(netns)?.read(&rps_file(device, *queue))?)
        }
    }
}

fn write_here(change: &Change, netns: &NetNs, value: &str) -> Result<(), Error> {
    let number = || {
        value.parse::<u32>().map_err(|_| Error::Form {
            object: change.object(),
            expected: "a number of 32 bits",
            got: value.to_owned(),
        })
    };
    match &change.setting {
        Setting::Sysctl { path } => {
            let file = format!("/proc/sys/{path}");
            std::fs::write(&file, value).map_err(|e| sys::Error::io("write", file, &e))?;
        }
        Setting::Feature { device, feature } => {
            interface(change, device)?;
            Ethtool::open()?.set_features(&device.name, &[(feature.as_str(), value == "on")])?;
        }
        Setting::Link { device, attribute } => {
            interface(change, device)?;
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
            interface(change, device)?;
            let ethtool = Ethtool::open()?;
            let tx = ethtool.rings(&device.name)?.tx.now;
            ethtool.set_rings(&device.name, number()?, tx)?;
        }
        Setting::TransmitRing { device } => {
            interface(change, device)?;
            let ethtool = Ethtool::open()?;
            let rx = ethtool.rings(&device.name)?.rx.now;
            ethtool.set_rings(&device.name, rx, number()?)?;
        }
        Setting::Channels { device, which } => {
            interface(change, device)?;
            let ethtool = Ethtool::open()?;
            let now = ethtool.channels(&device.name)?;
            let (mut rx, mut tx, mut combined) = (now.rx.now, now.tx.now, now.combined.now);
            match which {
                Queues::Rx => rx = number()?,
                Queues::Tx => tx = number()?,
                Queues::Combined => combined = number()?,
            }
            ethtool.set_channels(&device.name, rx, tx, combined)?;
        }
        Setting::Coalesce { device, parameter } => {
            interface(change, device)?;
            Ethtool::open()?.set_coalesce(&device.name, parameter, number()?)?;
        }
        Setting::Sysfs { device, path } => {
            device.as_ref().map(|device| interface(change, device)).transpose()?;
            Sysfs::of(netns)?.write(path, value)?;
        }
        Setting::Command => run(value)?,
        Setting::Rps { device, queue } => {
            interface(change, device)?;
            Sysfs::of(netns)?.write(&rps_file(device, *queue), value)?;
        }
    }
    Ok(())
}

fn rps_file(device: &Device, queue: u32) -> String {
    format!("class/net/{}/queues/rx-{queue}/rps_cpus", device.name)
}

/// The device, if it is still the same one.
fn interface(change: &Change, device: &Device) -> Result<Interface, Error> {
    let all = Netlink::open()?.links()?;
    let found = all.into_iter().find(|link| link.index == device.index && link.name == device.name);
    found.ok_or_else(|| Error::Gone {
        object: change.object(),
        reason: format!("device {} (index {}) is gone", device.name, device.index),
    })
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
