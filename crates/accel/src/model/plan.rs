//! What is to be in the maps and at the hooks, and what to say of the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::{DeviceId, Domain, EntryKey, Fdb, Refusal, Vtep, VtepKey};

/// What is to be in the maps and at the hooks, and what to say of the rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// VXLAN devices asked for.
    pub devices: Vec<DevicePlan>,
    /// Tenants' devices that packets are taken from, to their domain: a bridge or the
    /// device itself.
    pub ports: BTreeMap<DeviceId, Domain>,
    /// Underlay NICs that packets are taken from.
    pub nics: BTreeSet<u32>,
    /// VTEPs of this host.
    pub vteps: BTreeMap<VtepKey, Vtep>,
    /// Forwarding entries by domain and address.
    pub fdb: BTreeMap<EntryKey, Fdb>,
    /// How often an entry's packet goes by the slow path.
    pub refresh: Duration,
}

/// What becomes of a VXLAN device: accelerated, or refused as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevicePlan {
    /// Interface index in its namespace.
    pub index: u32,
    /// What the status calls it.
    pub name: String,
    /// Number of the sandbox that it is in.
    pub sandbox: Option<u16>,
    /// Why it stays slow.
    pub refused: Option<Refusal>,
    /// Packets come to it by a route, not by a bridge.
    pub routed: bool,
    /// The other ports of its bridge, or the devices that are routed to it.
    pub ports: Vec<PortPlan>,
    /// Why routed IPv6 packets stay slow, of the device and of the tenants' devices; IPv4
    /// packets are not concerned.
    pub ipv6: Vec<Refusal>,
    /// Remote VTEPs.
    pub remotes: BTreeMap<IpAddr, RemotePlan>,
}

/// What becomes of frames to a remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePlan {
    /// Why they stay slow.
    pub refused: Option<Refusal>,
    /// Addresses that are behind it.
    pub addresses: usize,
}

/// What becomes of a tenant's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortPlan {
    /// What the status calls it.
    pub name: String,
    /// Where it is.
    pub id: DeviceId,
    /// Why it stays slow.
    pub refused: Option<Refusal>,
}

impl Plan {
    /// VXLAN devices that may be used.
    pub fn vxlan_devices(&self) -> BTreeSet<DeviceId> {
        self.vteps.values().map(Vtep::device).collect()
    }
}
