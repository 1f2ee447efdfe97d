//! `vxlan`: tenants on a bridge with a kernel VXLAN device as uplink, as
//! Neutron's linuxbridge agent and Docker Swarm build it.

use std::net::{IpAddr, Ipv4Addr};

use netstate::Hop;
use netstate::link::Vxlan as Device;
use packet::vxlan::Vni;
use testbed::{Host, NIC, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, Tenants};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// The mode.
pub struct Vxlan;

pub(super) const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
pub(super) const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);
/// The VXLAN device.
pub(super) const DEVICE: &str = "vxlan0";
/// IANA's port (RFC 7348, section 8).
pub(super) const UDP_PORT: u16 = 4789;
pub(super) const VNI: Vni = match Vni::new(42) {
    Ok(vni) => vni,
    Err(_) => panic!("evaluated by the compiler"),
};

impl Mode for Vxlan {
    fn name(&self) -> &'static str {
        "vxlan"
    }

    fn path(&self) -> &'static str {
        "tenant - veth - bridge - kernel VXLAN device - wire"
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        Ok(tunnelled(params, mtu)?.network(TENANT_B, mtu, tunnel_hops()))
    }
}

/// Tenants with `mtu`, their hosts joined by bridges and VXLAN devices.
pub(super) fn tunnelled(params: &Params, mtu: u32) -> Result<Tenants> {
    let tenants = Tenants::new(mtu, TENANT_A, TENANT_B, 24)?;
    params.wire().join(&tenants.a, &tenants.b)?;
    params.wire().address(&tenants.a, &tenants.b)?;
    let tunnel = |host: &Host, local, remote| {
        let device = Device {
            name: DEVICE,
            vni: VNI,
            local: IpAddr::V4(local),
            remote: Some(IpAddr::V4(remote)),
            underlay: NIC,
            port: UDP_PORT,
            learning: true,
            udp_csum: true,
        };
        host.netlink().add_vxlan(&device, mac(host.name(), DEVICE), mtu)?;
        host.netlink().set_up(DEVICE)?;
        host.bridge(BRIDGE, mtu, &[DEVICE, PORT_DEVICE])
    };
    tunnel(&tenants.a, Wire::A, Wire::B)?;
    tunnel(&tenants.b, Wire::B, Wire::A)?;
    Ok(tenants)
}

/// The hops from one host's VXLAN device to the other's.
pub(super) fn tunnel_hops() -> Vec<Hop> {
    vec![Hop::tx("a", DEVICE), Hop::tx("a", NIC), Hop::rx("b", NIC), Hop::rx("b", DEVICE)]
}
