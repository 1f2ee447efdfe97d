//! Parses requests in the form of named settings: `KIND[@DEVICE]=VALUE`.

use std::collections::BTreeSet;
use std::fmt;

use netstate::cpu::parse_list as cpus_in;
use netstate::proc::{read_value, sysctl_path};

use crate::change::{Attribute, Change, Namespace, Setting};
use crate::command_form::coalesce;
use crate::offload::Offload;
use crate::resolve::{Desired, ProposalError, Resolver, Result};

/// Help text of an error for an unknown form.
const ALLOWED: &str = "allowed are sysctl:KEY=VALUE,…, ring=N,…, queues=N,…, \
                       txqueuelen=N,…, rps=CPUS,…, offload=PROFILE,…, mtu=N,…, \
                       gso_max_size=N,…, gso_max_segs=N,…, feature:NAME=on|off, \
                       coalesce:NAME=N,… and sysfs:FILE=VALUE,…; KIND@DEVICE=… names a device";
/// Possible CPUs, as the kernel lists them.
const POSSIBLE_CPUS: &str = "/sys/devices/system/cpu/possible";

/// A named setting with its requested value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSetting {
    kind: Kind,
    /// Text before the `=`.
    name: String,
    device: Option<String>,
    value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Path below `/proc/sys`.
    Sysctl(String),
    /// Descriptors of the receive and the transmit ring.
    Ring,
    /// Number of queues in each direction.
    Queues,
    Link(Attribute),
    /// Number of CPUs, from CPU 0, over which received flows are spread; 0 for none.
    Rps,
    /// Offload profile, a group of features.
    Offload(Offload),
    /// Feature, by its name in ethtool(8) or the kernel.
    Feature(String),
    /// A parameter of interrupt moderation.
    Coalesce(String),
    /// A file below the device's directory in `/sys/class/net`.
    Sysfs(String),
}

/// Kinds without a part after a colon.
const PLAIN: [&str; 8] =
    ["ring", "queues", "txqueuelen", "rps", "offload", "mtu", "gso_max_size", "gso_max_segs"];
/// Kinds with a part after a colon.
const PREFIXES: [&str; 4] = ["sysctl:", "feature:", "coalesce:", "sysfs:"];

impl fmt::Display for NamedSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// Whether a text is a named setting and not a command.
pub(crate) fn is_named(text: &str) -> bool {
    let Some((name, _)) = text.trim().split_once('=') else { return false };
    let kind = name.split_once('@').map_or(name, |(kind, _)| kind);
    PLAIN.contains(&kind)
        || PREFIXES.iter().any(|prefix| kind.starts_with(prefix)) && !name.contains(' ')
}

/// Parses `KIND[@DEVICE]=VALUE,VALUE…`, one setting per value.
///
/// # Errors
/// [`ProposalError::Wrong`], which names the fault and the allowed forms.
pub(crate) fn parse_list(text: &str) -> Result<Vec<NamedSetting>> {
    let text = text.trim();
    let (name, values) =
        text.split_once('=').ok_or_else(|| ProposalError::Wrong(format!("{text:?}: {ALLOWED}")))?;
    values.split(',').map(|value| one(text, name, value.trim())).collect()
}

fn one(text: &str, name: &str, value: &str) -> Result<NamedSetting> {
    let wrong = |problem: String| Err(ProposalError::Wrong(problem));
    let number = |least: u32| {
        let number = value.parse().ok().filter(|number: &u32| *number >= least);
        let problem = format!("{name}={value}: expected a number of at least {least}");
        number.map(|number| number.to_string()).ok_or(ProposalError::Wrong(problem))
    };
    let given = || match value {
        "" => Err(ProposalError::Wrong(format!("{name}: a value is missing"))),
        value => Ok(value.to_owned()),
    };
    if let Some(key) = name.strip_prefix("sysctl:") {
        // A sysctl takes no @DEVICE: the key names its device, whose name may contain an @.
        let Some(path) = sysctl_path(key) else {
            return wrong(format!("sysctl: {key:?} is not a key"));
        };
        let (kind, value) = (Kind::Sysctl(path), given()?);
        return Ok(NamedSetting { kind, name: name.to_owned(), device: None, value });
    }
    let (plain, device) = match name.split_once('@') {
        // An empty name would select the default device by mistake.
        Some((_, "")) => return wrong(format!("{name}: the device is missing")),
        Some((plain, device)) => (plain, Some(device.to_owned())),
        None => (name, None),
    };
    let (kind, value) = match plain {
        "ring" => (Kind::Ring, number(1)?),
        "queues" => (Kind::Queues, number(1)?),
        "txqueuelen" => (Kind::Link(Attribute::Txqueuelen), number(0)?),
        "mtu" => (Kind::Link(Attribute::Mtu), number(1)?),
        "gso_max_size" => (Kind::Link(Attribute::GsoMaxSize), number(0)?),
        "gso_max_segs" => (Kind::Link(Attribute::GsoMaxSegs), number(1)?),
        // `2` for the first two CPUs, `2-3` for a range.
        "rps" if value.contains('-') => match cpus_in(value) {
            Some(cpus) if cpus.last().is_some_and(|last| *last <= MOST_CPU) => {
                (Kind::Rps, value.to_owned())
            }
            _ => {
                return wrong(format!("{name}={value}: expected a number or a range, such as 0-1"));
            }
        },
        "rps" => (Kind::Rps, number(0)?),
        "offload" => {
            let profile: Offload = value.parse().map_err(ProposalError::Wrong)?;
            (Kind::Offload(profile), profile.to_string())
        }
        plain => match plain.split_once(':') {
            Some(("feature", feature)) if ["on", "off"].contains(&value) => {
                (Kind::Feature(feature.to_owned()), value.to_owned())
            }
            Some(("feature", _)) => return wrong(format!("{name}={value}: expected on or off")),
            Some(("coalesce", parameter)) if sys::ethtool::COALESCE.contains(&parameter) => {
                (Kind::Coalesce(parameter.to_owned()), number(0)?)
            }
            Some(("coalesce", parameter)) => {
                return wrong(format!("{name}: {parameter:?} is not a parameter of ethtool -C"));
            }
            Some(("sysfs", file))
                if file.split('/').all(|part| !["", ".", ".."].contains(&part)) =>
            {
                (Kind::Sysfs(file.to_owned()), given()?)
            }
            Some(("sysfs", file)) => {
                return wrong(format!("{name}: {file:?} is not an attribute of a device"));
            }
            _ => return wrong(format!("{text:?}: {ALLOWED}")),
        },
    };
    Ok(NamedSetting { kind, name: name.to_owned(), device, value })
}

impl NamedSetting {
    /// Returns the path below `/proc/sys` of a sysctl.
    pub fn sysctl_path(&self) -> Option<&str> {
        match &self.kind {
            Kind::Sysctl(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the changes of this setting, as [`Request::changes`](crate::Request::changes) does.
    ///
    /// # Errors
    /// [`ProposalError`]; [`ProposalError::is_absent`] if the namespace has no such device or
    /// sysctl.
    pub fn changes(&self, namespace: &Namespace, device: Option<&str>) -> Result<Vec<Change>> {
        let mut resolver = Resolver::new(namespace.clone());
        self.resolve(&mut resolver, device)?;
        resolver.changes()
    }

    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    pub fn value(&self) -> &str {
        &self.value
    }

    /// Resolves the setting in the resolver's namespace; `default` is the device if none is named.
    pub(crate) fn resolve(&self, resolver: &mut Resolver, default: Option<&str>) -> Result<()> {
        let desired = self.desired(resolver, default)?;
        resolver.desired.extend(desired);
        Ok(())
    }

    fn desired(&self, resolver: &Resolver, default: Option<&str>) -> Result<Vec<Desired>> {
        let value = || self.value.clone();
        if let Kind::Sysctl(path) = &self.kind {
            return Ok(vec![(Setting::Sysctl { path: path.clone(), device: None }, value())]);
        }
        let device = self.device.as_deref().or(default).ok_or_else(|| {
            ProposalError::Wrong(format!(
                "{self}: no device named; use {}@DEVICE={}",
                self.name, self.value
            ))
        })?;
        let device = resolver.device(device)?;
        let one = |setting| Ok(vec![(setting, value())]);
        match &self.kind {
            // Not reached: a sysctl returned above.
            Kind::Sysctl(_) => Ok(Vec::new()),
            Kind::Ring => Ok(vec![
                (Setting::ReceiveRing { device: device.clone() }, value()),
                (Setting::TransmitRing { device }, value()),
            ]),
            Kind::Queues => resolver.queues(&device, &self.value),
            Kind::Link(attribute) => one(Setting::Link { device, attribute: *attribute }),
            Kind::Rps => {
                let mask = match self.value.parse::<u32>() {
                    Ok(cpus) => mask(&(0..cpus.min(possible_cpus())).collect()),
                    // `one` accepted numbers and lists only. The kernel refuses impossible CPUs.
                    Err(_) => mask(&cpus_in(&self.value).unwrap_or_default()),
                };
                Ok(vec![(Setting::Rps { device, queue: 0 }, mask)])
            }
            Kind::Offload(profile) => resolver.profile(&device, *profile),
            Kind::Feature(feature) => resolver.features(&device, feature, &self.value),
            Kind::Coalesce(parameter) => coalesce(resolver, &device, parameter, &self.value),
            Kind::Sysfs(file) => {
                let path = format!("class/net/{}/{file}", device.name);
                one(Setting::Sysfs { device: Some(device), path })
            }
        }
    }
}

/// Number of possible CPUs. The kernel refuses a mask with more.
fn possible_cpus() -> u32 {
    let listed = read_value(POSSIBLE_CPUS).ok().and_then(|text| cpus_in(&text));
    listed.and_then(|cpus| cpus.last().map(|last| last + 1)).unwrap_or(u32::BITS)
}

/// Highest CPU number of a range; no kernel has more (`NR_CPUS`).
const MOST_CPU: u32 = 8191;

/// Returns the mask of these CPUs, in hexadecimal words of 32 bits, highest first.
fn mask(cpus: &BTreeSet<u32>) -> String {
    let last = cpus.last().map_or(0, |last| last / 32);
    let word = |at: u32| {
        let own = cpus.iter().filter(|cpu| *cpu / 32 == at);
        own.fold(0_u32, |word, cpu| word | 1 << (cpu % 32))
    };
    let words = (0..=last).rev().enumerate().map(|(place, at)| match place {
        0 => format!("{:x}", word(at)),
        _ => format!("{:08x}", word(at)),
    });
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_a_bit_a_cpu() {
        let first = |cpus: u32| mask(&(0..cpus).collect());
        assert_eq!(first(0), "0");
        assert_eq!(first(2), "3");
        assert_eq!(first(31), "7fffffff");
        assert_eq!(first(32), "ffffffff");
        assert_eq!(first(34), "3,ffffffff");
        assert_eq!(mask(&BTreeSet::from([1, 3])), "a");
        assert_eq!(mask(&BTreeSet::from([32])), "1,00000000");
    }

    #[test]
    fn rps_takes_a_number_or_a_range_of_cpus() {
        let all = parse_list("rps=2,0-1,1-1").unwrap();
        let values: Vec<&str> = all.iter().map(NamedSetting::value).collect();
        assert_eq!(values, ["2", "0-1", "1-1"]);
        for wrong in ["rps=1-0", "rps=-", "rps=a-b", "rps=0-9000", "rps=-1"] {
            let error = parse_list(wrong).unwrap_err().to_string();
            assert!(error.contains("a number or a range"), "{wrong}: {error}");
        }
    }
}
