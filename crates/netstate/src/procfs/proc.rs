//! Files of `/proc` and `/sys`: opened once, read repeatedly by `pread` at offset 0, parsed
//! strictly.
//!
//! A file below `/proc/net` or `/proc/sys/net` stays bound to the network namespace in which it was
//! opened. Any thread can read it without entering the namespace. While open, it keeps the
//! namespace alive.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A value in another format than the kernel documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file} line {line}, {field}: expected {expected}, got {got:?}")]
pub struct ParseError {
    /// File, as named by the caller.
    pub file: String,
    /// Line, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Name of the field or column.
    pub field: String,
    /// Expected content.
    pub expected: &'static str,
    /// Actual content, at most 64 characters.
    pub got: String,
}

impl ParseError {
    pub(crate) fn new(
        file: &str,
        line: usize,
        field: impl Into<String>,
        expected: &'static str,
        got: &str,
    ) -> ParseError {
        // A damaged file may be a single endless line; keep the error readable.
        let got = got.chars().take(64).collect();
        ParseError { file: file.to_owned(), line, field: field.into(), expected, got }
    }
}

/// A file that could not be read or parsed.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The file could not be opened or read.
    #[error(transparent)]
    Read(#[from] sys::Error),
    /// The content has another format than documented.
    #[error(transparent)]
    Parse(Box<ParseError>),
}

impl From<ParseError> for ProcError {
    fn from(error: ParseError) -> Self {
        ProcError::Parse(Box::new(error))
    }
}

/// Result with [`ProcError`].
pub type Result<T> = std::result::Result<T, ProcError>;

/// Converts a key of sysctl(8) to a path below `/proc/sys`: `net.ipv4.conf.eth0/12.rp_filter` or
/// `net/ipv4/conf/eth0.12/rp_filter`. The first separator decides the notation. `None` for an
/// invalid key, or one that would lead elsewhere.
pub fn sysctl_path(key: &str) -> Option<String> {
    let dotted = key.find(['.', '/']).is_some_and(|at| key.as_bytes()[at] == b'.');
    let turned = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    let path = if dotted { key.chars().map(turned).collect() } else { key.to_owned() };
    let plain = |part: &str| {
        !part.is_empty()
            && part != ".."
            && part != "."
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.@:".contains(&b))
    };
    path.split('/').all(plain).then_some(path)
}

/// A file of `/proc` or `/sys`, held open.
#[derive(Debug)]
pub struct ProcFile {
    file: File,
    path: PathBuf,
}

impl ProcFile {
    /// Opens the file in the calling thread's namespaces.
    ///
    /// # Errors
    /// Errors of `open`; `ENOENT` if the kernel lacks the feature.
    pub fn open(path: impl AsRef<Path>) -> std::result::Result<ProcFile, sys::Error> {
        let path = path.as_ref();
        let file =
            File::open(path).map_err(|e| sys::Error::io("open", path.display().to_string(), &e))?;
        Ok(ProcFile { file, path: path.to_owned() })
    }

    /// Returns the path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file from its start.
    ///
    /// # Errors
    /// Errors of `pread` (`ENOENT` if the namespace of a sysctl is gone), and [`ParseError`] if the
    /// content is not UTF-8.
    pub fn read(&self) -> Result<String> {
        // Larger than any file read here, so that the kernel renders it in one call: a second pread
        // would continue at another moment.
        let mut buffer = vec![0_u8; 64 * 1024];
        let mut length = 0;
        loop {
            if length == buffer.len() {
                buffer.resize(2 * length, 0);
            }
            match self.file.read_at(&mut buffer[length..], length as u64) {
                Ok(0) => break,
                Ok(read) => length += read,
                // A signal interrupted the call.
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(sys::Error::io("pread", self.path.display().to_string(), &e).into());
                }
            }
        }
        buffer.truncate(length);
        String::from_utf8(buffer).map_err(|e| {
            let valid = e.utf8_error().valid_up_to();
            let line = 1 + e.as_bytes()[..valid].iter().filter(|b| **b == b'\n').count();
            let name = self.path.display().to_string();
            ParseError::new(&name, line, format!("byte {valid}"), "UTF-8", "other bytes").into()
        })
    }
}

/// Reads a small file with a single value (`/proc/sys/…`), without the line end.
///
/// # Errors
/// As [`ProcFile::open`] and [`ProcFile::read`].
pub fn read_value(path: impl AsRef<Path>) -> Result<String> {
    Ok(ProcFile::open(path)?.read()?.trim_end().to_owned())
}

/// Parses a word as a decimal counter. Errors name file, line and field.
pub(crate) fn decimal(
    file: &str,
    line: usize,
    field: &str,
    word: Option<&str>,
) -> std::result::Result<u64, ParseError> {
    number(file, line, field, word, 10, "an unsigned decimal number")
}

/// Parses a word as a hexadecimal counter without prefix.
pub(crate) fn hexadecimal(
    file: &str,
    line: usize,
    field: &str,
    word: Option<&str>,
) -> std::result::Result<u64, ParseError> {
    number(file, line, field, word, 16, "a hexadecimal number")
}

fn number(
    file: &str,
    line: usize,
    field: &str,
    word: Option<&str>,
    radix: u32,
    expected: &'static str,
) -> std::result::Result<u64, ParseError> {
    let error = |got: &str| ParseError::new(file, line, field, expected, got);
    let word = word.ok_or_else(|| error("end of line"))?;
    // from_str_radix accepts a leading '+', which the kernel never prints.
    if word.starts_with('+') {
        return Err(error(word));
    }
    u64::from_str_radix(word, radix).map_err(|_| error(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_sysctl_is_a_path_and_leads_nowhere_else() {
        for (key, path) in [
            ("net.core.netdev_budget", "net/core/netdev_budget"),
            ("net/core/netdev_budget", "net/core/netdev_budget"),
            ("net.ipv4.conf.eth0/12.rp_filter", "net/ipv4/conf/eth0.12/rp_filter"),
            ("net/ipv4/conf/eth0.12/rp_filter", "net/ipv4/conf/eth0.12/rp_filter"),
        ] {
            assert_eq!(sysctl_path(key).as_deref(), Some(path), "{key}");
        }
        for wrong in ["", "net..core", "net/../kernel/panic", "/net/core", "net.core.", "a b"] {
            assert_eq!(sysctl_path(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_name_the_place_and_the_value() {
        assert_eq!(decimal("f", 1, "user", Some("18446744073709551615")).unwrap(), u64::MAX);
        assert_eq!(hexadecimal("f", 1, "dropped", Some("000017a0")).unwrap(), 0x17a0);
        for bad in ["", "+1", "-1", "1.5", "0x1", "18446744073709551616"] {
            let error = decimal("/proc/stat", 3, "user", Some(bad)).unwrap_err();
            assert_eq!((error.line, error.field.as_str(), error.got.as_str()), (3, "user", bad));
        }
        assert_eq!(
            decimal("/proc/stat", 3, "user", None).unwrap_err().to_string(),
            "/proc/stat line 3, user: expected an unsigned decimal number, got \"end of line\""
        );
    }

    #[test]
    fn a_file_is_read_again_from_its_start() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("value");
        std::fs::write(&path, "1\n").unwrap();
        let file = ProcFile::open(&path).unwrap();
        assert_eq!(file.read().unwrap(), "1\n");
        std::fs::write(&path, "23\n").unwrap();
        assert_eq!(file.read().unwrap(), "23\n");
        assert_eq!(read_value(&path).unwrap(), "23");
        std::fs::write(&path, b"a\nb\xff").unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
        // Longer than the first buffer.
        std::fs::write(&path, "x".repeat(200_000)).unwrap();
        assert_eq!(file.read().unwrap().len(), 200_000);
    }
}
