//! Limit on the bytes per second that a machine sends, over all batches and sessions. A client that
//! splits its requests, or opens sessions again and again, gets no more.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may be sent without a pause, at most.
pub const BURST: u64 = 32 << 10;
/// Time of sending at the rate that idle time earns, at most: a slow path's queue is short.
const EARNED: Duration = Duration::from_micros(BURST);

#[derive(Debug, Default)]
pub struct RateLimit {
    /// Time at which the bytes sent so far are paid for.
    due: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// Waits until this many bytes may be sent at a rate in bytes/s.
    pub fn wait(&self, bytes: u64, rate: u32) {
        let pause = self.pause(bytes, rate, Instant::now());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }

    fn pause(&self, bytes: u64, rate: u32, now: Instant) -> Duration {
        let time = |bytes: u64| Duration::from_secs_f64(bytes as f64 / f64::from(rate.max(1)));
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        // Idle time earns no more than a burst.
        let next = due.map_or(now, |due| due.max(now)) + time(bytes);
        *due = Some(next);
        next.saturating_duration_since(now).saturating_sub(time(BURST).min(EARNED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Sends packets of these sizes with idle times between them; returns bytes and duration.
    fn send(packets: &[(u64, u64)], rate: u32) -> (u64, Duration) {
        let (rate_limit, begun) = (RateLimit::default(), Instant::now());
        let (mut now, mut bytes) = (begun, 0);
        for (idle_us, size) in packets {
            now += Duration::from_micros(*idle_us);
            now += rate_limit.pause(*size, rate, now);
            bytes += size;
        }
        (bytes, now - begun)
    }

    #[test]
    fn a_burst_is_free_and_the_rest_takes_its_time() {
        let burst = [(0, BURST / 2), (0, BURST / 2)];
        assert_eq!(send(&burst, 1_000_000), (BURST, Duration::ZERO));
        // 1 MB in packets of 1,000 bytes.
        let (_, took) = send(&vec![(0, 1000); 1000], 1_000_000);
        let free = Duration::from_secs_f64(BURST as f64 / 1e6);
        assert!((took + free).abs_diff(Duration::from_secs(1)) < Duration::from_millis(1));
    }

    proptest! {
        #[test]
        fn no_order_of_sending_exceeds_the_rate(
            packets in prop::collection::vec((0_u64..200_000, 1_u64..65_536), 1..200),
            rate in 50_000_u32..100_000_000,
        ) {
            let (bytes, took) = send(&packets, rate);
            let allowed = took.as_secs_f64() * f64::from(rate) + BURST as f64;
            prop_assert!(bytes as f64 <= allowed + 1.0, "{bytes} bytes in {took:?}");
        }
    }
}
