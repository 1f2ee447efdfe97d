//! `vrouter-ha`: `vrouter` with a second network node. keepalived decides by VRRP which node
//! has the router's addresses.

use std::net::Ipv4Addr;

use netstate::Hop;
use testbed::{Host, NIC, Process, Processes, mac};

use crate::neutron::linuxbridge::{add_uplink, bridge, router_port, uplink};
use crate::neutron::{
    Net, NetworkType, ROUTER, TENANT_NIC, TENANT_PORT, end, keepalived, l3_agent,
};
use crate::{Capabilities, Fault, Label, Mode, Network, Params, Result, Unsupported, fault};

/// A router in two hosts, one of which has its addresses. Not in `--modes all`.
pub struct VrouterHa;

/// The tenants' networks.
const NETS: [Net; 2] = [Net::One, Net::Two];
/// Name of the switch that joins the four hosts.
const SWITCH: &str = "switch";
/// Group to which the Linux bridge agent sends frames with an unknown destination
/// (`vxlan_group`).
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

impl Mode for VrouterHa {
    fn label(&self) -> Label {
        // Its daemons would run beside every other mode of the run.
        Label::new(
            "vrouter-ha",
            "as vrouter, two hosts with the router, VRRP between them, and a switch",
        )
        .not_in_all()
    }

    fn build_seconds(&self) -> Option<u32> {
        Some(10)
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        l3_agent::probe(machine)?;
        keepalived::probe(machine)
    }

    fn faults(&self) -> &'static [Fault] {
        &fault::vrrp::ALL
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let switch = Host::new(SWITCH)?;
        let nodes = ["a", "b", "network-1", "network-2"];
        let mut hosts = Vec::new();
        for (name, last) in nodes.into_iter().zip(1..) {
            let host = Host::new(name)?;
            host.connect(NIC, &switch, name, params.mtu)?;
            host.set_offload(NIC, params.offload)?;
            // The profile applies to both ends of each cable.
            switch.set_offload(name, params.offload)?;
            host.address(NIC, underlay(last), 24)?;
            hosts.push(host);
        }
        switch.bridge("br0", params.mtu, &nodes)?;
        let mut tenants = Vec::new();
        for (at, net) in NETS.into_iter().enumerate() {
            let mtu = net.mtu(params, NetworkType::Vxlan);
            tenants.extend(end(&hosts[at], net, mtu)?);
            plug(&hosts[at], net, underlay(at as u8 + 1), TENANT_PORT, mtu)?;
        }
        let mut routers = Vec::new();
        let mut programs: Vec<(Processes, Process)> = Vec::new();
        for (number, last) in [(1, 3), (2, 4)] {
            let router = router(&hosts[number + 1], number as u8, underlay(last), params)?;
            let tree = Processes::new()?;
            let mut daemon = keepalived::start(&tree, &router, &NETS)?;
            // The first instance finds no other, becomes master and stays so.
            match number {
                1 => keepalived::wait_for_addresses(&router, &NETS, &mut daemon)?,
                _ => keepalived::wait_for_backup(&router, &mut daemon)?,
            }
            routers.push(router);
            programs.push((tree, daemon));
        }
        let names: Vec<_> = hosts[2..].iter().chain(&routers).map(|host| host.name()).collect();
        let trees = [[names[0], names[2]], [names[1], names[3]]].map(|of| of.map(str::to_owned));
        hosts.push(switch);
        hosts.extend(routers);
        let client = hosts.len();
        hosts.extend(tenants);
        let mtu = Net::One.mtu(params, NetworkType::Vxlan);
        let mut network = Network::new(hosts, client, client + 1, Net::Two.end(), mtu, hops());
        for (of, (tree, daemon)) in trees.iter().zip(programs) {
            let of = of.each_ref().map(String::as_str);
            network = network.with_processes_of(&of, tree, vec![daemon]);
        }
        Ok(network.noting("keepalived runs beside the workload and is not pinned to CPUs"))
    }
}

fn underlay(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, last)
}

/// Adds a network's bridge with its tunnel and `port`.
fn plug(host: &Host, net: Net, local: Ipv4Addr, port: &str, mtu: u32) -> Result<()> {
    let uplink = add_uplink(host, net, NetworkType::Vxlan, NIC, local, GROUP, mtu)?;
    host.bridge(&bridge(net), mtu, &[&uplink, port])
}

/// Creates one of the router's two namespaces, connected but without addresses.
fn router(node: &Host, number: u8, local: Ipv4Addr, params: &Params) -> Result<Host> {
    let router = Host::new(&format!("{ROUTER}-{number}"))?;
    l3_agent::prepare(&router, &NETS, None)?;
    for net in [Net::One, Net::Two, Net::Ha] {
        let (port, device) = (router_port(net), net.router_device());
        let mtu = net.mtu(params, NetworkType::Vxlan);
        node.connect(&port, &router, &device, mtu)?;
        // Each instance has an address of its own there, for VRRP.
        if net == Net::Ha {
            router.address(&device, net.address(number), 18)?;
        } else {
            // As with Neutron, both instances share one port and thus its MAC address.
            router.netlink().set_mac(&device, mac(ROUTER, &device))?;
        }
        plug(node, net, local, &port, mtu)?;
    }
    Ok(router)
}

/// Returns the hops by the first network node.
fn hops() -> Vec<Hop> {
    let [one, two] = NETS.map(|net| uplink(net, NetworkType::Vxlan, NIC));
    let node = "network-1";
    let router = format!("{ROUTER}-1");
    vec![
        Hop::tx("tenant-a", TENANT_NIC),
        Hop::rx("a", TENANT_PORT),
        Hop::tx("a", &one),
        Hop::tx("a", NIC),
        Hop::rx(SWITCH, "a"),
        Hop::tx(SWITCH, node),
        Hop::rx(node, NIC),
        Hop::rx(node, &one),
        Hop::tx(node, &router_port(Net::One)),
        Hop::rx(&router, &Net::One.router_device()),
        Hop::tx(&router, &Net::Two.router_device()),
        Hop::rx(node, &router_port(Net::Two)),
        Hop::tx(node, &two),
        Hop::tx(node, NIC),
        Hop::rx(SWITCH, node),
        Hop::tx(SWITCH, "b"),
        Hop::rx("b", NIC),
        Hop::rx("b", &two),
        Hop::tx("b", TENANT_PORT),
        Hop::rx("tenant-b", TENANT_NIC),
    ]
}
