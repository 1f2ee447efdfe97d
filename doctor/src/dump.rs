//! A host in a file: `host.json` in a tar archive, compressed by zstd.

use std::io::{Read, Write};

use crate::host::{FORMAT, Host};

/// The file in the archive.
const MEMBER: &str = "host.json";
/// More than a host of ten thousand namespaces has; a small archive may hide an
/// endless file.
const MOST_BYTES: u64 = 1 << 30;

/// Why a file is no saved host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The archive.
    #[error("not a saved host (a tar archive compressed by zstd): {0}")]
    Archive(#[from] std::io::Error),
    /// No such member.
    #[error("not a saved host: the archive has no {MEMBER}")]
    Empty,
    /// Its text.
    #[error("{MEMBER}: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version.
    #[error("{MEMBER}: format {got}, this program reads {FORMAT}")]
    Format {
        /// Its version.
        got: u32,
    },
    /// Too large.
    #[error("{MEMBER}: {got} bytes, at most {MOST_BYTES} are read")]
    Size {
        /// Bytes.
        got: u64,
    },
}

/// Saves a host.
///
/// # Errors
/// What writing answers.
pub fn write(host: &Host, to: impl Write) -> Result<(), Error> {
    let text = serde_json::to_vec(host)?;
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
pub fn read(from: impl Read) -> Result<Host, Error> {
    let mut archive = tar::Archive::new(zstd::Decoder::new(from)?.take(2 * MOST_BYTES));
    for entry in archive.entries()? {
        let entry = entry?;
        if entry.path_bytes().as_ref() != MEMBER.as_bytes() {
            continue;
        }
        let got = entry.size();
        if got > MOST_BYTES {
            return Err(Error::Size { got });
        }
        let mut text = Vec::new();
        entry.take(MOST_BYTES).read_to_end(&mut text)?;
        return parse(&text);
    }
    Err(Error::Empty)
}

/// Reads the text of a saved host.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &[u8]) -> Result<Host, Error> {
    // The version first: another one may have another form.
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
    }
    let Version { format: got } = serde_json::from_slice(text)?;
    if got != FORMAT {
        return Err(Error::Format { got });
    }
    Ok(serde_json::from_slice(text)?)
}
