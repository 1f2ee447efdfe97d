//! Reads JSON as a stream within limits. The input is counted before a parser sees it, so that no
//! parser builds more than the limits allow.
//!
//! Only the structure is checked (strings, brackets, words). The parser checks whether it is valid
//! JSON.

use std::fmt;
use std::io::{self, Read};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the whole input.
    pub bytes: u64,
    /// Maximum bytes of a string, without quotes, escapes counted as written.
    pub string: usize,
    /// Maximum bytes of a number or another word.
    pub word: usize,
    /// Maximum nesting depth of objects and lists.
    pub depth: usize,
    /// Maximum estimated memory of the values in bytes, by [`Weights`].
    pub memory: u64,
    /// Estimated bytes of memory for each type of value.
    pub weights: Weights,
}

/// Bytes of memory for each value, for an upper estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights {
    /// An object without its fields.
    pub object: u64,
    /// A list without its elements.
    pub list: u64,
    /// A string or a name without its bytes.
    pub string: u64,
    /// A number or another word.
    pub word: u64,
}

/// A limit in [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// [`Limits::bytes`].
    Bytes,
    /// [`Limits::string`].
    String,
    /// [`Limits::word`].
    Word,
    /// [`Limits::depth`].
    Depth,
    /// [`Limits::memory`].
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    pub limit: Limit,
    /// Value of the limit: bytes, or levels for [`Limit::Depth`].
    pub most: u64,
    /// Number of bytes of the text before the position.
    pub at: u64,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exceeded { limit, most, at } = self;
        match limit {
            Limit::Bytes => write!(out, "the JSON is longer than {most} bytes"),
            Limit::String => {
                write!(out, "the string at byte {at} is longer than {most} bytes")
            }
            Limit::Word => {
                write!(out, "the number at byte {at} is longer than {most} bytes")
            }
            Limit::Depth => write!(out, "more than {most} nested levels at byte {at}"),
            Limit::Memory => {
                write!(out, "the values up to byte {at} need more than {most} bytes of memory")
            }
        }
    }
}

impl std::error::Error for Exceeded {}

/// Follows the structure of JSON and counts.
#[derive(Debug)]
struct Scanner {
    limits: Limits,
    at: u64,
    memory: u64,
    depth: usize,
    token: Token,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    None,
    Word(usize),
    String { bytes: usize, escaped: bool },
}

impl Scanner {
    fn exceeded(&self, limit: Limit) -> Exceeded {
        let most = match limit {
            Limit::Bytes => self.limits.bytes,
            Limit::String => self.limits.string as u64,
            Limit::Word => self.limits.word as u64,
            Limit::Depth => self.limits.depth as u64,
            Limit::Memory => self.limits.memory,
        };
        Exceeded { limit, most, at: self.at }
    }

    fn grow(&mut self, bytes: u64) -> Result<(), Exceeded> {
        self.memory = self.memory.saturating_add(bytes);
        if self.memory > self.limits.memory { Err(self.exceeded(Limit::Memory)) } else { Ok(()) }
    }

    fn take(&mut self, text: &[u8]) -> Result<(), Exceeded> {
        for byte in text {
            self.byte(*byte)?;
            self.at += 1;
            // The reader may be endless, such as a pipe or a device.
            if self.at > self.limits.bytes {
                return Err(self.exceeded(Limit::Bytes));
            }
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) -> Result<(), Exceeded> {
        let Weights { object, list, string, word } = self.limits.weights;
        if let Token::String { bytes, escaped } = self.token {
            // The string ends here.
            if byte == b'"' && !escaped {
                self.token = Token::None;
                return Ok(());
            }
            // Refuse it before the parser stores more of it.
            if bytes >= self.limits.string {
                return Err(self.exceeded(Limit::String));
            }
            let escaped = byte == b'\\' && !escaped;
            self.token = Token::String { bytes: bytes + 1, escaped };
            return self.grow(1);
        }
        match byte {
            b'"' => {
                self.token = Token::String { bytes: 0, escaped: false };
                self.grow(string)
            }
            b'{' | b'[' => {
                self.token = Token::None;
                self.depth += 1;
                // A recursive parser could run out of stack.
                if self.depth > self.limits.depth {
                    return Err(self.exceeded(Limit::Depth));
                }
                self.grow(if byte == b'{' { object } else { list })
            }
            b'}' | b']' => {
                self.token = Token::None;
                // Unbalanced brackets are left for the parser to refuse.
                self.depth = self.depth.saturating_sub(1);
                Ok(())
            }
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => {
                self.token = Token::None;
                Ok(())
            }
            _ => match self.token {
                Token::Word(bytes) if bytes >= self.limits.word => Err(self.exceeded(Limit::Word)),
                Token::Word(bytes) => {
                    self.token = Token::Word(bytes + 1);
                    Ok(())
                }
                _ => {
                    self.token = Token::Word(1);
                    self.grow(word)
                }
            },
        }
    }
}

impl Limits {
    /// Checks a whole text.
    ///
    /// # Errors
    /// The first limit that the text exceeds.
    pub fn check(self, text: &[u8]) -> Result<(), Exceeded> {
        Bounded::new(io::empty(), self).scanner.take(text)
    }

    /// Reads a whole text of at most `bytes` bytes. For a longer text, one more byte is read, so
    /// that [`Limits::check`] refuses it. Uses at most one and a half times `bytes` of memory for
    /// any reader: devices and pipes do not report their size.
    pub fn read(self, reader: impl Read) -> io::Result<Vec<u8>> {
        let most = usize::try_from(self.bytes).unwrap_or(usize::MAX).saturating_add(1);
        let mut reader = reader.take(most as u64);
        let mut text: Vec<u8> = Vec::new();
        loop {
            // `read_to_end` doubles a full buffer even if only one byte is left.
            let room = text.len().clamp(FIRST_PIECE, most.max(FIRST_PIECE));
            let room = room.min(most - text.len());
            text.reserve_exact(room);
            // A short read is the end of the text. If there is no room, one byte more than allowed
            // was read.
            if reader.by_ref().take(room as u64).read_to_end(&mut text)? < room || room == 0 {
                return Ok(text);
            }
        }
    }
}

/// Size of the first buffer, before the size of the text is known.
const FIRST_PIECE: usize = 64 << 10;

/// A reader that fails when a limit is exceeded.
#[derive(Debug)]
pub struct Bounded<R> {
    inner: R,
    scanner: Scanner,
    exceeded: Option<Exceeded>,
}

impl<R: Read> Bounded<R> {
    /// Creates a reader that reads from `inner` within the limits.
    pub fn new(inner: R, limits: Limits) -> Bounded<R> {
        let scanner = Scanner { limits, at: 0, memory: 0, depth: 0, token: Token::None };
        Bounded { inner, scanner, exceeded: None }
    }

    pub fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // A parser that continues after the error must not get data beyond the limit.
        if let Some(exceeded) = self.exceeded {
            return Err(io::Error::other(exceeded));
        }
        let count = self.inner.read(into)?;
        self.scanner.take(&into[..count]).map_err(|exceeded| {
            self.exceeded = Some(exceeded);
            io::Error::other(exceeded)
        })?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        bytes: 100,
        string: 10,
        word: 8,
        depth: 3,
        memory: 200,
        weights: Weights { object: 50, list: 20, string: 10, word: 5 },
    };

    #[test]
    fn a_text_is_read_to_its_end_and_no_further_than_a_byte_past_the_limit() {
        for bytes in [0, 1, 100, FIRST_PIECE as u64, 3 * FIRST_PIECE as u64 + 5] {
            let limits = Limits { bytes, ..LIMITS };
            for length in [0, 1, 99, 100, 101, FIRST_PIECE, 4 * FIRST_PIECE] {
                let text: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let kept = length.min(bytes as usize + 1);
                for piece in [1000, length.max(1)] {
                    let read = limits.read(Cut(&text, piece)).unwrap();
                    assert_eq!(read, text[..kept], "{length} bytes of {bytes}");
                }
            }
        }
    }

    fn limit(text: &str) -> Option<Limit> {
        // The result does not depend on how the text is split.
        for piece in [1, 7, text.len().max(1)] {
            let mut bounded = Bounded::new(Cut(text.as_bytes(), piece), LIMITS);
            let read = io::copy(&mut bounded, &mut io::sink());
            assert_eq!(read.is_err(), bounded.exceeded().is_some());
            let whole = LIMITS.check(text.as_bytes()).err();
            assert_eq!(bounded.exceeded().map(|e| (e.limit, e.at)), whole.map(|e| (e.limit, e.at)));
        }
        LIMITS.check(text.as_bytes()).err().map(|exceeded| exceeded.limit)
    }

    struct Cut<'a>(&'a [u8], usize);

    impl Read for Cut<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = into.len().min(self.1);
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn each_limit_is_kept() {
        assert_eq!(limit(r#"{"a": [1, 2.5e3, true, "b\"]"]}"#), None);
        assert_eq!(limit(&" ".repeat(100)), None);
        assert_eq!(limit(&" ".repeat(101)), Some(Limit::Bytes));
        assert_eq!(limit(r#""0123456789""#), None);
        assert_eq!(limit(r#""0123456789a""#), Some(Limit::String));
        assert_eq!(limit(r#""01234567\\""#), None);
        assert_eq!(limit("12345678"), None);
        assert_eq!(limit("123456789"), Some(Limit::Word));
        assert_eq!(limit("[[[]],[[]]]"), None);
        assert_eq!(limit("[[[[]]]]"), Some(Limit::Depth));
        // Brackets in strings do not count.
        assert_eq!(limit(r#""[[[[[[[""#), None);
        assert_eq!(limit("{} {} {} {}"), None);
        assert_eq!(limit("{} {} {} {} 1"), Some(Limit::Memory));
    }
}
