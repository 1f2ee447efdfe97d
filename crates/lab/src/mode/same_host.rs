//! `same-host`: two tenants of one host over a bridge; no wire.

use netstate::Hop;
use testbed::Host;

use super::bridge::{BRIDGE, TENANT_A, TENANT_B, TENANT_NIC};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Two tenants on one bridge. The offload profile does not apply.
pub struct SameHost;

impl Mode for SameHost {
    fn label(&self) -> Label {
        Label::new("same-host", "tenant - veth - bridge - veth - tenant, all on one host")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let a = Host::new("a")?;
        let (tenant_a, tenant_b) = (Host::new("tenant-a")?, Host::new("tenant-b")?);
        a.connect("veth0", &tenant_a, TENANT_NIC, params.mtu)?;
        a.connect("veth1", &tenant_b, TENANT_NIC, params.mtu)?;
        a.bridge(BRIDGE, params.mtu, &["veth0", "veth1"])?;
        tenant_a.address(TENANT_NIC, TENANT_A, 24)?;
        tenant_b.address(TENANT_NIC, TENANT_B, 24)?;
        let hops = vec![
            Hop::tx("tenant-a", TENANT_NIC),
            Hop::rx("a", "veth0"),
            Hop::tx("a", "veth1"),
            Hop::rx("tenant-b", TENANT_NIC),
        ];
        Ok(Network::new(vec![a, tenant_a, tenant_b], 1, 2, TENANT_B, params.mtu, hops)
            .noting("no wire: the offload profile does not apply"))
    }
}
