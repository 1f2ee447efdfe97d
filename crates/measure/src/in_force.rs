//! Disturbance limits in force at a moment.

use results::Sample;

use crate::sampler::Limits;

/// Disturbance limits for a sample, per machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct InForce {
    /// Limits for the client's machine, or for both ends on one machine.
    pub here: Limits,
    /// Limits for the server's machine, if it is another one.
    pub peer: Limits,
}

impl InForce {
    /// Describes the limits that a sample exceeds.
    pub fn passed(&self, sample: &Sample) -> Option<String> {
        let here = sample.disturbance.and_then(|by| self.here.passed(&by));
        here.or_else(|| {
            let reason = self.peer.passed(&sample.peer_disturbance?)?;
            Some(format!("{}: {reason}", crate::remote::Remote::HOST))
        })
    }
}
