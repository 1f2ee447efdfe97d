//! `routed`: a route per tenant and no bridge, as in calico.

use std::net::{IpAddr, Ipv4Addr};

use netstate::route::Route;
use testbed::{Host, NIC, Wire, mac};

use super::bridge::{PORT_DEVICE, TENANT_NIC, Tenants, wire_hops};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// A /32 route per tenant, and no bridge.
pub struct Routed;

pub(super) const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 2);
pub(super) const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 2);
/// Next hop of the tenants. No interface has this address; a static neighbour entry resolves
/// it (calico uses proxy ARP).
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

impl Mode for Routed {
    fn label(&self) -> Label {
        Label::new("routed", "tenant - veth - host route - wire, one route per tenant")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = tenants(params, params.mtu)?;
        tenants.a.netlink().add_route(&via(TENANT_B, Wire::B))?;
        tenants.b.netlink().add_route(&via(TENANT_A, Wire::A))?;
        Ok(tenants.network(TENANT_B, params.mtu, wire_hops()))
    }
}

/// Returns a route to a tenant behind another host.
fn via(tenant: Ipv4Addr, host: Ipv4Addr) -> Route<'static> {
    let (to, via) = (IpAddr::V4(tenant), Some(IpAddr::V4(host)));
    Route { to, prefix: 32, via, link: NIC, onlink: false }
}

/// Returns a host route to an address on the link itself.
pub(super) fn on_link(address: Ipv4Addr, link: &str) -> Route<'_> {
    Route { to: IpAddr::V4(address), prefix: 32, via: None, link, onlink: false }
}

/// Builds tenants with `mtu` that reach the wire. Each host has a route to its own tenant only.
pub(super) fn tenants(params: &Params, mtu: u32) -> Result<Tenants> {
    let tenants = Tenants::new(mtu, TENANT_A, TENANT_B, 32)?;
    params.wire().join(&tenants.a, &tenants.b)?;
    params.wire().address(&tenants.a, &tenants.b)?;
    let gateway = |host: &Host, tenant: &Host, own: Ipv4Addr| {
        host.forward()?;
        host.netlink().add_route(&on_link(own, PORT_DEVICE))?;
        tenant.netlink().add_route(&on_link(GATEWAY, TENANT_NIC))?;
        tenant.netlink().add_route(&Route::default_by(GATEWAY, TENANT_NIC))?;
        let host_mac = mac(host.name(), PORT_DEVICE);
        // No interface has the next hop's address, so none would answer ARP.
        tenant.netlink().add_neighbour(TENANT_NIC, IpAddr::V4(GATEWAY), host_mac)?;
        Result::Ok(())
    };
    gateway(&tenants.a, &tenants.tenant_a, TENANT_A)?;
    gateway(&tenants.b, &tenants.tenant_b, TENANT_B)?;
    Ok(tenants)
}
