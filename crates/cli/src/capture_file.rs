//! The capture file of `overlane trace`: new, and whole blocks only.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nix::sys::utsname::uname;
use nix::time::{ClockId, clock_gettime};
use observe::{Capture, Journey, Packet};

use crate::exit::usage;

/// A capture file being written.
#[derive(Debug)]
pub struct CaptureFile {
    file: File,
    path: PathBuf,
    capture: Capture,
    /// Bytes of it that are whole blocks.
    whole: u64,
}

impl CaptureFile {
    /// A new file: an earlier capture is nobody's to lose.
    ///
    /// # Errors
    /// Usage, when it is there already or cannot be made.
    pub fn new(path: &Path) -> anyhow::Result<CaptureFile> {
        let file = File::create_new(path).map_err(|error| {
            usage("--pcapng", format!("{} cannot be made: {error}", path.display()))
        })?;
        CaptureFile::over(file, path)
    }

    /// Over a file that is open and empty.
    fn over(file: File, path: &Path) -> anyhow::Result<CaptureFile> {
        let clock = |clock: ClockId| -> anyhow::Result<u64> {
            let time = clock_gettime(clock).context("clock_gettime")?;
            Ok(u64::try_from(Duration::from(time).as_nanos())?)
        };
        // Steps of the wall clock while it runs are none of packets.
        let epoch_ns =
            clock(ClockId::CLOCK_REALTIME)?.saturating_sub(clock(ClockId::CLOCK_MONOTONIC)?);
        let system = uname().context("uname")?;
        let system = [system.sysname(), system.release()].map(|name| name.to_string_lossy());
        let program = concat!("overlane ", env!("CARGO_PKG_VERSION"));
        let capture = Capture::new(epoch_ns, &system.join(" "), program);
        let mut file = CaptureFile { file, path: path.to_owned(), capture, whole: 0 };
        file.write(0)?;
        Ok(file)
    }

    /// Adds the steps of a journey, which is `packet` in words.
    pub fn add(&mut self, journey: &Journey, packet: &Packet) {
        self.capture.add(journey, packet);
    }

    /// Writes the steps before this time (`CLOCK_MONOTONIC`, ns).
    ///
    /// # Errors
    /// When they cannot be written; what is there of the file can still be read.
    pub fn write(&mut self, before: u64) -> anyhow::Result<()> {
        let blocks = self.capture.take(before);
        if let Err(error) = self.file.write_all(&blocks) {
            // Half a block would be an error to whoever reads it. Where that cannot be taken
            // back either, the error of writing is the one to tell.
            let _ = self.file.set_len(self.whole);
            return Err(error).with_context(|| format!("write {}", self.path.display()));
        }
        self.whole += blocks.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let full = Path::new("/dev/full");
        let file = File::options().write(true).open(full).unwrap();
        let error = format!("{:#}", CaptureFile::over(file, full).unwrap_err());
        assert!(error.contains("write /dev/full: No space left"), "{error}");
    }
}
