//! Order and spacing of the datagrams of `udp_stream` at the receiver.
//!
//! Each datagram begins with its number and the time of sending. The receiver's kernel adds the time
//! of arrival (`SO_TIMESTAMPNS`). The two clocks need not agree: only differences count.

use serde::{Deserialize, Serialize};
use sys::udp::Head;

/// Arrivals of one flow, or of all flows of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// Numbered datagrams that arrived.
    pub received: u64,
    /// Datagrams that arrived after a datagram with a higher number (RFC 4737).
    pub reordered: u64,
    /// Interarrival jitter at the end of the interval, ns (RFC 3550, section 6.4.1). Over several
    /// flows: the mean, weighted by arrived datagrams.
    pub jitter_ns: u64,
}

impl Arrivals {
    /// Combines flows. `None` if nothing arrived.
    pub(super) fn together(flows: impl Iterator<Item = Arrivals>) -> Option<Arrivals> {
        let mut all = Arrivals::default();
        let mut weighted = 0.0;
        for flow in flows {
            all.received = all.received.saturating_add(flow.received);
            all.reordered = all.reordered.saturating_add(flow.reordered);
            weighted += flow.jitter_ns as f64 * flow.received as f64;
        }
        // A cast from a float saturates.
        all.jitter_ns = (weighted / all.received as f64).round() as u64;
        (all.received > 0).then_some(all)
    }
}

/// Beginning of a numbered datagram: the number and the time of sending, ns of CLOCK_REALTIME.
pub(super) fn head(number: u64, sent_ns: i64) -> Head {
    let mut head = [0; sys::udp::HEAD_BYTES];
    head[..8].copy_from_slice(&number.to_be_bytes());
    head[8..].copy_from_slice(&sent_ns.to_be_bytes());
    head
}

/// Follows the arrivals of one flow.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    /// Lowest number that no datagram in order has reached.
    expected: u64,
    /// Transit time of the previous datagram, ns. The clocks' offset is part of it.
    transit: Option<i64>,
    jitter_ns: f64,
    received: u64,
    reordered: u64,
}

impl Arriving {
    /// Records a datagram in the order of arrival.
    pub fn arrived(&mut self, head: &Head, at_ns: i64) {
        let (parts, _) = head.as_chunks::<8>();
        let (number, sent) = (u64::from_be_bytes(parts[0]), i64::from_be_bytes(parts[1]));
        self.received += 1;
        if number < self.expected {
            self.reordered += 1;
        } else {
            self.expected = number.saturating_add(1);
        }
        // The times come from the other end, which may send anything.
        let transit = at_ns.wrapping_sub(sent);
        if let Some(earlier) = self.transit.replace(transit) {
            let difference = transit.wrapping_sub(earlier).unsigned_abs() as f64;
            self.jitter_ns += (difference - self.jitter_ns) / 16.0;
        }
    }

    pub fn report(&self) -> Arrivals {
        // A cast from a float saturates.
        let jitter_ns = self.jitter_ns.round() as u64;
        Arrivals { received: self.received, reordered: self.reordered, jitter_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(datagrams: &[(u64, i64, i64)]) -> Arrivals {
        let mut arriving = Arriving::default();
        for (number, sent, arrived) in datagrams {
            arriving.arrived(&head(*number, *sent), *arrived);
        }
        arriving.report()
    }

    #[test]
    fn jitter_is_that_of_rfc_3550() {
        // A constant transit time has no jitter, whatever the clocks show.
        let even: Vec<_> =
            (0..100).map(|n| (n, n as i64 * 1000, n as i64 * 1000 - 5_000_000)).collect();
        assert_eq!(after(&even), Arrivals { received: 100, reordered: 0, jitter_ns: 0 });
        // Transit times 0, 1600, 0: |D| is 1600 twice. J = 100, then 100 + 1500/16.
        let uneven = [(0, 0, 0), (1, 1000, 2600), (2, 2000, 2000)];
        assert_eq!(after(&uneven).jitter_ns, 194);
        // With |D| always 1600, J approaches it.
        let longer: Vec<_> = (0..400).map(|n| (n, 0, (n as i64 % 2) * 1600)).collect();
        assert_eq!(after(&longer).jitter_ns, 1600);
    }

    #[test]
    fn a_datagram_behind_a_later_one_is_reordered_and_a_lost_one_is_not() {
        let order = |numbers: &[u64]| {
            after(&numbers.iter().map(|number| (*number, 0, 0)).collect::<Vec<_>>()).reordered
        };
        assert_eq!(order(&[0, 1, 2, 5, 6]), 0, "3 and 4 are lost");
        assert_eq!(order(&[0, 2, 1, 3]), 1);
        assert_eq!(order(&[3, 0, 1, 2, 4]), 3);
        assert_eq!(order(&[7, 8]), 0, "the warm-up had 0 to 6");
        assert_eq!(order(&[u64::MAX, u64::MAX, 0]), 1, "nothing overflows");
    }

    #[test]
    fn times_of_a_hostile_sender_do_no_harm() {
        let hostile = [(0, i64::MIN, i64::MAX), (1, i64::MAX, i64::MIN), (2, 0, 0)];
        assert_eq!(after(&hostile).received, 3);
    }

    #[test]
    fn flows_count_by_what_arrived() {
        let flow = |received, jitter_ns| Arrivals { received, reordered: 1, jitter_ns };
        let all = Arrivals::together([flow(300, 1000), flow(100, 5000)].into_iter());
        assert_eq!(all, Some(Arrivals { received: 400, reordered: 2, jitter_ns: 2000 }));
        assert_eq!(Arrivals::together([Arrivals::default()].into_iter()), None);
    }
}
