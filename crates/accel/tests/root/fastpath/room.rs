//! Maps that are too small for all addresses.

use accel::{Accel, Options, Wanted};
use test_support::{need, require};
use testbed::{Offload, poll};

use super::pair::{DEVICE, LIMIT, Pair, TENANT_B, bridge, since};

#[test]
fn addresses_without_room_go_the_slow_way_until_there_is_some() {
    require!(need::root());
    let pair = Pair::new(Offload::Full, false);
    // These addresses are mirrored before the tenants', because they are sorted.
    let [first, second] = ["00:00:00:00:01:01", "00:00:00:00:01:02"];
    for address in [first, second] {
        bridge(
            &pair.a,
            &format!(
                "fdb add {address} dev {DEVICE} dst 10.0.0.2 self permanent
                 fdb add {address} dev {DEVICE} master static\n"
            ),
        );
    }
    let accel = {
        let options = Options { max_entries: 2, ..Options::default() };
        Accel::with(pair.a.netns(), Wanted::All, options).unwrap()
    };
    let sent = |word: &str| accel.status().packets(word);
    poll("two addresses without room", LIMIT, || {
        pair.ping(&[]);
        let status = accel.status();
        let full = (status.max_entries, status.entries, status.left_out) == (2, 2, 2);
        let slow = sent("encap_destination") > 0;
        Ok((full && slow).then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
    pair.stream(TENANT_B.into(), 3_000_000);
    let status = accel.status();
    let taken = ["encap_hit", "encap_shortcut", "decap_hit"].map(sent);
    assert_eq!(taken, [0; 3], "{status:#?}");
    assert!(status.accelerates(DEVICE) && status.problem.is_none(), "{status:#?}");

    // Space freed by the other addresses goes to the tenants.
    for address in [first, second] {
        bridge(&pair.a, &format!("fdb del {address} dev {DEVICE} master static\n"));
    }
    poll("room for both", LIMIT, || {
        let before = accel.status();
        pair.ping(&[]);
        let status = accel.status();
        let room = (status.entries, status.left_out) == (2, 0);
        let taken = ["encap_hit", "decap_hit"].map(|word| since(&accel, &before, word));
        let fast = room && taken.iter().all(|taken| *taken > 0);
        Ok(fast.then_some(()).ok_or_else(|| format!("{status:#?}")))
    })
    .unwrap();
}
