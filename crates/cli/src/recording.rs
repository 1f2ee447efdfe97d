//! Recordings of `overlane watch`: one JSON object per line and interval.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use foreign::bounded::{Limits, Weights};
use observe::Snapshot;

use crate::exit::usage;
use crate::new_file::NewFile;

/// Limits of a line. An interval of 64 routes with 64 hops stays below.
const LIMITS: Limits = Limits {
    bytes: 16 << 20,
    string: 4096,
    word: 64,
    depth: 16,
    memory: 64 << 20,
    weights: Weights { object: 512, list: 64, string: 64, word: 8 },
};

/// Maximum number of lines that can be browsed, which bounds the index: seven weeks of seconds.
const MOST_LINES: usize = 1 << 22;

/// A recording being written.
#[derive(Debug)]
pub struct Recorder {
    file: NewFile,
}

impl Recorder {
    /// Creates the file.
    ///
    /// # Errors
    /// A usage error if it exists or cannot be created.
    pub fn new(path: &Path) -> anyhow::Result<Recorder> {
        Ok(Recorder { file: NewFile::create("--record", path)? })
    }

    /// Appends an interval.
    pub fn add(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        self.file.append((serde_json::to_string(snapshot)? + "\n").as_bytes())
    }
}

/// A recording being read sequentially.
#[derive(Debug)]
pub struct Recording<R = BufReader<File>> {
    reader: R,
    path: PathBuf,
    line: usize,
}

impl Recording {
    /// Opens a file, a pipe, or a device.
    ///
    /// # Errors
    /// A usage error if it cannot be opened.
    pub fn open(path: &Path) -> anyhow::Result<Recording> {
        let file =
            File::open(path).map_err(|e| usage("FILE", format!("{}: {e}", path.display())))?;
        Ok(Recording::of(BufReader::new(file), path))
    }
}

impl<R: BufRead> Recording<R> {
    /// Reads from an open file. `path` is only for errors.
    pub fn of(reader: R, path: &Path) -> Recording<R> {
        Recording { reader, path: path.to_owned(), line: 0 }
    }

    /// Reads the next interval. Returns `None` at the end.
    ///
    /// # Errors
    /// A usage error that names the line, if it is invalid, too long, or of another version.
    pub fn next(&mut self) -> anyhow::Result<Option<Snapshot>> {
        match self.next_line()? {
            line if line.is_empty() => Ok(None),
            line => match self.parse(&line) {
                // A full disk or a killed process cuts the last line. The intervals before it are
                // whole.
                Err(_) if self.line > 1 && is_cut(&line) => {
                    let (path, line) = (self.path.display(), self.line);
                    tracing::warn!("{path}: line {line}, the last one, is cut short and left out");
                    Ok(None)
                }
                parsed => parsed.map(Some),
            },
        }
    }

    fn next_line(&mut self) -> anyhow::Result<Vec<u8>> {
        self.line += 1;
        let mut line = Vec::new();
        // One byte more than allowed, so that `parse` sees that the line is too long.
        let mut limited = self.reader.by_ref().take(LIMITS.bytes + 1);
        limited.read_until(b'\n', &mut line).map_err(|error| self.problem(&error))?;
        Ok(line)
    }

    fn parse(&self, line: &[u8]) -> anyhow::Result<Snapshot> {
        LIMITS.check(line).map_err(|error| self.problem(&error))?;
        // Check the format first, because other versions may have other fields.
        #[derive(serde::Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_slice(line).map_err(|e| self.problem(&e))?;
        if version.format != observe::FORMAT {
            // Fields of another version may have another meaning.
            let (got, wanted) = (version.format, observe::FORMAT);
            let problem = format!("format {got}, this version reads {wanted}");
            return Err(self.problem(&problem));
        }
        serde_json::from_slice(line).map_err(|error| self.problem(&error))
    }

    fn problem(&self, error: &dyn Display) -> anyhow::Error {
        usage("FILE", format!("{}, line {}: {error}", self.path.display(), self.line))
    }
}

/// Returns whether a line is the beginning of an interval: it has no end, and is no whole JSON value.
fn is_cut(line: &[u8]) -> bool {
    let whole = serde_json::from_slice::<serde::de::IgnoredAny>(line);
    let begins = line.starts_with(b"{") && !line.ends_with(b"\n");
    begins && whole.is_err_and(|error| error.is_eof())
}

/// A recording with random access to its intervals.
#[derive(Debug)]
pub struct Indexed {
    recording: Recording,
    lines: Vec<u64>,
}

impl Indexed {
    /// Indexes the lines. Parses the first one, to refuse other files at once.
    ///
    /// # Errors
    /// A usage error if it is not a regular file or not a recording.
    pub fn open(path: &Path) -> anyhow::Result<Indexed> {
        let mut recording = Recording::open(path)?;
        // Going back needs a file that can be read again.
        if !recording.reader.get_ref().metadata().is_ok_and(|meta| meta.is_file()) {
            let problem = "not a regular file, so it cannot be browsed; use --text";
            return Err(usage("FILE", format!("{}: {problem}", path.display())));
        }
        let (mut lines, mut at) = (Vec::new(), 0);
        loop {
            let line = recording.next_line()?;
            if line.is_empty() {
                return Ok(Indexed { recording, lines });
            }
            // Parse only the first line here, and too long lines for their error message.
            if line.len() as u64 > LIMITS.bytes || lines.is_empty() {
                recording.parse(&line)?;
            }
            // The positions of all lines are kept in memory.
            if lines.len() == MOST_LINES {
                return Err(recording.problem(&format!("more than {MOST_LINES} intervals")));
            }
            lines.push(at);
            at += line.len() as u64;
        }
    }

    /// Returns the number of intervals.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Reads an interval, counted from 0. Returns `None` beyond the end.
    pub fn read(&mut self, number: usize) -> anyhow::Result<Option<Snapshot>> {
        let Some(at) = self.lines.get(number) else { return Ok(None) };
        self.recording.line = number;
        let sought = self.recording.reader.seek(SeekFrom::Start(*at));
        sought.map_err(|error| self.recording.problem(&error))?;
        self.recording.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_bounded() {
        let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/watch.jsonl");
        let mut bytes = std::fs::read(recorded).unwrap();
        assert_eq!(Indexed::open(Path::new(recorded)).unwrap().len(), 4);
        bytes.resize(bytes.len() + MOST_LINES, b'\n');
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.jsonl");
        std::fs::write(&path, bytes).unwrap();
        let error = Indexed::open(&path).unwrap_err().to_string();
        assert!(error.contains("more than 4194304 intervals"), "{error}");
    }

    #[test]
    fn a_cut_last_line_ends_a_recording_and_a_broken_one_is_an_error() {
        assert!(is_cut(b"{\"format\":1,\"dev"));
        assert!(!is_cut(b"{\"format\":1}"), "a whole line without its end");
        assert!(!is_cut(b"{\"format\":1,\"dev\n"), "not the last line");
        assert!(!is_cut(b"{\"format\":x"), "no beginning of a line");
        assert!(!is_cut(b"[["), "no interval");
    }
}
