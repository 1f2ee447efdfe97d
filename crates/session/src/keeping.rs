//! Writes the samples of a run to files as they come.

use std::io::{self, Write};

use measure::kept::{self, Begun};
use results::Sample;

/// Files for the samples, if there are any.
#[derive(Default)]
pub struct Keeping {
    files: Vec<Box<dyn Write>>,
}

impl Keeping {
    /// Keeps samples in a file.
    pub fn to(file: impl Write + 'static) -> Keeping {
        let mut keeping = Keeping::default();
        keeping.add(file);
        keeping
    }

    /// Keeps samples in another file, too.
    pub fn add(&mut self, file: impl Write + 'static) {
        self.files.push(Box::new(file));
    }

    /// Returns whether samples are kept.
    pub fn is_on(&self) -> bool {
        !self.files.is_empty()
    }

    pub fn begin(&mut self, begun: &Begun) {
        self.write(|| begun.line());
    }

    pub fn sample(&mut self, cell: usize, sample: &Sample) {
        self.write(|| kept::sample_line(cell, sample));
    }

    fn write(&mut self, line: impl FnOnce() -> io::Result<Vec<u8>>) {
        // The line is not built if nobody reads it.
        if self.files.is_empty() {
            return;
        }
        let line = line();
        self.files.retain_mut(|file| {
            // One call, so that a kill between two calls leaves no half line.
            let written = line.as_ref().map_err(ToString::to_string).and_then(|line| {
                let written = file.write_all(line).and_then(|()| file.flush());
                written.map_err(|error| error.to_string())
            });
            if let Err(error) = &written {
                // The run still has all samples, and writes them at its end if it can.
                tracing::warn!("samples are no longer written to a file as they come: {error}");
            }
            written.is_ok()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk for this number of lines.
    struct Disk(usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            match self.0.checked_sub(1) {
                Some(left) => self.0 = left,
                None => return Err(std::io::ErrorKind::StorageFull.into()),
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_ends_the_keeping_and_not_the_run() {
        let mut keeping = Keeping::to(Disk(2));
        for _ in 0..2 {
            keeping.sample(0, &Sample::default());
            assert!(keeping.is_on());
        }
        keeping.sample(0, &Sample::default());
        assert!(!keeping.is_on());
        keeping.sample(0, &Sample::default());
    }

    #[test]
    fn a_full_file_does_not_stop_the_others() {
        let mut keeping = Keeping::to(Disk(0));
        keeping.add(Disk(1));
        keeping.sample(0, &Sample::default());
        assert!(keeping.is_on());
        keeping.sample(0, &Sample::default());
        assert!(!keeping.is_on());
    }
}
