//! The token: a secret shared by client and server, from a file.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Minimum length of a token, bytes.
const SHORTEST: usize = 16;
/// Maximum length of a token, bytes.
const LONGEST: usize = 4096;

/// A secret shared by client and server.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

/// Reason why a token file is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("token file {path}: {error}")]
    Read {
        /// Path of the token file.
        path: PathBuf,
        /// Error of opening or reading it.
        error: std::io::Error,
    },
    /// Other users of the machine can access it.
    #[error(
        "token file {path} has mode {mode:04o}: other users of this machine can read or change it; \
         allowed is at most 0640 (chmod o= {path})"
    )]
    Open {
        /// Path of the token file.
        path: PathBuf,
        /// Permission bits of the file, as in chmod(1).
        mode: u32,
    },
    /// It is too short or too long.
    #[error(
        "token file {path} holds {bytes} bytes; allowed are {SHORTEST} to {LONGEST} \
         (head -c 32 /dev/urandom | base64)"
    )]
    Length {
        /// Path of the token file.
        path: PathBuf,
        /// Length without white space at either end.
        bytes: String,
    },
}

impl Token {
    /// Reads a token file. White space at either end is ignored.
    ///
    /// # Errors
    /// [`TokenError`]: a file that other users can access, or of wrong length.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let failed = |error| TokenError::Read { path: path.to_owned(), error };
        let file = std::fs::File::open(path).map_err(failed)?;
        // Check the open file, so that it cannot be replaced between check and read.
        let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
        if mode & 0o007 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        // Leave room for white space; a file beyond that is too long in any case.
        file.take(2 * LONGEST as u64).read_to_end(&mut bytes).map_err(failed)?;
        let token = bytes.trim_ascii();
        if !(SHORTEST..=LONGEST).contains(&token.len()) {
            let bytes = token.len().to_string();
            return Err(TokenError::Length { path: path.to_owned(), bytes });
        }
        Ok(Token(token.to_owned()))
    }

    /// Creates a token from text; `None` if it is too short or too long.
    pub fn of(text: &str) -> Option<Token> {
        (SHORTEST..=LONGEST).contains(&text.len()).then(|| Token(text.as_bytes().to_owned()))
    }

    /// The secret, key of every proof.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Hides the secret: it must not appear in logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// For tests and fuzzing, without a length check.
impl From<&str> for Token {
    fn from(text: &str) -> Token {
        Token(text.as_bytes().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_taken_from_a_closed_file_only_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        let token = write(" 0123456789abcdef\n", 0o640).unwrap();
        assert_eq!(token.bytes(), b"0123456789abcdef");
        assert!(!format!("{token:?}").contains("0123"));
        for mode in [0o644, 0o602, 0o601] {
            let error = write("0123456789abcdef", mode).unwrap_err();
            assert!(matches!(error, TokenError::Open { .. }), "{error}");
            assert!(error.to_string().contains("chmod"), "{error}");
        }
        let error = write("short\n", 0o600).unwrap_err();
        assert!(error.to_string().contains("holds 5 bytes"), "{error}");
        assert!(matches!(write(&"x".repeat(5000), 0o600), Err(TokenError::Length { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Read { .. })));
    }
}
