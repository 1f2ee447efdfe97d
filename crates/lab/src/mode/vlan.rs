//! `vlan`: a bridge whose uplink is a VLAN device on the NIC.

use netstate::Hop;
use packet::vlan::VlanId;
use testbed::NIC;

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_A, TENANT_B, Tenants};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Bridges whose uplink is an 8021q device. Needs the kernel's 8021q module.
pub struct Vlan;

pub(super) const ID: VlanId = match VlanId::new(100) {
    Ok(id) => id,
    Err(_) => panic!("evaluated by the compiler"),
};
pub(super) const DEVICE: &str = "nic0.100";

impl Mode for Vlan {
    fn label(&self) -> Label {
        Label::new("vlan", "tenant - veth - bridge - VLAN device on the NIC - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vlan"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = Tenants::new(params.mtu, TENANT_A, TENANT_B, 24)?;
        params.wire().join(&tenants.a, &tenants.b)?;
        for host in [&tenants.a, &tenants.b] {
            host.netlink().add_vlan(DEVICE, NIC, ID)?;
            host.netlink().set_up(DEVICE)?;
            host.bridge(BRIDGE, params.mtu, &[DEVICE, PORT_DEVICE])?;
        }
        Ok(tenants.network(TENANT_B, params.mtu, middle()))
    }
}

/// Returns the hops from one host's VLAN device to the other's.
pub(super) fn middle() -> Vec<Hop> {
    vec![Hop::tx("a", DEVICE), Hop::tx("a", NIC), Hop::rx("b", NIC), Hop::rx("b", DEVICE)]
}
