//! Offload profiles: what the wire's NICs can do.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Host, Result};

/// What the NICs of a wire have switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offload {
    /// TSO, GSO, tunnel segmentation, GRO.
    Full,
    /// As full, without UDP tunnel segmentation.
    NoTunnel,
    /// Neither TSO, GSO, tunnel segmentation nor GRO.
    None,
}

/// The features that a profile sets, as the kernel names them
/// (`net/ethtool/common.c`, `netdev_features_strings`).
pub const OFFLOAD_FEATURES: [&str; 9] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-udp-segmentation",
    "tx-generic-segmentation",
    "rx-gro",
    TUNNEL[0],
    TUNNEL[1],
];

const TUNNEL: [&str; 2] = ["tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation"];

impl Offload {
    /// Every profile.
    pub const ALL: [Offload; 3] = [Offload::Full, Offload::NoTunnel, Offload::None];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Offload::Full => "full",
            Offload::NoTunnel => "no-tunnel",
            Offload::None => "none",
        }
    }

    fn wants(self, feature: &str) -> bool {
        match self {
            Offload::Full => true,
            Offload::NoTunnel => !TUNNEL.contains(&feature),
            Offload::None => false,
        }
    }

    /// Sets the profile on a device and reads back that it took.
    ///
    /// # Errors
    /// [`Error::Offload`] naming the feature that did not take.
    pub fn apply(self, host: &Host, device: &str) -> Result<()> {
        let known = host.features(device)?;
        let wanted: Vec<(&str, bool)> = OFFLOAD_FEATURES
            .into_iter()
            .filter(|feature| known.contains_key(*feature))
            .map(|feature| (feature, self.wants(feature)))
            .collect();
        host.set_features(device, &wanted)?;
        let now = host.features(device)?;
        for (feature, on) in wanted {
            if now[feature].active != on {
                let word = |on| if on { "on" } else { "off" };
                return Err(Error::Offload {
                    device: format!("{} {device}", host.name()),
                    feature: feature.to_owned(),
                    wanted: word(on),
                    profile: self.name(),
                    got: word(!on),
                });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Offload::ALL.into_iter().find(|profile| profile.name() == text).ok_or_else(|| {
            format!("unknown offload profile {text:?}; known: full, no-tunnel, none")
        })
    }
}
