//! A host in a file: `host.json` in a tar archive, compressed by zstd.
//!
//! A saved host may come from anybody. It is read as a stream, from one end to the other,
//! and within limits: what the decompressor may hold, how much comes out of it, how many
//! entries, how long their headers, and what the values will take. What passes a limit is
//! an error that names the part, the limit and what came; nothing is cut off silently.

use std::cell::Cell;
use std::io::{self, BufReader, Read, Write};

use foreign::bounded::{Bounded, Exceeded, Limits, Weights};
use tar::{Entry, EntryType};

use crate::host::{FORMAT, Host};

/// The file in the archive.
const MEMBER: &str = "host.json";
/// Most bytes of the host's text: that of some five thousand namespaces.
pub const MOST_BYTES: u64 = 64 << 20;
/// Most bytes of the whole archive, unpacked.
pub const MOST_UNPACKED: u64 = MOST_BYTES + (8 << 20);
/// Most entries; the program's own archives have one.
pub const MOST_ENTRIES: usize = 64;
/// Most bytes of one extension header (GNU's long names and links, PAX).
pub const MOST_EXTENSION: u64 = 64 << 10;
/// The decompressor's window, as a power of two: 8 MiB, which RFC 8878 tells every
/// decoder to have and none to exceed unasked.
const WINDOW_LOG: u32 = 23;

/// Limits of the host's text. Weights are what the types take, with their allocations: an
/// object may be a device, whose structure is the largest that can be written in few bytes.
pub const LIMITS: Limits = Limits {
    bytes: MOST_BYTES,
    string: 16 << 10,
    word: 64,
    depth: 32,
    memory: 192 << 20,
    weights: Weights { object: 768, list: 64, string: 64, word: 8 },
};

/// Why a file is no saved host.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The archive cannot be read or written.
    #[error("not a saved host (a tar archive compressed by zstd): {0}")]
    Archive(#[from] io::Error),
    /// It is larger than any that is read.
    #[error("not a saved host: at most {MOST_UNPACKED} bytes are unpacked, more came")]
    Unpacked,
    /// The archive has more entries than [`MOST_ENTRIES`].
    #[error("not a saved host: at most {MOST_ENTRIES} entries are read, more came")]
    Entries,
    /// A long extension header.
    #[error(
        "not a saved host: an extension header of at most {MOST_EXTENSION} bytes expected, \
         one of {got} came"
    )]
    Extension {
        /// Bytes.
        got: u64,
    },
    /// The archive has no entry `host.json`.
    #[error("not a saved host: the archive has no {MEMBER}")]
    Empty,
    /// Two of them: which is read would depend on the reader.
    #[error("not a saved host: the archive has {MEMBER} twice")]
    Twice,
    /// Something of that name that is no file.
    #[error("{MEMBER}: expected a regular file, got a {got}")]
    Kind {
        /// Kind of the entry, in words (`directory`).
        got: String,
    },
    /// The text is not JSON of a host.
    #[error("{MEMBER}: {}", short(&.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// A limit of its text.
    #[error("{MEMBER}: {0}")]
    Limit(#[from] Exceeded),
    /// The text was written in another format.
    #[error("{MEMBER}: format {got}, this program reads {FORMAT}")]
    Format {
        /// Format number that the text names.
        got: u32,
    },
    /// The text is larger than [`MOST_BYTES`].
    #[error("{MEMBER}: {got} bytes, at most {MOST_BYTES} bytes are read")]
    Size {
        /// Bytes.
        got: u64,
    },
}

/// The parser's words quote names of the file, which may be long; where it is comes last.
fn short(text: &str) -> String {
    const HALF: usize = 120;
    if text.chars().count() <= 2 * HALF {
        return text.to_owned();
    }
    let head: String = text.chars().take(HALF).collect();
    let tail: Vec<char> = text.chars().rev().take(HALF).collect();
    format!("{head} … {}", tail.into_iter().rev().collect::<String>())
}

/// Saves a host.
///
/// # Errors
/// What writing answers, and [`DumpError::Size`] or [`DumpError::Limit`] for a host that
/// [`read`] would refuse: better now than where it is needed.
pub fn write(host: &Host, to: impl Write) -> Result<(), DumpError> {
    let text = serde_json::to_vec(host)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(DumpError::Size { got: text.len() as u64 });
    }
    LIMITS.check(&text)?;
    let encoder = zstd::Encoder::new(to, 0)?;
    let mut archive = tar::Builder::new(encoder);
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(host.taken_s);
    archive.append_data(&mut header, MEMBER, text.as_slice())?;
    archive.into_inner()?.finish()?.flush()?;
    Ok(())
}

/// Reads a saved host.
///
/// # Errors
/// What is wrong with the file.
pub fn read(from: impl Read) -> Result<Host, DumpError> {
    let mut decoder = zstd::Decoder::new(from)?;
    decoder.window_log_max(WINDOW_LOG)?;
    let passed = Cell::new(false);
    let unpacked = Unpacked { inner: decoder, left: MOST_UNPACKED, passed: &passed };
    let result = members(&mut tar::Archive::new(unpacked));
    // Else it would be called an archive that ends too early, or text that does.
    if passed.get() { Err(DumpError::Unpacked) } else { result }
}

/// Reads the only member that is wanted, and looks at the headers of all.
fn members(archive: &mut tar::Archive<impl Read>) -> Result<Host, DumpError> {
    let mut host = None;
    // Raw: the library would keep extension headers whole, and read maps of sparse files.
    for (number, entry) in archive.entries()?.raw(true).enumerate() {
        let entry = entry?;
        if number >= MOST_ENTRIES {
            return Err(DumpError::Entries);
        }
        let kind = entry.header().entry_type();
        if is_extension(kind) {
            // What it says of the next entry (another name, times, an owner) is not asked
            // for. Another size leaves the next header in the wrong place, which its
            // checksum shows.
            if entry.size() > MOST_EXTENSION {
                return Err(DumpError::Extension { got: entry.size() });
            }
            continue;
        }
        // Other members are skipped, `../host.json` among them: nothing is unpacked by its
        // name.
        if entry.path_bytes().as_ref() != MEMBER.as_bytes() {
            continue;
        }
        if !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            return Err(DumpError::Kind { got: kind_words(kind) });
        }
        if host.is_some() {
            return Err(DumpError::Twice);
        }
        host = Some(member(entry)?);
    }
    host.ok_or(DumpError::Empty)
}

fn member(entry: Entry<'_, impl Read>) -> Result<Host, DumpError> {
    let got = entry.size();
    if got > MOST_BYTES {
        return Err(DumpError::Size { got });
    }
    from_reader(entry)
}

fn is_extension(kind: EntryType) -> bool {
    kind.is_gnu_longname()
        || kind.is_gnu_longlink()
        || kind.is_pax_local_extensions()
        || kind.is_pax_global_extensions()
}

fn kind_words(kind: EntryType) -> String {
    let words = match kind {
        EntryType::Link => "hard link",
        EntryType::Symlink => "symbolic link",
        EntryType::Char => "character device",
        EntryType::Block => "block device",
        EntryType::Directory => "directory",
        EntryType::Fifo => "FIFO",
        EntryType::GNUSparse => "sparse file",
        other => return format!("entry of type {:?}", char::from(other.as_byte())),
    };
    words.to_owned()
}

/// The decompressor's output, up to a limit.
struct Unpacked<'a, R> {
    inner: R,
    left: u64,
    passed: &'a Cell<bool>,
}

impl<R: Read> Read for Unpacked<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => self.left = left,
            None => {
                self.passed.set(true);
                return Err(io::Error::other("more than is unpacked"));
            }
        }
        Ok(count)
    }
}

/// Reads the text of a saved host.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &[u8]) -> Result<Host, DumpError> {
    from_reader(text)
}

fn from_reader(from: impl Read) -> Result<Host, DumpError> {
    let mut bounded = Bounded::new(from, LIMITS);
    // The version comes first, so that another one is known by its beginning: it may have
    // another form.
    let mut beginning = Vec::new();
    (&mut bounded)
        .take(256)
        .read_to_end(&mut beginning)
        .map_err(|error| bounded.exceeded().map_or(DumpError::Archive(error), DumpError::Limit))?;
    if let Some(got) = version(&beginning).filter(|got| *got != FORMAT) {
        return Err(DumpError::Format { got });
    }
    let mut text = serde_json::Deserializer::from_reader(BufReader::new(
        beginning.as_slice().chain(&mut bounded),
    ));
    let host =
        serde::Deserialize::deserialize(&mut text).and_then(|host| text.end().map(|()| host));
    let host: Host = host.map_err(|error| match bounded.exceeded() {
        Some(exceeded) => DumpError::Limit(exceeded),
        None => DumpError::Json(error),
    })?;
    if host.format != FORMAT {
        return Err(DumpError::Format { got: host.format });
    }
    Ok(host)
}

/// `{"format":1,…`
fn version(beginning: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(beginning);
    let text = text.trim_start().strip_prefix('{')?.trim_start();
    let text = text.strip_prefix("\"format\"")?.trim_start().strip_prefix(':')?.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    text[..end].parse().ok()
}
