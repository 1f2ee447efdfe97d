//! Keeps the samples of a run in a file as they come.

use std::io::{self, Write};

use measure::kept::{self, Begun};
use results::Sample;

/// A file for the samples, if there is one.
#[derive(Default)]
pub struct Keeping {
    file: Option<Box<dyn Write>>,
}

impl Keeping {
    /// Keeps samples in a file.
    pub fn to(file: impl Write + 'static) -> Keeping {
        Keeping { file: Some(Box::new(file)) }
    }

    /// Returns whether samples are kept.
    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    pub fn begin(&mut self, begun: &Begun) {
        self.write(|| begun.line());
    }

    pub fn sample(&mut self, cell: usize, sample: &Sample) {
        self.write(|| kept::sample_line(cell, sample));
    }

    fn write(&mut self, line: impl FnOnce() -> io::Result<Vec<u8>>) {
        let Some(file) = &mut self.file else { return };
        // One call, so that a kill between two calls leaves no half line.
        let written = line().and_then(|line| file.write_all(&line));
        if let Err(error) = written {
            // The run still has all samples, and writes them at its end if it can.
            tracing::warn!("samples are no longer kept in a file as they come: {error}");
            self.file = None;
        }
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
}
