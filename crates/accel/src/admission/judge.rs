//! Whether a connection's packets may go fast, in both directions.

use std::net::IpAddr;

use netstate::connection::{Connections, Entry, Tuple};
use ruleset::{Answer, Connection, Flow, Interface, State, Step, Transport, Verdict};

use super::{is_known, route};
use crate::model::Basis;
use crate::programs::{Admitted, FlowKey, FlowMaps, Place};

const IPPROTO_TCP: u8 = 6;
/// `IPS_*` of `linux/netfilter/nf_conntrack_common.h`.
const IPS_SEEN_REPLY: u32 = 1 << 1;
const IPS_ASSURED: u32 = 1 << 2;
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_SEQ_ADJUST: u32 = 1 << 6;
const IPS_DYING: u32 = 1 << 9;
const IPS_HELPER: u32 = 1 << 13;
/// Kinds of addresses (`RTN_*` of `linux/rtnetlink.h`).
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;

/// Why a flow has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Held {
    /// The device is none that verdicts are given for, any more.
    #[error("not at a tenant's device")]
    Elsewhere,
    /// Conntrack could not be asked, or has changed its mind meanwhile.
    #[error("conntrack does not answer")]
    Untracked,
    /// The connection is not assured in both directions.
    #[error("the connection is not assured")]
    Young,
    /// Packets of it have not been seen to come in and leave, in both directions.
    #[error("not seen to pass in both directions")]
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

/// Judges the connection that a tenant's packet belongs to.
///
/// # Errors
/// What holds it back.
pub(crate) fn judge(
    basis: &Basis,
    connections: &Connections,
    maps: &FlowMaps,
    key: &FlowKey,
) -> Result<[Admitted; 2], Held> {
    if !is_known(basis, key) {
        return Err(Held::Elsewhere);
    }
    let port = basis.ports.get(&key.device).ok_or(Held::Elsewhere)?;
    let sent = key.tuple;
    // Of a flow without an entry the rules are asked as they see it: untracked. Where they
    // use conntrack, it has one, or a rule has told it to look away.
    let entry = connections.get(&sent).map_err(|_| Held::Untracked)?;
    let entry = entry.as_ref();
    let is_reply = entry.is_some_and(|entry| entry.original != sent);
    // What comes back, as it comes.
    let received = match entry {
        Some(entry) if is_reply && entry.reply != sent => return Err(Held::Untracked),
        Some(entry) => {
            if is_reply {
                entry.original
            } else {
                entry.reply
            }
        }
        None => sent.reversed(),
    };
    entry.map_or(Ok(()), is_fit)?;
    // Where the slow path has let them in and out.
    let seen = |device, tuple, place| {
        maps.seen(&FlowKey { device, tuple, place, ..*key }) == Some(basis.number)
    };
    let passes = |tunnel: &&u32| {
        seen(**tunnel, received.reversed(), Place::Left)
            && seen(**tunnel, received, Place::Entered)
            && seen(key.device, sent, Place::Entered)
            && seen(key.device, sent.reversed(), Place::Left)
    };
    let index = *basis.tunnels.keys().find(passes).ok_or(Held::Unseen)?;
    let tunnel = Interface { index, name: basis.tunnels[&index].clone() };
    let asked = |tuple: Tuple, other: Tuple, is_reply, path: &[Step]| {
        let flow = flow(basis, entry, (tuple, other), is_reply);
        basis.ruleset.verdict(&flow, path)
    };
    let outward = asked(sent, received, is_reply, &route::outward(port, &tunnel));
    let inward = asked(received, sent, !is_reply, &route::inward(port, &tunnel));
    passed(&outward)?;
    passed(&inward)?;
    // The tunnel's datagrams inherit it; veth takes it off what comes to the tenant.
    if outward.mark != 0 {
        return Err(Held::Mark);
    }
    if let Some(entry) = entry
        && sent.protocol == IPPROTO_TCP
    {
        // The window moves on without the slow path seeing it.
        connections.make_liberal(&entry.original).map_err(|_| Held::Untracked)?;
    }
    let admitted = |device, tuple: Tuple, output, leaves: Tuple| Admitted {
        key: FlowKey { device, tuple, place: Place::Verdict, ..*key },
        verdict: basis.number,
        output,
        mark: entry.map_or(0, |entry| entry.mark),
        status: entry.map_or(0, |entry| entry.status),
        leaves,
        is_tracked: entry.is_some(),
    };
    Ok([
        admitted(key.device, sent, index, received.reversed()),
        admitted(index, received, key.device, sent.reversed()),
    ])
}

fn is_fit(entry: &Entry) -> Result<(), Held> {
    const SURE: u32 = IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED;
    if let Some(what) = entry.oddity {
        return Err(Held::Odd(what));
    }
    if entry.status & (IPS_HELPER | IPS_SEQ_ADJUST) != 0 {
        return Err(Held::Odd("helper"));
    }
    if entry.status & (SURE | IPS_DYING) != SURE || !entry.is_established {
        return Err(Held::Young);
    }
    Ok(())
}

fn flow(
    basis: &Basis,
    entry: Option<&Entry>,
    (tuple, other): (Tuple, Tuple),
    is_reply: bool,
) -> Flow {
    let of = |tuple: Tuple| ruleset::Tuple { source: tuple.source, destination: tuple.destination };
    let ends = [tuple.source.0, tuple.destination.0, other.source.0, other.destination.0];
    let kind = |address: IpAddr| if basis.own.contains(&address) { LOCAL } else { UNICAST };
    Flow {
        tuple: of(tuple),
        other: of(other),
        any_source_port: false,
        asks_nat: false,
        transport: if tuple.protocol == IPPROTO_TCP { Transport::Tcp } else { Transport::Udp },
        connection: entry.map(|entry| Connection {
            state: State::Established,
            is_reply,
            status: Some(entry.status),
            mark: entry.mark,
            zone: 0,
        }),
        mark: 0,
        address_types: ends.into_iter().map(|address| (address, kind(address))).collect(),
    }
}

fn passed(answer: &Answer) -> Result<(), Held> {
    match &answer.verdict {
        Verdict::Accept => Ok(()),
        other => Err(Held::Rule(other.clone())),
    }
}
