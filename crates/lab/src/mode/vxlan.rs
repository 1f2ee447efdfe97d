//! `vxlan`, `vxlan6`: tenants on a bridge with a kernel VXLAN device as uplink, over an
//! IPv4 or IPv6 underlay. Neutron's linuxbridge agent and Docker Swarm build the same.

use std::net::{IpAddr, Ipv4Addr};

use netstate::Hop;
use netstate::link::Vxlan as Device;
use packet::vxlan::Vni;
use testbed::{Host, NIC, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, Tenants};
pub(super) use crate::network::VXLAN_DEVICE as DEVICE;
use crate::network::{VXLAN_OVERHEAD, VXLAN_OVERHEAD_IPV6};
use crate::{Alternative, Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// IP version between VXLAN endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Underlay {
    V4,
    V6,
}

/// Bridges with a kernel VXLAN device as uplink, over one of two underlays.
pub struct Vxlan(Underlay);

/// The variant over an IPv4 underlay.
pub const V4: Vxlan = Vxlan(Underlay::V4);
/// The variant over an IPv6 underlay. Not in `--modes all`.
pub const V6: Vxlan = Vxlan(Underlay::V6);

pub(super) const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
pub(super) const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);
/// IANA's port (RFC 7348, section 8).
pub(super) const UDP_PORT: u16 = 4789;
pub(super) const VNI: Vni = match Vni::new(42) {
    Ok(vni) => vni,
    Err(_) => panic!("evaluated by the compiler"),
};

impl Underlay {
    /// MTU of the tenants' devices, bytes.
    pub(super) fn tenant_mtu(self, params: &Params) -> u32 {
        let overhead = match self {
            Underlay::V4 => VXLAN_OVERHEAD,
            Underlay::V6 => VXLAN_OVERHEAD_IPV6,
        };
        params.mtu - overhead
    }

    /// Joins the hosts, addresses their NICs and returns both addresses.
    pub(super) fn join(self, wire: &Wire, a: &Host, b: &Host) -> Result<[IpAddr; 2]> {
        wire.join(a, b)?;
        Ok(match self {
            Underlay::V4 => {
                wire.address(a, b)?;
                [Wire::A.into(), Wire::B.into()]
            }
            Underlay::V6 => {
                wire.address6(a, b)?;
                [Wire::A6.into(), Wire::B6.into()]
            }
        })
    }

    pub(super) fn probe(self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        match self {
            // Test hosts always have IPv4.
            Underlay::V4 => Ok(()),
            Underlay::V6 => machine.ipv6(),
        }
    }
}

impl Mode for Vxlan {
    fn label(&self) -> Label {
        match self.0 {
            Underlay::V4 => {
                Label::new("vxlan", "tenant - veth - bridge - kernel VXLAN device - wire")
            }
            Underlay::V6 => Label::new(
                "vxlan6",
                "tenant - veth - bridge - kernel VXLAN device - wire, IPv6 underlay",
            )
            .not_in_all(),
        }
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        self.0.probe(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = self.0.tenant_mtu(params);
        Ok(tunnelled(params, self.0)?.network(TENANT_B, mtu, tunnel_hops()))
    }

    fn alternatives(&self, _: &Network) -> &'static [Alternative] {
        match self.0 {
            Underlay::V4 => &[
                Alternative {
                    mode: "vxlan-routed",
                    advice: "route into the VXLAN device with static neighbours (flannel's shape) instead of bridging into it",
                },
                Alternative {
                    mode: "routed",
                    advice: "route tenants' addresses over the underlay instead of tunnelling, where you can",
                },
            ],
            // The alternatives are measured over IPv4 only.
            Underlay::V6 => &[],
        }
    }
}

/// Returns a VXLAN device that does not learn (`nolearning`) and does not flood: another
/// program writes its entries. Without a VNI it serves many VNIs.
pub(super) fn without_learning(vni: Option<Vni>, local: Ipv4Addr) -> Device<'static> {
    Device {
        name: DEVICE,
        vni,
        local: IpAddr::V4(local),
        remote: None,
        underlay: NIC,
        port: UDP_PORT,
        learning: false,
        udp_csum: true,
    }
}

/// Builds tenants whose hosts are joined by bridges and VXLAN devices.
pub(super) fn tunnelled(params: &Params, underlay: Underlay) -> Result<Tenants> {
    let mtu = underlay.tenant_mtu(params);
    let tenants = Tenants::new(mtu, TENANT_A, TENANT_B, 24)?;
    let ends = underlay.join(&params.wire(), &tenants.a, &tenants.b)?;
    join_tunnels([&tenants.a, &tenants.b], ends, mtu, PORT_DEVICE)?;
    Ok(tenants)
}

/// Adds to both hosts a bridge with a VXLAN device to the other host and the tenant's `port`.
pub(super) fn join_tunnels(
    hosts: [&Host; 2],
    [a, b]: [IpAddr; 2],
    mtu: u32,
    port: &str,
) -> Result<()> {
    for (host, local, remote) in [(hosts[0], a, b), (hosts[1], b, a)] {
        let device = Device {
            name: DEVICE,
            vni: Some(VNI),
            local,
            remote: Some(remote),
            underlay: NIC,
            port: UDP_PORT,
            learning: true,
            udp_csum: true,
        };
        host.netlink().add_vxlan(&device, mac(host.name(), DEVICE), mtu)?;
        host.netlink().set_up(DEVICE)?;
        host.bridge(BRIDGE, mtu, &[DEVICE, port])?;
    }
    Ok(())
}

/// Returns the hops from one host's VXLAN device to the other's.
pub(super) fn tunnel_hops() -> Vec<Hop> {
    vec![Hop::tx("a", DEVICE), Hop::tx("a", NIC), Hop::rx("b", NIC), Hop::rx("b", DEVICE)]
}
