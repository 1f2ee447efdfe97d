//! How long poll(2) waits.

use std::time::Duration;

use nix::poll::PollTimeout;

/// A wait for so long: in milliseconds, rounded up. A deadline has passed when its wait ends, and
/// who looks at it again does not run in circles until it has. The longest is 24 days.
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
