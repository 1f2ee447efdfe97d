//! `bgp` and its variants: hosts as of `routed`, whose routes to each other's tenants come by
//! BGP, from the real BIRD or the real FRR.
//!
//! A variant's name says how it differs: `-frr`: FRR in place of BIRD. `-rr`: sessions with a
//! route reflector in a third host, in place of each host with each. `-tenants`: a route to
//! each tenant, in place of one to a host's block. `-ipip`: through a tunnel between the hosts
//! (calico's `ipipMode: Always`).

use std::net::Ipv4Addr;

use netstate::Hop;
use testbed::{Host, Process, Processes, Wire};

use super::bridge::{PORT_DEVICE, TENANT_NIC, Tenants, wire_hops};
use super::routed::{self, TENANT_A, TENANT_B, on_link};
use crate::bgp::{
    Announce, BLOCK_PREFIX, Daemon, REFLECTOR, REFLECTOR_ADDRESS, Speaker, addresses,
};
use crate::{Capabilities, Fault, Mode, Network, Params, Result, Unsupported, fault};

/// Hosts whose routes come by BGP; by name only.
pub struct Bgp {
    name: &'static str,
    path: &'static str,
    daemon: Daemon,
    /// A third host reflects the routes.
    reflected: bool,
    announce: Announce,
    /// Packets between the hosts go through a tunnel, IP in IP (RFC 2003).
    tunnelled: bool,
}

const BIRD: Bgp = Bgp {
    name: "bgp",
    path: "tenant - veth - host route by BIRD, one to a host's block - wire",
    daemon: Daemon::Bird,
    reflected: false,
    announce: Announce::Block,
    tunnelled: false,
};
const FRR: Bgp = Bgp {
    name: "bgp-frr",
    path: "tenant - veth - host route by FRR, one to a host's block - wire",
    daemon: Daemon::Frr,
    ..BIRD
};

/// Every variant.
pub const ALL: [Bgp; 9] = [
    BIRD,
    Bgp {
        name: "bgp-tenants",
        path: "as bgp, one route a tenant: 64 from each host",
        announce: Announce::Tenants,
        ..BIRD
    },
    Bgp {
        name: "bgp-rr",
        path: "as bgp, the routes by a route reflector in a third host",
        reflected: true,
        ..BIRD
    },
    Bgp {
        name: "bgp-rr-tenants",
        path: "as bgp-rr, one route a tenant: 64 from each host",
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
        path: "as bgp-frr, one route a tenant: 64 from each host",
        announce: Announce::Tenants,
        ..FRR
    },
    Bgp {
        name: "bgp-frr-rr",
        path: "as bgp-frr, the routes by a route reflector in a third host",
        reflected: true,
        ..FRR
    },
    Bgp {
        name: "bgp-frr-rr-tenants",
        path: "as bgp-frr-rr, one route a tenant: 64 from each host",
        reflected: true,
        announce: Announce::Tenants,
        ..FRR
    },
];

/// A host's device to the reflector.
const REFLECTOR_NIC: &str = "nic1";
/// The kernel's IPIP device to any other end, as calico uses it. Each namespace has it where the
/// module is loaded, unless `net.core.fb_tunnels_only_for_init_net` says otherwise.
const TUNNEL: &str = "tunl0";
/// Bytes of the outer header.
const OVERHEAD: u32 = 20;

impl Mode for Bgp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn path(&self) -> &'static str {
        self.path
    }

    /// Its daemons stand beside every other mode of a run, for as long as that lasts.
    fn in_all(&self) -> bool {
        false
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
        let mtu = if self.tunnelled { params.mtu - OVERHEAD } else { params.mtu };
        let tenants = routed::tenants(params, mtu)?;
        if self.tunnelled {
            for (host, own) in [(&tenants.a, TENANT_A), (&tenants.b, TENANT_B)] {
                tunnel(host, tunnel_address(own), mtu)?;
            }
        }
        let speakers = self.speakers();
        if self.announce == Announce::Tenants {
            // The rest of each block, as of hosts that are full.
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
            started.iter_mut().for_each(Process::forget_output);
            let tenant = format!("tenant-{name}");
            network = network.with_processes_of(&[name, &tenant], tree, started);
        }
        Ok(network.noting(format!(
            "{} runs beside what is measured and is not pinned",
            self.daemon.name()
        )))
    }
}

impl Bgp {
    /// What each host's daemon is told: of `a`, `b` and the reflector, where there is one.
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

/// The block that a tenant's address is from.
fn block(tenant: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(tenant.to_bits() & (u32::MAX << (32 - BLOCK_PREFIX)))
}

/// The address that calico gives a host's tunnel: one of its block.
fn tunnel_address(tenant: Ipv4Addr) -> Ipv4Addr {
    Ipv4Addr::from_bits(block(tenant).to_bits() + 1)
}

/// A tunnel to any other host: the route says to which.
fn tunnel(host: &Host, address: Ipv4Addr, mtu: u32) -> Result<()> {
    let netlink = host.netlink();
    if netlink.link(TUNNEL).is_err() {
        netlink.add_kind(TUNNEL, "ipip")?;
    }
    netlink.set_mtu(TUNNEL, mtu)?;
    netlink.set_up(TUNNEL)?;
    host.address(TUNNEL, address, 32)
}

/// A host on the hosts' network, by a cable of its own to each: its sessions cross no wire
/// that is measured, and no packet of a tenant crosses it.
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
