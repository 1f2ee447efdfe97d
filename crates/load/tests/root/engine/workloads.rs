//! Counts of each workload, by sizes, flows and segmentation offload.

use load::{Datagrams, EngineError, Load, MAX_MESSAGE_BYTES, Measured, Watch, Workload};

use super::wire::{Wire, ip, nft, run_in};
use super::{PORT, carried, lose_one_of, over, over_watched, short, tried, wire_or_skip};
use test_support::require;

const SIZES: [u32; 5] = [1, 64, 1400, 9000, MAX_MESSAGE_BYTES];

/// Largest payload of one Ethernet frame over IPv4 and UDP.
const ONE_FRAME: u32 = 1500 - 28;

fn check_counts(load: &Load, measured: &Measured) {
    let what = format!("{load:?}: {measured:?}");
    assert!(measured.units > 0, "{what}");
    assert!(measured.rate() > 0.0, "{what}");
    assert!(measured.seconds >= load.duration.as_secs_f64(), "{what}");
    assert_eq!(measured.flows.len(), load.flows as usize, "{what}");
    // Only whole messages per flow are counted: both figures exclude a partial message.
    assert_eq!(measured.units, measured.flows.iter().map(|f| f.units).sum::<u64>(), "{what}");
    let payload = measured.payload_bytes;
    let size = u64::from(load.message_bytes);
    match load.workload {
        Workload::TcpStream | Workload::TcpMaerts => {
            assert!(payload >= measured.units * size, "{what}");
            assert!(payload < (measured.units + u64::from(load.flows)) * size, "{what}");
        }
        _ => assert_eq!(payload, measured.units * size, "{what}"),
    }
    assert_eq!(measured.latency.is_some(), load.workload.has_latency(), "{what}");
    if let Some(l) = measured.latency {
        assert!(0 < l.min && l.min <= l.p50 && l.p50 <= l.p90 && l.p90 <= l.p99, "{what}");
        assert!(l.p99 <= l.p99_9 && l.p99_9 <= l.max, "{what}");
        // Timing begins before counting and ends after it: only the requests in flight at the start
        // of each flow are counted but not timed.
        assert!(l.count + u64::from(load.flows) >= measured.units, "{what}");
    }
    if let Some(Datagrams { sent, received, .. }) = measured.datagrams {
        assert!(received <= sent, "{what}");
        assert!(received >= measured.units, "{what}");
    }
}

#[test]
fn every_workload_carries_every_size_on_one_flow_and_on_four() {
    let wire = require!(wire_or_skip());
    for workload in Workload::ALL {
        for message_bytes in SIZES {
            for flows in [1, 4] {
                let load = Load { message_bytes, flows, ..short(workload) };
                check_counts(&load, &carried(&wire, &load, Wire::server_at(PORT)));
            }
        }
    }
}

#[test]
fn gso_packets_are_counted_in_datagrams() {
    let wire = require!(wire_or_skip());
    for message_bytes in SIZES {
        for flows in [1, 4] {
            let load = Load { message_bytes, flows, gso: true, ..short(Workload::UdpStream) };
            if message_bytes > ONE_FRAME {
                let outcome = over(&wire, &load);
                assert!(
                    matches!(outcome, Err(EngineError::Gso { message_bytes: m, .. }) if m == message_bytes),
                    "{outcome:?}"
                );
            } else {
                check_counts(&load, &carried(&wire, &load, Wire::server_at(PORT)));
            }
        }
    }
}

/// Also if a device on the path has to segment the GSO packets.
#[test]
fn gso_packets_cut_by_the_device_are_counted_alike() {
    let wire = require!(wire_or_skip());
    let ethtool =
        run_in(&wire.client, "ethtool", &["-K", super::wire::DEVICE, "tx-udp-segmentation", "off"]);
    assert!(ethtool.status.success(), "{ethtool:?}");
    let load = Load { gso: true, datagrams_per_s: Some(20_000), ..short(Workload::UdpStream) };
    let measured = carried(&wire, &load, Wire::server_at(PORT));
    check_counts(&load, &measured);
    assert_eq!(measured.datagrams.unwrap().lost(), 0, "{measured:?}");
}

#[test]
fn an_ipv6_path_is_measured_alike() {
    let wire = require!(wire_or_skip());
    let target = "[2001:db8::2]:7000".parse().unwrap();
    for workload in Workload::ALL {
        let load = Load { flows: 2, ..short(workload) };
        check_counts(&load, &carried(&wire, &load, target));
    }
}

#[test]
fn paced_datagrams_on_an_idle_path_all_arrive() {
    let wire = require!(wire_or_skip());
    for (message_bytes, flows, gso) in [(64, 1, false), (64, 4, false), (1400, 2, true)] {
        let load = Load {
            message_bytes,
            flows,
            gso,
            datagrams_per_s: Some(5_000),
            ..short(Workload::UdpStream)
        };
        let measured = carried(&wire, &load, Wire::server_at(PORT));
        assert_eq!(measured.datagrams.unwrap().lost(), 0, "{load:?}: {measured:?}");
        // Every due datagram was sent or given up, and the evenness is reported.
        let Datagrams { intended, sent, .. } = measured.datagrams.unwrap();
        assert!(intended.is_some_and(|intended| sent <= intended), "{measured:?}");
        let pace = measured.pace.unwrap();
        assert!((pace.intended_per_s - 5_000.0).abs() < 1e-6, "{pace:?}");
        assert!(pace.sent_per_s <= 5_000.0 + 1e-6 && pace.sent_per_s > 0.0, "{pace:?}");
        assert!(pace.late_p50_us <= pace.late_p99_us, "{pace:?}");
        assert!(pace.late_p99_us <= pace.late_max_us, "{pace:?}");
        // Never above the requested rate; how far below it depends on the machine.
        let most = 5_000.0 * measured.seconds + 64.0 * f64::from(flows) + 64.0;
        assert!((measured.sent_units as f64) < most, "{load:?}: {measured:?}");
    }
}

/// The engine's loss equals the kernel's, to the datagram: it excludes warm-up, draining and the
/// proof of the path.
#[test]
fn loss_is_what_the_kernel_dropped() {
    let wire = require!(wire_or_skip());
    let rules = "table ip t { chain c { type filter hook input priority 0; \
                 udp dport 7000 numgen inc mod 10 == 0 counter drop; }; }";
    nft(&wire.server, rules);

    struct Dropped<'a> {
        wire: &'a Wire,
        at: Vec<u64>,
    }
    impl Dropped<'_> {
        fn read(&mut self) {
            let listing = run_in(&self.wire.server, "nft", &["list", "table", "ip", "t"]);
            let text = String::from_utf8(listing.stdout).unwrap();
            let packets = text.split_once("packets ").unwrap().1;
            self.at.push(packets.split_whitespace().next().unwrap().parse().unwrap());
        }
    }
    impl Watch for Dropped<'_> {
        fn begin(&mut self) {
            self.read();
        }
        fn end(&mut self) {
            self.read();
        }
    }

    let mut dropped = Dropped { wire: &wire, at: Vec::new() };
    let load = Load { datagrams_per_s: Some(20_000), flows: 2, ..short(Workload::UdpStream) };
    let measured = over_watched(&wire, &load, Wire::server_at(PORT), &mut dropped).unwrap();
    let datagrams = measured.datagrams.unwrap();
    assert!(datagrams.lost() > 0, "{measured:?}");
    assert_eq!(datagrams.lost(), dropped.at[1] - dropped.at[0], "{measured:?}");
}

#[test]
fn lost_transactions_are_counted_and_the_load_goes_on() {
    let wire = require!(wire_or_skip());
    lose_one_of(&wire, 200);
    for message_bytes in [1, 64] {
        let load = Load {
            message_bytes,
            duration: std::time::Duration::from_millis(600),
            ..short(Workload::UdpRr)
        };
        // Enough datagrams that some must be lost.
        let measured = tried(&wire, &load, Wire::server_at(PORT), |measured| {
            measured.units > 0 && measured.datagrams.unwrap().sent >= 400
        });
        assert!(measured.datagrams.unwrap().lost() > 0, "{measured:?}");
    }
}

#[test]
fn a_smaller_path_mtu_is_no_obstacle() {
    let wire = require!(wire_or_skip());
    for netns in [&wire.client, &wire.server] {
        ip(netns, &["link", "set", super::wire::DEVICE, "mtu", "1280"]);
    }
    for workload in Workload::ALL {
        let load = Load { message_bytes: MAX_MESSAGE_BYTES, ..short(workload) };
        check_counts(&load, &carried(&wire, &load, Wire::server_at(PORT)));
    }
}

/// The receiver reports its kernel's receive time of each datagram.
#[test]
fn numbered_datagrams_are_followed_at_the_receiver() {
    let wire = require!(wire_or_skip());
    lose_one_of(&wire, 100);
    for (flows, message_bytes) in [(1, 16), (4, 1400)] {
        let load = Load {
            numbered: true,
            datagrams_per_s: Some(20_000),
            flows,
            message_bytes,
            ..short(Workload::UdpStream)
        };
        let measured = tried(&wire, &load, Wire::server_at(PORT), |measured| measured.units > 500);
        let (arrivals, datagrams) = (measured.arrivals.unwrap(), measured.datagrams.unwrap());
        assert_eq!(arrivals.received, datagrams.received, "{measured:?}");
        assert!(datagrams.lost() > 0, "{measured:?}");
        // One queue keeps the order, and no two datagrams take the same time.
        assert_eq!(arrivals.reordered, 0, "{measured:?}");
        assert!(arrivals.jitter_ns > 0, "{measured:?}");
    }
    let plain = over(&wire, &short(Workload::UdpStream)).unwrap();
    assert_eq!(plain.arrivals, None);
    for wrong in [
        Load { numbered: true, message_bytes: 15, ..short(Workload::UdpStream) },
        Load { numbered: true, gso: true, ..short(Workload::UdpStream) },
        Load { numbered: true, ..short(Workload::UdpRr) },
    ] {
        let refused = over(&wire, &wrong);
        assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{refused:?}");
    }
}

/// Both ends drop every packet without the mark.
#[test]
fn every_packet_of_both_ends_has_the_dscp() {
    let wire = require!(wire_or_skip());
    let only_marked = |port: &str| {
        let of = |protocol: &str| format!("{protocol} {port} 7000 ip dscp != ef drop;");
        let rules = [of("tcp"), of("udp")].join(" ");
        format!("table ip t {{ chain c {{ type filter hook input priority 0; {rules} }}; }}")
    };
    nft(&wire.server, &only_marked("dport"));
    nft(&wire.client, &only_marked("sport"));
    for workload in Workload::ALL {
        let load = Load { dscp: Some(46), ..short(workload) };
        assert!(carried(&wire, &load, Wire::server_at(PORT)).units > 0);
    }
    let setup_limit = std::time::Duration::from_millis(200);
    let unmarked = Load { setup_limit, ..short(Workload::TcpRr) };
    assert!(over(&wire, &unmarked).is_err());
}

/// A long interval reports the rate of each second, and the rates add up to the whole.
#[test]
fn a_long_interval_has_the_rate_of_each_second() {
    let wire = require!(wire_or_skip());
    for workload in [Workload::TcpStream, Workload::UdpRr] {
        let duration = std::time::Duration::from_millis(3100);
        let load = Load { duration, ..short(workload) };
        let measured = over(&wire, &load).unwrap();
        assert!((1..=3).contains(&measured.steps.len()), "{measured:?}");
        let carried: f64 = measured.steps.iter().sum();
        assert!(carried > 0.0, "{measured:?}");
        assert!(over(&wire, &short(workload)).unwrap().steps.is_empty());
    }
}
