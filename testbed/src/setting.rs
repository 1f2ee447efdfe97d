//! A setting that is varied: put on a testbed, and taken back.
//!
//! `sysctl:KEY=V` is written in every host that has the key, else on the machine
//! (`net.core.netdev_budget`), where a guard process gives the earlier value back
//! even if this one is killed. `ring`, `queues`, `txqueuelen` and `rps` are of
//! the wire's NICs, as is `offload`. Changes joined with `+` are one setting.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sys::ethtool::Ethtool;
use sys::guard::Guard;
use sys::sysfs::Sysfs;

use crate::{Error, Host, NIC, OFFLOAD_FEATURES, Offload, Result};

/// What is changed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    name: String,
    changes: Vec<Change>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// Path below `/proc/sys`, value.
    Sysctl(PathBuf, String),
    /// Descriptors of the NICs' receive and transmit rings.
    Ring(u32),
    /// Queues of the NICs, each way.
    Queues(u32),
    /// Packets in the NICs' transmit queue.
    TxQueueLen(u32),
    /// CPUs that the NICs spread received flows over; 0: none.
    Rps(u32),
    /// What the NICs can do.
    Offload(Offload),
}

/// A setting in effect; dropping it gives back what was there, as
/// [`restore`](Applied::restore) does.
#[derive(Debug, Default)]
pub struct Applied {
    undo: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    HostSysctl { host: Arc<Host>, path: PathBuf, value: String },
    Machine(Guard),
    Ring { host: Arc<Host>, rx: u32, tx: u32 },
    Queues { host: Arc<Host>, rx: u32, tx: u32, combined: u32 },
    Sysfs { host: Arc<Host>, path: String, value: String },
    Features { host: Arc<Host>, earlier: Vec<(String, bool)> },
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Setting {
    /// What `--vary` says: `KIND=VALUE,VALUE…`, a setting a value; or several
    /// changes joined with `+`, each with one value, as one setting.
    ///
    /// # Errors
    /// What is wrong with it, and what is allowed.
    pub fn parse_list(text: &str) -> std::result::Result<Vec<Setting>, String> {
        if text.contains('+') {
            let changes: Vec<Change> = text
                .split('+')
                .map(|one| match &Change::parse_list(one)?[..] {
                    [change] => Ok(change.clone()),
                    _ => Err(format!("{one:?}: changes joined with + have one value each")),
                })
                .collect::<std::result::Result<_, String>>()?;
            return Ok(vec![Setting { name: text.to_owned(), changes }]);
        }
        let changes = Change::parse_list(text)?;
        let kind = text.split_once('=').map_or(text, |(kind, _)| kind);
        Ok(changes
            .into_iter()
            .map(|change| Setting {
                name: format!("{kind}={}", change.value()),
                changes: vec![change],
            })
            .collect())
    }

    /// Puts it on a testbed; what was there comes back with the answer's end.
    ///
    /// # Errors
    /// A change that a device or the kernel refuses; what was changed before it
    /// is given back.
    pub fn apply(&self, hosts: &[Arc<Host>]) -> Result<Applied> {
        let mut applied = Applied::default();
        for change in &self.changes {
            change.apply(hosts, &mut applied.undo)?;
        }
        Ok(applied)
    }
}

impl Change {
    fn parse_list(text: &str) -> std::result::Result<Vec<Change>, String> {
        const ALLOWED: &str = "allowed are sysctl:KEY=VALUE,…, ring=N,…, queues=N,…, \
                               txqueuelen=N,…, rps=CPUS,… and offload=PROFILE,…";
        let (kind, values) =
            text.trim().split_once('=').ok_or_else(|| format!("{text:?}: {ALLOWED}"))?;
        let number = |value: &str, least: u32| {
            let number = value.trim().parse().ok().filter(|number| *number >= least);
            number.ok_or_else(|| format!("{kind}={value}: a number of at least {least}"))
        };
        let numbers = |least, make: fn(u32) -> Change| {
            values.split(',').map(|value| number(value, least).map(make)).collect()
        };
        match kind {
            "ring" => numbers(1, Change::Ring),
            "queues" => numbers(1, Change::Queues),
            "txqueuelen" => numbers(0, Change::TxQueueLen),
            "rps" => numbers(0, Change::Rps),
            "offload" => {
                values.split(',').map(|name| name.trim().parse().map(Change::Offload)).collect()
            }
            _ => {
                let key =
                    kind.strip_prefix("sysctl:").ok_or_else(|| format!("{text:?}: {ALLOWED}"))?;
                let path = sysctl_path(key)?;
                let make = |value: &str| match value.trim() {
                    "" => Err(format!("{kind}: a value is missing")),
                    value => Ok(Change::Sysctl(path.clone(), value.to_owned())),
                };
                values.split(',').map(make).collect()
            }
        }
    }

    fn value(&self) -> String {
        match self {
            Change::Sysctl(_, value) => value.clone(),
            Change::Ring(n) | Change::Queues(n) | Change::TxQueueLen(n) | Change::Rps(n) => {
                n.to_string()
            }
            Change::Offload(profile) => profile.to_string(),
        }
    }

    fn apply(&self, hosts: &[Arc<Host>], undo: &mut Vec<Undo>) -> Result<()> {
        if let Change::Sysctl(path, value) = self {
            return sysctl(hosts, path, value, undo);
        }
        let nics: Vec<_> = hosts.iter().filter(|host| host.netlink().link(NIC).is_ok()).collect();
        if nics.is_empty() {
            return Err(sys::Error::new(
                "set",
                format!("{self:?}: no {NIC}"),
                sys::errno::Errno::ENODEV,
            )
            .into());
        }
        for host in nics {
            self.apply_to_nic(host, undo)?;
        }
        Ok(())
    }

    fn apply_to_nic(&self, host: &Arc<Host>, undo: &mut Vec<Undo>) -> Result<()> {
        let beyond = |what: &str, wanted: u32, most: u32| {
            let object = format!("{wanted} {what} on {NIC} of {}, which takes {most}", host.name());
            Error::from(sys::Error::new("set", object, sys::errno::Errno::EINVAL))
        };
        match *self {
            Change::Ring(n) => {
                let rings = ethtool(host, |ethtool| ethtool.rings(NIC))?;
                if n > rings.rx.most.min(rings.tx.most) {
                    return Err(beyond("descriptors", n, rings.rx.most.min(rings.tx.most)));
                }
                ethtool(host, |ethtool| ethtool.set_rings(NIC, n, n))?;
                let (rx, tx) = (rings.rx.now, rings.tx.now);
                undo.push(Undo::Ring { host: Arc::clone(host), rx, tx });
            }
            Change::Queues(n) => {
                let had = ethtool(host, |ethtool| ethtool.channels(NIC))?;
                let most = if had.combined.most > 0 {
                    had.combined.most
                } else {
                    had.rx.most.min(had.tx.most)
                };
                if n > most {
                    return Err(beyond("queues", n, most));
                }
                ethtool(host, |ethtool| match had.combined.most {
                    0 => ethtool.set_channels(NIC, n, n, 0),
                    _ => ethtool.set_channels(NIC, had.rx.now, had.tx.now, n),
                })?;
                let (rx, tx, combined) = (had.rx.now, had.tx.now, had.combined.now);
                undo.push(Undo::Queues { host: Arc::clone(host), rx, tx, combined });
            }
            Change::TxQueueLen(n) => write(host, "tx_queue_len", &n.to_string(), undo)?,
            Change::Rps(n) => {
                let mask = if n >= 32 { u32::MAX } else { (1 << n) - 1 };
                write(host, "queues/rx-0/rps_cpus", &format!("{mask:x}"), undo)?;
            }
            Change::Offload(profile) => {
                let earlier = host.features(NIC)?.into_iter();
                let earlier = earlier
                    .filter(|(name, _)| OFFLOAD_FEATURES.contains(&name.as_str()))
                    .map(|(name, feature)| (name, feature.active))
                    .collect();
                undo.push(Undo::Features { host: Arc::clone(host), earlier });
                profile.apply(host, NIC)?;
            }
            Change::Sysctl(..) => {}
        }
        Ok(())
    }
}

/// A key below `net`, as a path below `/proc/sys`.
fn sysctl_path(key: &str) -> std::result::Result<PathBuf, String> {
    let path = netstate::proc::sysctl_path(key).filter(|path| path.starts_with("net/"));
    path.map(PathBuf::from)
        .ok_or_else(|| format!("sysctl:{key}: a key below net, as net.core.netdev_budget"))
}

fn sysctl(hosts: &[Arc<Host>], path: &Path, value: &str, undo: &mut Vec<Undo>) -> Result<()> {
    let file = Path::new("/proc/sys").join(path);
    let mut found = false;
    for host in hosts {
        // The tree under /proc/sys/net is that of the thread that opens it.
        let earlier = match host.netns().run(|| std::fs::read_to_string(&file))? {
            Ok(earlier) => earlier,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&file, value, error)),
        };
        host.netns()
            .run(|| std::fs::write(&file, value))?
            .map_err(|error| failed(&file, value, error))?;
        undo.push(Undo::HostSysctl { host: Arc::clone(host), path: file.clone(), value: earlier });
        found = true;
    }
    if !found {
        undo.push(Undo::Machine(Guard::change(&file, value)?));
    }
    Ok(())
}

fn failed(path: &Path, value: &str, error: std::io::Error) -> Error {
    Error::Sysctl { path: path.display().to_string(), value: value.trim().to_owned(), error }
}

fn ethtool<T>(host: &Host, f: impl FnOnce(Ethtool) -> sys::Result<T> + Send) -> Result<T>
where
    T: Send,
{
    Ok(host.netns().run(|| Ethtool::open().and_then(f))??)
}

/// Writes an attribute of a host's NIC below `/sys/class/net`.
fn write(host: &Arc<Host>, attribute: &str, value: &str, undo: &mut Vec<Undo>) -> Result<()> {
    let path = format!("class/net/{NIC}/{attribute}");
    let sysfs = Sysfs::of(host.netns())?;
    let earlier = sysfs.read(&path)?;
    sysfs.write(&path, value)?;
    undo.push(Undo::Sysfs { host: Arc::clone(host), path, value: earlier });
    Ok(())
}

impl Applied {
    /// Gives back what was there, the last change first, all of it even where
    /// one fails.
    ///
    /// # Errors
    /// The first that failed.
    pub fn restore(mut self) -> Result<()> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<()> {
        let mut first = Ok(());
        while let Some(undo) = self.undo.pop() {
            let done = undo.restore();
            if first.is_ok() {
                first = done;
            }
        }
        first
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        // Whoever wants to know calls restore.
        let _ = self.take_back();
    }
}

impl Undo {
    fn restore(self) -> Result<()> {
        match self {
            Undo::Machine(guard) => Ok(guard.restore()?),
            Undo::HostSysctl { host, path, value } => host
                .netns()
                .run(|| std::fs::write(&path, &value))?
                .map_err(|error| failed(&path, &value, error)),
            Undo::Ring { host, rx, tx } => ethtool(&host, |e| e.set_rings(NIC, rx, tx)),
            Undo::Queues { host, rx, tx, combined } => {
                ethtool(&host, |e| e.set_channels(NIC, rx, tx, combined))
            }
            Undo::Features { host, earlier } => {
                let wanted: Vec<(&str, bool)> =
                    earlier.iter().map(|(name, on)| (name.as_str(), *on)).collect();
                host.set_features(NIC, &wanted)
            }
            Undo::Sysfs { host, path, value } => Ok(Sysfs::of(host.netns())?.write(&path, &value)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        Setting::parse_list(text).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_is_a_setting_a_value() {
        assert_eq!(names("ring=512,4096"), ["ring=512", "ring=4096"]);
        assert_eq!(names("offload=none"), ["offload=none"]);
        assert_eq!(
            names("sysctl:net.core.netdev_budget=300,1000"),
            ["sysctl:net.core.netdev_budget=300", "sysctl:net.core.netdev_budget=1000"]
        );
        let both = "ring=4096+sysctl:net.core.netdev_budget=1000";
        assert_eq!(names(both), [both]);
        assert_eq!(Setting::parse_list(both).unwrap()[0].changes.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (bad, named) in [
            ("ring", "allowed are sysctl:KEY"),
            ("ringg=1", "allowed are sysctl:KEY"),
            ("ring=", "a number of at least 1"),
            ("queues=0", "a number of at least 1"),
            ("offload=some", "known: full, no-tunnel, none"),
            ("ring=1,2+queues=1", "one value each"),
            ("sysctl:kernel.panic=1", "a key below net"),
            ("sysctl:net/../kernel/panic=1", "a key below net"),
            ("sysctl:net.core.netdev_budget=", "a value is missing"),
        ] {
            let problem = Setting::parse_list(bad).unwrap_err();
            assert!(problem.contains(named), "{bad}: {problem}");
        }
    }
}
