//! Fuzz target for the rule reader: arbitrary bytes cause no panic, and evaluation terminates.

use std::net::{IpAddr, Ipv4Addr};

use ruleset::{Connection, Flow, Hook, Interface, Message, Ruleset, State, Step, Transport, Tuple};

/// Consecutive messages: a byte of type, two of length, then the payload.
pub fn rules(data: &[u8]) {
    let mut messages = Vec::new();
    let mut rest = data;
    while let [kind, high, low, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        let (payload, next) = more.split_at(length);
        messages.push(Message { kind: u16::from(*kind), payload: payload.to_vec() });
        rest = next;
    }
    let ruleset = Ruleset::from_messages(&messages);
    let source = (IpAddr::V4(Ipv4Addr::new(10, 244, 1, 10)), 40000);
    let tuple = Tuple { source, destination: (IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)), 80) };
    let other =
        Tuple { source: (IpAddr::V4(Ipv4Addr::new(10, 244, 2, 10)), 8080), destination: source };
    let device = |index, name: &str| Some(Interface { index, name: name.to_owned() });
    let path: Vec<Step> =
        [Hook::Prerouting, Hook::Forward, Hook::Postrouting, Hook::Input, Hook::BridgeForward]
            .into_iter()
            .map(|hook| Step {
                hook,
                input: device(2, "cni0"),
                output: device(3, "flannel.1"),
                port_in: Some("veth0".to_owned()),
                port_out: None,
                hardware_source: None,
            })
            .collect();
    for transport in [Transport::Tcp, Transport::Udp, Transport::Icmp { kind: 8, code: 0 }] {
        let flow = Flow {
            tuple,
            other,
            transport,
            any_source_port: false,
            any_address: None,
            asks_nat: false,
            connection: Some(Connection {
                state: State::Established,
                is_reply: false,
                status: Some(0x1ae),
                mark: Some(0),
                zone: 0,
            }),
            mark: 0,
            address_types: vec![(source.0, 1)],
        };
        let _ = ruleset.verdict(&flow, &path);
    }
}
