//! A host in a file: `host.json` in a tar archive, compressed by zstd.
//!
//! A saved host may come from an untrusted party. It is read as a stream, within limits on the
//! decompressor's memory, its output, the number of entries, the length of their headers, and the
//! memory of the parsed values. Exceeding a limit is an error that names the part, the limit and
//! the value; nothing is truncated silently.

use std::cell::Cell;
use std::io::{self, BufReader, Read, Write};

use foreign::bounded::{Bounded, Exceeded, Limits, Weights};
use tar::{Entry, EntryType};

use crate::host::{FORMAT, Host};

/// Name of the file in the archive.
const MEMBER: &str = "host.json";
/// Most bytes of the JSON text, enough for some five thousand namespaces.
pub const MOST_BYTES: u64 = 64 << 20;
/// Most bytes of the whole archive, unpacked.
pub const MOST_UNPACKED: u64 = MOST_BYTES + (8 << 20);
/// Most entries of an archive. Archives written by this program have one.
pub const MOST_ENTRIES: usize = 64;
/// Most bytes of one extension header (GNU's long names and links, PAX).
pub const MOST_EXTENSION: u64 = 64 << 10;
/// Window of the decompressor, as a power of two: 8 MiB, which RFC 8878 recommends every decoder to
/// support and no encoder to exceed.
const WINDOW_LOG: u32 = 23;

/// Limits of the JSON text. Weights are the sizes of the types including allocations. An object may
/// be a device, the largest structure that can be written in few bytes.
pub const LIMITS: Limits = Limits {
    bytes: MOST_BYTES,
    string: 16 << 10,
    word: 64,
    depth: 32,
    memory: 192 << 20,
    weights: Weights { object: 768, list: 64, string: 64, word: 8 },
};

/// Why a file is not a saved host.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The archive cannot be read or written.
    #[error("not a saved host (a tar archive compressed by zstd): {0}")]
    Archive(#[from] io::Error),
    /// The archive unpacks to more than [`MOST_UNPACKED`] bytes.
    #[error("not a saved host: unpacks to more than {MOST_UNPACKED} bytes")]
    Unpacked,
    /// The archive has more entries than [`MOST_ENTRIES`].
    #[error("not a saved host: more than {MOST_ENTRIES} entries")]
    Entries,
    /// An extension header is longer than [`MOST_EXTENSION`].
    #[error("not a saved host: extension header of {got} bytes, at most {MOST_EXTENSION} are read")]
    Extension {
        /// Bytes.
        got: u64,
    },
    /// The archive has no entry `host.json`.
    #[error("not a saved host: the archive has no {MEMBER}")]
    Empty,
    /// The archive has two of them; different readers would use different ones.
    #[error("not a saved host: the archive has {MEMBER} twice")]
    Twice,
    /// The entry with that name is not a file.
    #[error("{MEMBER}: expected a regular file, got a {got}")]
    Kind {
        /// Kind of the entry, in words (`directory`).
        got: String,
    },
    /// The text is not the JSON form of a host.
    #[error("{MEMBER}: {}", short(&.0.to_string()))]
    Json(#[from] serde_json::Error),
    /// The text exceeds a limit.
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

/// Shortens a parser's message in the middle: it may quote long names of the file, and the position
/// comes last.
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
/// Write errors, and [`DumpError::Size`] or [`DumpError::Limit`] for a host that [`read`] would
/// refuse: the user learns it when saving, not when reading.
pub fn write(host: &Host, to: impl Write) -> Result<(), DumpError> {
    let text = serde_json::to_vec(host)?;
    // `read` would refuse it.
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
/// Why the file is not a saved host.
pub fn read(from: impl Read) -> Result<Host, DumpError> {
    let mut decoder = zstd::Decoder::new(from)?;
    decoder.window_log_max(WINDOW_LOG)?;
    let passed = Cell::new(false);
    let unpacked = Unpacked { inner: decoder, left: MOST_UNPACKED, passed: &passed };
    let result = members(&mut tar::Archive::new(unpacked));
    // Without this check the error would be a truncated archive or text.
    if passed.get() { Err(DumpError::Unpacked) } else { result }
}

/// Reads the member `host.json`, and checks the headers of all entries.
fn members(archive: &mut tar::Archive<impl Read>) -> Result<Host, DumpError> {
    let mut host = None;
    // Raw, because otherwise the library keeps whole extension headers in memory and reads maps of
    // sparse files.
    for (number, entry) in archive.entries()?.raw(true).enumerate() {
        let entry = entry?;
        if number >= MOST_ENTRIES {
            return Err(DumpError::Entries);
        }
        let kind = entry.header().entry_type();
        if is_extension(kind) {
            // Its contents (another name, times, an owner) are not needed. If it changes the next
            // entry's size, the next header is misplaced and its checksum fails.
            if entry.size() > MOST_EXTENSION {
                return Err(DumpError::Extension { got: entry.size() });
            }
            continue;
        }
        // Skip other members, including `../host.json`: nothing is unpacked under its own name.
        if entry.path_bytes().as_ref() != MEMBER.as_bytes() {
            continue;
        }
        // A link would make the contents depend on the machine that reads it.
        if !matches!(kind, EntryType::Regular | EntryType::Continuous) {
            return Err(DumpError::Kind { got: kind_words(kind) });
        }
        // Different readers would use different ones.
        if host.is_some() {
            return Err(DumpError::Twice);
        }
        host = Some(member(entry)?);
    }
    host.ok_or(DumpError::Empty)
}

fn member(mut entry: Entry<'_, impl Read>) -> Result<Host, DumpError> {
    let got = entry.size();
    if got > MOST_BYTES {
        return Err(DumpError::Size { got });
    }
    from_reader(&mut entry)
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

/// Output of the decompressor, up to a limit.
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
                return Err(io::Error::other("larger than the limit"));
            }
        }
        Ok(count)
    }
}

/// Reads the text of a saved host.
///
/// # Errors
/// Why the text is not a saved host.
pub fn parse(mut text: &[u8]) -> Result<Host, DumpError> {
    from_reader(&mut text)
}

/// Not generic: a second copy of the decoder of all types would double the size of this crate.
fn from_reader(from: &mut dyn Read) -> Result<Host, DumpError> {
    let mut bounded = Bounded::new(from, LIMITS);
    // Check the version at the beginning of the text first, because another version may have
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

/// Returns the number in `{"format":1,…`.
fn version(beginning: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(beginning);
    let text = text.trim_start().strip_prefix('{')?.trim_start();
    let text = text.strip_prefix("\"format\"")?.trim_start().strip_prefix(':')?.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    text[..end].parse().ok()
}
