//! The outcome of a session.

use measure::run::Ended;
use results::Results;

/// Results of a run, and how it ended.
pub struct Finished {
    pub results: Results,
    pub ended: Ended,
}
