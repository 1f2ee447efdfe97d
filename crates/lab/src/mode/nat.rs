//! `nat`: a published port, as in Docker's bridge mode. nftables masquerades in the client's
//! host and translates the destination (DNAT) in the server's host.

use std::net::Ipv4Addr;

use netstate::route::Route;
use testbed::{Host, NIC, Wire};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_NIC, Tenants, wire_hops};
use crate::{Alternative, Capabilities, Label, Mode, Network, PORT, Params, Result, Unsupported};

/// Docker's bridge mode: DNAT in the server's host, masquerade in the client's.
pub struct Nat;

const TENANT_A: Ipv4Addr = Ipv4Addr::new(172, 17, 0, 2);
const GATEWAY_A: Ipv4Addr = Ipv4Addr::new(172, 17, 0, 1);
pub(super) const TENANT_B: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 2);
const GATEWAY_B: Ipv4Addr = Ipv4Addr::new(172, 18, 0, 1);

impl Mode for Nat {
    fn label(&self) -> Label {
        Label::new(
            "nat",
            "tenant - veth - bridge - masquerade - wire - DNAT - bridge - veth - tenant",
        )
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        probe(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = masqueraded(params)?;
        tenants.b.nft(&publish())?;
        // Clients know the published address only.
        Ok(tenants.network(TENANT_B, params.mtu, wire_hops()).published_at(Wire::B))
    }

    fn alternatives(&self, _: &Network) -> &'static [Alternative] {
        &[Alternative {
            mode: "routed",
            advice: "route to the tenants' own addresses instead of NAT",
        }]
    }
}

/// Checks the requirements of `nat` and `nat-proxy`.
pub(super) fn probe(machine: &Capabilities) -> std::result::Result<(), Unsupported> {
    machine.links(&["veth", "bridge"])?;
    machine.nftables("nat", &(masquerade("172.17.0.0/24") + &publish()))
}

/// Builds two hosts with a tenant each, behind a bridge that is its gateway. Both hosts
/// forward and masquerade.
pub(super) fn masqueraded(params: &Params) -> Result<Tenants> {
    let tenants = Tenants::new(params.mtu, TENANT_A, TENANT_B, 24)?;
    params.wire().join(&tenants.a, &tenants.b)?;
    params.wire().address(&tenants.a, &tenants.b)?;
    let gateway = |host: &Host, tenant: &Host, gateway: Ipv4Addr, network: &str| {
        host.bridge(BRIDGE, params.mtu, &[PORT_DEVICE])?;
        host.address(BRIDGE, gateway, 24)?;
        // The host is the tenant's gateway.
        host.forward()?;
        host.nft(&masquerade(network))?;
        tenant.netlink().add_route(&Route::default_by(gateway, TENANT_NIC))?;
        Result::Ok(())
    };
    gateway(&tenants.a, &tenants.tenant_a, GATEWAY_A, "172.17.0.0/24")?;
    gateway(&tenants.b, &tenants.tenant_b, GATEWAY_B, "172.18.0.0/24")?;
    Ok(tenants)
}

fn masquerade(network: &str) -> String {
    format!(
        "table ip nat {{
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                ip saddr {network} oifname {NIC} masquerade
            }}
        }}\n"
    )
}

fn publish() -> String {
    format!(
        "table ip nat {{
            chain prerouting {{
                type nat hook prerouting priority dstnat;
                iifname {NIC} tcp dport {PORT} dnat to {TENANT_B}:{PORT}
                iifname {NIC} udp dport {PORT} dnat to {TENANT_B}:{PORT}
            }}
        }}\n"
    )
}
