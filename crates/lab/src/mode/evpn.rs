//! `evpn` and its variants: the testbed of `vxlan`, with forwarding entries and neighbours that
//! the real FRR installs by BGP EVPN.
//!
//! The suffix names the difference. `-svd`: a single VXLAN device for all VNIs, on a
//! VLAN-filtering bridge that maps each VNI to a VLAN. `-rr`: three leaves behind a spine that
//! routes the underlay and reflects the routes; otherwise two hosts on one wire. `+accel`:
//! `overlane accel`'s fast path in each host that has tenants.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use accel::Accel;
use netstate::Hop;
use netstate::bridge_vlan::Membership;
use netstate::route::Route;
use packet::vlan::VlanId;
use packet::vxlan::Vni;
use testbed::{Host, NIC, Process, Processes, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_NIC, Tenants};
use super::vxlan::{DEVICE, TENANT_A, TENANT_B, VNI, tunnel_hops, without_learning};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, hops, run, settle};
use crate::bgp::evpn::{self, Remote, Speaker};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Fault, Label, Mode, Network, Params, Result, Unsupported, fault};

/// VXLAN devices that BGP fills. Not in `--modes all`.
pub struct Evpn {
    name: &'static str,
    path: &'static str,
    /// Three leaves behind a spine that reflects routes.
    spine: bool,
    /// A single VXLAN device for all VNIs.
    single: bool,
    accelerated: bool,
}

const PAIR: Evpn = Evpn {
    name: "evpn",
    path: "tenant - veth - bridge - VXLAN device filled by FRR (EVPN) - wire",
    spine: false,
    single: false,
    accelerated: false,
};

/// Every variant.
pub const ALL: [Evpn; 5] = [
    PAIR,
    Evpn {
        name: "evpn+accel",
        path: "tenant - veth - eBPF bypassing bridge and VXLAN device - wire",
        accelerated: true,
        ..PAIR
    },
    Evpn {
        name: "evpn-rr",
        path: "as evpn, three leaves and a spine that reflects the routes",
        spine: true,
        ..PAIR
    },
    Evpn {
        name: "evpn-rr+accel",
        path: "as evpn+accel, three leaves and a spine that reflects the routes",
        spine: true,
        accelerated: true,
        ..PAIR
    },
    Evpn {
        name: "evpn-svd",
        path: "tenant - veth - bridge's VLAN - one VXLAN device for all VNIs, filled by FRR - wire",
        single: true,
        ..PAIR
    },
];

/// The tenants' VLAN on a VLAN-filtering bridge, and the device with their gateway.
const VLAN: VlanId = match VlanId::new(10) {
    Ok(vlan) => vlan,
    Err(_) => panic!("evaluated by the compiler"),
};
const VLAN_DEVICE: &str = "br0.10";

/// The spine and its underlay address.
const SPINE: &str = "spine";
const SPINE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
/// Underlay network of the spine and the leaves.
const UNDERLAY: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 0, 0), 24);

/// A host with a VTEP, and the tenant behind it, if any.
struct Leaf<'a> {
    host: &'a Host,
    vtep: Ipv4Addr,
    /// The bridge's address, the gateway of the local tenants.
    gateway: Ipv4Addr,
    tenant: Option<(&'a Host, Ipv4Addr)>,
}

impl Mode for Evpn {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(self.name, self.path).not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        evpn::installed(machine)?;
        if self.single {
            machine.links(&["vlan"])?;
            // Each VNI maps to a VLAN of the bridge.
            machine.vlan_filtering()?;
            // Supported since FRR 8.5.
            evpn::knows_devices_for_many()?;
        }
        if self.accelerated { machine.fast_path() } else { Ok(()) }
    }

    fn faults(&self) -> &'static [Fault] {
        match (self.spine, self.single) {
            (true, _) => &fault::evpn::SPINE,
            (false, false) => &fault::evpn::PAIR,
            // This variant runs in a guest, where faults are not injected.
            (false, true) => &[],
        }
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        let tenants = Tenants::new(mtu, TENANT_A, TENANT_B, 24)?;
        let Tenants { a, b, tenant_a, tenant_b } = &tenants;
        // The third leaf and the spine.
        let fabric = if self.spine {
            Some(fabric(params, a, b)?)
        } else {
            params.wire().join(a, b)?;
            params.wire().address(a, b)?;
            None
        };
        let leaf = |host, number, tenant| Leaf {
            host,
            vtep: evpn::vtep(number),
            gateway: evpn::gateway(number),
            tenant,
        };
        let mut leaves =
            vec![leaf(a, 1, Some((tenant_a, TENANT_A))), leaf(b, 2, Some((tenant_b, TENANT_B)))];
        leaves.extend(fabric.iter().map(|[c, _]| leaf(c, evpn::C.1, None)));
        let tunnel = if self.single { tunnel_of_many } else { tunnel };
        leaves.iter().try_for_each(|leaf| tunnel(leaf, mtu))?;
        let spine = fabric.as_ref().map(|[_, spine]| spine);
        let mut programs = speak(&leaves, spine)?;
        let gateway = if self.single { VLAN_DEVICE } else { BRIDGE };
        teach(&leaves, gateway, programs.iter_mut().flat_map(|(_, started)| started).collect())?;
        let both = if self.accelerated {
            let both = [run(a)?, run(b)?];
            settle([tenant_a, tenant_b], TENANT_B, TENANT_B, &both)?;
            Some(both)
        } else {
            None
        };
        let hops = path(both.as_ref(), self.spine);
        let third =
            fabric.as_ref().filter(|_| self.accelerated).map(|[c, _]| run(c)).transpose()?;
        let Tenants { a, b, tenant_a, tenant_b } = tenants;
        let mut hosts = vec![a, b];
        // Same order as the speakers: a, b, c, spine.
        hosts.extend(fabric.into_iter().flatten());
        let names: Vec<_> = hosts.iter().map(|host| host.name().to_owned()).collect();
        let client = hosts.len();
        hosts.extend([tenant_a, tenant_b]);
        let mut network = Network::new(hosts, client, client + 1, TENANT_B, mtu, hops);
        for (name, (tree, mut started)) in names.iter().zip(programs) {
            // Messages from startup would not explain a later failure.
            started.iter_mut().for_each(Process::forget_output);
            let tenant = format!("tenant-{name}");
            network = network.with_processes_of(&[name, &tenant], tree, started);
        }
        network = network.noting("FRR runs beside the workload and is not pinned to CPUs");
        if let Some(both) = both {
            network = network.noting(SHORTCUTS).noting(MIRRORS);
            for accel in both.into_iter().chain(third) {
                network = network.keeping(Box::new(accel));
            }
        }
        Ok(network)
    }
}

/// Adds a third leaf and a spine that joins and routes between all leaves. Underlay addresses
/// are /32 on the loopback devices, as in a routed fabric.
fn fabric(params: &Params, a: &Host, b: &Host) -> Result<[Host; 2]> {
    let (c, spine) = (Host::new(evpn::C.0)?, Host::new(SPINE)?);
    spine.address("lo", SPINE_ADDRESS, 32)?;
    spine.forward()?;
    for (number, (leaf, address)) in
        [(a, Wire::A), (b, Wire::B), (&c, evpn::vtep(evpn::C.1))].into_iter().enumerate()
    {
        let device = format!("nic{number}");
        leaf.connect(NIC, &spine, &device, params.mtu)?;
        leaf.set_offload(NIC, params.offload)?;
        // The profile applies to both ends of each cable.
        spine.set_offload(&device, params.offload)?;
        leaf.address("lo", address, 32)?;
        spine.netlink().add_route(&to(address, 32, &device))?;
        leaf.netlink().add_route(&to(SPINE_ADDRESS, 32, NIC))?;
        leaf.netlink().add_route(&Route {
            via: Some(IpAddr::V4(SPINE_ADDRESS)),
            onlink: true,
            ..to(UNDERLAY.0, UNDERLAY.1, NIC)
        })?;
    }
    Ok([c, spine])
}

/// Returns a route to a network on the link itself.
fn to(address: Ipv4Addr, prefix: u8, link: &str) -> Route<'_> {
    Route { to: IpAddr::V4(address), prefix, via: None, link, onlink: false }
}

/// Adds a leaf's VXLAN device, which does not learn, and its bridge with the tenants' gateway.
/// The gateway's neighbour entries let the bridge answer ARP for remote tenants.
fn tunnel(leaf: &Leaf<'_>, mtu: u32) -> Result<()> {
    let host = leaf.host;
    bridged(leaf, Some(VNI), mtu)?;
    host.address(BRIDGE, leaf.gateway, 24)?;
    Ok(host.netlink().set_up(DEVICE)?)
}

/// Like [`tunnel`], with one device for all VNIs. The tenants' VLAN maps to one VNI, and the
/// gateway is on a device of that VLAN.
fn tunnel_of_many(leaf: &Leaf<'_>, mtu: u32) -> Result<()> {
    let (host, netlink) = (leaf.host, leaf.host.netlink());
    bridged(leaf, None, mtu)?;
    netlink.filter_vlans(BRIDGE)?;
    netlink.join_vlan(BRIDGE, VLAN, Membership::Bridge)?;
    if leaf.tenant.is_some() {
        // Tenants send untagged frames.
        netlink.join_vlan(PORT_DEVICE, VLAN, Membership::Untagged)?;
    }
    netlink.join_vlan(DEVICE, VLAN, Membership::Tagged)?;
    netlink.tunnel_vlan(DEVICE, VLAN, VNI)?;
    netlink.add_vlan(VLAN_DEVICE, BRIDGE, VLAN)?;
    netlink.set_up(VLAN_DEVICE)?;
    host.address(VLAN_DEVICE, leaf.gateway, 24)?;
    Ok(netlink.set_up(DEVICE)?)
}

/// Adds a leaf's bridge with the tenant's port and the VXLAN device, which stays down.
fn bridged(leaf: &Leaf<'_>, vni: Option<Vni>, mtu: u32) -> Result<()> {
    let host = leaf.host;
    let device = without_learning(vni, leaf.vtep);
    host.netlink().add_vxlan(&device, mac(host.name(), DEVICE), mtu)?;
    let port = leaf.tenant.map(|_| PORT_DEVICE);
    let ports: Vec<_> = [DEVICE].into_iter().chain(port).collect();
    host.bridge(BRIDGE, mtu, &ports)?;
    Ok(host.netlink().control_bridge_port(DEVICE)?)
}

/// Starts FRR in every host, each in its own process tree.
fn speak(leaves: &[Leaf<'_>], spine: Option<&Host>) -> Result<Vec<(Processes, Vec<Process>)>> {
    let all: Vec<_> = leaves.iter().map(|leaf| leaf.vtep).collect();
    let speaker = |leaf: &Leaf<'_>| Speaker {
        address: leaf.vtep,
        peers: match spine {
            // With a reflector, leaves need no sessions with each other.
            Some(_) => vec![SPINE_ADDRESS],
            // Internal BGP needs a full mesh: learned routes are not passed on.
            None => all.iter().copied().filter(|other| *other != leaf.vtep).collect(),
        },
        reflects: false,
    };
    let mut speakers: Vec<_> = leaves.iter().map(|leaf| (leaf.host, speaker(leaf))).collect();
    let peers = all.clone();
    let reflector = Speaker { address: SPINE_ADDRESS, peers, reflects: true };
    speakers.extend(spine.map(|spine| (spine, reflector)));
    speakers
        .iter()
        .map(|(host, speaker)| {
            let tree = Processes::new()?;
            let started = evpn::start(&tree, host, speaker)?;
            Ok((tree, started))
        })
        .collect()
}

/// Makes each tenant known to its gateway on device `gateway`, then waits until every other
/// leaf has learned it by BGP.
fn teach(leaves: &[Leaf<'_>], gateway: &str, mut programs: Vec<&mut Process>) -> Result<()> {
    for leaf in leaves {
        let others = leaves.iter().map(|leaf| leaf.vtep).filter(|vtep| *vtep != leaf.vtep);
        let others: Vec<_> = others.collect();
        evpn::floods_to(leaf.host, &mut programs, DEVICE, &others)?;
    }
    for leaf in leaves {
        // The third leaf has no tenant to announce.
        let Some((tenant, address)) = leaf.tenant else { continue };
        evpn::greet(tenant, address.into(), leaf.gateway)?;
        let mac = mac(tenant.name(), TENANT_NIC);
        let remote = Remote { address, mac, vtep: leaf.vtep };
        for other in leaves.iter().filter(|other| other.vtep != leaf.vtep) {
            evpn::learns(other.host, &mut programs, [BRIDGE, DEVICE, gateway], &remote)?;
        }
    }
    Ok(())
}

fn path(both: Option<&[Arc<Accel>; 2]>, spine: bool) -> Vec<Hop> {
    let mut path = vec![Hop::tx("tenant-a", TENANT_NIC)];
    match both {
        Some(both) => path.extend(hops(DEVICE, both, [("a", PORT_DEVICE), ("b", PORT_DEVICE)])),
        None => {
            path.push(Hop::rx("a", PORT_DEVICE));
            path.extend(tunnel_hops());
            path.push(Hop::tx("b", PORT_DEVICE));
        }
    }
    path.push(Hop::rx("tenant-b", TENANT_NIC));
    let to_wire = |hop: &Hop| hop.host == "a" && hop.device == NIC;
    if let Some(at) = path.iter().position(to_wire).filter(|_| spine) {
        path.splice(at + 1..at + 1, [Hop::rx(SPINE, "nic0"), Hop::tx(SPINE, "nic1")]);
    }
    path
}
