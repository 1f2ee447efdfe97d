//! `ovs-vxlan`: tenants on an Open vSwitch bridge with a VXLAN port, as in the tunnels of
//! Neutron and ovn-kubernetes.

use std::net::IpAddr;

use netstate::Hop;
use packet::ethernet::MacAddr;
use testbed::{Host, NIC, Process, Processes, Wire, mac};

use super::bridge::{BRIDGE, PORT_DEVICE, TENANT_NIC, Tenants, wire_hops};
use super::vxlan::{TENANT_A, TENANT_B, VNI};
use crate::network::VXLAN_OVERHEAD;
use crate::ovs::{Datapath, Switch, hwaddr, limit_offloads, start_both};
use crate::{Alternative, Capabilities, Label, Mode, Network, Params, Result, Unsupported};

#[cfg(test)]
mod vtep;

/// Open vSwitch bridges joined by a VXLAN port.
pub struct OvsVxlan;

const PORT: &str = "vxlan0";
/// Kernel device that Open vSwitch creates for VXLAN ports on 4789 (`dpif-netlink-rtnl.c`).
const KERNEL_DEVICE: &str = "vxlan_sys_4789";
/// Bridge of the user-space datapath on the NIC. Its internal port has the underlay address,
/// which routes encapsulated packets.
const UNDERLAY_BRIDGE: &str = "br-phy";

impl Mode for OvsVxlan {
    fn label(&self) -> Label {
        Label::new("ovs-vxlan", "tenant - veth - Open vSwitch bridge with a VXLAN port - wire")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        machine.open_vswitch()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        let tenants = Tenants::new(mtu, TENANT_A, TENANT_B, 24)?;
        params.wire().join(&tenants.a, &tenants.b)?;
        let datapath = Datapath::find(&tenants.a)?;
        let tree = Processes::new()?;
        let programs = join(&tree, [&tenants.a, &tenants.b], params, &datapath, PORT_DEVICE)?;
        let mut note = datapath.note();
        let middle = hops(&datapath);
        if datapath != Datapath::Kernel {
            // The datapath does not accept their GSO packets.
            for tenant in [&tenants.tenant_a, &tenants.tenant_b] {
                limit_offloads(tenant, TENANT_NIC, false)?;
            }
            note += "; it cannot encapsulate GSO packets: they are segmented at the tenant \
                     (tx-checksum-ip-generic off)";
        }
        Ok(tenants.network(TENANT_B, mtu, middle).with_processes(tree, programs).noting(note))
    }

    fn alternatives(&self, built: &Network) -> &'static [Alternative] {
        // The kernel datapath already uses a kernel VXLAN device.
        if built.hops.iter().any(|hop| hop.device == KERNEL_DEVICE) {
            return &[];
        }
        &[Alternative {
            mode: "vxlan",
            advice: "tunnel with the kernel's VXLAN device or OVS's kernel datapath instead of OVS in user space",
        }]
    }
}

/// Starts Open vSwitch in both hosts. The NICs must be joined and have no addresses. `port` is
/// the tenant's device in each host. The tunnel is ready on return.
pub(super) fn join(
    tree: &Processes,
    [a, b]: [&Host; 2],
    params: &Params,
    datapath: &Datapath,
    port: &str,
) -> Result<Vec<Process>> {
    let kernel = *datapath == Datapath::Kernel;
    // In user space, the underlay bridge has the address.
    if kernel {
        params.wire().address(a, b)?;
    }
    let ends = |host: &Host| match host.name() {
        "a" => (Wire::A, b, Wire::B),
        _ => (Wire::B, a, Wire::A),
    };
    start_both(tree, [a, b], false, |switch| {
        let (local, peer, remote) = ends(switch.host());
        let (local, remote) = (IpAddr::V4(local), IpAddr::V4(remote));
        if !kernel {
            let peer_mac = mac(peer.name(), UNDERLAY_BRIDGE);
            underlay(switch, local, 24, remote, peer_mac)?;
        }
        overlay(switch, datapath, port, [local, remote], &[])
    })
}

/// Returns the hops between the tenants' ports.
pub(super) fn hops(datapath: &Datapath) -> Vec<Hop> {
    let mut hops = wire_hops();
    if *datapath == Datapath::Kernel {
        hops.insert(0, Hop::tx("a", KERNEL_DEVICE));
        hops.push(Hop::rx("b", KERNEL_DEVICE));
    }
    hops
}

/// Adds the bridge on the NIC and waits until the tunnel knows the underlay: route, local
/// address and the peer's MAC address. Otherwise the first tenant packets would wait or be
/// dropped.
fn underlay(
    switch: &mut Switch<'_>,
    local: IpAddr,
    prefix: u8,
    remote: IpAddr,
    peer_mac: MacAddr,
) -> Result<()> {
    let host = switch.host();
    let hwaddr = hwaddr(host, UNDERLAY_BRIDGE);
    let orders = [
        vec!["add-br", UNDERLAY_BRIDGE],
        vec!["set", "Bridge", UNDERLAY_BRIDGE, "datapath_type=netdev", &hwaddr],
        vec!["add-port", UNDERLAY_BRIDGE, NIC],
    ];
    switch.configure(&orders.join(&"--"))?;
    host.address(UNDERLAY_BRIDGE, local, prefix)?;
    let peer_mac = peer_mac.to_string();
    switch.control(&["tnl/neigh/set", UNDERLAY_BRIDGE, &remote.to_string(), &peer_mac])?;
    switch.wait_for(&["ovs/route/show"], &format!("/{prefix} dev {UNDERLAY_BRIDGE} SRC {local}"))
}

/// Adds the bridge with the tenant's port and the VXLAN port. `options` are set beside key and
/// remote address.
fn overlay(
    switch: &mut Switch<'_>,
    datapath: &Datapath,
    tenant_port: &str,
    [local, remote]: [IpAddr; 2],
    options: &[&str],
) -> Result<()> {
    let kind = format!("datapath_type={}", datapath.kind());
    let hwaddr = hwaddr(switch.host(), BRIDGE);
    let (key, remote_ip) = (format!("options:key={VNI}"), format!("options:remote_ip={remote}"));
    let port = ["set", "Interface", PORT, "type=vxlan", &key, &remote_ip];
    let orders = [
        vec!["add-br", BRIDGE],
        vec!["set", "Bridge", BRIDGE, &kind, &hwaddr],
        vec!["add-port", BRIDGE, tenant_port],
        vec!["add-port", BRIDGE, PORT],
        [&port, options].concat(),
    ];
    switch.configure(&orders.join(&"--"))?;
    match datapath {
        Datapath::Kernel => Ok(()),
        // Until the port listens, the host's own stack receives encapsulated packets.
        Datapath::UserSpace { .. } => {
            let family = if local.is_ipv4() { "ipv4" } else { "ipv6" };
            switch.wait_for(&["tnl/ports/show", "-v"], &format!("{family}(dst={local},"))
        }
    }
}
