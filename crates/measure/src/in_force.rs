//! The limits that samples are judged by at a moment.

use results::Sample;

use crate::sampler::Limits;

/// The limits that a sample is judged by, of each machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InForce {
    /// Limits for the client's machine, and for both ends where they share one.
    pub here: Limits,
    /// The server's, where it is another.
    pub peer: Limits,
}

impl InForce {
    /// In which way a sample stands out.
    pub fn passed(&self, sample: &Sample) -> Option<String> {
        let here = sample.disturbance.and_then(|by| self.here.passed(&by));
        here.or_else(|| {
            let reason = self.peer.passed(&sample.peer_disturbance?)?;
            Some(format!("{}: {reason}", crate::remote::Remote::HOST))
        })
    }
}
