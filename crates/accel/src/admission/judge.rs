//! Decides whether a connection may take the fast path: TCP in both directions together, datagrams
//! in the requested direction only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netstate::connection::{Connections, Entry, Tuple};
use ruleset::{Answer, Connection, Flow, State, Step, Transport, Verdict};

use super::route::{self, End};
use crate::model::{Basis, Port};
use crate::programs::{Admitted, FlowKey, FlowMaps, FlowStore};

const IPPROTO_TCP: u8 = 6;
/// `IPS_*` of `linux/netfilter/nf_conntrack_common.h`.
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_SEQ_ADJUST: u32 = 1 << 6;
const IPS_DYING: u32 = 1 << 9;
const IPS_HELPER: u32 = 1 << 13;

/// Reasons for denying a verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// Verdicts are not given for this device, or no longer.
    #[error("not at a tenant's device")]
    Elsewhere,
    /// Conntrack cannot be queried, or changed the connection meanwhile.
    #[error("conntrack lookup failed")]
    Untracked,
    /// The connection is not established.
    #[error("the connection is not established")]
    Young,
    /// Packets were not yet seen entering and leaving in every direction of the connection.
    #[error("packets not yet seen in every direction")]
    Unseen,
    /// The kernel processes the connection in a way the fast path does not implement.
    #[error("conntrack: {0}")]
    Unsupported(&'static str),
    /// A rule drops the packets, depends on the packet, or cannot be parsed.
    #[error("{0}")]
    Rule(Verdict),
    /// The rules set a mark, which may affect the tunnel's outer packets.
    #[error("rules set a mark")]
    Mark,
    /// Rules may match the counters of the connection's entry.
    #[error("conntrack counts its packets (nf_conntrack_acct)")]
    Counted,
}

impl Denied {
    /// Whether to report the reason: it will not change within a moment.
    pub(crate) fn is_by_rules(&self) -> bool {
        match self {
            Denied::Elsewhere | Denied::Young | Denied::Unseen => false,
            Denied::Untracked | Denied::Unsupported(_) | Denied::Rule(_) => true,
            Denied::Mark | Denied::Counted => true,
        }
    }
}

/// Decides about the connection of a packet and returns the admitted directions.
///
/// # Errors
/// Why the connection is denied.
pub(crate) fn judge(
    basis: &Basis,
    connections: &Connections,
    maps: &mut FlowMaps,
    key: &FlowKey,
) -> Result<Vec<Admitted>, Denied> {
    // Sandboxes have no verdicts, and a request may be older than the state.
    if basis.number == 0 || key.netns != 0 {
        return Err(Denied::Elsewhere);
    }
    // For a flow without an entry, evaluate the rules as untracked. If the rules use conntrack, the
    // flow has an entry or a `notrack` rule.
    let entry = connections.get(&key.tuple).map_err(|_| Denied::Untracked)?;
    let entry = entry.as_ref();
    // An entry keeps its counters, or has none, whatever the sysctl becomes.
    if basis.leaves_counted && entry.is_some_and(|entry| entry.is_counted) {
        return Err(Denied::Counted);
    }
    let is_reply = entry.is_some_and(|entry| entry.original != key.tuple);
    let (sent, received) = (key.tuple, received(entry, &key.tuple)?);
    // Without an entry, the rules see no connection.
    let goes = entry.map_or(Ok(Goes::BothWays), progress)?;
    let case = Case { basis, maps, key, tuples: (sent, received), is_reply };
    let directions = case.directions()?;
    for direction in &directions {
        // br_netfilter routes translated packets; the programs would not.
        if direction.is_bridged && direction.leaves() != direction.tuple {
            return Err(Denied::Unsupported("translated on a bridge"));
        }
        for connection in seen_as(entry, goes, direction.is_reply) {
            let flow = direction.flow(basis, connection);
            let answer = basis.ruleset.verdict(&flow, &direction.path);
            passed(&answer)?;
            // Outer packets inherit the mark. Towards the tenant, veth clears it.
            if answer.mark != 0 && basis.tunnels.contains_key(&direction.output) {
                return Err(Denied::Mark);
            }
        }
    }
    let window = match entry {
        Some(entry) if sent.protocol == IPPROTO_TCP => {
            let window = maps.windows.track(entry).map_err(|_| Denied::Untracked)?;
            Some(window.ok_or(Denied::Unsupported("TCP window unknown"))?)
        }
        _ => None,
    };
    let admitted = |direction: &Direction| Admitted {
        key: FlowKey {
            device: direction.input,
            tuple: direction.tuple,
            place: FlowStore::Verdict,
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
        is_reply: direction.is_reply,
        window,
    };
    Ok(directions.iter().map(admitted).collect())
}

/// The connection of a packet, and the device where the packet arrived.
struct Case<'a> {
    basis: &'a Basis,
    maps: &'a FlowMaps,
    key: &'a FlowKey,
    /// Tuples of the packet and of replies to it.
    tuples: (Tuple, Tuple),
    /// The packet travels in the reply direction.
    is_reply: bool,
}

impl Case<'_> {
    /// Returns the directions that need a verdict, if the slow path has passed packets in all of
    /// them.
    fn directions(&self) -> Result<Vec<Direction>, Denied> {
        let Case { basis, key, tuples, is_reply, .. } = *self;
        let passing = |directions: &Vec<Direction>| directions.iter().all(|way| self.passes(way));
        let Some(port) = basis.ports.get(&key.device) else {
            let tunnel = (key.device, basis.tunnels.get(&key.device).ok_or(Denied::Elsewhere)?);
            let into = |port| {
                let inward = Direction::inward(port, tunnel, tuples, is_reply);
                let back = || Direction::outward(port, tunnel, (tuples.1, tuples.0), !is_reply);
                self.wanting(inward, back)
            };
            let ports = ends(&basis.ports).filter(|port| route::are_joined(port.1, tunnel.1));
            return ports.map(into).find(passing).ok_or(Denied::Unseen);
        };
        let port = (key.device, port);
        let through = |tunnel| {
            let outward = Direction::outward(port, tunnel, tuples, is_reply);
            let back = || Direction::inward(port, tunnel, (tuples.1, tuples.0), !is_reply);
            self.wanting(outward, back)
        };
        let tunnels = ends(&basis.tunnels).filter(|tunnel| route::are_joined(port.1, tunnel.1));
        tunnels.map(through).find(passing).ok_or(Denied::Unseen)
    }

    /// TCP needs both directions, because segments are useless without acknowledgements. Datagrams
    /// are judged per direction: replies may be rare, or may have passed under other rules.
    fn wanting(&self, one: Direction, back: impl FnOnce() -> Direction) -> Vec<Direction> {
        match self.key.tuple.protocol {
            IPPROTO_TCP => Vec::from([one, back()]),
            _ => Vec::from([one]),
        }
    }

    /// Whether the slow path has passed a packet in and out under the current rules.
    fn passes(&self, way: &Direction) -> bool {
        let seen = |device, tuple, place| {
            let seen = self.maps.seen(&FlowKey { device, tuple, place, ..*self.key });
            seen == Some(self.basis.number)
        };
        seen(way.output, way.leaves(), FlowStore::Left)
            && seen(way.input, way.tuple, FlowStore::Entered)
    }
}

/// Iterates over devices with their index.
fn ends(devices: &BTreeMap<u32, Port>) -> impl Iterator<Item = End<'_>> {
    devices.iter().map(|(index, device)| (*index, device))
}

/// Returns the tuple of replies to packets with tuple `sent`, as they arrive.
fn received(entry: Option<&Entry>, sent: &Tuple) -> Result<Tuple, Denied> {
    match entry {
        None => Ok(sent.reversed()),
        Some(entry) if entry.original == *sent => Ok(entry.reply),
        Some(entry) if entry.reply == *sent => Ok(entry.original),
        // The entry now belongs to another connection.
        Some(_) => Err(Denied::Untracked),
    }
}

/// Directions in which conntrack has seen packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// The connection is assured, or untracked.
    BothWays,
    /// Datagrams that were answered. The first datagram after two seconds makes the entry assured
    /// (`nf_conntrack_udp_packet`).
    Answered,
    /// Datagrams without an answer.
    OneWay,
}

fn progress(entry: &Entry) -> Result<Goes, Denied> {
    const ANSWERED: u32 = IPS_SEEN_REPLY | IPS_ASSURED;
    // The window or the addresses of such an entry cannot be followed.
    if let Some(what) = entry.oddity {
        return Err(Denied::Unsupported(what));
    }
    // The fast path would bypass the helper and the adjustment.
    if entry.status & (IPS_HELPER | IPS_SEQ_ADJUST) != 0 {
        return Err(Denied::Unsupported("helper"));
    }
    // Not in the table yet, or being deleted.
    if entry.status & (IPS_CONFIRMED | IPS_DYING) != IPS_CONFIRMED {
        return Err(Denied::Young);
    }
    let is_tcp = entry.original.protocol == IPPROTO_TCP;
    match entry.status & ANSWERED {
        ANSWERED if entry.is_established => Ok(Goes::BothWays),
        IPS_SEEN_REPLY if !is_tcp => Ok(Goes::Answered),
        0 if !is_tcp => Ok(Goes::OneWay),
        // TCP must be assured and established.
        _ => Err(Denied::Young),
    }
}

/// Returns the connection states that rules may see while a verdict holds. `None`: untracked.
fn seen_as(entry: Option<&Entry>, goes: Goes, is_reply: bool) -> Vec<Option<Connection>> {
    let Some(entry) = entry else { return vec![None] };
    // As `nf_conntrack_in`: new until a reply has been seen.
    let state = match goes {
        Goes::BothWays | Goes::Answered => State::Established,
        Goes::OneWay => State::New,
    };
    let with = |status| {
        Some(Connection { state, is_reply, status: Some(status), mark: Some(entry.mark), zone: 0 })
    };
    match goes {
        // The status changes to assured while packets take the fast path, so evaluate both.
        Goes::Answered => vec![with(entry.status), with(entry.status | IPS_ASSURED)],
        Goes::BothWays | Goes::OneWay => vec![with(entry.status)],
    }
}

/// A direction of a connection through this host.
struct Direction {
    /// Index of the input device.
    input: u32,
    /// Index of the output device.
    output: u32,
    /// Tuple of packets as they arrive.
    tuple: Tuple,
    /// Tuple of replies as they arrive.
    other: Tuple,
    is_reply: bool,
    /// Both devices are ports of one bridge.
    is_bridged: bool,
    path: Vec<Step>,
}

impl Direction {
    /// From a tenant to a tunnel. Devices come with their index.
    fn outward(
        (input, port): End<'_>,
        (output, tunnel): End<'_>,
        (tuple, other): (Tuple, Tuple),
        is_reply: bool,
    ) -> Direction {
        let (is_bridged, path) = (route::is_bridged(port, tunnel), route::outward(port, tunnel));
        Direction { input, output, tuple, other, is_reply, is_bridged, path }
    }

    /// From a tunnel to a tenant. Devices come with their index.
    fn inward(
        (output, port): End<'_>,
        (input, tunnel): End<'_>,
        (tuple, other): (Tuple, Tuple),
        is_reply: bool,
    ) -> Direction {
        let (is_bridged, path) = (route::is_bridged(port, tunnel), route::inward(port, tunnel));
        Direction { input, output, tuple, other, is_reply, is_bridged, path }
    }

    /// Returns the tuple of packets as they leave.
    fn leaves(&self) -> Tuple {
        self.other.reversed()
    }

    /// Returns the flow as the rules see it.
    fn flow(&self, basis: &Basis, connection: Option<Connection>) -> Flow {
        let Direction { tuple, other, .. } = *self;
        let of =
            |tuple: Tuple| ruleset::Tuple { source: tuple.source, destination: tuple.destination };
        let ends = [tuple.source.0, tuple.destination.0, other.source.0, other.destination.0];
        // A rule that matches an unknown type gives no verdict.
        let kind = |address: IpAddr| Some((address, basis.address_types.of(address)?));
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
            // The programs use verdicts only for packets without a mark.
            mark: 0,
            address_types: ends.into_iter().filter_map(kind).collect(),
        }
    }
}

fn passed(answer: &Answer) -> Result<(), Denied> {
    match &answer.verdict {
        Verdict::Accept => Ok(()),
        other => Err(Denied::Rule(other.clone())),
    }
}
