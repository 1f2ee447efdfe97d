//! The token: a secret shared by client and server, from a file.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Minimum strength of a token, bits. A false server gets a proof that it can try guesses on
/// offline, so a token must be random.
const WEAKEST: usize = 128;
/// Minimum of different characters: fewer are not a random text of this length.
const FEWEST: usize = 9;
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
    Read { path: PathBuf, error: std::io::Error },
    /// Other users of the machine can access it.
    #[error(
        "token file {path} has mode {mode:04o}: other users of this machine can read or change it; \
         allowed is at most 0640 (chmod 640 {path})"
    )]
    Open {
        path: PathBuf,
        /// Permission bits of the file, as in chmod(1).
        mode: u32,
    },
    /// It can be guessed, or is too long.
    #[error(
        "token file {path} holds {bytes} bytes; expected {WEAKEST} random bits, such as 32 \
         hexadecimal digits or 22 other characters, and at most {LONGEST} bytes: generate it by \
         head -c 32 /dev/urandom | base64"
    )]
    Weak {
        path: PathBuf,
        /// Length without white space at either end.
        bytes: usize,
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
        // Other users of the machine could read or replace the secret.
        if mode & !0o740 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        // Leave room for white space; a file beyond that is too long in any case.
        file.take(2 * LONGEST as u64).read_to_end(&mut bytes).map_err(failed)?;
        let token = bytes.trim_ascii();
        let weak = || TokenError::Weak { path: path.to_owned(), bytes: token.len() };
        strong(token).then(|| Token(token.to_owned())).ok_or_else(weak)
    }

    /// Creates a token from text; `None` if it is weak or too long.
    pub fn of(text: &str) -> Option<Token> {
        strong(text.as_bytes()).then(|| Token(text.as_bytes().to_owned()))
    }

    /// The secret, key of every proof.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Whether a text of this form can hold 128 random bits: 4 a hexadecimal digit, 6 another
/// character, as in base64. Whether they are random does not show.
fn strong(token: &[u8]) -> bool {
    let bits = if token.iter().all(u8::is_ascii_hexdigit) { 4 } else { 6 };
    let different = token.iter().collect::<std::collections::BTreeSet<_>>().len();
    token.len() <= LONGEST && token.len() * bits >= WEAKEST && different >= FEWEST
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
        let good = "0123456789abcdef0123456789abcdef";
        let token = write(&format!(" {good}\n"), 0o640).unwrap();
        assert_eq!(token.bytes(), good.as_bytes());
        assert!(!format!("{token:?}").contains("0123"));
        for mode in [0o644, 0o602, 0o601, 0o660, 0o650, 0o4600] {
            let error = write(good, mode).unwrap_err();
            assert!(matches!(error, TokenError::Open { .. }), "{error}");
            assert!(error.to_string().contains("(chmod 640 "), "{error}");
        }
        let error = write("short\n", 0o600).unwrap_err();
        assert!(error.to_string().contains("holds 5 bytes"), "{error}");
        // Half of the digits, a word and repetitions can be guessed.
        for weak in [&good[..16], "correct horse", &"x".repeat(64), &"password".repeat(4)] {
            assert!(matches!(write(weak, 0o600), Err(TokenError::Weak { .. })), "{weak}");
        }
        assert!(write("q8Jx0r1ZbK3mT5uVnW7yAz", 0o400).is_ok());
        let long = good.repeat(200);
        assert!(matches!(write(&long, 0o600), Err(TokenError::Weak { .. })));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Read { .. })));
    }
}
