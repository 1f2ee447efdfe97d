//! Requests with a pause between them.

use std::time::Duration;

use load::Load;

use super::wire::Wire;
use super::{PORT, RR, carried, short, wire_or_skip};
use test_support::require;

const REST: Duration = Duration::from_millis(2);

#[test]
fn an_answer_is_followed_by_a_rest() {
    let wire = require!(wire_or_skip());
    for workload in RR {
        let load = Load { rest: REST, ..short(workload) };
        let measured = carried(&wire, &load, Wire::server_at(PORT));
        // A pause is never shorter; the interval may cut the first and the last request.
        let (units, seconds) = (measured.units as f64, measured.seconds);
        assert!(units <= seconds / REST.as_secs_f64() + 2.0, "{measured:#?}");
        // The pause is not part of any latency: half of the requests took the median or longer, and
        // all of them together at most the time outside pauses.
        let half = measured.latency.unwrap().p50 as f64 * 1e-9 * units / 2.0;
        let answering = seconds - REST.as_secs_f64() * (units - 2.0);
        assert!(half <= answering, "{half} s of {answering} s");
    }
}
