//! An artificial delay for tests and demonstrations: the server stops answering for a while at
//! regular times.

use std::time::Duration;

use super::EngineError;

/// A server that stalls for the last `length` of each period `every`, counted from the start of
/// the load's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Period.
    pub every: Duration,
    /// Duration of each stall; shorter than `every`.
    pub length: Duration,
}

impl Stall {
    pub(super) fn validate(&self) -> Result<(), EngineError> {
        // A stall as long as its period would never let a request through.
        if self.length < self.every {
            return Ok(());
        }
        let got = format!("{:?} each {:?}", self.length, self.every);
        Err(EngineError::invalid("server_stall", "shorter than its period", got))
    }

    /// Returns the rest of the current stall, at this time after the start.
    pub(super) fn left(&self, since: Duration) -> Duration {
        let every = self.every.as_nanos().max(1);
        let to_the_end = every - since.as_nanos() % every;
        // Less than `every`, so it fits.
        let to_the_end = Duration::from_nanos(u64::try_from(to_the_end).unwrap_or(u64::MAX));
        if to_the_end <= self.length { to_the_end } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_each_period_is_still() {
        let ms = Duration::from_millis;
        let stall = Stall { every: ms(1000), length: ms(20) };
        for (since, left) in
            [(0, 0), (979, 0), (980, 20), (999, 1), (1000, 0), (1979, 0), (1985, 15), (60_990, 10)]
        {
            assert_eq!(stall.left(ms(since)), ms(left), "{since}");
        }
    }

    #[test]
    fn a_server_that_never_answers_is_refused() {
        let ms = Duration::from_millis;
        assert!(Stall { every: ms(20), length: ms(20) }.validate().is_err());
        assert!(Stall { every: ms(20), length: ms(19) }.validate().is_ok());
    }
}
