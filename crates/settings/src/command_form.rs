//! Parses requests in the form of shell commands.
//!
//! - `ethtool -K`, `-G`, `-L` and `-C`;
//! - `sysctl -w`;
//! - `ip link set` of attributes;
//! - `echo VALUE > /sys/…`.
//!
//! Each is also accepted after `nsenter --net=`, `ip netns exec` and `ip -n`.

use netstate::proc::sysctl_path;
use sys::netns::NetNs;

use crate::change::{Attribute, Device, Namespace, Queues, Setting};
use crate::resolve::{Desired, ProposalError, Resolver, Result, number, number_wanted};
use crate::shell::{Word, words};

/// Converts a name and a value of an ethtool(8) option.
type Pair = fn(&Resolver, &Device, &str, &str) -> Result<Vec<Desired>>;

/// Adds the settings of a command, in the resolver's namespace or in the namespace that the command
/// names.
///
/// # Errors
/// [`ProposalError::Unknown`] if the inverse is unknown; [`ProposalError::Wrong`].
pub(crate) fn read(resolver: &mut Resolver, command: &str) -> Result<()> {
    resolver.read(&words(command).map_err(ProposalError::Unknown)?)
}

impl Resolver {
    fn read(&mut self, all: &[Word]) -> Result<()> {
        let unknown = || ProposalError::Unknown(Word::line(all));
        if let [command @ .., Word::To(file)] = all {
            // More than one word would need the shell's own quoting rules.
            let [echo, value] = &plain(command).ok_or_else(unknown)?[..] else {
                return Err(unknown());
            };
            return if *echo == "echo" { self.echo(file, value) } else { Err(unknown()) };
        }
        let line = plain(all).ok_or_else(unknown)?;
        let program = line.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
        match (program, line.get(1..).unwrap_or_default()) {
            // Options of sudo (`-u`, `-i`) change more than the user, so the effect is unknown.
            ("sudo", rest) if rest.first().is_some_and(|word| !word.starts_with('-')) => {
                self.read(&all[1..])
            }
            ("nsenter", [net, rest @ ..]) if !rest.is_empty() => {
                // Other options enter further namespaces, or name the process instead of a path.
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
            ("sh" | "bash", ["-c", script]) => {
                self.read(&words(script).map_err(ProposalError::Unknown)?)
            }
            ("ethtool", [option, device, rest @ ..]) if !rest.is_empty() => {
                self.ethtool(option, device, rest).ok_or_else(unknown)?
            }
            ("sysctl", rest) => self.sysctl(rest).ok_or_else(unknown)?,
            _ => Err(unknown()),
        }
    }

    fn enter(&mut self, path: &str) -> Result<()> {
        let netns = NetNs::open(path.as_ref())?;
        // The last part of the path is the name users know.
        let label = path.rsplit('/').next().unwrap_or(path);
        self.namespace = Namespace::of(&netns, Some(path.to_owned()), label)?;
        Ok(())
    }

    /// Parses `ip [link] set [dev] NAME ATTRIBUTE VALUE …`; `None` for another command.
    fn link(&mut self, words: &[&str]) -> Option<Result<()>> {
        let rest = match words {
            ["link" | "l", "set" | "s", "dev", rest @ ..] => rest,
            ["link" | "l", "set" | "s", rest @ ..] => rest,
            // Other objects and actions of ip are unknown, so their inverse is.
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
        // It contains no known setting: the shell runs the command.
        if wanted.is_empty() {
            return None;
        }
        Some(self.device(name).map(|device| {
            self.desired.extend(wanted.into_iter().map(|(attribute, value)| {
                (Setting::Link { device: device.clone(), attribute }, value)
            }));
        }))
    }

    /// Parses `ethtool -K|-G|-L|-C DEVICE NAME VALUE …`; `None` for another command.
    fn ethtool(&mut self, option: &str, device: &str, words: &[&str]) -> Option<Result<()>> {
        let set: Pair = match option {
            "-K" | "--features" | "--offload" => Resolver::features,
            "-G" | "--set-ring" => ring,
            "-L" | "--set-channels" => channels,
            "-C" | "--coalesce" => coalesce,
            // Other options are unknown, so their inverse is.
            _ => return None,
        };
        let pairs = || {
            let device = self.device(device)?;
            let mut desired = Vec::new();
            for pair in words.chunks(2) {
                // An odd number of words: the last name has no value.
                let [name, value] = pair else {
                    return Err(ProposalError::Wrong(format!(
                        "ethtool {option}: {} has no value",
                        pair[0]
                    )));
                };
                desired.extend(set(self, &device, name, value)?);
            }
            Ok(desired)
        };
        Some(pairs().map(|desired| self.desired.extend(desired)))
    }

    /// Parses `sysctl -w KEY=VALUE …`; `None` for another command.
    fn sysctl(&mut self, words: &[&str]) -> Option<Result<()>> {
        let mut desired = Vec::new();
        for word in words.iter().filter(|word| !["-w", "-q", "-wq", "-qw"].contains(*word)) {
            // Without `=` the word is another option, or a key to read.
            let (key, value) = word.split_once('=')?;
            let Some(path) = sysctl_path(key.trim()) else {
                return Some(Err(ProposalError::Wrong(format!("sysctl: {key:?} is not a key"))));
            };
            desired.push((Setting::Sysctl { path, device: None }, value.trim().to_owned()));
        }
        // Without an assignment the command only reads.
        if desired.is_empty() {
            return None;
        }
        self.desired.extend(desired);
        Some(Ok(()))
    }

    /// Parses `echo VALUE > /sys/…`.
    fn echo(&mut self, file: &str, value: &str) -> Result<()> {
        // With `..` one file would have several names.
        let path = file.strip_prefix("/sys/").filter(|path| !path.split('/').any(|p| p == ".."));
        let path = path.ok_or_else(|| ProposalError::Unknown(format!("echo {value} > {file}")))?;
        let parts: Vec<&str> = path.split('/').collect();
        let device = match &parts[..] {
            ["class", "net", name, _, ..] => Some(self.device(name)?),
            // Attributes elsewhere belong to no device.
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
        self.desired.push((setting, value.to_owned()));
        Ok(())
    }
}

/// Returns the words of a simple command; `None` if it redirects output.
fn plain(words: &[Word]) -> Option<Vec<&str>> {
    words
        .iter()
        .map(|word| if let Word::Plain(word) = word { Some(&**word) } else { None })
        .collect()
}

fn ring(_: &Resolver, device: &Device, name: &str, value: &str) -> Result<Vec<Desired>> {
    let device = device.clone();
    let setting = match name {
        "rx" => Setting::ReceiveRing { device },
        "tx" => Setting::TransmitRing { device },
        _ => return Err(ProposalError::Unknown(format!("ethtool -G {} {name}", device.name))),
    };
    Ok(vec![(setting, number(name, value)?)])
}

fn channels(_: &Resolver, device: &Device, name: &str, value: &str) -> Result<Vec<Desired>> {
    let all = [Queues::Rx, Queues::Tx, Queues::Combined];
    let which = all.into_iter().find(|which| which.word() == name);
    let which = which
        .ok_or_else(|| ProposalError::Unknown(format!("ethtool -L {} {name}", device.name)))?;
    Ok(vec![(Setting::Channels { device: device.clone(), which }, number(name, value)?)])
}

pub(crate) fn coalesce(
    _: &Resolver,
    device: &Device,
    name: &str,
    value: &str,
) -> Result<Vec<Desired>> {
    // Only parameters that can be read back are known.
    if !sys::ethtool::COALESCE.contains(&name) {
        return Err(ProposalError::Unknown(format!("ethtool -C {} {name}", device.name)));
    }
    let value = match value {
        "on" => "1",
        "off" => "0",
        value => value,
    };
    let setting = Setting::Coalesce { device: device.clone(), parameter: name.to_owned() };
    Ok(vec![(setting, number(name, value)?)])
}
