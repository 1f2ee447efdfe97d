//! The network that the Linux bridge agent builds: a bridge per network in each host with a port
//! on it. The bridge's uplink is a VXLAN or VLAN device.
//!
//! Neutron has dropped this agent, but existing clouds still use it. Security groups are off, as
//! with `firewall_driver = noop`.

use std::net::{IpAddr, Ipv4Addr};

use netstate::Hop;
use netstate::link::Vxlan;
use packet::vlan::VlanId;
use packet::vxlan::Vni;
use testbed::{Host, NIC, mac};

use super::{Leg, NODE, Net, NetworkType, ROUTER, Site, TENANT_NIC, TENANT_PORT};
use crate::{Params, Result};

/// IANA's port (RFC 7348, section 8).
const UDP_PORT: u16 = 4789;

/// Returns the name of a network's bridge.
pub(crate) fn bridge(net: Net) -> String {
    format!("brq{}", net.name())
}

/// Returns the network node's end of the router's veth pair.
pub(crate) fn router_port(net: Net) -> String {
    format!("tap{}", net.name())
}

/// Returns the name of a network's uplink over `nic`.
pub(crate) fn uplink(net: Net, kind: NetworkType, nic: &str) -> String {
    match kind {
        NetworkType::Vxlan => format!("vxlan-{}", net.segment()),
        NetworkType::Vlan => format!("{nic}.{}", net.segment()),
    }
}

/// Connects the tenants, the router and the outside.
pub(crate) fn connect(site: &Site, params: &Params, kind: NetworkType) -> Result<()> {
    for leg in &site.legs {
        let mtu = leg.net.mtu(params, kind);
        let (port, device) = (router_port(leg.net), leg.net.router_device());
        site.node.connect(&port, &site.router, &device, mtu)?;
        let name = bridge(leg.net);
        // Flat network: the NIC itself is the bridge's uplink.
        if leg.net == Net::Outside {
            site.node.bridge(&name, mtu, &[leg.nic, &port])?;
            continue;
        }
        let [host, node] = leg.underlay;
        for (at, nic, local, remote, port) in
            [(&leg.host, NIC, host, node, TENANT_PORT), (&site.node, leg.nic, node, host, &*port)]
        {
            // Only tunnels need addresses on the underlay.
            if kind == NetworkType::Vxlan {
                at.address(nic, local, 24)?;
            }
            let uplink = add_uplink(at, leg.net, kind, nic, local, remote, mtu)?;
            at.bridge(&name, mtu, &[&uplink, port])?;
        }
    }
    Ok(())
}

/// Creates a network's uplink over `nic` and returns its name.
pub(crate) fn add_uplink(
    host: &Host,
    net: Net,
    kind: NetworkType,
    nic: &str,
    local: Ipv4Addr,
    remote: Ipv4Addr,
    mtu: u32,
) -> Result<String> {
    let name = uplink(net, kind, nic);
    match kind {
        NetworkType::Vxlan => {
            let vni = u32::from(net.segment());
            let device = Vxlan {
                name: &name,
                vni: Some(Vni::new(vni).map_err(|_| out_of_range("VNI", vni))?),
                local: IpAddr::V4(local),
                remote: Some(IpAddr::V4(remote)),
                underlay: nic,
                port: UDP_PORT,
                learning: true,
                udp_csum: true,
            };
            host.netlink().add_vxlan(&device, mac(host.name(), &name), mtu)?;
        }
        NetworkType::Vlan => {
            let id = net.segment();
            let id = VlanId::new(id).map_err(|_| out_of_range("VLAN ID", id.into()))?;
            host.netlink().add_vlan(&name, nic, id)?;
        }
    }
    host.netlink().set_up(&name)?;
    Ok(name)
}

fn out_of_range(what: &str, number: u32) -> testbed::Error {
    testbed::Error::NotStarted { part: what.to_owned(), reason: format!("{number} is too large") }
}

/// Returns the hops from a leg's end to the router.
pub(crate) fn hops(leg: &Leg, kind: NetworkType) -> Vec<Hop> {
    let (host, end) = (leg.host.name(), leg.end().name());
    let router = [Hop::tx(NODE, &router_port(leg.net)), Hop::rx(ROUTER, &leg.net.router_device())];
    let to_node = if leg.net == Net::Outside {
        vec![Hop::tx(host, NIC), Hop::rx(NODE, leg.nic)]
    } else {
        vec![
            Hop::tx(end, TENANT_NIC),
            Hop::rx(host, TENANT_PORT),
            Hop::tx(host, &uplink(leg.net, kind, NIC)),
            Hop::tx(host, NIC),
            Hop::rx(NODE, leg.nic),
            Hop::rx(NODE, &uplink(leg.net, kind, leg.nic)),
        ]
    };
    to_node.into_iter().chain(router).collect()
}
