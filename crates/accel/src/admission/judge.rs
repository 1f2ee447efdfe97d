//! Whether a connection's packets may go fast: segments in both directions, datagrams in the one
//! that was asked about.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netstate::connection::{Connections, Entry, Tuple};
use ruleset::flow::{LOCAL, UNICAST};
use ruleset::{Answer, Connection, Flow, State, Step, Transport, Verdict};

use super::route::{self, End};
use crate::model::{Basis, Port};
use crate::programs::{Admitted, FlowKey, FlowMaps, Place};

const IPPROTO_TCP: u8 = 6;
/// `IPS_*` of `linux/netfilter/nf_conntrack_common.h`.
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_SEQ_ADJUST: u32 = 1 << 6;
const IPS_DYING: u32 = 1 << 9;
const IPS_HELPER: u32 = 1 << 13;

/// Why a flow has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Held {
    /// The device is none that verdicts are given for, any more.
    #[error("not at a tenant's device")]
    Elsewhere,
    /// Conntrack could not be asked, or has changed its mind meanwhile.
    #[error("conntrack does not answer")]
    Untracked,
    /// The connection is not established.
    #[error("the connection is not established")]
    Young,
    /// Packets of it have not been seen to come in and leave, in all directions that it has.
    #[error("not seen to pass in all directions")]
    Unseen,
    /// The kernel does more to the connection.
    #[error("conntrack: {0}")]
    Odd(&'static str),
    /// A rule stops it, or depends on the packet, or is not understood.
    #[error("{0}")]
    Rule(Verdict),
    /// The rules leave a mark, which may matter to the tunnel's datagrams.
    #[error("rules leave a mark")]
    Mark,
}

impl Held {
    /// Whether it is worth telling, and will not be another thing in a moment.
    pub(crate) fn is_by_rules(&self) -> bool {
        matches!(self, Held::Untracked | Held::Odd(_) | Held::Rule(_) | Held::Mark)
    }
}

/// Judges the connection that a packet belongs to, and returns what may go fast of it.
///
/// # Errors
/// What holds it back.
pub(crate) fn judge(
    basis: &Basis,
    connections: &Connections,
    maps: &FlowMaps,
    key: &FlowKey,
) -> Result<Vec<Admitted>, Held> {
    // Sandboxes have no verdicts; and a question may be older than the state.
    if basis.number == 0 || key.netns != 0 {
        return Err(Held::Elsewhere);
    }
    // Of a flow without an entry the rules are asked as they see it: untracked. Where they
    // use conntrack, it has one, or a rule has told it to look away.
    let entry = connections.get(&key.tuple).map_err(|_| Held::Untracked)?;
    let entry = entry.as_ref();
    let is_reply = entry.is_some_and(|entry| entry.original != key.tuple);
    let (sent, received) = (key.tuple, received(entry, &key.tuple)?);
    // Without an entry rules know of no connection that it belongs to.
    let goes = entry.map_or(Ok(Goes::BothWays), progress)?;
    let case = Case { basis, maps, key, tuples: (sent, received), is_reply };
    let directions = case.directions()?;
    for direction in &directions {
        // br_netfilter routes what it has translated; the programs would not.
        if direction.is_bridged && direction.leaves() != direction.tuple {
            return Err(Held::Odd("translated on a bridge"));
        }
        for connection in seen_as(entry, goes, direction.is_reply) {
            let flow = direction.flow(basis, connection);
            let answer = basis.ruleset.verdict(&flow, &direction.path);
            passed(&answer)?;
            // The tunnel's datagrams inherit it; veth takes it off what comes to the tenant.
            if answer.mark != 0 && basis.tunnels.contains_key(&direction.output) {
                return Err(Held::Mark);
            }
        }
    }
    if let Some(entry) = entry
        && sent.protocol == IPPROTO_TCP
    {
        // The window moves on without the slow path seeing it.
        connections.make_liberal(&entry.original).map_err(|_| Held::Untracked)?;
    }
    let admitted = |direction: &Direction| Admitted {
        key: FlowKey {
            device: direction.input,
            tuple: direction.tuple,
            place: Place::Verdict,
            ..*key
        },
        verdict: basis.number,
        output: direction.output,
        mark: entry.map_or(0, |entry| entry.mark),
        status: entry.map_or(0, |entry| entry.status),
        leaves: direction.leaves(),
        is_tracked: entry.is_some(),
        is_one_way: entry.is_some() && goes == Goes::OneWay,
        is_young: goes == Goes::Answered,
    };
    Ok(directions.iter().map(admitted).collect())
}

/// A connection that a packet belongs to, where that came in.
struct Case<'a> {
    basis: &'a Basis,
    maps: &'a FlowMaps,
    key: &'a FlowKey,
    /// As the packet came; as answers come.
    tuples: (Tuple, Tuple),
    /// The packet is one of the answers.
    is_reply: bool,
}

impl Case<'_> {
    /// The directions that want a verdict, all of which the slow path has let in and out.
    fn directions(&self) -> Result<Vec<Direction>, Held> {
        let Case { basis, key, tuples, is_reply, .. } = *self;
        let passing = |directions: &Vec<Direction>| directions.iter().all(|way| self.passes(way));
        let Some(port) = basis.ports.get(&key.device) else {
            let tunnel = (key.device, basis.tunnels.get(&key.device).ok_or(Held::Elsewhere)?);
            let into = |port| {
                let inward = Direction::inward(port, tunnel, tuples, is_reply);
                let back = || Direction::outward(port, tunnel, (tuples.1, tuples.0), !is_reply);
                self.wanting(inward, back)
            };
            let ports = ends(&basis.ports).filter(|port| route::are_joined(port.1, tunnel.1));
            return ports.map(into).find(passing).ok_or(Held::Unseen);
        };
        let port = (key.device, port);
        let through = |tunnel| {
            let outward = Direction::outward(port, tunnel, tuples, is_reply);
            let back = || Direction::inward(port, tunnel, (tuples.1, tuples.0), !is_reply);
            self.wanting(outward, back)
        };
        let tunnels = ends(&basis.tunnels).filter(|tunnel| route::are_joined(port.1, tunnel.1));
        tunnels.map(through).find(passing).ok_or(Held::Unseen)
    }

    /// Segments are nothing without those that acknowledge them. Of datagrams each direction is
    /// judged by itself: their answers may be few, or have come under other rules.
    fn wanting(&self, one: Direction, back: impl FnOnce() -> Direction) -> Vec<Direction> {
        match self.key.tuple.protocol {
            IPPROTO_TCP => Vec::from([one, back()]),
            _ => Vec::from([one]),
        }
    }

    /// Whether the slow path has let a packet in and out under the rules of now.
    fn passes(&self, way: &Direction) -> bool {
        let seen = |device, tuple, place| {
            let seen = self.maps.seen(&FlowKey { device, tuple, place, ..*self.key });
            seen == Some(self.basis.number)
        };
        seen(way.output, way.leaves(), Place::Left) && seen(way.input, way.tuple, Place::Entered)
    }
}

/// Devices with their index.
fn ends(devices: &BTreeMap<u32, Port>) -> impl Iterator<Item = End<'_>> {
    devices.iter().map(|(index, device)| (*index, device))
}

/// What comes back, as it comes, to what enters as `sent`.
fn received(entry: Option<&Entry>, sent: &Tuple) -> Result<Tuple, Held> {
    match entry {
        None => Ok(sent.reversed()),
        Some(entry) if entry.original == *sent => Ok(entry.reply),
        Some(entry) if entry.reply == *sent => Ok(entry.original),
        // It is another one by now.
        Some(_) => Err(Held::Untracked),
    }
}

/// In which directions conntrack has seen packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// The connection is assured.
    BothWays,
    /// Datagrams that were answered. They become assured with the first one after two seconds
    /// (`nf_conntrack_udp_packet`).
    Answered,
    /// Datagrams that nobody has answered.
    OneWay,
}

fn progress(entry: &Entry) -> Result<Goes, Held> {
    const ANSWERED: u32 = IPS_SEEN_REPLY | IPS_ASSURED;
    if let Some(what) = entry.oddity {
        return Err(Held::Odd(what));
    }
    if entry.status & (IPS_HELPER | IPS_SEQ_ADJUST) != 0 {
        return Err(Held::Odd("helper"));
    }
    if entry.status & (IPS_CONFIRMED | IPS_DYING) != IPS_CONFIRMED {
        return Err(Held::Young);
    }
    let is_tcp = entry.original.protocol == IPPROTO_TCP;
    match entry.status & ANSWERED {
        ANSWERED if entry.is_established => Ok(Goes::BothWays),
        IPS_SEEN_REPLY if !is_tcp => Ok(Goes::Answered),
        0 if !is_tcp => Ok(Goes::OneWay),
        _ => Err(Held::Young),
    }
}

/// The connection as rules see it while a verdict holds; `None`: they see packets without one.
fn seen_as(entry: Option<&Entry>, goes: Goes, is_reply: bool) -> Vec<Option<Connection>> {
    let Some(entry) = entry else { return vec![None] };
    // nf_conntrack_in: new until an answer has been seen.
    let state = match goes {
        Goes::BothWays | Goes::Answered => State::Established,
        Goes::OneWay => State::New,
    };
    let with = |status| {
        Some(Connection { state, is_reply, status: Some(status), mark: entry.mark, zone: 0 })
    };
    match goes {
        // It becomes the second while packets go fast.
        Goes::Answered => vec![with(entry.status), with(entry.status | IPS_ASSURED)],
        Goes::BothWays | Goes::OneWay => vec![with(entry.status)],
    }
}

/// A direction of a connection through this host.
struct Direction {
    /// Index of the device by which it comes.
    input: u32,
    /// Index of the device by which it leaves.
    output: u32,
    /// As it comes.
    tuple: Tuple,
    /// As answers come.
    other: Tuple,
    /// It is that of answers.
    is_reply: bool,
    /// It crosses a bridge.
    is_bridged: bool,
    path: Vec<Step>,
}

impl Direction {
    /// From a tenant to a tunnel, each with its index.
    fn outward(
        (input, port): End<'_>,
        (output, tunnel): End<'_>,
        (tuple, other): (Tuple, Tuple),
        is_reply: bool,
    ) -> Direction {
        let (is_bridged, path) = (route::is_bridged(port, tunnel), route::outward(port, tunnel));
        Direction { input, output, tuple, other, is_reply, is_bridged, path }
    }

    /// From a tunnel to a tenant.
    fn inward(
        (output, port): End<'_>,
        (input, tunnel): End<'_>,
        (tuple, other): (Tuple, Tuple),
        is_reply: bool,
    ) -> Direction {
        let (is_bridged, path) = (route::is_bridged(port, tunnel), route::inward(port, tunnel));
        Direction { input, output, tuple, other, is_reply, is_bridged, path }
    }

    /// Addresses and ports with which it leaves.
    fn leaves(&self) -> Tuple {
        self.other.reversed()
    }

    /// As the rules see it.
    fn flow(&self, basis: &Basis, connection: Option<Connection>) -> Flow {
        let Direction { tuple, other, .. } = *self;
        let of =
            |tuple: Tuple| ruleset::Tuple { source: tuple.source, destination: tuple.destination };
        let ends = [tuple.source.0, tuple.destination.0, other.source.0, other.destination.0];
        let kind = |address: IpAddr| if basis.own.contains(&address) { LOCAL } else { UNICAST };
        Flow {
            tuple: of(tuple),
            other: of(other),
            any_source_port: false,
            any_address: None,
            asks_nat: false,
            transport: match tuple.protocol {
                IPPROTO_TCP => Transport::Tcp,
                _ => Transport::Udp,
            },
            connection,
            mark: 0,
            address_types: ends.into_iter().map(|address| (address, kind(address))).collect(),
        }
    }
}

fn passed(answer: &Answer) -> Result<(), Held> {
    match &answer.verdict {
        Verdict::Accept => Ok(()),
        other => Err(Held::Rule(other.clone())),
    }
}
