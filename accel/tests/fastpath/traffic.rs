//! Traffic goes, and goes the fast way.

use std::net::IpAddr;

use testbed::{NIC, Offload};

use crate::pair::{DEVICE, Pair, TENANT_B, privileged, since};

#[test]
fn traffic_goes_both_ways_past_bridge_and_device() {
    if !privileged() {
        return;
    }
    for offload in Offload::ALL {
        for udp_csum in [false, true] {
            let pair = Pair::new(offload, udp_csum);
            let accels = pair.accelerate();
            let before = accels.each_ref().map(accel::Accel::status);
            let counters =
                |host: &testbed::Host, device: &str| host.netlink().link(device).unwrap().counters;
            let device = counters(&pair.b, DEVICE);
            let nic = counters(&pair.b, NIC);
            let six: IpAddr = "fd00::12".parse().unwrap();
            pair.stream(TENANT_B.into(), 3_000_000);
            pair.stream(six, 3_000_000);
            pair.ping(&[]);
            pair.ping6();
            for (accel, before) in accels.iter().zip(&before) {
                let hits = since(accel, before, "ingress_hit");
                let sent =
                    since(accel, before, "egress_hit") + since(accel, before, "egress_shortcut");
                assert!(hits > 20, "{offload} checksum {udp_csum}: {:#?}", accel.status());
                assert!(sent > 20, "{offload} checksum {udp_csum}: {:#?}", accel.status());
                if !udp_csum {
                    assert_eq!(since(accel, before, "egress_shortcut"), 0);
                }
            }
            let slow = counters(&pair.b, DEVICE).since(&device);
            let all = counters(&pair.b, NIC).since(&nic);
            // What was delivered here, the device has not seen.
            let hits = since(&accels[1], &before[1], "ingress_hit");
            assert!(
                slow.rx_packets + hits <= all.rx_packets,
                "{offload} checksum {udp_csum}: the VXLAN device received {} and the fast path {hits} of {} packets",
                slow.rx_packets,
                all.rx_packets
            );
        }
    }
}
