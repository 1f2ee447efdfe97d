//! `ovs-vlan`: tenants on an Open vSwitch bridge that tags their frames on the wire, as in
//! Neutron's VLAN networks.

use testbed::{NIC, Processes};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_A, TENANT_B, TENANT_NIC, Tenants, wire_hops};
use crate::ovs::{Datapath, Switch, hwaddr, limit_offloads, start_both};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Open vSwitch bridges whose uplinks carry tagged frames.
pub struct OvsVlan;

const ID: u16 = 100;

impl Mode for OvsVlan {
    fn label(&self) -> Label {
        Label::new("ovs-vlan", "tenant - veth - Open vSwitch bridge with a VLAN tag - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        machine.open_vswitch()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let tenants = Tenants::new(params.mtu, TENANT_A, TENANT_B, 24)?;
        params.wire().join(&tenants.a, &tenants.b)?;
        let datapath = Datapath::find(&tenants.a)?;
        let tree = Processes::new()?;
        let programs =
            start_both(&tree, [&tenants.a, &tenants.b], true, |switch| bridge(switch, &datapath))?;
        let mut note = datapath.note();
        if datapath != Datapath::Kernel {
            // The datapath does not support UDP GSO packets.
            for tenant in [&tenants.tenant_a, &tenants.tenant_b] {
                limit_offloads(tenant, TENANT_NIC, true)?;
            }
            note += "; userspace-tso-enable=true; UDP GSO packets are segmented at the tenant \
                     (tx-udp-segmentation off)";
        }
        Ok(tenants
            .network(TENANT_B, params.mtu, wire_hops())
            .with_processes(tree, programs)
            .noting(note))
    }
}

fn bridge(switch: &mut Switch<'_>, datapath: &Datapath) -> Result<()> {
    let kind = format!("datapath_type={}", datapath.kind());
    let hwaddr = hwaddr(switch.host(), BRIDGE);
    let (tag, trunks) = (format!("tag={ID}"), format!("trunks={ID}"));
    let orders = [
        vec!["add-br", BRIDGE],
        vec!["set", "Bridge", BRIDGE, &kind, &hwaddr],
        vec!["add-port", BRIDGE, PORT_DEVICE, &tag],
        vec!["add-port", BRIDGE, NIC, "vlan_mode=trunk", &trunks],
    ];
    switch.configure(&orders.join(&"--"))
}
