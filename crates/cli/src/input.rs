//! Files that verbs read.

use std::fs::File;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::path::Path;

use results::{LIMITS, ReadError, Results};

use crate::exit::Usage;
use crate::recording::Recording;

/// What `overlane report` shows.
pub enum Shown {
    /// Of a run.
    Results(Box<Results>),
    /// Of `overlane watch`.
    Recording(Recording<Whole>),
}

/// A file of which the beginning was looked at. It may be a pipe: nothing is read twice.
type Whole = BufReader<Chain<Cursor<Vec<u8>>, File>>;

/// How much of a file tells which kind it is, bytes.
const BEGINNING: usize = 64 << 10;

/// Opens a results file or a recording: of the one, all is read; of the other, nothing yet.
///
/// # Errors
/// What is wrong with a results file, as a usage error.
pub fn shown_in(path: &Path) -> anyhow::Result<Shown> {
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let read = || {
        let mut file = File::open(path).map_err(failed)?;
        let beginning = first_line(&mut file).map_err(failed)?;
        let is_recording = is_recording(&beginning);
        let reader = BufReader::new(Cursor::new(beginning).chain(file));
        if is_recording {
            return Ok(Shown::Recording(Recording::of(reader, path)));
        }
        let bytes = LIMITS.read(reader).map_err(failed)?;
        let exceeded = |exceeded| ReadError::TooLarge { path: path.to_owned(), exceeded };
        LIMITS.check(&bytes).map_err(exceeded)?;
        Results::from_json(&bytes).map(|results| Shown::Results(Box::new(results)))
    };
    read().map_err(|error: ReadError| anyhow::Error::new(Usage(error.to_string())))
}

/// Reads until the first line is there, or as much of it as tells. A pipe gives little at a time.
fn first_line(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut beginning, mut some) = (Vec::new(), [0; 4096]);
    while beginning.len() < BEGINNING && !beginning.contains(&b'\n') {
        match file.read(&mut some) {
            Ok(0) => break,
            Ok(read) => beginning.extend(&some[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(beginning)
}

/// Whether a file that begins so is a recording: its first line is an interval, which has a
/// format, while results have a schema.
fn is_recording(beginning: &[u8]) -> bool {
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has = |key: &[u8]| line.windows(key.len()).any(|bytes| bytes == key);
    has(b"\"format\"") && !has(b"\"schema\"")
}

/// Reads a results file that is one of several.
///
/// # Errors
/// What is wrong with it, and which file it is, as a usage error.
pub fn results_in_one(path: &Path) -> anyhow::Result<Results> {
    Results::read(path).map_err(|error| {
        let named = matches!(error, ReadError::Io { .. } | ReadError::TooLarge { .. });
        let text = if named { error.to_string() } else { format!("{}: {error}", path.display()) };
        anyhow::Error::new(Usage(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe into which a byte at a time is written.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let some = into.len().min(1);
            self.0.read(&mut into[..some])
        }
    }

    #[test]
    fn the_first_line_is_read_however_slowly_it_comes() {
        let line = b"{\"format\": 1}\n";
        let bytes = [&line[..], b"{}\n"].concat();
        let mut slow = Slow(&bytes);
        let beginning = first_line(&mut slow).unwrap();
        assert_eq!(beginning, line);
        assert!(is_recording(&beginning));
        assert_eq!(slow.0, b"{}\n");
        assert_eq!(first_line(&mut Slow(b"{")).unwrap(), b"{");
        assert!(first_line(&mut io::repeat(b' ')).unwrap().len() <= BEGINNING + 4096);
    }
}
