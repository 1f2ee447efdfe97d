//! Recordings of `overlane watch`: a line of JSON an interval.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use foreign::bounded::{Limits, Weights};
use observe::Snapshot;

use crate::exit::usage;
use crate::new_file::NewFile;

/// A line of a recording: an interval of 64 ways of 64 hops has less.
const LIMITS: Limits = Limits {
    bytes: 16 << 20,
    string: 4096,
    word: 64,
    depth: 16,
    memory: 64 << 20,
    weights: Weights { object: 512, list: 64, string: 64, word: 8 },
};

/// A recording being written.
#[derive(Debug)]
pub struct Recorder {
    file: NewFile,
}

impl Recorder {
    /// A new file.
    ///
    /// # Errors
    /// Usage, when it is there already or cannot be made.
    pub fn new(path: &Path) -> anyhow::Result<Recorder> {
        Ok(Recorder { file: NewFile::create("--record", path)? })
    }

    /// Adds an interval.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, snapshot: &Snapshot) -> anyhow::Result<()> {
        self.file.append((serde_json::to_string(snapshot)? + "\n").as_bytes())
    }
}

/// A recording being read, from its beginning to its end.
#[derive(Debug)]
pub struct Recording<R = BufReader<File>> {
    reader: R,
    path: PathBuf,
    line: usize,
}

impl Recording {
    /// Of a file, a pipe, or a device.
    ///
    /// # Errors
    /// Usage, when it cannot be opened.
    pub fn open(path: &Path) -> anyhow::Result<Recording> {
        let file =
            File::open(path).map_err(|e| usage("FILE", format!("{}: {e}", path.display())))?;
        Ok(Recording::of(BufReader::new(file), path))
    }
}

impl<R: BufRead> Recording<R> {
    /// Of what was opened at `path`, from where it stands.
    pub fn of(reader: R, path: &Path) -> Recording<R> {
        Recording { reader, path: path.to_owned(), line: 0 }
    }

    /// The next interval; `None` at the end.
    ///
    /// # Errors
    /// Usage, naming the line that is none, is too long, or is of another version.
    pub fn next(&mut self) -> anyhow::Result<Option<Snapshot>> {
        match self.next_line()? {
            line if line.is_empty() => Ok(None),
            line => self.parse(&line).map(Some),
        }
    }

    fn next_line(&mut self) -> anyhow::Result<Vec<u8>> {
        self.line += 1;
        let mut line = Vec::new();
        let mut limited = self.reader.by_ref().take(LIMITS.bytes + 1);
        limited.read_until(b'\n', &mut line).map_err(|error| self.problem(&error))?;
        Ok(line)
    }

    fn parse(&self, line: &[u8]) -> anyhow::Result<Snapshot> {
        LIMITS.check(line).map_err(|error| self.problem(&error))?;
        // Only the format: what else a line of another version has is not known.
        #[derive(serde::Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version = serde_json::from_slice(line).map_err(|e| self.problem(&e))?;
        if version.format != observe::FORMAT {
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

/// A recording of which each interval can be read, again and in any order.
#[derive(Debug)]
pub struct Indexed {
    recording: Recording,
    /// Where lines begin.
    lines: Vec<u64>,
}

impl Indexed {
    /// Looks where its lines are. The first one is read, so that another file is refused at once.
    ///
    /// # Errors
    /// Usage, for what is no file, or no recording.
    pub fn open(path: &Path) -> anyhow::Result<Indexed> {
        let mut recording = Recording::open(path)?;
        if !recording.reader.get_ref().metadata().is_ok_and(|meta| meta.is_file()) {
            let problem = "no file that can be stepped through; --text plays it";
            return Err(usage("FILE", format!("{}: {problem}", path.display())));
        }
        let (mut lines, mut at) = (Vec::new(), 0);
        loop {
            let line = recording.next_line()?;
            if line.is_empty() {
                return Ok(Indexed { recording, lines });
            }
            if line.len() as u64 > LIMITS.bytes || lines.is_empty() {
                recording.parse(&line)?;
            }
            lines.push(at);
            at += line.len() as u64;
        }
    }

    /// Its intervals.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// An interval, from 0; `None` behind the end.
    ///
    /// # Errors
    /// As [`Recording::next`].
    pub fn read(&mut self, number: usize) -> anyhow::Result<Option<Snapshot>> {
        let Some(at) = self.lines.get(number) else { return Ok(None) };
        self.recording.line = number;
        let sought = self.recording.reader.seek(SeekFrom::Start(*at));
        sought.map_err(|error| self.recording.problem(&error))?;
        self.recording.next()
    }
}
