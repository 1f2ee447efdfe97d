//! The capture file of `overlane trace`. It is always a new file with complete blocks only.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::sys::utsname::uname;
use nix::time::{ClockId, clock_gettime};
use observe::{Capture, Journey, Packet};

use crate::new_file::NewFile;

/// A capture file being written.
#[derive(Debug)]
pub struct CaptureFile {
    file: NewFile,
    capture: Capture,
}

impl CaptureFile {
    /// Creates the file.
    ///
    /// # Errors
    /// A usage error if it exists or cannot be created.
    pub fn new(path: &Path) -> anyhow::Result<CaptureFile> {
        let file = NewFile::create("--pcapng", path)?;
        let clock = |clock: ClockId| -> anyhow::Result<u64> {
            let time = clock_gettime(clock).context("clock_gettime")?;
            Ok(u64::try_from(Duration::from(time).as_nanos())?)
        };
        // Read the offset once, so that later wall-clock steps do not affect timestamps.
        let epoch_ns =
            clock(ClockId::CLOCK_REALTIME)?.saturating_sub(clock(ClockId::CLOCK_MONOTONIC)?);
        let system = uname().context("uname")?;
        let system = [system.sysname(), system.release()].map(|name| name.to_string_lossy());
        let program = concat!("overlane ", env!("CARGO_PKG_VERSION"));
        let capture = Capture::new(epoch_ns, &system.join(" "), program);
        Ok(CaptureFile { file, capture })
    }

    /// Adds the steps of a journey; `packet` describes it.
    pub fn add(&mut self, journey: &Journey, packet: &Packet) {
        self.capture.add(journey, packet);
    }

    /// Writes the steps before this time (`CLOCK_MONOTONIC`, ns).
    ///
    /// # Errors
    /// If they cannot be written. The file stays readable.
    pub fn write(&mut self, before: u64) -> anyhow::Result<()> {
        self.file.append(&self.capture.take(before))
    }
}
