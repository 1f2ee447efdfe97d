//! `routed`: a route per tenant and no bridge, as calico does it.

use std::net::{IpAddr, Ipv4Addr};

use netstate::route::Route;
use testbed::{Host, NIC, Wire, mac};

use super::bridge::{PORT_DEVICE, TENANT_NIC, Tenants, wire_hops};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// A /32 route per tenant, and no bridge.
pub struct Routed;

const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 2);
const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 2);
/// The tenants' next hop: an address that nobody has, answered for by a
/// neighbour entry (calico: by proxy ARP).
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

impl Mode for Routed {
    fn name(&self) -> &'static str {
        "routed"
    }

    fn path(&self) -> &'static str {
        "tenant - veth - host route - wire, one route a tenant"
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = Tenants::new(params.mtu, TENANT_A, TENANT_B, 32)?;
        params.wire().join(&tenants.a, &tenants.b)?;
        params.wire().address(&tenants.a, &tenants.b)?;
        let route = |host: &Host, tenant: &Host, own: Ipv4Addr, other: Ipv4Addr, via: Ipv4Addr| {
            host.forward()?;
            let to = |to, link, via: Option<Ipv4Addr>| Route {
                to: IpAddr::V4(to),
                prefix: 32,
                via: via.map(IpAddr::V4),
                link,
                onlink: false,
            };
            host.netlink().add_route(&to(own, PORT_DEVICE, None))?;
            host.netlink().add_route(&to(other, NIC, Some(via)))?;
            tenant.netlink().add_route(&to(GATEWAY, TENANT_NIC, None))?;
            tenant.netlink().add_route(&Route {
                to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                prefix: 0,
                via: Some(IpAddr::V4(GATEWAY)),
                link: TENANT_NIC,
                onlink: false,
            })?;
            let host_mac = mac(host.name(), PORT_DEVICE);
            tenant.netlink().add_neighbour(TENANT_NIC, IpAddr::V4(GATEWAY), host_mac)?;
            Result::Ok(())
        };
        route(&tenants.a, &tenants.tenant_a, TENANT_A, TENANT_B, Wire::B)?;
        route(&tenants.b, &tenants.tenant_b, TENANT_B, TENANT_A, Wire::A)?;
        Ok(tenants.network(TENANT_B, params.mtu, wire_hops()))
    }
}
