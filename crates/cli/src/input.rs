//! Input files of verbs.

use std::fs::File;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::path::Path;

use results::{LIMITS, ReadError, Results};

use crate::exit::Usage;
use crate::recording::Recording;

/// Input of `overlane report`.
pub enum Shown {
    Results(Box<Results>),
    /// A recording of `overlane watch`.
    Recording(Recording<Whole>),
}

/// A file whose beginning was read ahead. It may be a pipe, so nothing is read twice.
type Whole = BufReader<Chain<Cursor<Vec<u8>>, File>>;

/// Maximum length in bytes of the beginning that determines the kind of file.
const BEGINNING: usize = 64 << 10;

/// Opens a results file or a recording. Reads a results file completely, a recording not yet.
///
/// # Errors
/// A usage error that describes the problem of a results file.
pub fn shown_in(path: &Path) -> anyhow::Result<Shown> {
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let read = || {
        let mut file = File::open(path).map_err(failed)?;
        let beginning = first_line(&mut file).map_err(failed)?;
        let is_recording = is_recording(&beginning);
        let reader = BufReader::new(Cursor::new(beginning).chain(file));
        // A recording may be large, so read it line by line.
        if is_recording {
            return Ok(Shown::Recording(Recording::of(reader, path)));
        }
        let bytes = LIMITS.read(reader).map_err(failed)?;
        let exceeded = |exceeded| ReadError::TooLarge { path: path.to_owned(), exceeded };
        // Check the limits before parsing: the file may be hostile.
        LIMITS.check(&bytes).map_err(exceeded)?;
        Results::from_json(&bytes).map(|results| Shown::Results(Box::new(results)))
    };
    read().map_err(|error: ReadError| anyhow::Error::new(Usage(error.to_string())))
}

/// Reads the first line, or at least [`BEGINNING`] bytes. A pipe may return few bytes per read.
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

/// Returns whether a file with this beginning is a recording. The first line of a recording is an
/// interval with the key `format`; results have the key `schema`.
fn is_recording(beginning: &[u8]) -> bool {
    let line = beginning.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let has = |key: &[u8]| line.windows(key.len()).any(|bytes| bytes == key);
    has(b"\"format\"") && !has(b"\"schema\"")
}

/// Reads one of several results files.
///
/// # Errors
/// A usage error that names the file and the problem.
pub fn results_in_one(path: &Path) -> anyhow::Result<Results> {
    Results::read(path).map_err(|error| {
        // Some errors already contain the path.
        let named = matches!(error, ReadError::Io { .. } | ReadError::TooLarge { .. });
        let text = if named { error.to_string() } else { format!("{}: {error}", path.display()) };
        anyhow::Error::new(Usage(text))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pipe that returns one byte per read.
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
