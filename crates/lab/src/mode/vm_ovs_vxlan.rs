//! `vm-ovs-vxlan`: guests whose TAP devices are ports of an Open vSwitch bridge with a VXLAN
//! port, as in the tunnels of Neutron's Open vSwitch agent.

use testbed::Processes;

use super::ovs_vxlan;
use super::vm_bridge::{guest_pair, hosts, tap_hops};
use crate::guest::{self, TAP};
use crate::network::VXLAN_OVERHEAD;
use crate::ovs::Datapath;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests on Open vSwitch bridges joined by a VXLAN port.
pub struct VmOvsVxlan;

impl Mode for VmOvsVxlan {
    fn label(&self) -> Label {
        Label::new("vm-ovs-vxlan", "guest's virtio-net - TAP - Open vSwitch bridge with a VXLAN port - wire (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        machine.open_vswitch()?;
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        let mtu = params.mtu - VXLAN_OVERHEAD;
        let datapath = Datapath::find(&a)?;
        // The user-space datapath cannot encapsulate GSO packets (see `limit_offloads`).
        let finished = datapath != Datapath::Kernel;
        let guests = guest_pair([&a, &b], mtu, params.guest, finished)?;
        let tree = Processes::new()?;
        let programs = ovs_vxlan::join(&tree, [&a, &b], params, &datapath, TAP)?;
        let mut note = datapath.note();
        if finished {
            note += "; it cannot encapsulate GSO packets: the guests' NICs have no checksum and \
                     no segmentation offload";
        }
        let hops = tap_hops(ovs_vxlan::hops(&datapath));
        let network = guests.network(vec![a, b], mtu, hops, None)?;
        Ok(network.with_processes(tree, programs).noting(note))
    }
}
