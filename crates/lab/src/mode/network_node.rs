//! `vrouter`, `floating-ip`, `snat` and their variants: OpenStack's network node, a third host
//! with the router's namespace, built as Neutron's agents build it.
//!
//! The suffix names the difference. `-ovs`: Open vSwitch instead of Linux bridges. `-vlan`:
//! tenant networks are VLANs instead of VXLAN tunnels. `+accel`: the fast path in the compute
//! hosts.

use std::net::Ipv4Addr;
use std::sync::Arc;

use accel::Accel;
use netstate::{Bypass, Hop, Side, TrafficDirection};
use testbed::{NIC, Processes};

use super::vxlan_accel::{End, MIRRORS, SHORTCUTS, into_tunnel, settle, start};
use crate::neutron::{
    FLOATING, Leg, Net, NetworkType, Site, TENANT_NIC, TENANT_PORT, l3_agent, linuxbridge,
    openvswitch,
};
use crate::ovs::Datapath;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// The network node. Not in `--modes all`.
pub struct NetworkNode {
    name: &'static str,
    path: &'static str,
    scene: Scene,
    agent: Agent,
    kind: NetworkType,
    accelerated: bool,
}

/// Direction of the traffic through the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scene {
    /// Tenant to a tenant of another network.
    EastWest,
    /// Outside to a tenant, by the tenant's floating IP address.
    FloatingIp,
    /// Tenant to the outside, which sees the router's address.
    Snat,
}

impl Scene {
    /// Networks of client and server.
    const fn nets(self) -> [Net; 2] {
        match self {
            Scene::EastWest => [Net::One, Net::Two],
            Scene::FloatingIp => [Net::Outside, Net::One],
            Scene::Snat => [Net::One, Net::Outside],
        }
    }

    /// A floating IP address and the tenant address that it maps to.
    fn floating(self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        (self == Scene::FloatingIp).then(|| (FLOATING, Net::One.end()))
    }

    /// Address that the client connects to.
    const fn target(self) -> Ipv4Addr {
        match self {
            Scene::FloatingIp => FLOATING,
            _ => self.nets()[1].end(),
        }
    }
}

/// The Neutron agent that connects the ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Agent {
    LinuxBridge,
    OpenVSwitch,
}

const VROUTER: NetworkNode = NetworkNode {
    name: "vrouter",
    path: "tenant - bridge - VXLAN - router's namespace in a third host - VXLAN - bridge - tenant",
    scene: Scene::EastWest,
    agent: Agent::LinuxBridge,
    kind: NetworkType::Vxlan,
    accelerated: false,
};
const FLOATING_IP: NetworkNode = NetworkNode {
    name: "floating-ip",
    path: "outside - third host: DNAT in the router's namespace - VXLAN - bridge - tenant",
    scene: Scene::FloatingIp,
    ..VROUTER
};
const SNAT: NetworkNode = NetworkNode {
    name: "snat",
    path: "tenant - bridge - VXLAN - third host: SNAT in the router's namespace - outside",
    scene: Scene::Snat,
    ..VROUTER
};

/// Returns the variants of a mode, with name and path of `+accel`, `-vlan`, `-ovs`, `-ovs-vlan`.
const fn variants(of: &NetworkNode, texts: [(&'static str, &'static str); 4]) -> [NetworkNode; 4] {
    let [accel, vlan, ovs, ovs_vlan] = texts;
    let variant = NetworkNode { ..*of };
    [
        NetworkNode { name: accel.0, path: accel.1, accelerated: true, ..variant },
        NetworkNode { name: vlan.0, path: vlan.1, kind: NetworkType::Vlan, ..variant },
        NetworkNode { name: ovs.0, path: ovs.1, agent: Agent::OpenVSwitch, ..variant },
        NetworkNode {
            name: ovs_vlan.0,
            path: ovs_vlan.1,
            agent: Agent::OpenVSwitch,
            kind: NetworkType::Vlan,
            ..variant
        },
    ]
}

const VROUTERS: [NetworkNode; 4] = variants(
    &VROUTER,
    [
        (
            "vrouter+accel",
            "as vrouter, eBPF bypassing bridges and VXLAN devices in the tenants' hosts",
        ),
        ("vrouter-vlan", "as vrouter, VLAN devices in place of VXLAN"),
        ("vrouter-ovs", "as vrouter, Open vSwitch and its firewall in place of bridges"),
        ("vrouter-ovs-vlan", "as vrouter-ovs, VLAN tags in place of VXLAN"),
    ],
);
const FLOATING_IPS: [NetworkNode; 4] = variants(
    &FLOATING_IP,
    [
        (
            "floating-ip+accel",
            "as floating-ip, eBPF bypassing bridge and VXLAN device in the tenant's host",
        ),
        ("floating-ip-vlan", "as floating-ip, VLAN devices in place of VXLAN"),
        ("floating-ip-ovs", "as floating-ip, Open vSwitch and its firewall in place of bridges"),
        (
            "floating-ip-ovs-vlan",
            "as floating-ip-vlan, Open vSwitch and its firewall in place of bridges",
        ),
    ],
);
const SNATS: [NetworkNode; 4] = variants(
    &SNAT,
    [
        ("snat+accel", "as snat, eBPF bypassing bridge and VXLAN device in the tenant's host"),
        ("snat-vlan", "as snat, VLAN devices in place of VXLAN"),
        ("snat-ovs", "as snat, Open vSwitch and its firewall in place of bridges"),
        ("snat-ovs-vlan", "as snat-ovs, VLAN tags in place of VXLAN"),
    ],
);

/// Every variant.
pub const ALL: [NetworkNode; 15] = {
    let [a, b, c, d] = VROUTERS;
    let [e, f, g, h] = FLOATING_IPS;
    let [i, j, k, l] = SNATS;
    [VROUTER, a, b, c, d, FLOATING_IP, e, f, g, h, SNAT, i, j, k, l]
};

impl Mode for NetworkNode {
    fn label(&self) -> Label {
        // There are many variants, and `host` is the only comparable mode with two hosts.
        Label::new(self.name, self.path).not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        match (self.agent, self.kind) {
            (Agent::LinuxBridge, NetworkType::Vxlan) => machine.links(&["bridge", "vxlan"])?,
            (Agent::LinuxBridge, NetworkType::Vlan) => machine.links(&["bridge", "vlan"])?,
            // Open vSwitch brings its own bridges and tunnels.
            (Agent::OpenVSwitch, _) => machine.open_vswitch()?,
        }
        l3_agent::probe(machine)?;
        if self.accelerated { machine.fast_path() } else { Ok(()) }
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let nets = self.scene.nets();
        let site = Site::new(params, self.kind, nets)?;
        l3_agent::prepare(&site.router, &nets, self.scene.floating())?;
        let network = match self.agent {
            Agent::LinuxBridge => {
                linuxbridge::connect(&site, params, self.kind)?;
                l3_agent::address(&site.router, &nets, self.scene.floating())?;
                if self.accelerated {
                    // Its hops differ, and the fast path must stay alive.
                    return self.accelerate(site, params);
                }
                let legs = site.legs.each_ref().map(|leg| linuxbridge::hops(leg, self.kind));
                self.network(site, params, legs)
            }
            Agent::OpenVSwitch => {
                let datapath = Datapath::find(&site.node)?;
                let tree = Processes::new()?;
                let programs = openvswitch::connect(&site, params, self.kind, &datapath, &tree)?;
                l3_agent::address(&site.router, &nets, self.scene.floating())?;
                let hops = |leg| openvswitch::hops(leg, self.kind, &datapath);
                let legs = site.legs.each_ref().map(hops);
                self.network(site, params, legs)
                    .with_processes(tree, programs)
                    .noting(self.note(&datapath))
            }
        };
        Ok(network)
    }
}

impl NetworkNode {
    /// Returns the network, with the hops from either end to the router.
    fn network(&self, site: Site, params: &Params, hops: [Vec<Hop>; 2]) -> Network {
        let [up, down] = hops;
        let hops = up.into_iter().chain(reversed(down)).collect();
        let mtu = self.scene.nets().map(|net| net.mtu(params, self.kind));
        let ends = site.legs.each_ref().map(|leg| leg.end().name().to_owned());
        let Site { legs, node, router } = site;
        let mut hosts = Vec::new();
        let mut tenants = Vec::new();
        for Leg { host, tenant, .. } in legs {
            hosts.push(host);
            tenants.extend(tenant);
        }
        hosts.extend([node, router]);
        hosts.extend(tenants);
        let at = |name: &String| hosts.iter().position(|host| host.name() == name);
        // Each end is one of the hosts, so the default is never used.
        let [client, server] = ends.each_ref().map(|name| at(name).unwrap_or_default());
        let address = self.scene.nets()[1].end();
        // Both ends must be able to send packets of this size.
        Network::new(hosts, client, server, address, mtu[0].min(mtu[1]), hops)
            .published_at(self.scene.target())
    }

    /// Returns the network with the fast path in each compute host.
    fn accelerate(&self, site: Site, params: &Params) -> Result<Network> {
        let mut fast = Vec::new();
        let mut hops = [Vec::new(), Vec::new()];
        for (leg, hops) in site.legs.iter().zip(&mut hops) {
            *hops = linuxbridge::hops(leg, self.kind);
            // The outside host has no tunnel to accelerate.
            if leg.net != Net::Outside {
                let accel = start(&leg.host)?;
                *hops = fast_hops(leg, self.kind, &accel);
                fast.push(accel);
            }
        }
        let ends = site.legs.each_ref().map(Leg::end);
        settle(ends, self.scene.nets()[1].end(), self.scene.target(), &fast)?;
        let mut network = self.network(site, params, hops);
        for accel in fast {
            network = network.keeping(Box::new(accel));
        }
        Ok(network.noting(AT_NODE).noting(SHORTCUTS).noting(MIRRORS))
    }

    /// Returns the note about the switch that is printed with the figures.
    fn note(&self, datapath: &Datapath) -> String {
        let mut note = datapath.note();
        // The kernel datapath has none of these limits.
        if *datapath == Datapath::Kernel {
            return note;
        }
        note += match self.kind {
            NetworkType::Vxlan => {
                "; it cannot encapsulate GSO packets: they are segmented at the tenant, the \
                outside host and the router (tx-checksum-ip-generic off), and the network node's outside \
                NIC does not merge packets (rx-gro off)"
            }
            NetworkType::Vlan => {
                "; userspace-tso-enable=true; UDP GSO packets are segmented at the tenant and the \
                outside host (tx-udp-segmentation off)"
            }
        };
        note + "; connection tracking is its own: the kernel's conntrack does not see its zones"
    }
}

/// Note printed with the figures. The fast path decapsulates a GSO packet only for a connection
/// that ends behind the port, and a router's connections end elsewhere. A packet also keeps
/// `skb->encapsulation` of the first tunnel over a veth pair and after a BPF program
/// decapsulates it. `bpf_skb_net_grow` (`net/core/filter.c`) then refuses to add headers of a
/// second tunnel.
const AT_NODE: &str = "the kernel handles the tunnel ends of the network node: the fast path does \
    not forward GSO packets of a router, and the kernel refuses to encapsulate its packets again \
    (EALREADY)";

/// Returns the hops from a tenant to the router, with the fast path in the tenant's host.
fn fast_hops(leg: &Leg, kind: NetworkType, accel: &Arc<Accel>) -> Vec<Hop> {
    let (host, device) = (leg.host.name(), linuxbridge::uplink(leg.net, kind, NIC));
    let end = End { host, at: host, device: &device, port: TENANT_PORT, accel };
    let mut hops = vec![Hop::tx(leg.end().name(), TENANT_NIC)];
    hops.extend(into_tunnel(&end));
    // From the NIC on, the plain mode has the same hops.
    let plain = linuxbridge::hops(leg, kind).into_iter();
    hops.extend(plain.skip_while(|hop| hop.device != NIC || hop.host != host));
    hops
}

/// Returns the same path in the opposite direction.
fn reversed(hops: Vec<Hop>) -> impl Iterator<Item = Hop> {
    hops.into_iter().rev().map(|hop| Hop {
        forward: match hop.forward {
            Side::Rx => Side::Tx,
            Side::Tx => Side::Rx,
        },
        bypass: hop.bypass.map(|bypass| Bypass {
            way: match bypass.way {
                TrafficDirection::Forward => TrafficDirection::Reverse,
                TrafficDirection::Reverse => TrafficDirection::Forward,
                TrafficDirection::Both => TrafficDirection::Both,
            },
            ..bypass
        }),
        ..hop
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_back_is_the_way_seen_from_its_end() {
        let there =
            vec![Hop::tx("a", "eth0"), Hop::rx("b", "tap0").bypassed(TrafficDirection::Reverse)];
        let back: Vec<_> = reversed(there.clone()).collect();
        let expected =
            [Hop::tx("b", "tap0").bypassed(TrafficDirection::Forward), Hop::rx("a", "eth0")];
        assert_eq!(back, expected);
        assert_eq!(reversed(back).collect::<Vec<_>>(), there);
    }

    #[test]
    fn a_variant_is_what_its_name_says() {
        for mode in &ALL {
            let has = |part: &str| mode.name.contains(part);
            assert_eq!(mode.agent == Agent::OpenVSwitch, has("-ovs"), "{}", mode.name);
            assert_eq!(mode.kind == NetworkType::Vlan, has("-vlan"), "{}", mode.name);
            assert_eq!(mode.accelerated, has("+accel"), "{}", mode.name);
            let scene = match mode.scene {
                Scene::EastWest => "vrouter",
                Scene::FloatingIp => "floating-ip",
                Scene::Snat => "snat",
            };
            assert!(mode.name.starts_with(scene), "{}", mode.name);
        }
    }
}
