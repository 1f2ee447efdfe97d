//! Segments that the VXLAN device merges, because the NIC merges none.

use std::io::{Read, Write};

use accel::{Accel, Wanted};
use test_support::{need, require};
use testbed::{NIC, Offload, poll};

use super::exchange::Exchange;
use super::pair::{DEVICE, LIMIT, Pair, TENANT_B, since};

/// A connection to a tenant whose host has the fast path, and no offloads at its NIC.
struct Receiver {
    pair: Pair,
    accel: Accel,
    exchange: Exchange,
}

impl Receiver {
    fn new() -> Receiver {
        let pair = Pair::new(Offload::None, false);
        let accel = Accel::start(pair.b.netns(), Wanted::All).unwrap();
        pair.settle_receiver(&accel);
        let to = (TENANT_B, 5402).into();
        let exchange = Exchange::new(&pair, to, to);
        Receiver { pair, accel, exchange }
    }

    /// Switches a device's GRO.
    fn merge(&self, device: &str, on: bool) {
        self.pair.b.set_features(device, &[("rx-gro", on)]).unwrap();
    }

    /// Exchanges data until its packets are as wanted: left to the VXLAN device, on the fast path.
    fn await_packets(
        &mut self,
        what: &str,
        act: impl Fn(&mut Exchange),
        is: impl Fn(u64, u64) -> bool,
    ) {
        let Receiver { accel, exchange, .. } = self;
        poll(what, LIMIT, || {
            let before = accel.status();
            act(exchange);
            let [merged, fast] =
                ["decap_merge", "decap_hit"].map(|word| since(accel, &before, word));
            let wanted = is(merged, fast).then_some(());
            Ok(wanted.ok_or_else(|| format!("{merged} merged, {fast} fast")))
        })
        .unwrap();
    }
}

#[test]
fn segments_are_left_to_the_device_that_merges_them() {
    require!(need::root());
    let mut receiver = Receiver::new();
    let much = |exchange: &mut Exchange| exchange.go(200_000);
    let merged = |merged, _| merged >= 100;
    receiver.await_packets("segments that the VXLAN device merges", much, merged);
    receiver.merge(NIC, true);
    // The NIC merges packets that come at once, so single segments may be few.
    receiver.await_packets("segments that the NIC merges", much, |merged, _| merged == 0);
    receiver.merge(NIC, false);
    receiver.await_packets("segments again", much, merged);
    receiver.merge(DEVICE, false);
    let fast = |merged, fast| merged == 0 && fast >= 100;
    receiver.await_packets("segments that no device merges", much, fast);
}

/// The rest of a message must not overtake its first segments.
#[test]
fn small_segments_follow_large_ones_and_are_fast_alone() {
    require!(need::root());
    let mut receiver = Receiver::new();
    let alone = |merged, fast| merged == 0 && fast > 0;
    receiver.await_packets("small segments alone", |exchange| exchange.go(100), alone);
    // Two full segments and a rest; nothing comes back but acknowledgements, which B sends. On a busy
    // machine the rest may be sent again, later than it has to follow: then the next message counts.
    let message = |exchange: &mut Exchange| {
        exchange.near.write_all(&[7; 3000]).unwrap();
        exchange.far.read_exact(&mut [0; 3000]).unwrap();
    };
    let follows = |merged, fast| merged >= 3 && fast == 0;
    receiver.await_packets("a rest behind its segments", message, follows);
}
