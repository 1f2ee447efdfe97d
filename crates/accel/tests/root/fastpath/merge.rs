//! Segments that the VXLAN device merges, because the NIC merges none.

use std::io::{Read, Write};

use accel::{Accel, Wanted};
use test_support::{need, require};
use testbed::{Host, NIC, Offload, poll};

use super::exchange::Exchange;
use super::pair::{DEVICE, LIMIT, Pair, TENANT_B, since};

const GRO: &str = "rx-gro";

fn merge(host: &Host, device: &str, on: bool) {
    host.set_features(device, &[(GRO, on)]).unwrap();
}

#[test]
fn segments_are_left_to_the_device_that_merges_them() {
    require!(need::root());
    let pair = Pair::new(Offload::None, false);
    let accel = Accel::start(pair.b.netns(), Wanted::All).unwrap();
    pair.settle_receiver(&accel);
    let to = (TENANT_B, 5402).into();
    let mut exchange = Exchange::new(&pair, to, to);
    // Counts [merged, fast] packets of `bytes` bytes there and back.
    let mut count = |bytes: usize| {
        let before = accel.status();
        exchange.go(bytes);
        ["decap_merge", "decap_hit"].map(|word| since(&accel, &before, word))
    };
    let mut becomes = |what: &str, is: &dyn Fn([u64; 2]) -> bool| {
        poll(what, LIMIT, || {
            let counted = count(200_000);
            Ok(is(counted).then_some(()).ok_or_else(|| format!("{counted:?}")))
        })
        .unwrap();
    };
    let merged = |[merged, _]: [u64; 2]| merged >= 100;
    let fast = |[merged, fast]: [u64; 2]| merged == 0 && fast >= 100;
    becomes("segments that the VXLAN device merges", &merged);
    merge(&pair.b, NIC, true);
    // The NIC merges what it gets at once, so single segments may be few.
    becomes("segments that the NIC merges", &|[merged, _]| merged == 0);
    merge(&pair.b, NIC, false);
    becomes("segments again", &merged);
    merge(&pair.b, DEVICE, false);
    becomes("segments that no device merges", &fast);
}

/// The rest of a message must not overtake its first segments.
#[test]
fn small_segments_follow_large_ones_and_are_fast_alone() {
    require!(need::root());
    let pair = Pair::new(Offload::None, false);
    let accel = Accel::start(pair.b.netns(), Wanted::All).unwrap();
    pair.settle_receiver(&accel);
    let to = (TENANT_B, 5402).into();
    let mut exchange = Exchange::new(&pair, to, to);
    poll("small segments on the fast path", LIMIT, || {
        let before = accel.status();
        exchange.go(100);
        let counted = ["decap_merge", "decap_hit"].map(|word| since(&accel, &before, word));
        Ok(if counted[0] == 0 && counted[1] > 0 { Ok(()) } else { Err(format!("{counted:?}")) })
    })
    .unwrap();
    // Two segments and a rest of 104 bytes; nothing comes back but acknowledgements, which B sends.
    let before = accel.status();
    exchange.near.write_all(&[7; 3000]).unwrap();
    exchange.far.read_exact(&mut [0; 3000]).unwrap();
    let [merged, fast] = ["decap_merge", "decap_hit"].map(|word| since(&accel, &before, word));
    assert!(merged >= 2 && fast == 0, "{merged} merged, {fast} fast");
}
