//! Notes beside the entries: results that later commands need, such as settings found as the cause by
//! `probe`. A note is no change, and is never undone.

use std::ffi::OsStr;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::directory::{Directory, LONGEST};
use super::trust::{self, Refusal};
use super::{Journal, JournalError};

impl Journal {
    /// Replaces a note completely or not at all. Its name must not end in `.json`, as entries do.
    ///
    /// # Errors
    /// A text that is longer than a note may be; [`JournalError::File`].
    pub fn write_note(&self, name: &'static str, text: &[u8]) -> Result<(), JournalError> {
        // Files above the limit are never read, so a longer note would be lost.
        if text.len() > LONGEST - BLOCK {
            let problem = format!("{} bytes, a note has at most {}", text.len(), LONGEST - BLOCK);
            return Err(JournalError::Entry { path: self.directory.file(name), problem });
        }
        self.directory.note(name, text)
    }
}

/// Files are padded to a multiple of this many bytes.
const BLOCK: usize = 4096;

/// Returns a note; `None` if there is none. Needs no lock, and creates nothing.
///
/// # Errors
/// [`JournalError::Untrusted`] if another user could write it; [`JournalError::File`].
pub fn read_note(directory: &Path, name: &'static str) -> Result<Option<Vec<u8>>, JournalError> {
    let opened = match trust::open(directory, false) {
        // No journal exists before the first change.
        Err(Refusal::Failed(_, _, Errno::ENOENT)) => return Ok(None),
        Err(refusal) => return Err(refusal.into()),
        Ok(fd) => Directory::of(fd, directory),
    };
    if !opened.names()?.iter().any(|other| other == OsStr::new(name)) {
        return Ok(None);
    }
    opened
        .read(name.as_ref())
        .map(Some)
        .map_err(|problem| JournalError::Entry { path: directory.join(name), problem })
}

impl Directory {
    fn note(&self, name: &str, text: &[u8]) -> Result<(), JournalError> {
        // Left by a process that was killed; the caller holds the lock.
        let _ = unlinkat(self.fd(), &*format!("{name}.new"), UnlinkatFlags::NoRemoveDir);
        self.put(name, text).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "probe.found";

    #[test]
    fn a_note_is_replaced_and_is_no_entry() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("journal");
        assert_eq!(read_note(&path, NAME).unwrap(), None);
        assert!(!path.exists());
        let journal = Journal::open(&path).unwrap();
        assert_eq!(read_note(&path, NAME).unwrap(), None);
        for text in ["[1]", "[]"] {
            journal.write_note(NAME, text.as_bytes()).unwrap();
            let read = read_note(&path, NAME).unwrap().unwrap();
            assert_eq!(String::from_utf8(read).unwrap().trim_end(), text);
        }
        let contents = journal.contents().unwrap();
        assert!(contents.entries.is_empty() && contents.left.is_empty(), "{contents:?}");
        // A killed process left half of one.
        std::fs::write(path.join("probe.found.new"), "half").unwrap();
        journal.write_note(NAME, b"[2]").unwrap();
        assert!(journal.write_note(NAME, &[b' '; LONGEST]).is_err());
    }

    #[test]
    fn a_note_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("journal");
        Journal::open(&path).unwrap().write_note(NAME, b"[]").unwrap();
        let file = path.join(NAME);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = read_note(&path, NAME).unwrap_err().to_string();
        assert!(error.contains("others may write"), "{error}");
    }
}
