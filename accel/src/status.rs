//! What the fast path says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::abi::Place;
use crate::counters::Counters;
use crate::plan::{DevicePlan, Plan};

/// The whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process; none: nothing is accelerated.
    pub pid: Option<u32>,
    /// Inode of the network namespace.
    pub netns: u64,
    /// Generation of the maps; odd while every packet takes the slow path.
    pub generation: u64,
    /// Changes of single forwarding entries that were followed with all others in force.
    pub followed: u64,
    /// Forwarding entries in the maps.
    pub entries: usize,
    /// Forwarding entries that there is room for.
    pub room: u32,
    /// Entries that did not fit and stay slow.
    pub left_out: usize,
    /// Why nothing is accelerated, when the mirror has failed.
    pub problem: Option<String>,
    /// VXLAN devices.
    pub devices: Vec<DeviceStatus>,
    /// Packets by what became of them, each once; those that are zero are left out.
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
    /// Forwarding entries for addresses behind it.
    pub entries: usize,
    /// Packets that came for it from the wire, by what became of them, and those that it
    /// was spared of sending; those that are zero are left out.
    pub packets: BTreeMap<String, Counted>,
    /// The other ports of its bridge, or the devices that are routed to it.
    pub ports: Vec<PortStatus>,
    /// Remote VTEPs.
    pub remotes: Vec<RemoteStatus>,
    /// Where it is.
    #[serde(skip)]
    pub(crate) place: Option<Place>,
}

/// A tenant's device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Name.
    pub name: String,
    /// Why it stays slow; none: it is accelerated.
    pub refused: Option<String>,
    /// Forwarding entries for addresses behind it.
    pub entries: usize,
    /// Packets that came from the tenant, by what became of them, and those that were
    /// delivered to it; those that are zero are left out.
    pub packets: BTreeMap<String, Counted>,
    /// Where it is.
    #[serde(skip)]
    pub(crate) place: Option<Place>,
}

/// A remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteStatus {
    /// Address.
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

impl DeviceStatus {
    /// What a plan has; nothing is counted yet.
    pub(crate) fn all(plan: &Plan) -> Vec<DeviceStatus> {
        let mut entries = BTreeMap::new();
        for place in plan.fdb.iter().filter_map(|((domain, _), entry)| entry.device(*domain)) {
            *entries.entry(place).or_default() += 1;
        }
        plan.devices.iter().map(|device| DeviceStatus::of(device, &entries)).collect()
    }

    fn of(device: &DevicePlan, entries: &BTreeMap<Place, usize>) -> DeviceStatus {
        let place = Place { netns: device.sandbox.unwrap_or(0), index: device.index };
        let entries = |place| entries.get(&place).copied().unwrap_or(0);
        let ports = device.ports.iter().map(|port| PortStatus {
            name: port.name.clone(),
            refused: port.refused.clone(),
            entries: port.place.map_or(0, entries),
            packets: BTreeMap::new(),
            place: port.place,
        });
        let remotes = device.remotes.iter().map(|(address, remote)| RemoteStatus {
            name: address.to_string(),
            refused: remote.refused.clone(),
        });
        DeviceStatus {
            device: device.name.clone(),
            refused: device.refused.clone(),
            entries: entries(place),
            packets: BTreeMap::new(),
            ports: ports.collect(),
            remotes: remotes.collect(),
            place: Some(place),
        }
    }
}

impl Status {
    /// Fills in what was counted.
    pub(crate) fn count(&mut self, counters: &Counters) {
        let (all, each) = counters.counted();
        let at = |place: Option<Place>| place.and_then(|place| each.get(&place).cloned());
        self.packets = all;
        for device in &mut self.devices {
            device.packets = at(device.place).unwrap_or_default();
            for port in &mut device.ports {
                port.packets = at(port.place).unwrap_or_default();
            }
        }
    }

    /// Packets of a [`Reason`](crate::reason::Reason) by its word.
    pub fn packets(&self, word: &str) -> u64 {
        self.packets.get(word).map_or(0, |counted| counted.packets)
    }

    /// What stays slow of its devices, their ports and remote VTEPs: name, why.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, &str)> {
        self.devices.iter().flat_map(|device| {
            let own = std::iter::once((&device.device, &device.refused));
            let ports = device.ports.iter().map(|port| (&port.name, &port.refused));
            let remotes = device.remotes.iter().map(|remote| (&remote.name, &remote.refused));
            let all = own.chain(ports).chain(remotes);
            all.filter_map(|(name, refused)| Some((name.as_str(), refused.as_deref()?)))
        })
    }

    /// Whether packets of this device may be taken.
    pub fn accelerates(&self, device: &str) -> bool {
        self.generation & 1 == 0
            && self.devices.iter().any(|d| d.device == device && d.refused.is_none())
    }
}
