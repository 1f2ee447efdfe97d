//! `macvlan`: the tenant's device is stacked on the NIC and has its own MAC address.

use netstate::Hop;
use netstate::link::Macvlan as MacvlanMode;
use testbed::{Host, NIC, mac};

use super::bridge::{TENANT_A, TENANT_B, TENANT_NIC};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// macvlan devices on the NICs, without a bridge.
pub struct Macvlan;

impl Mode for Macvlan {
    fn label(&self) -> Label {
        Label::new("macvlan", "tenant's macvlan on the NIC - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "macvlan"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        on_nic(params, |host, tenant| {
            Ok(host.netlink().add_macvlan(
                TENANT_NIC,
                NIC,
                MacvlanMode::Bridge,
                mac(tenant.name(), TENANT_NIC),
                tenant.netns(),
            )?)
        })
    }
}

/// Builds two hosts with a tenant each. `attach` puts the tenant's device onto the NIC.
pub(super) fn on_nic(
    params: &Params,
    attach: impl Fn(&Host, &Host) -> Result<()>,
) -> Result<Network> {
    let (a, b) = (Host::new("a")?, Host::new("b")?);
    let (tenant_a, tenant_b) = (Host::new("tenant-a")?, Host::new("tenant-b")?);
    params.wire().join(&a, &b)?;
    for (host, tenant, address) in [(&a, &tenant_a, TENANT_A), (&b, &tenant_b, TENANT_B)] {
        attach(host, tenant)?;
        tenant.address(TENANT_NIC, address, 24)?;
    }
    let hops = vec![
        Hop::tx("tenant-a", TENANT_NIC),
        Hop::tx("a", NIC),
        Hop::rx("b", NIC),
        Hop::rx("tenant-b", TENANT_NIC),
    ];
    Ok(Network::new(vec![a, b, tenant_a, tenant_b], 2, 3, TENANT_B, params.mtu, hops))
}
