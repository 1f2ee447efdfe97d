//! Files that verbs write while they run. They are always new: existing files are never
//! overwritten.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::exit::usage;

/// A new file. Dropping it removes the file if nothing was written, so that a failed start does not
/// block the next attempt.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    /// Number of bytes from completed writes.
    whole: u64,
    is_begun: bool,
}

impl NewFile {
    /// Creates the file. `option` is its command-line option.
    ///
    /// # Errors
    /// A usage error if it exists or cannot be created.
    pub fn create(option: &str, path: &Path) -> anyhow::Result<NewFile> {
        let file = File::create_new(path)
            .map_err(|error| usage(option, format!("cannot create {}: {error}", path.display())))?;
        Ok(NewFile { file, path: path.to_owned(), whole: 0, is_begun: false })
    }

    /// Appends bytes, all of them or none.
    ///
    /// # Errors
    /// If they cannot be written. Earlier writes stay.
    pub fn append(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.is_begun = true;
        if let Err(error) = self.file.write_all(bytes) {
            // A partial line or block would be a parse error for readers, so truncate it. If that
            // fails, too, report the write error.
            let _ = self.file.set_len(self.whole);
            return Err(error).with_context(|| format!("write {}", self.path.display()));
        }
        self.whole += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_begun {
            // Drop cannot report errors.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_new_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        drop(NewFile::create("--record", &path).unwrap());
        assert!(!path.exists());
        NewFile::create("--record", &path).unwrap().append(b"x").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        let error = NewFile::create("--record", &path).unwrap_err().to_string();
        assert!(error.contains("--record: ") && error.contains("exists"), "{error}");
    }

    #[test]
    fn a_full_disk_is_an_error_that_names_the_file() {
        let path = Path::new("/dev/full").to_owned();
        let file = File::options().write(true).open(&path).unwrap();
        let mut full = NewFile { file, path, whole: 0, is_begun: true };
        let error = format!("{:#}", full.append(b"x").unwrap_err());
        assert!(error.contains("write /dev/full: No space left"), "{error}");
    }
}
