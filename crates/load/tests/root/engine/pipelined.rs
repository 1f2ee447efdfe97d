//! Requests that do not wait for each other: several in flight, and on a schedule.

use std::cell::Cell;
use std::time::{Duration, Instant};

use load::{EngineError, Load, MAX_MESSAGE_BYTES, MAX_OUTSTANDING, Measured, Watch, Workload};

use super::wire::{DEVICE, Wire, ip, nft};
use super::{PORT, RR, carried, lose_one_of, over, over_watched, short, tried, wire_or_skip};
use test_support::require;

/// Time limit of any of these runs, which catches a hang, not slowness.
const FAR_TOO_LONG: Duration = Duration::from_secs(20);

/// Pairs of runs; the median ratio counts.
const PAIRS: usize = 15;

fn check(load: &Load, measured: &Measured) {
    let what = format!("{load:?}: {measured:?}");
    assert!(measured.units > 0, "{what}");
    assert_eq!(measured.payload_bytes, measured.units * u64::from(load.message_bytes), "{what}");
    let latency = measured.latency.unwrap();
    assert!(0 < latency.min && latency.min <= latency.p50 && latency.p50 <= latency.p99, "{what}");
    assert!(latency.p99_9 <= latency.p99_99 && latency.p99_99 <= latency.max, "{what}");
    assert_eq!(measured.histogram.as_ref().unwrap().len(), latency.count, "{what}");
    assert_eq!(measured.pace.is_some(), load.transactions_per_s.is_some(), "{what}");
    assert_eq!(measured.datagrams.is_some(), load.workload == Workload::UdpRr, "{what}");
}

#[test]
fn several_requests_under_way_carry_every_size() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        for message_bytes in [1, 2, 64, 9000, MAX_MESSAGE_BYTES] {
            for (flows, outstanding) in [(1, 2), (4, 16)] {
                let load = Load { message_bytes, flows, outstanding, ..short(workload) };
                let measured = carried(&wire, &load, Wire::server_at(PORT));
                check(&load, &measured);
                // Each sent request is timed or lost; the interval's ends differ slightly in time
                // from its counters.
                let lost = measured.datagrams.map_or(0, |d| d.lost());
                let timed = measured.latency.unwrap().count + lost;
                let slack = u64::from(flows * outstanding) + measured.sent_units / 5;
                assert!(timed.abs_diff(measured.sent_units) <= slack, "{measured:?}");
            }
        }
    }
}

/// Both ends' socket buffers hold a fraction of the data in flight: an end that only wrote would
/// wait forever.
#[test]
fn more_under_way_than_the_sockets_hold_is_no_deadlock() {
    let wire = require!(wire_or_skip());
    let load = Load {
        message_bytes: MAX_MESSAGE_BYTES,
        outstanding: MAX_OUTSTANDING,
        ..short(Workload::TcpRr)
    };
    check(&load, &carried(&wire, &load, Wire::server_at(PORT)));
}

#[test]
fn several_under_way_get_more_done_than_one() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        // Alternating, with the median of ratios: on a busy machine either may have got less CPU
        // time.
        let one = short(workload);
        let many = Load { outstanding: 32, ..short(workload) };
        let units = |load: &Load| over(&wire, load).unwrap().units as f64;
        let mut ratios: Vec<f64> = (0..PAIRS).map(|_| units(&many) / units(&one)).collect();
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[PAIRS / 2] > 1.0, "{workload}: {ratios:?}");
    }
}

/// Exactly the requests due in the interval are timed, for any number of flows that share the
/// schedule.
#[test]
fn each_request_of_the_schedule_is_timed_once() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        for (flows, per_s) in [(1, 2000.0), (3, 2000.0), (16, 500.0)] {
            let load = Load {
                flows,
                message_bytes: 64,
                outstanding: MAX_OUTSTANDING,
                transactions_per_s: Some(per_s),
                ..short(workload)
            };
            let measured = carried(&wire, &load, Wire::server_at(PORT));
            check(&load, &measured);
            let latency = measured.latency.unwrap();
            let lost = measured.datagrams.map_or(0, |d| d.lost());
            let due = per_s * measured.seconds;
            // The interval's ends differ slightly in time from its counters.
            let slack = 2.0 + due * 0.1;
            assert!(((latency.count + lost) as f64 - due).abs() <= slack, "{due}: {measured:?}");
            assert_eq!(measured.pace.unwrap().intended_per_s, per_s);
        }
    }
}

#[test]
fn a_schedule_slower_than_the_interval_is_kept() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        let load = Load { flows: 2, transactions_per_s: Some(4.0), ..short(workload) };
        let measured = over(&wire, &load).unwrap();
        assert!(measured.sent_units <= 2, "{measured:?}");
    }
}

/// Far more than the path can carry: delayed requests are timed from when they were due, and the
/// load ends in time.
#[test]
fn a_schedule_that_cannot_be_kept_shows_in_latency_and_pace() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        let load = Load {
            outstanding: 8,
            transactions_per_s: Some(2e7),
            // Requests due before the interval come first.
            warmup: Duration::ZERO,
            ..short(workload)
        };
        // If the threads reach the interval late, all requests that they send were due before it.
        let begun = Cell::new(Instant::now());
        let measured = tried(&wire, &load, Wire::server_at(PORT), |measured| {
            assert!(begun.replace(Instant::now()).elapsed() < FAR_TOO_LONG);
            measured.units > 0 && measured.notes.iter().any(|note| note.contains("sent late"))
        });
        check(&load, &measured);
        let pace = measured.pace.unwrap();
        assert!(pace.sent_per_s < pace.intended_per_s / 2.0, "{measured:?}");
        // Half of them were due before the middle of an interval of 0.1 s.
        assert!(measured.latency.unwrap().p50 > 50_000_000, "{measured:?}");
        assert!(pace.late_p50_us > 50_000.0, "{measured:?}");
        let notes = measured.notes.join("\n");
        assert!(notes.contains("were sent late because 8 per flow"), "{notes}");
        assert!(notes.contains("were not answered within 1s"), "{notes}");
    }
}

#[test]
fn lost_requests_of_a_schedule_are_counted_and_hold_nothing_up() {
    let wire = require!(wire_or_skip());
    lose_one_of(&wire, 50);
    for message_bytes in [1, 64] {
        let load = Load {
            message_bytes,
            outstanding: MAX_OUTSTANDING,
            transactions_per_s: Some(5000.0),
            duration: Duration::from_millis(600),
            ..short(Workload::UdpRr)
        };
        // If a thread is late, sockets overflow, too: the loss is larger, never smaller.
        let measured = tried(&wire, &load, Wire::server_at(PORT), |measured| {
            let datagrams = measured.datagrams.unwrap();
            let share = datagrams.lost() as f64 / datagrams.sent as f64;
            assert!(datagrams.sent < 100 || share >= 0.01, "{share}: {measured:?}");
            assert_eq!(datagrams.received, measured.latency.unwrap().count, "{measured:?}");
            (0.01..0.04).contains(&share) && measured.units > 0
        });
        check(&load, &measured);
    }
}

#[test]
fn lost_requests_do_not_stop_a_closed_loop() {
    let wire = require!(wire_or_skip());
    lose_one_of(&wire, 50);
    for message_bytes in [1, 64] {
        let load = Load { message_bytes, outstanding: 16, ..short(Workload::UdpRr) };
        // Beside other programs, the client may get no CPU time in a whole measurement.
        let all = (0..10).map(|_| over(&wire, &load).unwrap());
        let mut lossy = all.skip_while(|measured| measured.datagrams.unwrap().sent == 0);
        let measured = lossy.next().expect("a measurement in which something was sent");
        assert!(measured.datagrams.unwrap().lost() > 0, "{measured:?}");
        check(&load, &measured);
    }
}

/// Changes the path when measuring starts.
struct Then<F: FnMut()>(F);

impl<F: FnMut()> Watch for Then<F> {
    fn begin(&mut self) {
        (self.0)();
    }
    fn end(&mut self) {}
}

/// An open and a closed loop.
fn loads(workload: Workload) -> [Load; 2] {
    let load = Load {
        setup_limit: Duration::from_millis(400),
        flows: 2,
        outstanding: 16,
        ..short(workload)
    };
    [Load { transactions_per_s: Some(2000.0), ..load.clone() }, load]
}

#[test]
fn a_path_that_dies_in_the_middle_is_an_error_in_time() {
    let swallow = "table ip t { chain c { type filter hook prerouting priority -450; drop; }; }";
    for workload in RR {
        for load in loads(workload) {
            let wire = require!(wire_or_skip());
            let begun = Instant::now();
            let mut watch = Then(|| nft(&wire.server, swallow));
            let error = over_watched(&wire, &load, Wire::server_at(PORT), &mut watch).unwrap_err();
            assert!(matches!(error, EngineError::Stalled { .. }), "{load:?}: {error:?}");
            nft(&wire.server, "flush ruleset");
            over(&wire, &load).unwrap();

            let mut watch = Then(|| ip(&wire.server, &["link", "set", DEVICE, "down"]));
            let error = over_watched(&wire, &load, Wire::server_at(PORT), &mut watch).unwrap_err();
            let right =
                matches!(error, EngineError::Stalled { .. } | EngineError::Unreachable { .. });
            assert!(right, "{load:?}: {error:?}");
            assert!(begun.elapsed() < FAR_TOO_LONG);
        }
    }
}

#[test]
fn a_connection_reset_in_the_middle_is_a_reset() {
    let wire = require!(wire_or_skip());
    let reset = "table ip t { chain c { type filter hook input priority 0; \
                 tcp dport 7000 tcp flags & syn == 0 reject with tcp reset; }; }";
    for load in loads(Workload::TcpRr) {
        let mut watch = Then(|| nft(&wire.server, reset));
        let error = over_watched(&wire, &load, Wire::server_at(PORT), &mut watch).unwrap_err();
        assert!(matches!(error, EngineError::Reset { .. }), "{load:?}: {error:?}");
        nft(&wire.server, "flush ruleset");
    }
}
