//! Estimates another machine's clock from exchanged time stamps.
//!
//! As in NTP (RFC 5905, section 8), the client takes a time stamp when it sends a request (t1) and
//! when the answer arrives (t4); the server when the request arrives (t2) and when it answers (t3).
//! The server's clock is then ahead by `((t2 - t1) + (t3 - t4)) / 2`. The error is at most half of
//! the round trip, however the delay is split between the two directions. The exchange with the
//! smallest error is used. The error of an older exchange grows, because clocks drift apart.

use std::collections::VecDeque;

/// Drift between two clocks, parts per million: two crystals of 100 each.
const DRIFT_PPM: i128 = 200;
/// Number of exchanges that are kept.
const KEPT: usize = 16;

/// Four time stamps, ns since 1970 (`CLOCK_REALTIME`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// The request was sent, by this machine's clock.
    pub asked: i64,
    /// The request arrived, by the other machine's clock.
    pub received: i64,
    /// The answer was sent, by the other machine's clock.
    pub answered: i64,
    /// The answer arrived, by this machine's clock.
    pub returned: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// How far it is ahead of this machine's, ns; negative: behind.
    pub ahead: i64,
    /// Largest possible error, ns.
    pub error: u64,
    /// Round-trip time without the server's processing time, ns.
    pub round_trip: u64,
}

impl Exchange {
    /// Returns the offset by this exchange alone; `None` if the time stamps are impossible, such as
    /// an answer before its request.
    pub fn offset(&self) -> Option<Offset> {
        let [asked, received, answered, returned] =
            [self.asked, self.received, self.answered, self.returned].map(i128::from);
        let there = answered - received;
        let round_trip = (returned - asked) - there;
        // A clock was set back during the exchange.
        if there < 0 || round_trip < 0 {
            return None;
        }
        let ahead = ((received - asked) + (answered - returned)) / 2;
        Some(Offset {
            ahead: i64::try_from(ahead).ok()?,
            // Rounded up, to include the remainder of the division by two.
            error: u64::try_from(round_trip / 2 + 1).ok()?,
            round_trip: u64::try_from(round_trip).ok()?,
        })
    }
}

/// Another machine's clock, estimated from the last exchanges.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// Offsets, each with the time when it was measured by this machine's clock.
    offsets: VecDeque<(i64, Offset)>,
}

impl Clock {
    /// Adds an exchange. If it contradicts the previous ones, a clock was set, and they are
    /// discarded.
    pub fn add(&mut self, exchange: &Exchange) {
        let Some(offset) = exchange.offset() else { return };
        let now = exchange.returned;
        if let Some(known) = self.at(now) {
            let between = i128::from(known.ahead) - i128::from(offset.ahead);
            if between.unsigned_abs() > u128::from(known.error) + u128::from(offset.error) {
                self.offsets.clear();
            }
        }
        if self.offsets.len() == KEPT {
            self.offsets.pop_front();
        }
        self.offsets.push_back((now, offset));
    }

    /// Returns the offset now; `None` before the first exchange.
    pub fn at(&self, now: i64) -> Option<Offset> {
        let aged = self.offsets.iter().map(|(made, offset)| {
            let age = (i128::from(now) - i128::from(*made)).abs();
            let drifted = u64::try_from(age * DRIFT_PPM / 1_000_000).unwrap_or(u64::MAX);
            Offset { error: offset.error.saturating_add(drifted), ..*offset }
        });
        aged.min_by_key(|offset| offset.error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An exchange at a time, with a clock that is `ahead`, and these delays on each part of the
    /// way.
    fn exchange(at: i64, ahead: i64, there: i64, within: i64, back: i64) -> Exchange {
        let received = at + there + ahead;
        Exchange {
            asked: at,
            received,
            answered: received + within,
            returned: at + there + within + back,
        }
    }

    #[test]
    fn the_shortest_round_trip_wins_until_it_is_old() {
        let mut clock = Clock::default();
        assert_eq!(clock.at(0), None);
        clock.add(&exchange(0, 1_200_000, 40_000, 5_000, 40_000));
        clock.add(&exchange(1_000_000, 1_200_000, 400_000, 5_000, 90_000));
        let offset = clock.at(1_500_000).unwrap();
        assert_eq!((offset.ahead, offset.round_trip), (1_200_000, 80_000));
        assert_eq!(offset.error, 40_001 + 283);
        // After a minute 200 ppm are 12 ms: the newer one is better known.
        let minute = 60_000_000_000;
        clock.add(&exchange(minute, 1_200_000, 400_000, 0, 90_000));
        assert_eq!(clock.at(minute + 500_000).unwrap().round_trip, 490_000);
    }

    #[test]
    fn a_clock_that_was_set_is_known_at_once() {
        let mut clock = Clock::default();
        clock.add(&exchange(0, 0, 1000, 0, 1000));
        clock.add(&exchange(1_000_000, 5_000_000_000, 90_000, 0, 1000));
        let offset = clock.at(1_100_000).unwrap();
        assert!((offset.ahead - 5_000_000_000).unsigned_abs() <= offset.error);
    }

    #[test]
    fn stamps_that_cannot_be_are_not_taken() {
        let sound = exchange(0, 0, 10, 10, 10);
        for wrong in [
            Exchange { answered: sound.received - 1, ..sound },
            Exchange { returned: sound.asked - 1, ..sound },
            Exchange { received: i64::MIN, answered: i64::MAX, ..sound },
            Exchange {
                asked: i64::MIN,
                returned: i64::MAX,
                received: i64::MAX,
                answered: i64::MAX,
            },
        ] {
            let mut clock = Clock::default();
            clock.add(&wrong);
            if let Some(offset) = clock.at(0) {
                // An offset that can be computed is reported with its error.
                assert!(offset.error >= offset.ahead.unsigned_abs() / 4, "{wrong:?}: {offset:?}");
            }
        }
        assert_eq!(Exchange { answered: sound.received - 1, ..sound }.offset(), None);
    }

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_error(
            ahead in -1_000_000_000_000_i64..1_000_000_000_000,
            ways in prop::collection::vec(
                (0..10_000_000_i64, 0..10_000_000_i64, 0..10_000_000_i64), 1..40),
        ) {
            let (mut clock, mut now) = (Clock::default(), 1_700_000_000_000_000_000);
            for (there, within, back) in ways {
                let exchange = exchange(now, ahead, there, within, back);
                clock.add(&exchange);
                now = exchange.returned;
                let offset = clock.at(now).unwrap();
                prop_assert!((offset.ahead - ahead).unsigned_abs() <= offset.error);
            }
        }

        #[test]
        fn no_stamps_make_it_panic(stamps in prop::collection::vec(any::<[i64; 4]>(), 1..9)) {
            let mut clock = Clock::default();
            for [asked, received, answered, returned] in stamps {
                clock.add(&Exchange { asked, received, answered, returned });
                let _ = clock.at(returned);
            }
        }
    }
}
