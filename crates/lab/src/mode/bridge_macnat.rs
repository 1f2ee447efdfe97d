//! `bridge-macnat`: like `bridge`, but nftables' bridge family hides the tenants behind the
//! host's MAC address. Networks that allow one MAC address per port need this.

use std::net::Ipv4Addr;

use netstate::MacAddr;
use testbed::{Host, NIC, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_A, TENANT_B, TENANT_NIC, Tenants, wire_hops};
use crate::{Alternative, Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Bridges whose uplink rewrites MAC addresses by nftables.
pub struct BridgeMacnat;

impl Mode for BridgeMacnat {
    fn label(&self) -> Label {
        Label::new(
            "bridge-macnat",
            "tenant - veth - bridge, nftables MAC NAT on the NIC port - wire",
        )
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge"])?;
        machine.nftables("bridge", &rules(mac("a", NIC), TENANT_A, mac("tenant-a", TENANT_NIC)))
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = Tenants::new(params.mtu, TENANT_A, TENANT_B, 24)?;
        params.wire().join(&tenants.a, &tenants.b)?;
        let hide = |host: &Host, tenant: &Host, address| {
            host.bridge(BRIDGE, params.mtu, &[NIC, PORT_DEVICE])?;
            host.nft(&rules(mac(host.name(), NIC), address, mac(tenant.name(), TENANT_NIC)))
        };
        hide(&tenants.a, &tenants.tenant_a, TENANT_A)?;
        hide(&tenants.b, &tenants.tenant_b, TENANT_B)?;
        Ok(tenants.network(TENANT_B, params.mtu, wire_hops()))
    }

    fn alternatives(&self, _: &Network) -> &'static [Alternative] {
        &[Alternative {
            mode: "bridge",
            advice: "let the underlay see the tenants' MAC addresses instead of rewriting them",
        }]
    }
}

/// Returns the rules. Outbound: replace the source MAC, in ARP too, by the NIC's. Inbound: set
/// the destination MAC by the IP address.
fn rules(nic: MacAddr, tenant: Ipv4Addr, tenant_mac: MacAddr) -> String {
    format!(
        "table bridge macnat {{
            chain prerouting {{
                type filter hook prerouting priority dstnat;
                iifname {NIC} ip daddr {tenant} ether daddr set {tenant_mac}
                iifname {NIC} arp daddr ip {tenant} ether daddr set {tenant_mac}
                iifname {NIC} arp operation reply arp daddr ip {tenant} arp daddr ether set {tenant_mac}
            }}
            chain postrouting {{
                type filter hook postrouting priority srcnat;
                oifname {NIC} ether saddr {tenant_mac} ether type arp arp saddr ether set {nic}
                oifname {NIC} ether saddr {tenant_mac} ether saddr set {nic}
            }}
        }}"
    )
}
