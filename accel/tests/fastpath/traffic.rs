//! Traffic goes, and goes the fast way.

use std::net::IpAddr;

use accel::Accel;
use testbed::{Host, NIC, Offload, poll};

use crate::pair::{DEVICE, LIMIT, Pair, TENANT_B, privileged, since};
use crate::underlay::Underlay;

#[test]
fn traffic_goes_both_ways_past_bridge_and_device() {
    if !privileged() {
        return;
    }
    for underlay in Underlay::BOTH {
        for offload in Offload::ALL {
            for udp_csum in [false, true] {
                let pair = Pair::over(underlay, offload, udp_csum);
                let accels = pair.accelerate();
                let what = format!("{offload} over {underlay:?}, checksum {udp_csum}");
                past_device(&pair, &accels, udp_csum, &what);
            }
        }
    }
}

/// Streams and echoes go both ways, and those that the fast path takes pass the VXLAN
/// device by.
pub fn past_device(pair: &Pair, accels: &[Accel; 2], udp_csum: bool, what: &str) {
    let counters = |host: &Host, device: &str| host.netlink().link(device).unwrap().counters;
    // What comes while they are read is counted at the NIC at least.
    let nic = counters(&pair.b, NIC);
    let device = counters(&pair.b, DEVICE);
    let before = accels.each_ref().map(Accel::status);
    stream_past(pair, accels, udp_csum, what);
    // What was delivered here, the device has not seen.
    let hits = since(&accels[1], &before[1], "ingress_hit");
    let slow = counters(&pair.b, DEVICE).since(&device);
    let all = counters(&pair.b, NIC).since(&nic);
    assert!(
        slow.rx_packets + hits <= all.rx_packets,
        "{what}: the VXLAN device received {} and the fast path {hits} of {} packets",
        slow.rx_packets,
        all.rx_packets
    );
}

/// Streams and echoes go both ways, most of them the fast way: within one round, since on
/// a starved machine the first may wait for the mirror the slow way.
pub fn stream_past(pair: &Pair, accels: &[Accel; 2], udp_csum: bool, what: &str) {
    let six: IpAddr = "fd00::12".parse().unwrap();
    poll("packets on the fast path, both ways", LIMIT, || {
        let before = accels.each_ref().map(Accel::status);
        pair.stream(TENANT_B.into(), 3_000_000);
        pair.stream(six, 3_000_000);
        pair.ping(&[]);
        pair.ping6();
        let taken = accels.iter().zip(&before).all(|(accel, before)| {
            let of = |word| since(accel, before, word);
            let shortcuts = of("egress_shortcut");
            assert!(udp_csum || shortcuts == 0, "{what}: {:#?}", accel.status());
            let hits = of("ingress_hit");
            // A tenant's own sockets take super-packets.
            hits > 20 && of("egress_hit") + shortcuts > 20 && of("ingress_gso") < hits
        });
        let seen = || format!("{what}: {:#?}", accels.each_ref().map(Accel::status));
        Ok(taken.then_some(()).ok_or_else(seen))
    })
    .unwrap();
}
