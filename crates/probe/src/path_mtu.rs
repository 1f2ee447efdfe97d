//! Path MTU: the largest packet that arrives, whether larger ones are answered by ICMP, where the
//! path narrows, and the largest packet inside VXLAN.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::catalogue::overhead;
use crate::class::{Class, Family, Port, Tunnel, TunnelKind};
use crate::exchange::{Exchange, Trouble};
use crate::message::{Batch, IcmpKind, SendOutcome};
use crate::report::{Direction, InnerMtu, LARGEST_TESTED, PathMtu};

/// MTUs that are frequent: Ethernet, tunnels in it, PPPoE, clouds, jumbo frames.
const FREQUENT: [u32; 18] = [
    576, 1000, 1200, 1280, 1380, 1400, 1420, 1430, 1440, 1450, 1460, 1472, 1480, 1492, 1500, 4000,
    8950, 9000,
];
/// Sizes of one round.
const ROUND: u32 = 16;
/// Largest distance of routers that is examined.
const HOPS: u8 = 8;

/// Times that a size is found to arrive after all.
const DOUBTS: u32 = 3;
/// Times that packets are sent again, each with more time, if none arrives.
const SILENT: u32 = 4;

/// Sends a packet several times, with more time than usual, and returns whether any arrives.
fn arrives(exchange: &mut Exchange<'_>, way: Direction, class: Class) -> Result<bool, Trouble> {
    let done = exchange.with_more_time(1, |exchange| exchange.go(way, vec![class], 4, 64))?;
    Ok(done.collected.tallies[0].frames > 0)
}

/// Returns a UDP class whose packets have this size at layer 3.
fn of_size(family: Family, bytes: u32) -> Class {
    let class = Class { family, ..Class::PLAIN };
    // A packet needs room for the block of identification.
    Class { payload: bytes.saturating_sub(overhead(&class)).max(32), ..class }
}

/// Returns a class whose outer packets have this size: UDP over IPv4 inside VXLAN.
fn inside_vxlan(family: Family, bytes: u32) -> Class {
    let (kind, inner) = (TunnelKind::Vxlan, Family::V4);
    let tunnel = Tunnel { kind, checksum: false, inner, nested: false };
    let class = Class { family, tunnel: Some(tunnel), port: Port::Vxlan, ..Class::PLAIN };
    Class { payload: bytes.saturating_sub(overhead(&class)).max(32), ..class }
}

/// Finds the path MTU in one direction. `device` is the MTU of the sender's device.
pub fn find(
    exchange: &mut Exchange<'_>,
    way: Direction,
    family: Family,
    device: u32,
) -> Result<PathMtu, Trouble> {
    let most = device.min(LARGEST_TESTED);
    let found = largest(exchange, way, &|bytes| of_size(family, bytes), most, SILENT)?;
    let Sizes { good, bad, reported } = found;
    let mut mtu = PathMtu {
        way,
        device,
        path: (good > 0).then_some(good),
        reported,
        black_hole: false,
        narrows_after: None,
        inner: None,
    };
    if good == 0 {
        // Nothing arrives: no statement on sizes.
        return Ok(mtu);
    }
    if good < most {
        mtu.black_hole = reported.is_none();
        mtu.narrows_after = narrows_after(exchange, way, family, good, bad)?;
    }
    if exchange.has_packet_sockets() {
        let class = inside_vxlan(family, good);
        // Others arrived, so one more try is enough.
        let sizes = largest(exchange, way, &|bytes| inside_vxlan(family, bytes), good, 1)?;
        // Outer headers, up to the inner IP header.
        let headers = overhead(&class) - overhead(&Class::PLAIN);
        // A filter of the tunnel's port passes no size.
        mtu.inner = (sizes.good > 0).then(|| InnerMtu {
            path: sizes.good.saturating_sub(headers),
            black_hole: sizes.good < good && sizes.reported.is_none(),
        });
    }
    Ok(mtu)
}

/// Sizes of packets at layer 3.
struct Sizes {
    /// The largest that arrived; 0: none.
    good: u32,
    /// The smallest that did not.
    bad: u32,
    /// MTU that a router reported, and its address.
    reported: Option<(u32, IpAddr)>,
}

/// Finds the largest packets of a kind that arrive. If none does, all are sent again `tries` times.
fn largest(
    exchange: &mut Exchange<'_>,
    way: Direction,
    class_of: &dyn Fn(u32) -> Class,
    most: u32,
    tries: u32,
) -> Result<Sizes, Trouble> {
    let mut sizes: BTreeSet<u32> =
        FREQUENT.into_iter().chain([most - 1, most]).filter(|size| *size <= most).collect();
    // Open interval: the largest size that arrived, and the smallest that did not.
    let (mut good, mut bad) = (0, most + 1);
    let (mut reported, mut doubts) = (None, DOUBTS);
    let mut silent = 0;
    loop {
        let list: Vec<u32> = sizes.iter().copied().collect();
        let classes = list.iter().map(|size| class_of(*size)).collect();
        // Twice: a single loss would look like a narrow path.
        let done = exchange.with_more_time(silent, |exchange| exchange.go(way, classes, 2, 64))?;
        for error in &done.sent.errors {
            if let IcmpKind::TooBig(bytes) = error.kind {
                reported = Some((bytes, error.from));
            }
        }
        let before = (good, bad);
        let arrived = |at: usize| done.collected.tallies[at].frames > 0;
        for (at, size) in list.iter().enumerate() {
            if arrived(at) {
                good = good.max(*size);
            }
        }
        for (at, size) in list.iter().enumerate() {
            // The sender's own kernel may refuse: that is no property of the path.
            let sent = matches!(done.sent.outcomes[at], SendOutcome::Sent(_));
            if !arrived(at) && *size > good && sent {
                bad = bad.min(*size);
            }
        }
        if good == 0 {
            // On a busy machine, all of them may only have been late.
            if silent < tries {
                silent += 1;
                continue;
            }
            break;
        }
        // A sender that refuses all sizes in between, or claims to, narrows nothing.
        if good + 1 >= bad || before == (good, bad) {
            // On a busy machine, the larger packets may only have been late.
            if good < most
                && doubts > 0
                && reported.is_none()
                && arrives(exchange, way, class_of(bad))?
            {
                doubts -= 1;
                (good, bad) = (bad, most + 1);
                sizes = [good, most].into();
                continue;
            }
            break;
        }
        let step = (bad - good).div_ceil(ROUND).max(1);
        sizes = (good + 1..bad).step_by(step as usize).collect();
    }
    Ok(Sizes { good, bad, reported })
}

/// Finds the last router that packets above the path MTU reach.
fn narrows_after(
    exchange: &mut Exchange<'_>,
    way: Direction,
    family: Family,
    good: u32,
    bad: u32,
) -> Result<Option<(u8, IpAddr)>, Trouble> {
    let mut last = None;
    for ttl in 1..=HOPS {
        let classes = vec![of_size(family, good), of_size(family, bad)];
        let done = exchange.go(way, classes, 2, ttl)?;
        let at = |index: u16| {
            let number = done.first + index;
            let expired = |e: &&crate::message::IcmpError| {
                e.class == number && e.kind == IcmpKind::TimeExceeded
            };
            done.sent.errors.iter().find(expired).map(|error| error.from)
        };
        // The small packet has reached the peer: the path has no further router.
        if done.collected.tallies[0].frames > 0 {
            break;
        }
        match at(1) {
            Some(router) => last = Some((ttl, router)),
            // This router, or the link before it, does not pass the large packet.
            None if at(0).is_some() => break,
            // A router that does not answer: try the next one.
            None => {}
        }
    }
    Ok(last)
}

impl Batch {
    /// Sets the time to live.
    #[must_use]
    pub fn with_ttl(self, ttl: u8) -> Batch {
        Batch { ttl, ..self }
    }
}
