//! The load engine.

mod error;
mod load;
mod measured;

use std::sync::atomic::AtomicBool;

pub use error::{End, EngineError, Stage};
pub use load::{Ends, Load, MAX_FLOWS, MAX_MESSAGE_BYTES, Watch, Workload};
pub use measured::{Datagrams, FlowMeasured, LatencyNs, Measured};

/// Runs a load and measures it.
///
/// # Errors
/// [`EngineError`].
pub fn run(
    load: &Load,
    _ends: &Ends<'_>,
    _watch: &mut dyn Watch,
    _stop: &AtomicBool,
) -> Result<Measured, EngineError> {
    load.validate()?;
    Err(EngineError::Stopped)
}
