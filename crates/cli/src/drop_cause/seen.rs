//! A dropped packet, and the flows that rules may see it as.

use std::net::IpAddr;

use netstate::MacAddr;
use observe::{Event, Journey, Kind};
use ruleset::{Connection, Flow, State, Transport, Tuple};

/// A dropped packet.
pub struct Seen<'a> {
    pub event: &'a Event,
    /// Headers that the namespace of the drop sees: the outer ones of a packet in a tunnel.
    pub flow: observe::Flow,
    /// Index of the device by which it came into the namespace; `None`: it began there.
    pub came_by: Option<u32>,
}

/// Properties of a dropped packet on which its cause depends.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Traits {
    ends: (IpAddr, IpAddr),
    /// Protocol and ports; `None`: they do not matter.
    transport: Option<(u8, (u16, u16))>,
    device: Option<u32>,
    came_by: Option<u32>,
    vni: Option<Option<u32>>,
    conntrack: Option<u8>,
    mark: u32,
    macs: Option<(MacAddr, MacAddr)>,
}

impl Seen<'_> {
    pub fn of(journey: &Journey, leg: usize) -> Option<Seen<'_>> {
        let steps = || journey.steps.iter().rev().filter(move |step| step.leg == leg);
        let event = &steps().find(|step| step.event.kind == Kind::Dropped)?.event;
        let flow = event.tunnel.map(|tunnel| tunnel.outer).or(event.flow)?;
        let here = steps().filter(|step| step.event.netns == event.netns);
        let came_by = here
            .filter(|step| matches!(step.event.kind, Kind::Received | Kind::Gro | Kind::Backlog))
            .find_map(|step| step.event.device.as_ref().map(|(index, _)| *index));
        Some(Seen { event, flow, came_by })
    }

    /// Returns the index of the device where it was dropped.
    pub fn device(&self) -> Option<u32> {
        self.event.device.as_ref().map(|(index, _)| *index)
    }

    /// Returns what an answer depends on, with ports and mark only if they matter: packets to many
    /// ports then have one answer.
    pub fn traits(&self, with_transport: bool) -> Traits {
        let Seen { event, flow, came_by } = self;
        Traits {
            ends: (flow.source, flow.destination),
            transport: with_transport.then_some((flow.protocol, flow.ports)),
            device: self.device(),
            came_by: *came_by,
            vni: event.tunnel.map(|tunnel| tunnel.vni),
            conntrack: event.conntrack.filter(|_| with_transport),
            mark: if with_transport { event.mark } else { 0 },
            macs: event.macs,
        }
    }

    /// Returns the flows that the packet may belong to: several if its ICMP type is unknown.
    pub fn flows(&self, is_local: impl Fn(IpAddr) -> bool) -> Vec<Flow> {
        /// Echo request, echo reply, and the messages about a small MTU.
        const ICMP: [(u8, u8); 3] = [(8, 0), (0, 0), (3, 4)];
        const ICMPV6: [(u8, u8); 3] = [(128, 0), (129, 0), (2, 0)];
        let (from, to) = (self.flow.source, self.flow.destination);
        let icmp = |types: [(u8, u8); 3]| {
            types.map(|(kind, code)| Transport::Icmp { kind, code }).to_vec()
        };
        let transports = match self.flow.protocol {
            6 => vec![Transport::Tcp],
            17 => vec![Transport::Udp],
            1 => icmp(ICMP),
            58 => icmp(ICMPV6),
            _ => Vec::new(),
        };
        let (source_port, destination_port) = self.flow.ports;
        let tuple = Tuple { source: (from, source_port), destination: (to, destination_port) };
        // `enum ip_conntrack_info`.
        let state = |info| match info {
            0 | 3 => Some(State::Established),
            1 | 4 => Some(State::Related),
            2 => Some(State::New),
            // An entry that is being destroyed has no state that rules could match.
            _ => None,
        };
        let info = self.event.conntrack;
        let connection = info.and_then(state).map(|state| Connection {
            state,
            is_reply: info.is_some_and(|info| info > 2),
            status: None,
            mark: None,
            zone: 0,
        });
        let kind = |address| {
            let is = if is_local(address) { ruleset::flow::LOCAL } else { ruleset::flow::UNICAST };
            (address, is)
        };
        let flow = |transport| Flow {
            tuple,
            other: tuple.reversed(),
            any_source_port: false,
            any_address: None,
            asks_nat: false,
            transport,
            connection,
            mark: self.event.mark,
            address_types: vec![kind(from), kind(to)],
        };
        transports.into_iter().map(flow).collect()
    }
}
