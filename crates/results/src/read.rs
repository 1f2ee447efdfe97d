//! Reads results files, which may be truncated, edited or from another version.
//!
//! The rules of `schema/results.schema.json` are checked here again without a schema validator:
//! serde checks types, field names, required values and names from lists; [`Results::check`] checks
//! the other rules. Tests keep both consistent.

use std::io;
use std::path::{Path, PathBuf};

use foreign::bounded::{Exceeded, Limits, Weights};
use serde::Deserialize;

use crate::check::{FieldError, quote};
use crate::file::{Results, SCHEMA};

/// Limits of a results file. Weights are the sizes of the types. Field names, which use no memory,
/// count as strings.
pub const LIMITS: Limits = Limits {
    bytes: 128 << 20,
    string: 64 << 10,
    word: 64,
    depth: 32,
    memory: 320 << 20,
    weights: Weights { object: 16, list: 32, string: 24, word: 8 },
};

/// Why a results file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("cannot read results {}: {source}", path.display())]
    Io {
        /// Path of the results file.
        path: PathBuf,
        /// Error of opening or reading it.
        source: io::Error,
    },
    /// The file exceeds a limit.
    #[error("results {}: {exceeded}", path.display())]
    TooLarge {
        /// Path of the results file.
        path: PathBuf,
        /// The exceeded limit.
        exceeded: Exceeded,
    },
    /// The text exceeds a limit.
    #[error("results are not read: {0}")]
    Limit(#[from] Exceeded),
    /// The file is truncated.
    #[error("results are cut short: the file {}", end(pointer, *line, *column))]
    CutShort {
        /// JSON pointer (RFC 6901) to the value being read; `/` is the whole file.
        pointer: String,
        /// Line of the end, from 1.
        line: usize,
        /// Column of the end, from 1.
        column: usize,
    },
    /// The text is not JSON.
    #[error("results are not JSON: {problem}, at {pointer} (line {line}, column {column})")]
    Syntax {
        /// JSON pointer to the value being read.
        pointer: String,
        /// Message of the parser.
        problem: String,
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
    },
    /// The file has another schema.
    #[error("results have another schema: /schema: expected \"{SCHEMA}\", got {got}")]
    OtherSchema {
        /// Schema named in the file.
        got: String,
    },
    /// A field violates the schema.
    #[error("results are damaged or edited: {0}")]
    Field(#[from] FieldError),
}

/// Describes the end of a truncated file.
fn end(pointer: &str, line: usize, column: usize) -> String {
    match (line, column) {
        (0 | 1, 0) => "is empty".to_owned(),
        _ => format!("ends inside {pointer} (line {line}, column {column})"),
    }
}

impl Results {
    /// Reads a results file and checks it.
    ///
    /// # Errors
    /// Every [`ReadError`].
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let failed = |source| ReadError::Io { path: path.to_path_buf(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        let bytes = LIMITS.read(file).map_err(failed)?;
        LIMITS
            .check(&bytes)
            .map_err(|exceeded| ReadError::TooLarge { path: path.to_path_buf(), exceeded })?;
        Self::from_json(&bytes)
    }

    /// Reads results from the bytes of a file and checks them.
    ///
    /// # Errors
    /// Every [`ReadError`] except `Io`.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ReadError> {
        LIMITS.check(bytes)?;
        // Check the schema's name first: errors about fields of another schema would only confuse.
        if let Ok(Probe { schema: Some(schema) }) = serde_json::from_slice(bytes)
            && schema != SCHEMA
        {
            return Err(ReadError::OtherSchema { got: quote(schema.to_string()) });
        }
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let results: Results = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let pointer = pointer(error.path());
            let error = error.into_inner();
            // serde_json reports a list in place of a listed name as a syntax error, although the
            // text is valid JSON.
            let is_json = || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
            if error.is_syntax() && is_json() {
                return ReadError::Field(field_error(pointer, "unexpected value"));
            }
            classify(pointer, error)
        })?;
        reader.end().map_err(|error| classify("/".to_string(), error))?;
        results.check()?;
        Ok(results)
    }
}

/// The only field that every version has.
#[derive(Deserialize)]
struct Probe {
    schema: Option<serde_json::Value>,
}

/// Classifies a parser error.
fn classify(pointer: String, error: serde_json::Error) -> ReadError {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
    // The usual cause is an interrupted copy.
    if error.is_eof() {
        return ReadError::CutShort { pointer, line, column };
    }
    if error.is_data() {
        return ReadError::Field(field_error(pointer, problem));
    }
    ReadError::Syntax { pointer, problem: problem.to_string(), line, column }
}

/// Splits serde's messages into expected and got. Other messages are passed on whole.
fn field_error(pointer: String, problem: &str) -> FieldError {
    let quoted = || problem.split('`').nth(1).unwrap_or_default();
    let below = |name: &str| format!("{}/{name}", pointer.trim_end_matches('/'));
    let error = |pointer, expected: &str, got: &str| FieldError {
        pointer,
        expected: quote(expected.to_string()),
        got: quote(got.to_string()),
    };
    if problem.starts_with("missing field") {
        return error(below(quoted()), "the field", "none");
    }
    if problem.starts_with("duplicate field") {
        return error(below(quoted()), "the field once", "it twice");
    }
    if problem.starts_with("unknown field") {
        // The path may already end in the unknown key.
        let name = quoted();
        let pointer = if pointer.ends_with(&format!("/{name}")) { pointer } else { below(name) };
        let expected =
            problem.split_once(", expected ").map_or("no such field", |(_, known)| known);
        return error(pointer, expected, &format!("unknown field `{name}`"));
    }
    let sentence = problem
        .strip_prefix("invalid type: ")
        .or(problem.strip_prefix("invalid value: "))
        .unwrap_or(problem);
    match sentence.rsplit_once(", expected ") {
        // This program wrote the last part, so a list of names is quoted whole.
        Some((got, expected)) => {
            FieldError { pointer, expected: expected.to_owned(), got: quote(got.to_owned()) }
        }
        None => error(pointer, "a value that schema/results.schema.json allows", problem),
    }
}

/// Returns the JSON pointer (RFC 6901) to a place in the text.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            // These have no name in a JSON pointer.
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    if pointer.is_empty() { "/".to_string() } else { pointer }
}
