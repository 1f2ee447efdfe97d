//! Path MTU: the largest packet that arrives, whether larger ones are answered by ICMP, and where
//! the path narrows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::catalogue::overhead;
use crate::class::{Class, Family};
use crate::exchange::{Exchange, Trouble};
use crate::message::{Batch, IcmpKind, SendOutcome};
use crate::report::{Direction, PathMtu};

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

/// Sends a packet several times, with more time than usual, and returns whether any arrives.
fn arrives(exchange: &mut Exchange<'_>, way: Direction, class: Class) -> Result<bool, Trouble> {
    let done = exchange.with_more_time(|exchange| exchange.go(way, vec![class], 4, 64))?;
    Ok(done.collected.tallies[0].frames > 0)
}

/// Returns a UDP class whose packets have this size at layer 3.
fn of_size(family: Family, bytes: u32) -> Class {
    let class = Class { family, ..Class::PLAIN };
    // A packet needs room for the block of identification.
    Class { payload: bytes.saturating_sub(overhead(&class)).max(32), ..class }
}

/// Finds the path MTU in one direction. `device` is the MTU of the sender's device.
///
/// # Errors
/// If an end fails.
pub fn find(
    exchange: &mut Exchange<'_>,
    way: Direction,
    family: Family,
    device: u32,
) -> Result<PathMtu, Trouble> {
    let mut mtu =
        PathMtu { way, device, path: None, reported: None, black_hole: false, narrows_after: None };
    let device = device.min(9500);
    let mut sizes: BTreeSet<u32> =
        FREQUENT.into_iter().chain([device - 1, device]).filter(|size| *size <= device).collect();
    // Open interval: the largest size that arrived, and the smallest that did not.
    let (mut good, mut bad) = (0, device + 1);
    let (mut answered, mut doubts) = (false, DOUBTS);
    loop {
        let list: Vec<u32> = sizes.iter().copied().collect();
        let classes = list.iter().map(|size| of_size(family, *size)).collect();
        // Twice: a single loss would look like a narrow path.
        let done = exchange.go(way, classes, 2, 64)?;
        for error in &done.sent.errors {
            if let IcmpKind::TooBig(bytes) = error.kind {
                (mtu.reported, answered) = (Some((bytes, error.from)), true);
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
            // Nothing arrives: no statement on sizes.
            return Ok(mtu);
        }
        // A sender that refuses all sizes in between, or claims to, narrows nothing.
        if good + 1 >= bad || before == (good, bad) {
            // On a busy machine, the larger packets may only have been late.
            if good < device
                && doubts > 0
                && !answered
                && arrives(exchange, way, of_size(family, bad))?
            {
                doubts -= 1;
                (good, bad) = (bad, device + 1);
                sizes = [good, device].into();
                continue;
            }
            break;
        }
        let step = (bad - good).div_ceil(ROUND).max(1);
        sizes = (good + 1..bad).step_by(step as usize).collect();
    }
    mtu.path = Some(good);
    if good < device {
        mtu.black_hole = !answered;
        mtu.narrows_after = narrows_after(exchange, way, family, good, bad)?;
    }
    Ok(mtu)
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
