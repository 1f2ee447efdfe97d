//! Packet paths from a tenant's device to the NIC, found by following links.
//!
//! The kernel does not mark tenants' namespaces. A namespace with a single device is a tenant's. A
//! namespace with several is, unless it has a bridge, a tunnel or hardware, or connects tenants.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::host::{Namespace, Reading};
use crate::view::{DeviceKey, DeviceRef, View};

/// A path, tenant first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Path {
    /// Devices and programs, in the order in which packets pass them.
    #[cfg_attr(feature = "schema", schemars(extend("minItems" = 2)))]
    pub hops: Vec<Hop>,
}

/// One device or program that packets of a path pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
pub struct Hop {
    /// Label of the namespace.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub namespace: String,
    /// Name of the device, or command of the program.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub device: String,
    /// Kind of device with the VNI for a tunnel; role of a program.
    #[cfg_attr(feature = "schema", schemars(extend("minLength" = 1)))]
    pub kind: String,
    /// Layer-3 MTU, bytes; `None` for a program.
    pub mtu: Option<u32>,
    /// Receive and transmit queues in use.
    pub queues: Option<(u32, u32)>,
    /// Enabled offloads among those that matter on a path: `tso`, `gso`, `gro`, `tnl` (UDP tunnel
    /// segmentation), `csum`.
    pub offloads: Vec<HopOffload>,
}

/// An offload that matters on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum HopOffload {
    /// TCP segmentation by the device (`tx-tcp-segmentation`).
    Tso,
    /// Segmentation as late as possible, in software.
    Gso,
    /// Merging of received packets, in software (`rx-gro`).
    Gro,
    /// Segmentation of packets in a UDP tunnel (`tx-udp_tnl-segmentation`).
    Tnl,
    /// Checksums of sent packets by the device (`tx-checksum-ip-generic`).
    Csum,
}

impl HopOffload {
    const ALL: [HopOffload; 5] =
        [HopOffload::Tso, HopOffload::Gso, HopOffload::Gro, HopOffload::Tnl, HopOffload::Csum];

    /// Name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            HopOffload::Tso => "tso",
            HopOffload::Gso => "gso",
            HopOffload::Gro => "gro",
            HopOffload::Tnl => "tnl",
            HopOffload::Csum => "csum",
        }
    }

    /// Kernel name of the feature.
    fn feature(self) -> &'static str {
        match self {
            HopOffload::Tso => "tx-tcp-segmentation",
            HopOffload::Gso => "tx-generic-segmentation",
            HopOffload::Gro => "rx-gro",
            HopOffload::Tnl => "tx-udp_tnl-segmentation",
            HopOffload::Csum => "tx-checksum-ip-generic",
        }
    }
}

/// Longer than any real path. Links of a saved host may form a cycle.
const MOST_HOPS: usize = 32;
/// Most reported paths, more than ten thousand tenants have.
pub const MOST_PATHS: usize = 20_000;
/// Most devices visited. If each of several bridges leads to the next by several ports, the number
/// of paths is the product of the numbers of ports.
const MOST_STEPS: u64 = 5_000_000;

/// Paths of a host.
#[derive(Debug)]
pub struct Paths {
    /// Paths found, at most [`MOST_PATHS`].
    pub paths: Vec<Path>,
    /// The search stopped at a limit, so there may be more paths.
    pub cut: bool,
}

/// Returns the paths of a host, at most [`MOST_PATHS`].
pub fn paths(view: &View) -> Paths {
    let walker = Walker::new(view);
    let mut paths = Vec::new();
    for spot in view.devices() {
        if walker.is_tired(&paths) {
            break;
        }
        let is_start = match spot.kind() {
            "tun" => holder(spot).is_some_and(|holder| !forwards(&holder.command)),
            _ => walker.is_tenant(spot.namespace) && view.link(spot).is_some(),
        };
        if is_start {
            walker.from(spot, &mut paths);
        }
    }
    // Two tenants of one link yield the same path in both directions: keep one.
    let mut seen = BTreeSet::new();
    paths.retain(|path: &Path| {
        let names: Vec<(&str, &str)> =
            path.hops.iter().map(|hop| (hop.namespace.as_str(), hop.device.as_str())).collect();
        let backwards: Vec<(&str, &str)> = names.iter().rev().copied().collect();
        let key = format!("{:?}", names.clone().min(backwards));
        seen.insert(key)
    });
    let cut = walker.cut.get();
    paths.truncate(MOST_PATHS);
    Paths { paths, cut }
}

/// Returns the process that has a TAP open.
fn holder<'a>(tap: DeviceRef<'a>) -> Option<&'a netstate::namespace::Holder> {
    tap.namespace.holders.iter().find(|holder| holder.device == tap.name())
}

/// Whether a program moves packets between devices and is no guest.
fn forwards(command: &str) -> bool {
    ["ovs-vswitchd", "overlane"].contains(&command)
}

/// Whether Open vSwitch in user space switches packets of a namespace.
pub fn has_userspace_switch(namespace: &Namespace) -> bool {
    let holds = namespace.holders.iter().any(|holder| holder.command == "ovs-vswitchd");
    holds || namespace.members.iter().any(|member| member.command == "ovs-vswitchd")
}

struct Walker<'v, 'a> {
    view: &'v View<'a>,
    /// Positions of namespaces that are tenants.
    tenants: BTreeSet<usize>,
    /// Devices that may still be visited.
    left: Cell<u64>,
    /// Whether a walk stopped at a limit.
    cut: Cell<bool>,
}

impl<'v, 'a> Walker<'v, 'a> {
    fn new(view: &'v View<'a>) -> Walker<'v, 'a> {
        let mut by_namespace: Vec<Vec<DeviceRef<'a>>> =
            vec![Vec::new(); view.host().namespaces.len()];
        for spot in view.devices().filter(|spot| spot.interface.up) {
            by_namespace[spot.place.namespace].push(spot);
        }
        let single: BTreeSet<usize> = by_namespace
            .iter()
            .enumerate()
            .filter(|(_, spots)| {
                spots.len() == 1 && ["veth", "macvlan", "ipvlan"].contains(&spots[0].kind())
            })
            .map(|(at, _)| at)
            .collect();
        let mut tenants = single.clone();
        for (at, spots) in by_namespace.iter().enumerate() {
            let only_ends = spots.iter().all(|spot| {
                ["veth", "macvlan", "ipvlan"].contains(&spot.kind()) && !spot.is_physical()
            });
            let joins = spots.iter().any(|spot| {
                view.link(*spot).is_some_and(|link| single.contains(&link.place.namespace))
            });
            if spots.len() > 1 && only_ends && !joins {
                tenants.insert(at);
            }
        }
        Walker { view, tenants, left: Cell::new(MOST_STEPS), cut: Cell::new(false) }
    }

    /// Whether a limit is reached.
    fn is_tired(&self, paths: &[Path]) -> bool {
        let tired = self.left.get() == 0 || paths.len() > MOST_PATHS;
        self.cut.set(self.cut.get() || tired);
        tired
    }

    /// Counts visited devices towards the limit.
    fn looks_at(&self, devices: usize) {
        self.left.set(self.left.get().saturating_sub(devices as u64));
    }

    fn is_tenant(&self, namespace: &Namespace) -> bool {
        self.view.namespace(namespace.inode).is_some_and(|at| self.tenants.contains(&at))
    }

    fn from(&self, start: DeviceRef<'a>, paths: &mut Vec<Path>) {
        let mut trail = Vec::new();
        if let Some(holder) = holder(start).filter(|_| start.kind() == "tun") {
            trail.push(program(start.namespace, holder, "guest/program"));
        }
        self.walk(start, &mut trail, &mut BTreeSet::new(), paths);
    }

    fn walk(
        &self,
        spot: DeviceRef<'a>,
        trail: &mut Vec<Hop>,
        seen: &mut BTreeSet<DeviceKey>,
        paths: &mut Vec<Path>,
    ) {
        self.looks_at(1);
        if self.is_tired(paths) || trail.len() >= MOST_HOPS || !seen.insert(spot.place) {
            return;
        }
        trail.push(hop(spot));
        let next = self.next(spot, seen);
        if next.is_empty() {
            let mut hops = trail.clone();
            let ends_in_switch = spot.interface.master.is_none()
                && has_userspace_switch(spot.namespace)
                && !self.is_tenant(spot.namespace);
            if ends_in_switch {
                hops.push(switch(spot.namespace));
            }
            // A single device is no path.
            if hops.len() > 1 {
                // Reporting a path costs some fifty times as much as visiting its devices.
                self.looks_at(50 * hops.len());
                paths.push(Path { hops });
            }
        }
        for onward in next {
            self.walk(onward, trail, seen, paths);
        }
        // Undo this step, so that other paths may use the device.
        trail.pop();
        seen.remove(&spot.place);
    }

    /// Returns the next devices of packets, away from the tenant.
    fn next(&self, spot: DeviceRef<'a>, seen: &BTreeSet<DeviceKey>) -> Vec<DeviceRef<'a>> {
        let view = self.view;
        match spot.kind() {
            "veth" => {
                // The peer is in a namespace that was not read: the path ends here.
                let Some(peer) = view.peer(spot) else { return Vec::new() };
                if seen.contains(&peer.place) {
                    self.onward(spot, seen)
                } else {
                    self.far(spot, peer)
                }
            }
            "macvlan" | "ipvlan" | "vlan" => view.link(spot).into_iter().collect(),
            "vxlan" => {
                self.looks_at(view.ways(spot).map_or(0, |found| found.ways.len()));
                let mut nics: Vec<DeviceRef<'a>> =
                    view.underlays(spot).into_iter().map(|underlay| underlay.nic).collect();
                nics.sort_by_key(|nic| nic.place);
                nics.dedup_by_key(|nic| nic.place);
                nics
            }
            "bridge" => self.uplinks(spot, seen),
            _ => self.onward(spot, seen),
        }
    }

    /// Crosses a veth pair from the tenant's end to the host's. A path ends at the end of a link
    /// that leads to no tenant.
    fn far(&self, spot: DeviceRef<'a>, peer: DeviceRef<'a>) -> Vec<DeviceRef<'a>> {
        let from_tenant = self.is_tenant(spot.namespace);
        (from_tenant
            || self.joins_bridges(spot, peer)
            || self.view.bridge(spot).is_none() && self.leads_to_tenant(spot))
        .then_some(peer)
        .into_iter()
        .collect()
    }

    /// Whether a veth pair joins two bridges of one namespace, as Proxmox's firewall joins a guest's
    /// own bridge (fwln) to that of the host (fwpr).
    fn joins_bridges(&self, spot: DeviceRef<'a>, peer: DeviceRef<'a>) -> bool {
        let (one, other) = (self.view.bridge(spot), self.view.bridge(peer));
        let places = one.zip(other).map(|(one, other)| (one.place, other.place));
        places.is_some_and(|(one, other)| one != other && one.namespace == other.namespace)
    }

    fn leads_to_tenant(&self, spot: DeviceRef<'a>) -> bool {
        self.view.peer(spot).is_some_and(|peer| self.is_tenant(peer.namespace))
    }

    /// Continues from a host's device through its bridge, or by routing.
    fn onward(&self, spot: DeviceRef<'a>, seen: &BTreeSet<DeviceKey>) -> Vec<DeviceRef<'a>> {
        if let Some(bridge) = self.view.bridge(spot) {
            return if seen.contains(&bridge.place) { Vec::new() } else { vec![bridge] };
        }
        // The path ends at hardware, and at another tenant.
        if spot.is_physical() || self.is_tenant(spot.namespace) {
            return Vec::new();
        }
        self.routed(spot, seen)
    }

    /// Returns the bridge ports that lead away from tenants. Without any, the namespace routes.
    fn uplinks(&self, bridge: DeviceRef<'a>, seen: &BTreeSet<DeviceKey>) -> Vec<DeviceRef<'a>> {
        self.looks_at(self.view.ports(bridge).count());
        let ports = self.view.ports(bridge).filter(|port| !seen.contains(&port.place));
        let uplinks: Vec<DeviceRef<'a>> =
            ports.filter(|port| port.kind() != "tun" && !self.leads_to_tenant(*port)).collect();
        if uplinks.is_empty() { self.routed(bridge, seen) } else { uplinks }
    }

    /// Returns the devices with an address to which a namespace that forwards sends packets: its
    /// tunnels, or without tunnels its NICs.
    fn routed(&self, from: DeviceRef<'a>, seen: &BTreeSet<DeviceKey>) -> Vec<DeviceRef<'a>> {
        let forwards = |key: &str| from.namespace.sysctls.get(key).is_some_and(|on| on != "0");
        if !forwards("net/ipv4/ip_forward") && !forwards("net/ipv6/conf/all/forwarding") {
            return Vec::new();
        }
        self.looks_at(from.namespace.addresses.get().map_or(0, Vec::len));
        let addressed: BTreeSet<u32> =
            from.namespace.addresses.get().into_iter().flatten().map(|known| known.link).collect();
        let at = from.place.namespace;
        let candidates: Vec<DeviceRef<'a>> = addressed
            .into_iter()
            .filter_map(|index| self.view.spot(DeviceKey { namespace: at, index }))
            .filter(|spot| !spot.interface.loopback && spot.interface.up)
            .filter(|spot| !seen.contains(&spot.place))
            .filter(|spot| spot.interface.master.is_none() && !self.leads_to_tenant(*spot))
            .collect();
        let tunnels: Vec<DeviceRef<'a>> =
            candidates.iter().copied().filter(|spot| spot.kind() == "vxlan").collect();
        if !tunnels.is_empty() {
            return tunnels;
        }
        candidates.into_iter().filter(|spot| spot.is_nic() || spot.kind() == "vlan").collect()
    }
}

fn hop(spot: DeviceRef<'_>) -> Hop {
    let features = match spot.device.and_then(|device| device.features.as_ref()) {
        Some(Reading::Read(features)) => Some(features),
        // Without features the hop is reported without offloads.
        _ => None,
    };
    let is_on =
        |name: &str| features.and_then(|all| all.get(name)).is_some_and(|feature| feature.is_on());
    let kind = match spot.vxlan() {
        Some(vxlan) if vxlan.external => "vxlan external".to_owned(),
        Some(vxlan) => format!("vxlan {}", vxlan.vni),
        None => match (spot.kind(), spot.device.and_then(|device| device.driver.as_deref())) {
            ("", Some(driver)) => driver.to_owned(),
            ("", None) => "device".to_owned(),
            ("tun", _) => "tap".to_owned(),
            (kind, _) => kind.to_owned(),
        },
    };
    let queues = spot.device.and_then(|device| device.channels).map(|channels| {
        (
            channels.rx.now.saturating_add(channels.combined.now),
            channels.tx.now.saturating_add(channels.combined.now),
        )
    });
    Hop {
        namespace: spot.namespace.label.clone(),
        device: spot.name().to_owned(),
        kind,
        mtu: Some(spot.interface.mtu),
        queues: queues.filter(|queues| *queues != (0, 0)),
        offloads: HopOffload::ALL.into_iter().filter(|one| is_on(one.feature())).collect(),
    }
}

fn program(namespace: &Namespace, holder: &netstate::namespace::Holder, what: &str) -> Hop {
    Hop {
        namespace: namespace.label.clone(),
        device: format!("{}/{}", holder.command, holder.pid),
        kind: if holder.vhost { "vhost".to_owned() } else { what.to_owned() },
        mtu: None,
        queues: None,
        offloads: Vec::new(),
    }
}

fn switch(namespace: &Namespace) -> Hop {
    Hop {
        namespace: namespace.label.clone(),
        device: "ovs-vswitchd".to_owned(),
        kind: "user space".to_owned(),
        mtu: None,
        queues: None,
        offloads: Vec::new(),
    }
}
