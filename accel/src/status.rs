//! What the fast path says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process; none: nothing is accelerated.
    pub pid: Option<u32>,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Generation of the maps; odd while every packet takes the slow path.
    pub generation: u64,
    /// Forwarding entries in the maps.
    pub entries: usize,
    /// Entries that did not fit and stay slow.
    pub left_out: usize,
    /// Why nothing is accelerated, when the mirror has failed.
    pub problem: Option<String>,
    /// VXLAN devices.
    pub devices: Vec<DeviceStatus>,
    /// Packets by what became of them; those that are zero are left out.
    pub packets: BTreeMap<String, Counted>,
    /// Devices that a killed process has left.
    #[serde(default)]
    pub left_behind: Vec<String>,
}

/// A VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Name.
    pub device: String,
    /// Why it stays slow; none: it is accelerated.
    pub refused: Option<String>,
    /// The other ports of its bridge, or the devices that are routed to it.
    pub ports: Vec<PartStatus>,
    /// Remote VTEPs.
    pub remotes: Vec<PartStatus>,
}

/// A port or a remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartStatus {
    /// Name or address.
    pub name: String,
    /// Why it stays slow; none: it is accelerated.
    pub refused: Option<String>,
}

/// Packets (skbs) and their bytes, Ethernet header included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Status {
    /// Packets of a [`Reason`](crate::reason::Reason) by its word.
    pub fn packets(&self, word: &str) -> u64 {
        self.packets.get(word).map_or(0, |counted| counted.packets)
    }

    /// Whether packets of this device may be taken.
    pub fn accelerates(&self, device: &str) -> bool {
        self.generation & 1 == 0
            && self.devices.iter().any(|d| d.device == device && d.refused.is_none())
    }
}
