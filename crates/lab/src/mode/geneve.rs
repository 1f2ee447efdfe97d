//! `geneve`: tenants on a bridge with a kernel Geneve device as uplink (RFC 8926), the
//! encapsulation of OVN and of the tunnels of Cilium and Antrea.

use netstate::Hop;
use netstate::link::Geneve as Device;
use testbed::{NIC, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, Tenants};
use super::vxlan::{TENANT_A, TENANT_B, VNI};
use crate::network::GENEVE_OVERHEAD;
use crate::{Alternative, Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Bridges with a kernel Geneve device as uplink. Needs the kernel's geneve module.
pub struct Geneve;

const DEVICE: &str = "geneve0";
/// IANA's port (RFC 8926, section 3.3).
const UDP_PORT: u16 = 6081;

impl Mode for Geneve {
    fn label(&self) -> Label {
        Label::new("geneve", "tenant - veth - bridge - kernel Geneve device - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "geneve"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - GENEVE_OVERHEAD;
        let tenants = Tenants::new(mtu, TENANT_A, TENANT_B, 24)?;
        let wire = params.wire();
        wire.join(&tenants.a, &tenants.b)?;
        wire.address(&tenants.a, &tenants.b)?;
        for (host, remote) in [(&tenants.a, Wire::B), (&tenants.b, Wire::A)] {
            let remote = remote.into();
            let device = Device { name: DEVICE, vni: VNI, remote, port: UDP_PORT, udp_csum: true };
            host.netlink().add_geneve(&device, mac(host.name(), DEVICE), mtu)?;
            host.netlink().set_up(DEVICE)?;
            host.bridge(BRIDGE, mtu, &[DEVICE, PORT_DEVICE])?;
        }
        let hops =
            vec![Hop::tx("a", DEVICE), Hop::tx("a", NIC), Hop::rx("b", NIC), Hop::rx("b", DEVICE)];
        Ok(tenants.network(TENANT_B, mtu, hops))
    }

    fn alternatives(&self, _: &Network) -> &'static [Alternative] {
        &[Alternative {
            mode: "routed",
            advice: "route tenants' addresses over the underlay instead of tunnelling, where you can",
        }]
    }
}
