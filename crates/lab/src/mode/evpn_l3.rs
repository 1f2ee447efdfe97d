//! `evpn-l3`: one network per host. The real FRR announces the networks by BGP EVPN (type 5).
//!
//! Each host has a VRF with the tenants' network and a bridge without an address, whose only
//! port is the VXLAN device. The route to a remote tenant leads to the other VTEP by that
//! bridge, and the frame is addressed to the router there (interface-less model, RFC 9136,
//! section 4.4.1).

use std::net::Ipv4Addr;

use netstate::Hop;
use netstate::route::Route;
use packet::ethernet::MacAddr;
use packet::vxlan::Vni;
use testbed::{Host, Process, Processes, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_NIC, Tenants};
use super::vxlan::{DEVICE, tunnel_hops, without_learning};
use crate::bgp::evpn::{self, RemoteNetwork, Routed, Speaker};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Networks that BGP EVPN routes. Not in `--modes all`.
pub struct EvpnL3;

const VRF: &str = "tenants";
/// Routing table of the VRF.
const TABLE: u32 = 100;
/// VNI of the VRF, the layer 3 VNI in FRR's documentation.
const VNI: Vni = match Vni::new(4000) {
    Ok(vni) => vni,
    Err(_) => panic!("evaluated by the compiler"),
};
/// Prefix length of a host's network, bits.
const PREFIX: u8 = 24;

/// Returns an address of a host's network. The gateway is 1, the tenant is 2. Hosts count
/// from 1.
const fn address(host: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, host, last)
}

impl Mode for EvpnL3 {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(
            "evpn-l3",
            "tenant - veth - VRF's route by FRR (EVPN type 5) - bridge - VXLAN device - wire",
        )
        .not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan", "vrf"])?;
        evpn::installed(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        let server = address(2, 2);
        let tenants = Tenants::new(mtu, address(1, 2), server, PREFIX)?;
        let Tenants { a, b, tenant_a, tenant_b } = &tenants;
        params.wire().join(a, b)?;
        params.wire().address(a, b)?;
        router(a, tenant_a, Wire::A, 1, mtu)?;
        router(b, tenant_b, Wire::B, 2, mtu)?;
        let speak = |host: &Host, own, other| {
            let tree = Processes::new()?;
            let speaker = Speaker { address: own, peers: vec![other], reflects: false };
            let routed = Routed { vrf: VRF, vni: VNI };
            let started = evpn::start_routed(&tree, host, &speaker, routed)?;
            Result::Ok((tree, started))
        };
        let mut programs = [speak(a, Wire::A, Wire::B)?, speak(b, Wire::B, Wire::A)?];
        let mut all: Vec<_> = programs.iter_mut().flat_map(|(_, started)| started).collect();
        // Wait for both directions before any traffic starts.
        for (host, other, number, vtep) in [(a, b, 2, Wire::B), (b, a, 1, Wire::A)] {
            let network = (address(number, 0), PREFIX);
            let remote = RemoteNetwork { network, vtep, router: router_mac(other) };
            evpn::learns_network(host, &mut all, [VRF, BRIDGE, DEVICE], &remote)?;
        }
        let mut middle = vec![Hop::tx("a", BRIDGE)];
        middle.extend(tunnel_hops());
        middle.push(Hop::rx("b", BRIDGE));
        let mut network = tenants.network(server, mtu, middle);
        for (name, (tree, mut started)) in ["a", "b"].into_iter().zip(programs) {
            // Messages from startup would not explain a later failure.
            started.iter_mut().for_each(Process::forget_output);
            let tenant = format!("tenant-{name}");
            network = network.with_processes_of(&[name, &tenant], tree, started);
        }
        Ok(network.noting("FRR runs beside the workload and is not pinned to CPUs"))
    }
}

/// Returns the router MAC that FRR announces for a host: its bridge's.
fn router_mac(host: &Host) -> MacAddr {
    mac(host.name(), BRIDGE)
}

/// Sets up a host's VRF with the tenant's device, the bridge and the VXLAN device. The tenant's
/// gateway address is on the tenant's port.
fn router(host: &Host, tenant: &Host, local: Ipv4Addr, number: u8, mtu: u32) -> Result<()> {
    let netlink = host.netlink();
    host.forward()?;
    netlink.add_vrf(VRF, TABLE)?;
    netlink.set_up(VRF)?;
    let device = without_learning(Some(VNI), local);
    netlink.add_vxlan(&device, mac(host.name(), DEVICE), mtu)?;
    host.bridge(BRIDGE, mtu, &[DEVICE])?;
    netlink.control_bridge_port(DEVICE)?;
    netlink.set_up(DEVICE)?;
    for member in [BRIDGE, PORT_DEVICE] {
        netlink.set_master(member, VRF)?;
    }
    let gateway = address(number, 1);
    host.address(PORT_DEVICE, gateway, PREFIX)?;
    tenant.netlink().add_route(&Route::default_by(gateway, TENANT_NIC))?;
    Ok(())
}
