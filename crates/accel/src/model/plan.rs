//! The plan: the contents of the maps, the programs to attach, and the refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::{DeviceId, Domain, EntryKey, Fdb, Refusal, Vtep, VtepKey};

/// The wanted contents of the maps, the programs to attach, and the refusals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// VXLAN devices that the user asked for.
    pub devices: Vec<DevicePlan>,
    /// Tenants' devices to attach to, and their domain: a bridge or the device itself.
    pub ports: BTreeMap<DeviceId, Domain>,
    /// Underlay NICs to attach to.
    pub nics: BTreeSet<u32>,
    /// VTEPs of this host.
    pub vteps: BTreeMap<VtepKey, Vtep>,
    /// Forwarding entries by domain and MAC address.
    pub fdb: BTreeMap<EntryKey, Fdb>,
    /// Interval at which one packet of an entry takes the slow path.
    pub refresh: Duration,
}

/// Decision about a VXLAN device: accelerated, or refused as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DevicePlan {
    /// Interface index in its namespace.
    pub index: u32,
    /// Name in the status report.
    pub name: String,
    /// Number of the sandbox that contains it.
    pub sandbox: Option<u16>,
    /// Why the device takes the slow path.
    pub refused: Option<Refusal>,
    /// Packets reach it by a route, not through a bridge.
    pub routed: bool,
    /// The other ports of its bridge, or the devices that route to it.
    pub ports: Vec<PortPlan>,
    /// Why routed IPv6 packets take the slow path, for the device and the tenants' devices. IPv4
    /// packets are not affected.
    pub ipv6: Vec<Refusal>,
    /// Remote VTEPs.
    pub remotes: BTreeMap<IpAddr, RemotePlan>,
}

/// Decision about frames to a remote VTEP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePlan {
    /// Why they take the slow path.
    pub refused: Option<Refusal>,
    /// Number of MAC addresses behind it.
    pub addresses: usize,
}

/// Decision about a tenant's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortPlan {
    /// Name in the status report.
    pub name: String,
    /// Namespace and interface index.
    pub id: DeviceId,
    /// Why it takes the slow path.
    pub refused: Option<Refusal>,
}

impl Plan {
    /// Accelerated VXLAN devices.
    pub fn vxlan_devices(&self) -> BTreeSet<DeviceId> {
        self.vteps.values().map(Vtep::device).collect()
    }
}
