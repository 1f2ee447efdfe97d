//! `vm-vlan`: guests on a bridge whose uplink is a VLAN device on the NIC, as in VLAN networks
//! of OpenStack's linuxbridge agent.

use testbed::NIC;

use super::bridge::BRIDGE;
use super::vlan::{self, middle};
use super::vm_bridge::{hosts, pair, tap_hops};
use crate::guest::{self, TAP};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests on bridges with an 8021q device. Needs the kernel's 8021q module.
pub struct VmVlan;

impl Mode for VmVlan {
    fn label(&self) -> Label {
        Label::new("vm-vlan", "guest's virtio-net - TAP - bridge - VLAN device on the NIC - wire (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vlan"])?;
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        let guests = pair([&a, &b], params.mtu, params.guest)?;
        for host in [&a, &b] {
            host.netlink().add_vlan(vlan::DEVICE, NIC, vlan::ID)?;
            host.netlink().set_up(vlan::DEVICE)?;
            host.bridge(BRIDGE, params.mtu, &[vlan::DEVICE, TAP])?;
        }
        guests.network(vec![a, b], params.mtu, tap_hops(middle()), None)
    }
}
