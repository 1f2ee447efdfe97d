//! `bgp` and its variants: the hosts of `routed`. BIRD or FRR, the real daemons, exchange the
//! routes to the tenants by BGP.
//!
//! The suffix names the difference. `-frr`: FRR instead of BIRD. `-rr`: each host has one
//! session with a route reflector in a third host; otherwise hosts form a full mesh.
//! `-tenants`: one route per tenant; otherwise one per host block. `-ipip`: an IPIP tunnel
//! between the hosts (calico's `ipipMode: Always`).

use std::net::Ipv4Addr;

use netstate::Hop;
use testbed::{Host, Process, Processes, Wire};

use super::bridge::{PORT_DEVICE, TENANT_NIC, Tenants, wire_hops};
use super::routed::{self, TENANT_A, TENANT_B, on_link};
use crate::bgp::{
    Announce, BLOCK_PREFIX, Daemon, REFLECTOR, REFLECTOR_ADDRESS, Speaker, addresses,
};
use crate::{Capabilities, Fault, Label, Mode, Network, Params, Result, Unsupported, fault};

/// Hosts whose routes come by BGP. Not in `--modes all`.
pub struct Bgp {
    name: &'static str,
    path: &'static str,
    daemon: Daemon,
    /// A third host reflects the routes.
    reflected: bool,
    announce: Announce,
    /// Packets between the hosts cross an IPIP tunnel (RFC 2003).
    tunnelled: bool,
}

const BIRD: Bgp = Bgp {
    name: "bgp",
    path: "tenant - veth - host route by BIRD, one per host block - wire",
    daemon: Daemon::Bird,
    reflected: false,
    announce: Announce::Block,
    tunnelled: false,
};
const FRR: Bgp = Bgp {
    name: "bgp-frr",
    path: "tenant - veth - host route by FRR, one per host block - wire",
    daemon: Daemon::Frr,
    ..BIRD
};

/// Every variant.
pub const ALL: [Bgp; 9] = [
    BIRD,
    Bgp {
        name: "bgp-tenants",
        path: "as bgp, one route per tenant, 64 from each host",
        announce: Announce::Tenants,
        ..BIRD
    },
    Bgp {
        name: "bgp-rr",
        path: "as bgp, routes reflected by a third host",
        reflected: true,
        ..BIRD
    },
    Bgp {
        name: "bgp-rr-tenants",
        path: "as bgp-rr, one route per tenant, 64 from each host",
        reflected: true,
        announce: Announce::Tenants,
        ..BIRD
    },
    Bgp {
        name: "bgp-ipip",
        path: "tenant - veth - host route by BIRD - kernel IPIP device - wire",
        tunnelled: true,
        ..BIRD
    },
    FRR,
    Bgp {
        name: "bgp-frr-tenants",
        path: "as bgp-frr, one route per tenant, 64 from each host",
        announce: Announce::Tenants,
        ..FRR
    },
    Bgp {
        name: "bgp-frr-rr",
        path: "as bgp-frr, routes reflected by a third host",
        reflected: true,
        ..FRR
    },
    Bgp {
        name: "bgp-frr-rr-tenants",
        path: "as bgp-frr-rr, one route per tenant, 64 from each host",
        reflected: true,
        announce: Announce::Tenants,
        ..FRR
    },
];

/// A host's device to the reflector.
const REFLECTOR_NIC: &str = "nic1";
/// The IPIP fallback device, which calico uses. Each namespace has one while the module is
/// loaded, unless `net.core.fb_tunnels_only_for_init_net` forbids it.
const TUNNEL: &str = "tunl0";
/// Bytes of the outer IPv4 header.
const OVERHEAD: u32 = 20;

impl Mode for Bgp {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(self.name, self.path).not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        if self.tunnelled {
            machine.links(&["ipip"])?;
        }
        self.daemon.installed(machine)
    }

    fn faults(&self) -> &'static [Fault] {
        match (self.daemon, self.reflected) {
            (Daemon::Bird, false) => &fault::bgp::BIRD,
            (Daemon::Bird, true) => &fault::bgp::BIRD_REFLECTED,
            (Daemon::Frr, false) => &fault::bgp::FRR,
            (Daemon::Frr, true) => &fault::bgp::FRR_REFLECTED,
        }
    }

    fn build(&self, params: &Params) -> Result<Network> {
        // The tunnel's header must fit the underlay's MTU.
        let mtu = if self.tunnelled { params.mtu - OVERHEAD } else { params.mtu };
        let tenants = routed::tenants(params, mtu)?;
        if self.tunnelled {
            for (host, own) in [(&tenants.a, TENANT_A), (&tenants.b, TENANT_B)] {
                tunnel(host, tunnel_address(own), mtu)?;
            }
        }
        let speakers = self.speakers();
        if self.announce == Announce::Tenants {
            // Fill the block: a busy node announces a route for each of its addresses.
            for (host, own) in [(&tenants.a, TENANT_A), (&tenants.b, TENANT_B)] {
                for address in addresses(block(own)) {
                    host.netlink().add_route(&on_link(address, PORT_DEVICE))?;
                }
            }
        }
        let Tenants { a, b, tenant_a, tenant_b } = tenants;
        let mut hosts = vec![a, b];
        if self.reflected {
            hosts.push(reflector(&hosts, params.mtu)?);
        }
        let mut programs = Vec::new();
        for (host, speaker) in hosts.iter().zip(&speakers) {
            let tree = Processes::new()?;
            let started = self.daemon.start(&tree, host, speaker)?;
            programs.push((tree, started));
        }
        let mut all: Vec<_> = programs.iter_mut().flat_map(|(_, started)| started).collect();
        for (at, other) in [(0, 1), (1, 0)] {
            self.daemon.learns(&hosts[at], &mut all, &speakers[other])?;
        }
        let mut hops = vec![Hop::tx("tenant-a", TENANT_NIC), Hop::rx("a", PORT_DEVICE)];
        hops.extend(self.tunnelled.then(|| Hop::tx("a", TUNNEL)));
        hops.extend(wire_hops());
        hops.extend(self.tunnelled.then(|| Hop::rx("b", TUNNEL)));
        hops.extend([Hop::tx("b", PORT_DEVICE), Hop::rx("tenant-b", TENANT_NIC)]);
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
        Ok(network.noting(format!(
            "{} runs beside the workload and is not pinned to CPUs",
            self.daemon.name()
        )))
    }
}

impl Bgp {
    /// Returns the BGP configuration of `a`, of `b`, and of the reflector if there is one.
    fn speakers(&self) -> Vec<Speaker> {
        let node = |address, tenant, other| Speaker {
            address,
            block: Some(block(tenant)),
            announce: self.announce,
            peers: vec![if self.reflected { REFLECTOR_ADDRESS } else { other }],
            tunnel: self.tunnelled.then_some(TUNNEL),
        };
        let mut speakers = vec![node(Wire::A, TENANT_A, Wire::B), node(Wire::B, TENANT_B, Wire::A)];
        if self.reflected {
            speakers.push(Speaker {
                address: REFLECTOR_ADDRESS,
                block: None,
                announce: self.announce,
                peers: vec![Wire::A, Wire::B],
                tunnel: None,
            });
        }
        speakers
    }
}

/// Returns the address block that contains a tenant's address.
fn block(tenant: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(tenant.to_bits() & (u32::MAX << (32 - BLOCK_PREFIX)))
}

/// Returns the tunnel address of a host: as with calico, the first of its block.
fn tunnel_address(tenant: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(block(tenant).to_bits() + 1)
}

/// Sets up a host's IPIP device. It has no fixed peer: the route's gateway selects it.
fn tunnel(host: &Host, address: Ipv4Addr, mtu: u32) -> Result<()> {
    let netlink = host.netlink();
    // Loading the module creates the device in new namespaces, unless the sysctl forbids that.
    if netlink.link(TUNNEL).is_err() {
        netlink.add_kind(TUNNEL, "ipip")?;
    }
    netlink.set_mtu(TUNNEL, mtu)?;
    netlink.set_up(TUNNEL)?;
    host.address(TUNNEL, address, 32)
}

/// Adds the route reflector and joins it to each host by a cable of its own. Neither its
/// sessions nor tenant packets share a wire with each other.
fn reflector(nodes: &[Host], mtu: u32) -> Result<Host> {
    let reflector = Host::new(REFLECTOR)?;
    reflector.address("lo", REFLECTOR_ADDRESS, 32)?;
    for (number, (node, address)) in nodes.iter().zip([Wire::A, Wire::B]).enumerate() {
        let device = format!("nic{number}");
        node.connect(REFLECTOR_NIC, &reflector, &device, mtu)?;
        node.netlink().add_route(&on_link(REFLECTOR_ADDRESS, REFLECTOR_NIC))?;
        reflector.netlink().add_route(&on_link(address, &device))?;
    }
    Ok(reflector)
}
