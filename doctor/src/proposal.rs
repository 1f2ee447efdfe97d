//! A command that is proposed, as changes whose earlier values are read before they
//! are made: what takes it back is then known.
//!
//! `ethtool -K`, `-G`, `-L` and `-C`, `sysctl -w`, `ip link set` of attributes, and
//! `echo VALUE > /sys/…`, each also behind `nsenter --net=`, `ip netns exec` and `ip
//! -n`. Anything else is [`Error::Unknown`]: it takes the command and its inverse.

use netstate::Netlink;
use netstate::proc::sysctl_path;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;

use crate::apply;
use crate::change::{Attribute, Change, Device, Place, Queues, Setting};
use crate::shell::{Word, words};

/// Why a command is not taken as changes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What it does, and so what takes it back, is not known here.
    #[error("{0}: what takes it back is not known")]
    Unknown(String),
    /// A command that is known, with arguments that are not.
    #[error("{0}")]
    Wrong(String),
    /// Everything is so already.
    #[error("nothing to change: {0}")]
    AlreadySo(String),
    /// What there is now cannot be read.
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

impl From<sys::Error> for Error {
    fn from(error: sys::Error) -> Error {
        Error::Apply(error.into())
    }
}

type Result<T> = std::result::Result<T, Error>;

/// What is to be set, and to what.
type Settings = Vec<(Setting, String)>;

/// The changes that a command stands for, with the values there are now. What is so
/// already is left out.
///
/// # Errors
/// [`Error`].
pub fn changes(command: &str) -> Result<Vec<Change>> {
    let words = words(command).map_err(Error::Unknown)?;
    let mut proposal = Proposal { place: Place::here()?, settings: Vec::new() };
    proposal.read(&words)?;
    let Proposal { place, settings } = proposal;
    let mut changes = Vec::new();
    let mut already = Vec::new();
    for (setting, to) in settings {
        // A setting of the machine outlives the namespace in which it was written.
        let of_machine = matches!(&setting, Setting::Sysctl { path } if !path.starts_with("net/"));
        let place = (!of_machine).then(|| place.clone());
        let mut change = Change { place, setting, from: String::new(), to };
        let now = apply::read(&change)?;
        if now.is(&change.to) {
            already.push(format!("{} is {now}", change.object()));
            continue;
        }
        change.from = now.to_string();
        changes.push(change);
    }
    if changes.is_empty() { Err(Error::AlreadySo(already.join(", "))) } else { Ok(changes) }
}

struct Proposal {
    place: Place,
    settings: Settings,
}

impl Proposal {
    fn read(&mut self, all: &[Word]) -> Result<()> {
        let unknown = || Error::Unknown(Word::line(all));
        if let [command @ .., Word::To(file)] = all {
            let [echo, value] = &plain(command).ok_or_else(unknown)?[..] else {
                return Err(unknown());
            };
            return if *echo == "echo" { self.sysfs(file, value) } else { Err(unknown()) };
        }
        let line = plain(all).ok_or_else(unknown)?;
        let program = line.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
        match (program, line.get(1..).unwrap_or_default()) {
            ("sudo", rest) if rest.first().is_some_and(|word| !word.starts_with('-')) => {
                self.read(&all[1..])
            }
            ("nsenter", [net, rest @ ..]) if !rest.is_empty() => {
                let path = net.strip_prefix("--net=").ok_or_else(unknown)?;
                self.enter(path)?;
                self.read(&all[2..])
            }
            ("ip", ["netns", "exec", name, rest @ ..]) if !rest.is_empty() => {
                self.enter(&format!("/run/netns/{name}"))?;
                self.read(&all[4..])
            }
            ("ip", ["-n" | "-netns", name, rest @ ..]) => {
                self.enter(&format!("/run/netns/{name}"))?;
                self.link(rest).ok_or_else(unknown)?
            }
            ("ip", rest) => self.link(rest).ok_or_else(unknown)?,
            ("sh" | "bash", ["-c", script]) => self.read(&words(script).map_err(Error::Unknown)?),
            ("ethtool", [option, device, rest @ ..]) if !rest.is_empty() => {
                self.ethtool(option, device, rest).ok_or_else(unknown)?
            }
            ("sysctl", rest) => self.sysctl(rest).ok_or_else(unknown)?,
            _ => Err(unknown()),
        }
    }

    fn enter(&mut self, path: &str) -> Result<()> {
        let inode = NetNs::open(path.as_ref())?.inode();
        let label = path.rsplit('/').next().unwrap_or(path).to_owned();
        self.place = Place { inode, path: Some(path.to_owned()), label };
        Ok(())
    }

    /// Asks in the namespace.
    fn ask<T: Send>(&self, ask: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let gone = || Error::Wrong(format!("namespace {} is gone", self.place.label));
        apply::open(&self.place)?.ok_or_else(gone)?.run(ask)?
    }

    fn device(&self, name: &str) -> Result<Device> {
        let index = self.ask(|| {
            let links = Netlink::open().map_err(apply::Error::from)?.links();
            let links = links.map_err(apply::Error::from)?;
            Ok(links.into_iter().find(|link| link.name == name).map(|link| link.index))
        })?;
        let label = &self.place.label;
        let index = index.ok_or_else(|| Error::Wrong(format!("{label}: no device {name:?}")))?;
        Ok(Device { name: name.to_owned(), index })
    }

    /// `ip [link] set [dev] NAME ATTRIBUTE VALUE …`; `None` where it is another.
    fn link(&mut self, words: &[&str]) -> Option<Result<()>> {
        let rest = match words {
            ["link" | "l", "set" | "s", "dev", rest @ ..] => rest,
            ["link" | "l", "set" | "s", rest @ ..] => rest,
            _ => return None,
        };
        let (name, mut rest) = rest.split_first()?;
        const NUMBERS: [Attribute; 4] =
            [Attribute::Mtu, Attribute::Txqueuelen, Attribute::GsoMaxSize, Attribute::GsoMaxSegs];
        let mut wanted = Vec::new();
        loop {
            let (attribute, value) = match rest {
                [] => break,
                [state @ ("up" | "down"), ..] => {
                    rest = &rest[1..];
                    (Attribute::State, (*state).to_owned())
                }
                [word, value, ..] => {
                    let known = |attribute: &Attribute| {
                        attribute.word() == *word
                            || *attribute == Attribute::Txqueuelen && *word == "qlen"
                    };
                    let attribute = NUMBERS.into_iter().find(known)?;
                    rest = &rest[2..];
                    match value.parse::<u32>() {
                        Ok(number) => (attribute, number.to_string()),
                        Err(_) => return Some(Err(number_wanted(word, value))),
                    }
                }
                _ => return None,
            };
            wanted.push((attribute, value));
        }
        if wanted.is_empty() {
            return None;
        }
        Some(self.device(name).map(|device| {
            self.settings.extend(wanted.into_iter().map(|(attribute, value)| {
                (Setting::Link { device: device.clone(), attribute }, value)
            }));
        }))
    }

    /// `ethtool -K|-G|-L|-C DEVICE NAME VALUE …`; `None` where it is another.
    fn ethtool(&mut self, option: &str, device: &str, words: &[&str]) -> Option<Result<()>> {
        let set: fn(&Proposal, &Device, &str, &str) -> Result<Settings> = match option {
            "-K" | "--features" | "--offload" => Proposal::features,
            "-G" | "--set-ring" => ring,
            "-L" | "--set-channels" => channels,
            "-C" | "--coalesce" => coalesce,
            _ => return None,
        };
        let pairs = || {
            let device = self.device(device)?;
            let mut settings = Vec::new();
            for pair in words.chunks(2) {
                let [name, value] = pair else {
                    return Err(Error::Wrong(format!(
                        "ethtool {option}: {} has no value",
                        pair[0]
                    )));
                };
                settings.extend(set(self, &device, name, value)?);
            }
            Ok(settings)
        };
        Some(pairs().map(|settings| self.settings.extend(settings)))
    }

    fn features(&self, device: &Device, name: &str, value: &str) -> Result<Settings> {
        if !["on", "off"].contains(&value) {
            return Err(Error::Wrong(format!("ethtool -K: {name} {value:?}: wanted on or off")));
        }
        let known = self.ask(|| Ok(Ethtool::open()?.features(&device.name)?))?;
        let names = kernel_names(name);
        // A group is switched as far as the device lets it be.
        let mut wanted: Vec<_> = known
            .iter()
            .filter(|(known, _)| names.iter().any(|name| is_of(known, name)))
            .filter(|(_, feature)| feature.changeable)
            .filter(|(_, feature)| names.len() == 1 || feature.active != (value == "on"))
            .collect();
        if wanted.is_empty() && !known.keys().any(|known| names.iter().any(|n| is_of(known, n))) {
            return Err(Error::Wrong(format!("{}: no feature {name:?}", device.name)));
        }
        if wanted.is_empty() {
            let state = format!("{name} of {} is fixed, or {value} already", device.name);
            return Err(Error::AlreadySo(state));
        }
        // The one that others of its group need has the shortest name, and is to be the
        // first on and the last off (`netdev_fix_features`: ECN needs plain TSO).
        wanted.sort_by_key(|(feature, _)| feature.len());
        if value == "off" {
            wanted.reverse();
        }
        let setting = |feature: &String| Setting::Feature {
            device: device.clone(),
            feature: feature.clone(),
        };
        Ok(wanted.iter().map(|(feature, _)| (setting(feature), value.to_owned())).collect())
    }

    /// `sysctl -w KEY=VALUE …`; `None` where it is another.
    fn sysctl(&mut self, words: &[&str]) -> Option<Result<()>> {
        let mut settings = Vec::new();
        for word in words.iter().filter(|word| !["-w", "-q", "-wq", "-qw"].contains(*word)) {
            let (key, value) = word.split_once('=')?;
            let Some(path) = sysctl_path(key.trim()) else {
                return Some(Err(Error::Wrong(format!("sysctl: {key:?} is no key"))));
            };
            settings.push((Setting::Sysctl { path }, value.trim().to_owned()));
        }
        if settings.is_empty() {
            return None;
        }
        self.settings.extend(settings);
        Some(Ok(()))
    }

    /// `echo VALUE > /sys/…`.
    fn sysfs(&mut self, file: &str, value: &str) -> Result<()> {
        let path = file.strip_prefix("/sys/").filter(|path| !path.split('/').any(|p| p == ".."));
        let path = path.ok_or_else(|| Error::Unknown(format!("echo {value} > {file}")))?;
        let parts: Vec<&str> = path.split('/').collect();
        let device = match &parts[..] {
            ["class", "net", name, _, ..] => Some(self.device(name)?),
            _ => None,
        };
        let setting = match (&device, &parts[..]) {
            (Some(device), ["class", "net", _, "queues", queue, "rps_cpus"]) => {
                let queue = queue.strip_prefix("rx-").and_then(|number| number.parse().ok());
                queue.map(|queue| Setting::Rps { device: device.clone(), queue })
            }
            _ => None,
        };
        let setting = setting.unwrap_or(Setting::Sysfs { device, path: path.to_owned() });
        self.settings.push((setting, value.to_owned()));
        Ok(())
    }
}

/// The words of a simple command; `None` with anything else in it.
fn plain(words: &[Word]) -> Option<Vec<&str>> {
    words
        .iter()
        .map(|word| if let Word::Plain(word) = word { Some(&**word) } else { None })
        .collect()
}

fn number_wanted(name: &str, value: &str) -> Error {
    Error::Wrong(format!("{name} {value:?}: wanted a number of 32 bits"))
}

fn number(name: &str, value: &str) -> Result<String> {
    value.parse::<u32>().map(|n| n.to_string()).map_err(|_| number_wanted(name, value))
}

fn ring(_: &Proposal, device: &Device, name: &str, value: &str) -> Result<Settings> {
    let device = device.clone();
    let setting = match name {
        "rx" => Setting::ReceiveRing { device },
        "tx" => Setting::TransmitRing { device },
        _ => return Err(Error::Unknown(format!("ethtool -G {} {name}", device.name))),
    };
    Ok(vec![(setting, number(name, value)?)])
}

fn channels(_: &Proposal, device: &Device, name: &str, value: &str) -> Result<Settings> {
    let all = [Queues::Rx, Queues::Tx, Queues::Combined];
    let which = all.into_iter().find(|which| which.word() == name);
    let which =
        which.ok_or_else(|| Error::Unknown(format!("ethtool -L {} {name}", device.name)))?;
    Ok(vec![(Setting::Channels { device: device.clone(), which }, number(name, value)?)])
}

fn coalesce(_: &Proposal, device: &Device, name: &str, value: &str) -> Result<Settings> {
    if !sys::ethtool::COALESCE.contains(&name) {
        return Err(Error::Unknown(format!("ethtool -C {} {name}", device.name)));
    }
    let value = match value {
        "on" => "1",
        "off" => "0",
        value => value,
    };
    let setting = Setting::Coalesce { device: device.clone(), parameter: name.to_owned() };
    Ok(vec![(setting, number(name, value)?)])
}

/// The kernel's features behind a name that ethtool(8) has for them
/// (`off_flag_def` of its source); any other name is the kernel's own.
fn kernel_names(name: &str) -> Vec<&str> {
    match name {
        "rx" | "rx-checksumming" => vec!["rx-checksum"],
        "tx" | "tx-checksumming" => vec!["tx-checksum-*"],
        "sg" | "scatter-gather" => vec!["tx-scatter-gather", "tx-scatter-gather-fraglist"],
        "tso" | "tcp-segmentation-offload" => vec!["tx-tcp-*", "tx-tcp6-segmentation"],
        "ufo" | "udp-fragmentation-offload" => vec!["tx-udp-fragmentation"],
        "gso" | "generic-segmentation-offload" => vec!["tx-generic-segmentation"],
        "gro" | "generic-receive-offload" => vec!["rx-gro"],
        "lro" | "large-receive-offload" => vec!["rx-lro"],
        "rxvlan" | "rx-vlan-offload" => vec!["rx-vlan-hw-parse"],
        "txvlan" | "tx-vlan-offload" => vec!["tx-vlan-hw-insert"],
        "ntuple" | "ntuple-filters" => vec!["rx-ntuple-filter"],
        "rxhash" | "receive-hashing" => vec!["rx-hashing"],
        name => vec![name],
    }
}

fn is_of(feature: &str, name: &str) -> bool {
    match name.strip_suffix('*') {
        Some(beginning) => feature.starts_with(beginning),
        None => feature == name,
    }
}
