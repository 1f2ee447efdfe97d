//! `ipvlan`: the tenant's device is stacked on the NIC and shares its MAC address (L2 mode).

use super::bridge::TENANT_NIC;
use super::macvlan::on_nic;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};
use testbed::NIC;

/// ipvlan devices on the NICs. Needs the kernel's ipvlan module.
pub struct Ipvlan;

impl Mode for Ipvlan {
    fn label(&self) -> Label {
        Label::new("ipvlan", "tenant's ipvlan on the NIC - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "ipvlan"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        on_nic(params, |host, tenant| {
            Ok(host.netlink().add_ipvlan(TENANT_NIC, NIC, tenant.netns())?)
        })
    }
}
