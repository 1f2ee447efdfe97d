//! Resolves user-visible names of settings in a namespace: devices, groups of features, kinds of
//! queues.

use netstate::Netlink;
use sys::ethtool::{Channels, Ethtool, Feature};

use crate::apply;
use crate::change::{Change, Device, Namespace, Queues, Setting};
use crate::identity;
use crate::offload::Offload;

/// Why a request cannot be converted to changes.
#[derive(Debug, thiserror::Error)]
pub enum ProposalError {
    /// The effect is unknown, and so is the inverse.
    #[error("{0}: no known way to undo it")]
    Unknown(String),
    /// A known form with invalid words.
    #[error("{0}")]
    Wrong(String),
    /// The namespace has no such device.
    #[error("{namespace}: no device {device:?}")]
    NoDevice {
        namespace: String,
        /// Name of the requested device.
        device: String,
    },
    /// All settings already have the requested values.
    #[error("nothing to change: {0}")]
    AlreadySo(String),
    /// A present value cannot be read.
    #[error(transparent)]
    Apply(#[from] apply::Error),
}

impl ProposalError {
    /// Whether the requested device or sysctl does not exist in the namespace.
    pub fn is_absent(&self) -> bool {
        match self {
            ProposalError::NoDevice { .. } => true,
            ProposalError::Apply(error) => error.is_absent(),
            ProposalError::Unknown(_) | ProposalError::Wrong(_) | ProposalError::AlreadySo(_) => {
                false
            }
        }
    }
}

impl From<sys::Error> for ProposalError {
    fn from(error: sys::Error) -> ProposalError {
        ProposalError::Apply(error.into())
    }
}

impl From<netstate::Error> for ProposalError {
    fn from(error: netstate::Error) -> ProposalError {
        ProposalError::Apply(error.into())
    }
}

pub type Result<T> = std::result::Result<T, ProposalError>;

pub(crate) type Desired = (Setting, String);

/// Resolves and collects requested settings of one namespace.
pub(crate) struct Resolver {
    pub(crate) namespace: Namespace,
    pub(crate) desired: Vec<Desired>,
}

impl Resolver {
    pub(crate) fn new(namespace: Namespace) -> Resolver {
        Resolver { namespace, desired: Vec::new() }
    }

    /// Returns the changes, with the present values.
    pub(crate) fn changes(self) -> Result<Vec<Change>> {
        let Resolver { namespace, desired } = self;
        let change = |(setting, to): Desired| {
            // A setting of the machine outlives the namespace in which it was written.
            let of_machine =
                matches!(&setting, Setting::Sysctl { path, .. } if !path.starts_with("net/"));
            let place = (!of_machine).then(|| namespace.clone());
            let mut change = Change { place, setting, from: String::new(), to };
            change.from = apply::read(&change)?.to_string();
            Ok(change)
        };
        desired.into_iter().map(change).collect()
    }

    /// Runs a query in the namespace.
    pub(crate) fn ask<T: Send>(&self, ask: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let gone = || ProposalError::Wrong(format!("namespace {} is gone", self.namespace.label));
        identity::open(&self.namespace)?.ok_or_else(gone)?.run(ask)?
    }

    pub(crate) fn device(&self, name: &str) -> Result<Device> {
        let device = self.ask(|| {
            let links = Netlink::open()?.links()?;
            Ok(links.iter().find(|link| link.name == name).map(Device::of))
        })?;
        device.ok_or_else(|| ProposalError::NoDevice {
            namespace: self.namespace.label.clone(),
            device: name.to_owned(),
        })
    }

    /// Returns features by a name of ethtool(8) or of the kernel.
    pub(crate) fn features(
        &self,
        device: &Device,
        name: &str,
        value: &str,
    ) -> Result<Vec<Desired>> {
        if !["on", "off"].contains(&value) {
            return Err(ProposalError::Wrong(format!(
                "ethtool -K: {name} {value:?}: expected on or off"
            )));
        }
        let known = self.ask(|| Ok(Ethtool::open()?.features(&device.name)?))?;
        let names = kernel_names(name);
        let named: Vec<_> =
            known.iter().filter(|(known, _)| names.iter().any(|name| is_of(known, name))).collect();
        // A misspelt feature would otherwise be measured as one without effect.
        if named.is_empty() {
            return Err(ProposalError::Wrong(format!("{}: no feature {name:?}", device.name)));
        }
        // Skip features of a group that the device does not let change.
        let is_so = |feature: &Feature| feature.active == (value == "on");
        let mut wanted: Vec<_> =
            named.into_iter().filter(|(_, feature)| feature.changeable || is_so(feature)).collect();
        // The driver fixes the feature: the change would fail after the measurement began.
        if wanted.is_empty() {
            return Err(ProposalError::Wrong(format!("{name} of {} is fixed", device.name)));
        }
        // The feature that others of the group depend on has the shortest name. It must be switched
        // on first and off last (`netdev_fix_features`: ECN needs plain TSO).
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

    /// Returns the settings for this number of queues in each direction, of the kind that the
    /// device has.
    pub(crate) fn queues(&self, device: &Device, value: &str) -> Result<Vec<Desired>> {
        let Channels { combined, .. } =
            self.ask(|| Ok(Ethtool::open()?.channels(&device.name)?))?;
        let kinds: &[Queues] =
            if combined.most > 0 { &[Queues::Combined] } else { &[Queues::Rx, Queues::Tx] };
        let desired = |which: &Queues| {
            (Setting::Channels { device: device.clone(), which: *which }, value.to_owned())
        };
        Ok(kinds.iter().map(desired).collect())
    }

    /// Returns the features of an offload profile that the kernel knows.
    pub(crate) fn profile(&self, device: &Device, profile: Offload) -> Result<Vec<Desired>> {
        let known = self.ask(|| Ok(Ethtool::open()?.features(&device.name)?))?;
        let mut wanted = profile.features();
        // Kernels know different features.
        wanted.retain(|(feature, _)| known.contains_key(*feature));
        // The kernel switches off a feature together with the one it depends on, which has the
        // shorter name. So dependent features are switched off first and on last.
        wanted.sort_by_key(|(feature, on)| {
            let length = feature.len() as isize;
            (*on, if *on { length } else { -length })
        });
        let desired = |(feature, on): (&str, bool)| {
            let setting = Setting::Feature { device: device.clone(), feature: feature.to_owned() };
            (setting, if on { "on" } else { "off" }.to_owned())
        };
        Ok(wanted.into_iter().map(desired).collect())
    }
}

pub(crate) fn number_wanted(name: &str, value: &str) -> ProposalError {
    ProposalError::Wrong(format!("{name} {value:?}: expected a 32-bit number"))
}

pub(crate) fn number(name: &str, value: &str) -> Result<String> {
    value.parse::<u32>().map(|n| n.to_string()).map_err(|_| number_wanted(name, value))
}

/// Returns the kernel's features for a name of ethtool(8) (`off_flag_def` of its source). Other
/// names are the kernel's own.
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
