//! Wait times for poll(2).

use std::time::Duration;

use nix::poll::PollTimeout;

/// Converts a time limit to milliseconds, rounded up. The deadline has therefore passed when the
/// wait ends, and a loop that checks it does not spin. The maximum is 24 days.
pub fn at_most(limit: Duration) -> PollTimeout {
    let millis = limit.as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_never_shorter_than_asked() {
        for (micros, millis) in [(0, 0_u16), (1, 1), (999, 1), (1000, 1), (1001, 2)] {
            assert_eq!(at_most(Duration::from_micros(micros)), PollTimeout::from(millis));
        }
        assert_eq!(at_most(Duration::MAX), PollTimeout::MAX);
    }
}
