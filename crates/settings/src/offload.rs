//! Offload profiles: groups of features.

use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offload {
    /// TSO, GSO, tunnel segmentation, GRO.
    Full,
    /// As full, without UDP tunnel segmentation.
    NoTunnel,
    /// Neither TSO, GSO, tunnel segmentation nor GRO.
    None,
}

/// Features that a profile sets, by the kernel's names (`net/ethtool/common.c`,
/// `netdev_features_strings`).
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
    /// Every profile, most offloads first.
    pub const ALL: [Offload; 3] = [Offload::Full, Offload::NoTunnel, Offload::None];

    /// Name in arguments and results.
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

    pub fn features(self) -> Vec<(&'static str, bool)> {
        OFFLOAD_FEATURES.into_iter().map(|feature| (feature, self.wants(feature))).collect()
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Offload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Offload::ALL.into_iter().find(|profile| profile.name() == text).ok_or_else(|| {
            format!("unknown offload profile {text:?}; known: full, no-tunnel, none")
        })
    }
}
