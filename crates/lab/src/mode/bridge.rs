//! `bridge`: tenants on a bridge that has the NIC as a port, a flat underlay.

use std::net::Ipv4Addr;

use netstate::Hop;
use testbed::{Host, NIC};

pub(super) use crate::network::{BRIDGE, PORT_DEVICE, TENANT_NIC};
use crate::{Alternative, Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Bridges with the NICs as ports. Tenants share the underlay's layer 2.
pub struct Bridge;

/// Tenant addresses, from the underlay's own network.
pub(super) const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
pub(super) const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);

/// Hosts `a` and `b`, and tenants `tenant-a` and `tenant-b` on one network, each behind a
/// veth pair.
pub(super) struct Tenants {
    pub(super) a: Host,
    pub(super) b: Host,
    pub(super) tenant_a: Host,
    pub(super) tenant_b: Host,
}

impl Tenants {
    /// Creates hosts, tenants and veth pairs. Nothing forwards between the pairs yet.
    pub(super) fn new(
        mtu: u32,
        address_a: Ipv4Addr,
        address_b: Ipv4Addr,
        prefix: u8,
    ) -> Result<Self> {
        let tenants = Tenants {
            a: Host::new("a")?,
            b: Host::new("b")?,
            tenant_a: Host::new("tenant-a")?,
            tenant_b: Host::new("tenant-b")?,
        };
        tenants.a.connect(PORT_DEVICE, &tenants.tenant_a, TENANT_NIC, mtu)?;
        tenants.b.connect(PORT_DEVICE, &tenants.tenant_b, TENANT_NIC, mtu)?;
        tenants.tenant_a.address(TENANT_NIC, address_a, prefix)?;
        tenants.tenant_b.address(TENANT_NIC, address_b, prefix)?;
        Ok(tenants)
    }

    /// Returns the network with the client in `tenant-a` and the server in `tenant-b` at
    /// `server`. `middle` holds the hops between the hosts' veth ends.
    pub(super) fn network(self, server: Ipv4Addr, tenant_mtu: u32, middle: Vec<Hop>) -> Network {
        let mut hops = vec![Hop::rx("a", PORT_DEVICE)];
        hops.extend(middle);
        hops.push(Hop::tx("b", PORT_DEVICE));
        self.network_between(server, tenant_mtu, hops)
    }

    /// Like [`Self::network`], but `middle` includes the hosts' veth ends.
    pub(super) fn network_between(
        self,
        server: Ipv4Addr,
        tenant_mtu: u32,
        middle: Vec<Hop>,
    ) -> Network {
        let mut hops = vec![Hop::tx("tenant-a", TENANT_NIC)];
        hops.extend(middle);
        hops.push(Hop::rx("tenant-b", TENANT_NIC));
        let hosts = vec![self.a, self.b, self.tenant_a, self.tenant_b];
        Network::new(hosts, 2, 3, server, tenant_mtu, hops)
    }
}

/// Returns the hops over the wire from `a` to `b`.
pub(super) fn wire_hops() -> Vec<Hop> {
    vec![Hop::tx("a", NIC), Hop::rx("b", NIC)]
}

impl Mode for Bridge {
    fn label(&self) -> Label {
        Label::new("bridge", "tenant - veth - bridge with the NIC as port - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = Tenants::new(params.mtu, TENANT_A, TENANT_B, 24)?;
        params.wire().join(&tenants.a, &tenants.b)?;
        for host in [&tenants.a, &tenants.b] {
            host.bridge(BRIDGE, params.mtu, &[NIC, PORT_DEVICE])?;
        }
        Ok(tenants.network(TENANT_B, params.mtu, wire_hops()))
    }

    fn alternatives(&self, _: &Network) -> &'static [Alternative] {
        &[Alternative {
            mode: "macvlan",
            advice: "put tenants on the NIC by macvlan instead of a bridge",
        }]
    }
}
