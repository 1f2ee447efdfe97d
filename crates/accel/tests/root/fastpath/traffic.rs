//! Traffic passes, and takes the fast path.

use std::collections::BTreeMap;
use std::net::IpAddr;

use accel::Accel;
use accel::Counted;
use test_support::{need, require};
use testbed::{Host, NIC, Offload, poll};

use super::pair::{DEVICE, LIMIT, PORT, Pair, TENANT_B, since};
use super::underlay::{Path, SOME, others};

#[test]
fn traffic_goes_both_ways_past_bridge_and_device() {
    bridged(&SOME);
}

#[test]
fn traffic_goes_both_ways_in_the_other_combinations() {
    bridged(&others());
}

fn bridged(paths: &[Path]) {
    require!(need::root());
    for &(underlay, offload, udp_csum) in paths {
        let pair = Pair::over(underlay, offload, udp_csum);
        let accels = pair.accelerate();
        let what = format!("{offload} over {underlay:?}, checksum {udp_csum}");
        past_device(&pair, &accels, udp_csum, &what);
    }
}

/// Asserts that streams and pings pass in both directions, and that packets on the fast path bypass
/// the VXLAN device.
pub fn past_device(pair: &Pair, accels: &[Accel; 2], udp_csum: bool, what: &str) {
    let counters = |host: &Host, device: &str| host.netlink().link(device).unwrap().counters;
    // Packets that arrive during the reading are counted at the NIC at least.
    let nic = counters(&pair.b, NIC);
    let device = counters(&pair.b, DEVICE);
    let before = accels.each_ref().map(Accel::status);
    stream_past(pair, accels, udp_csum, what);
    // The device has not seen packets that were delivered directly.
    let hits = since(&accels[1], &before[1], "decap_hit");
    let slow = counters(&pair.b, DEVICE).since(&device);
    let all = counters(&pair.b, NIC).since(&nic);
    assert!(
        slow.rx_packets + hits <= all.rx_packets,
        "{what}: the VXLAN device received {} and the fast path {hits} of {} packets",
        slow.rx_packets,
        all.rx_packets
    );
}

/// Asserts that streams and pings pass in both directions, most of them on the fast path. One round
/// must suffice: on a starved machine the first round may wait for the mirror on the slow path.
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
            let shortcuts = of("encap_shortcut");
            assert!(udp_csum || shortcuts == 0, "{what}: {:#?}", accel.status());
            let hits = of("decap_hit");
            // A tenant's own sockets accept GSO packets.
            hits > 20 && of("encap_hit") + shortcuts > 20 && of("decap_gso") < hits
        });
        let seen = || format!("{what}: {:#?}", accels.each_ref().map(Accel::status));
        Ok(taken.then_some(()).ok_or_else(seen))
    })
    .unwrap();
}

#[test]
fn packets_are_counted_at_their_devices() {
    require!(need::root());
    for pair in [Pair::new(Offload::Full, false), Pair::sandboxed(Offload::Full, false)] {
        let accels = pair.accelerate();
        let packets = |part: &BTreeMap<String, Counted>, word: &str| {
            part.get(word).map_or(0, |counted| counted.packets)
        };
        poll("packets that are counted at port, device and in all", LIMIT, || {
            pair.ping(&[]);
            let status = accels[1].status();
            let device = &status.devices[0];
            let port = &device.ports[0];
            assert_eq!((port.name.as_str(), port.entries, device.entries), (PORT, 1, 1));
            // With one tenant and one device, packets sent by the port bypass the device, and vice
            // versa.
            let [both, port_s, device_s] = [
                ["encap_hit", "decap_hit"].as_slice(),
                &["encap_refresh", "encap_group"],
                &["decap_refresh"],
            ];
            let at = |word: &&str| {
                let all = status.packets(word);
                (all, [packets(&port.packets, word), packets(&device.packets, word)])
            };
            // More packets may arrive while counters are read.
            let all = both.iter().map(at).all(|(all, at)| all > 0 && at == [all, all])
                && port_s.iter().map(at).all(|(all, at)| all > 0 && at == [all, 0])
                && device_s.iter().map(at).all(|(all, at)| all > 0 && at == [0, all]);
            Ok(all.then_some(()).ok_or_else(|| format!("{status:#?}")))
        })
        .unwrap();
        // The total keeps the counts of a port that was removed.
        let before = accels[1].status();
        let host = pair.sandboxes.as_ref().map_or(&pair.b, |sandboxes| &*sandboxes[1]);
        host.netlink().delete_link(PORT).unwrap();
        poll("the port to go", LIMIT, || {
            let status = accels[1].status();
            let gone = status.devices[0].ports.is_empty();
            Ok(gone.then_some(()).ok_or_else(|| format!("{status:#?}")))
        })
        .unwrap();
        let kept = accels[1].status().packets("encap_hit");
        assert!(kept >= before.packets("encap_hit"), "{kept}");
    }
}
