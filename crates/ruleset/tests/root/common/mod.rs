//! A router between a client and a server, and the flow between them.

#![allow(dead_code, reason = "each test uses some of it")]

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use ruleset::{Connection, Flow, Hook, Interface, Ruleset, State, Step, Transport, Tuple, Verdict};
use testbed::Host;

pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2));
pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));

/// Three hosts in a row.
pub struct Row {
    pub client: Host,
    pub node: Host,
    pub server: Host,
}

impl Row {
    pub fn new() -> Row {
        let [client, node, server] =
            ["client", "node", "server"].map(|name| Host::new(name).unwrap());
        node.connect("in0", &client, "eth0", 1500).unwrap();
        node.connect("out0", &server, "eth0", 1500).unwrap();
        node.address("in0", Ipv4Addr::new(10, 0, 1, 1), 24).unwrap();
        node.address("out0", Ipv4Addr::new(10, 0, 2, 1), 24).unwrap();
        client.address("eth0", CLIENT, 24).unwrap();
        server.address("eth0", SERVER, 24).unwrap();
        node.forward().unwrap();
        for (host, last) in [(&client, 1), (&server, 2)] {
            let gateway = format!("10.0.{last}.1");
            host.run(Command::new("ip").args(["route", "add", "default", "via", &gateway]))
                .unwrap();
        }
        Row { client, node, server }
    }

    /// The node's current rules in the kernel, including iptables-legacy.
    pub fn rules(&self) -> Ruleset {
        let read = || {
            let mut rules = ruleset::read().unwrap();
            rules.join_legacy().unwrap();
            rules
        };
        self.node.netns().run(read).unwrap()
    }
}

/// Hooks on the path of packets that the node forwards from one device to another.
pub fn path(input: (u32, &str), output: (u32, &str)) -> Vec<Step> {
    let device = |(index, name): (u32, &str)| Some(Interface { index, name: name.to_owned() });
    let step = |hook, input, output| Step {
        hook,
        input,
        output,
        port_in: None,
        port_out: None,
        hardware_source: None,
    };
    vec![
        step(Hook::Ingress, device(input), None),
        step(Hook::Prerouting, device(input), None),
        step(Hook::Forward, device(input), device(output)),
        step(Hook::Postrouting, device(input), device(output)),
        step(Hook::Egress, None, device(output)),
    ]
}

/// An established connection's direction, as the client started it.
pub fn flow(transport: Transport, source: u16, destination: u16) -> Flow {
    let tuple = Tuple { source: (CLIENT, source), destination: (SERVER, destination) };
    Flow {
        tuple,
        other: tuple.reversed(),
        transport,
        any_source_port: false,
        any_address: None,
        asks_nat: false,
        connection: Some(Connection {
            state: State::Established,
            is_reply: false,
            // IPS_SEEN_REPLY, IPS_ASSURED, IPS_CONFIRMED.
            status: Some(0xe),
            mark: Some(0),
            zone: 0,
        }),
        mark: 0,
        address_types: vec![(CLIENT, 1), (SERVER, 1)],
    }
}

/// The other direction of a flow.
pub fn back(flow: &Flow) -> Flow {
    let connection = flow.connection.map(|entry| Connection { is_reply: !entry.is_reply, ..entry });
    Flow { tuple: flow.other, other: flow.tuple, connection, ..flow.clone() }
}

/// The class of a verdict, as the page names it.
pub fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Accept | Verdict::Drop { .. } => "remembered",
        Verdict::Depends { .. } => "keeps slow",
        Verdict::NotUnderstood { .. } => "not understood",
    }
}
