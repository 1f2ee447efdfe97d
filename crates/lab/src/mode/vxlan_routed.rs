//! `vxlan-routed`: one subnet per host, routed over a VXLAN device with static FDB entries and
//! neighbours, as in flannel.

use std::net::{IpAddr, Ipv4Addr};

use netstate::route::Route;
use testbed::{Host, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_NIC, Tenants};
use super::vxlan::{DEVICE, VNI, tunnel_hops, without_learning};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// A subnet per host, routed over a VXLAN device with static entries.
pub struct VxlanRouted;

/// A host's subnet of the overlay, 10.1.N.0/24. Address 0 is the VXLAN device, 1 the bridge, 2
/// the tenant.
#[derive(Clone, Copy)]
struct Subnet(u8);

impl Subnet {
    const fn address(self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 1, self.0, last)
    }
}

const A: Subnet = Subnet(1);
const B: Subnet = Subnet(2);
/// Address of the server's tenant.
pub(super) const SERVER: Ipv4Addr = B.address(2);

impl Mode for VxlanRouted {
    fn label(&self) -> Label {
        Label::new(
            "vxlan-routed",
            "tenant - veth - bridge - route - VXLAN device, static FDB - wire",
        )
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        Ok(routed(params, mtu)?.network(SERVER, mtu, tunnel_hops()))
    }
}

/// Builds tenants with `mtu`; each host's subnet is routed over VXLAN devices.
pub(super) fn routed(params: &Params, mtu: u32) -> Result<Tenants> {
    let tenants = Tenants::new(mtu, A.address(2), SERVER, 24)?;
    params.wire().join(&tenants.a, &tenants.b)?;
    params.wire().address(&tenants.a, &tenants.b)?;
    let tunnel =
        |host: &Host, tenant: &Host, local, own: Subnet, peer: &Host, remote, other: Subnet| {
            host.forward()?;
            host.bridge(BRIDGE, mtu, &[PORT_DEVICE])?;
            host.address(BRIDGE, own.address(1), 24)?;
            // flannel's devices do not learn either.
            let device = without_learning(Some(VNI), local);
            let netlink = host.netlink();
            netlink.add_vxlan(&device, mac(host.name(), DEVICE), mtu)?;
            host.address(DEVICE, own.address(0), 32)?;
            let (gateway, peer_mac) = (IpAddr::V4(other.address(0)), mac(peer.name(), DEVICE));
            netlink.add_route(&Route {
                to: gateway,
                prefix: 24,
                via: Some(gateway),
                link: DEVICE,
                onlink: true,
            })?;
            netlink.add_neighbour(DEVICE, gateway, peer_mac)?;
            netlink.add_vxlan_fdb(DEVICE, peer_mac, IpAddr::V4(remote))?;
            tenant.netlink().add_route(&Route::default_by(own.address(1), TENANT_NIC))?;
            Result::Ok(())
        };
    let Tenants { a, b, tenant_a, tenant_b } = &tenants;
    tunnel(a, tenant_a, Wire::A, A, b, Wire::B, B)?;
    tunnel(b, tenant_b, Wire::B, B, a, Wire::A, A)?;
    Ok(tenants)
}
