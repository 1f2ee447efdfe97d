//! Input files of verbs.

use std::fs::File;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::os::fd::AsFd;
use std::path::Path;

use measure::kept;
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

/// Opens a results file or a recording, or standard input for `-`. Reads a results file completely,
/// a recording not yet.
///
/// # Errors
/// A usage error that describes the problem of a results file.
pub fn shown_in(path: &Path) -> anyhow::Result<Shown> {
    let (file, beginning) = opened(path)?;
    let is_recording = is_recording(&beginning);
    let reader = BufReader::new(Cursor::new(beginning).chain(file));
    // A recording may be large, so read it line by line.
    if is_recording {
        return Ok(Shown::Recording(Recording::of(reader, path)));
    }
    results_of(reader, path).map(|results| Shown::Results(Box::new(results)))
}

/// Opens a file and reads its beginning, without a byte order mark.
fn opened(path: &Path) -> anyhow::Result<(File, Vec<u8>)> {
    let open = || {
        if path != Path::new("-") {
            return File::open(path);
        }
        Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
    };
    let read = || {
        let mut file = open()?;
        let mut beginning = first_line(&mut file)?;
        if beginning.starts_with(BYTE_ORDER_MARK) {
            beginning.drain(..BYTE_ORDER_MARK.len());
        }
        Ok((file, beginning))
    };
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let (file, beginning) = read().map_err(|e| anyhow::Error::new(Usage(failed(e).to_string())))?;
    match no_json(&beginning, &path.display().to_string()) {
        Some(kind) => Err(anyhow::Error::new(Usage(format!("{}: {kind}", path.display())))),
        None => Ok((file, beginning)),
    }
}

/// Returns the kind of a file with this beginning and the command that helps; `None` if it may be
/// JSON.
fn no_json(beginning: &[u8], path: &str) -> Option<String> {
    // Nothing is decompressed here: a small file can become larger than any memory.
    let compressed = COMPRESSED.iter().find(|(magic, ..)| beginning.starts_with(magic));
    if let Some((_, format, program)) = compressed {
        return Some(format!(
            "a file compressed by {format}; use `{program} {path} | overlane report -`"
        ));
    }
    if beginning.starts_with(b"\xff\xfe") || beginning.starts_with(b"\xfe\xff") {
        return Some(format!(
            "text in UTF-16; use `iconv -f UTF-16 -t UTF-8 {path} | overlane report -`"
        ));
    }
    // JSON escapes this character (RFC 8259, section 7).
    beginning.contains(&0).then(|| "a binary file, neither results nor a recording".to_owned())
}

/// UTF-8's, as some editors write it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// First bytes of compressed files (RFC 1952, RFC 8878, and the formats of xz and bzip2), with the
/// program that decompresses them.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "zcat"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
    (b"\xfd7zXZ\x00", "xz", "xzcat"),
    (b"BZh", "bzip2", "bzcat"),
];

fn results_of(reader: impl Read, path: &Path) -> anyhow::Result<Results> {
    let wrong = |error: ReadError| {
        // Some errors already contain the path.
        let named = matches!(error, ReadError::Io { .. } | ReadError::TooLarge { .. });
        let text = if named { error.to_string() } else { format!("{}: {error}", path.display()) };
        anyhow::Error::new(Usage(text))
    };
    let failed = |source| wrong(ReadError::Io { path: path.to_owned(), source });
    let bytes = LIMITS.read(reader).map_err(failed)?;
    // Check the limits before parsing: the file may be hostile.
    LIMITS
        .check(&bytes)
        .map_err(|exceeded| wrong(ReadError::TooLarge { path: path.to_owned(), exceeded }))?;
    if bytes.starts_with(kept::BEGINNING) {
        let restored = kept::restored(&bytes);
        return restored.map_err(|error| {
            anyhow::Error::new(Usage(format!("samples of a run {}: {error}", path.display())))
        });
    }
    Results::from_json(&bytes).map_err(|error| match is_iperf3(&bytes) {
        true => anyhow::Error::new(Usage(format!(
            "{}: a result of iperf3, not of overlane; `lab run --engine overlane,iperf3` measures \
             with both in the same blocks",
            path.display()
        ))),
        false => wrong(error),
    })
}

/// Returns whether JSON is the output of `iperf3 --json`.
fn is_iperf3(bytes: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Output {
        start: Start,
    }
    #[derive(serde::Deserialize)]
    struct Start {
        version: String,
    }
    let output = serde_json::from_slice::<Output>(bytes);
    output.is_ok_and(|output| output.start.version.starts_with("iperf"))
}

/// Reads the first line, or at least [`BEGINNING`] bytes. A pipe may return few bytes per read.
fn first_line(file: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut beginning, mut some) = (Vec::new(), [0; 4096]);
    while beginning.len() < BEGINNING && !beginning.contains(&b'\n') {
        match file.read(&mut some) {
            Ok(0) => break,
            Ok(read) => beginning.extend(&some[..read]),
            // A signal interrupted the call.
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
    let (file, beginning) = opened(path)?;
    results_of(BufReader::new(Cursor::new(beginning).chain(file)), path)
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

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        file
    }

    #[test]
    fn files_of_others_are_refused_with_their_kind() {
        let iperf3 = br#"{"start":{"version":"iperf 3.12"},"intervals":[],"end":{}}"#;
        for (bytes, said) in [
            (&b"\x1f\x8b\x08\x00"[..], "compressed by gzip; use `zcat "),
            (b"\x28\xb5\x2f\xfd\x00", "compressed by zstd; use `zstdcat "),
            (b"\xff\xfe{\0}\0", "text in UTF-16; use `iconv "),
            (b"\x7fELF\x02\x01\x01\0", "a binary file, neither results nor a recording"),
            (iperf3, "a result of iperf3"),
            (b"\xef\xbb\xbf{}", "/schema: expected the field"),
        ] {
            let file = written(bytes);
            for error in
                [shown_in(file.path()).err().unwrap(), results_in_one(file.path()).unwrap_err()]
            {
                let error = error.to_string();
                assert!(error.contains(said), "{error}");
                assert!(error.contains(file.path().to_str().unwrap()), "{error}");
            }
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
