//! A server that stalls at regular times, measured by an open and by a closed loop. The results
//! follow from the stall, not from the machine's speed.

use std::time::Duration;

use load::{LatencyNs, Load, MAX_OUTSTANDING, Stall};

use super::wire::Wire;
use super::{PORT, RR, short, tried, wire_or_skip};
use test_support::require;

const MS: u64 = 1_000_000;

/// 20 ms of every 250 ms: 8% of the requests of a schedule meet it, and wait for 0 to 20 ms, evenly
/// distributed.
const STALL: Stall = Stall { every: Duration::from_millis(250), length: Duration::from_millis(20) };

/// `load` with a server that stalls, over two whole periods of [`STALL`].
fn stalling(load: Load) -> Load {
    let duration = STALL.every * 2;
    Load { message_bytes: 64, duration, server_stall: Some(STALL), ..load }
}

/// p99 is 1/8 below the longest wait, 17.5 ms; p90 is unaffected.
fn as_the_arithmetic_says(latency: &LatencyNs) -> bool {
    latency.p50 < 5 * MS
        && (15 * MS..20 * MS).contains(&latency.p99)
        && (18 * MS..25 * MS).contains(&latency.p99_9)
}

#[test]
fn a_stall_shows_in_open_loop_and_hides_in_closed_loop() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        let open = stalling(Load {
            outstanding: MAX_OUTSTANDING,
            transactions_per_s: Some(4000.0),
            ..short(workload)
        });
        // With few allowed in flight, the other requests are sent late, but still timed from when
        // they were due.
        let held_back = Load { outstanding: 4, ..open.clone() };
        let closed = stalling(short(workload));
        // If the machine itself stalls as well, the test repeats.
        for load in [open, held_back] {
            tried(&wire, &load, Wire::server_at(PORT), |measured| {
                as_the_arithmetic_says(&measured.latency.unwrap())
            });
        }
        // One request per period meets the stall: of 4000 or more, a few in a thousand at the
        // slowest.
        tried(&wire, &closed, Wire::server_at(PORT), |measured| {
            let latency = measured.latency.unwrap();
            latency.p99 < 5 * MS && latency.max >= 15 * MS
        });
    }
}
