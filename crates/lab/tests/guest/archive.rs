//! A `cpio` archive in the "newc" format, as the kernel unpacks it at boot
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// An archive being written.
pub struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<PathBuf>,
}

impl Archive {
    /// An archive with the usual directories. `/bin`, `/sbin` and `/lib` are links to those below
    /// `/usr`.
    pub fn new() -> Archive {
        let mut archive = Archive { bytes: Vec::new(), paths: BTreeSet::new() };
        for name in ["dev", "proc", "sys", "run", "tmp", "root", "etc", "var"] {
            archive.directories(Path::new(name));
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            archive.directories(&Path::new("usr").join(name));
            archive.link(name, &format!("usr/{name}"));
        }
        archive.link("var/run", "/run");
        archive
    }

    /// Adds an executable file with these contents.
    pub fn file(&mut self, path: impl AsRef<Path>, contents: &[u8]) {
        let path = below_usr(path.as_ref());
        if self.paths.contains(&path) {
            return;
        }
        if let Some(parent) = path.parent() {
            self.directories(parent);
        }
        self.entry(&path, PROGRAM, contents);
    }

    /// Adds a symbolic link at `path` to `target`.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(Path::new(path), LINK, target.as_bytes());
    }

    /// Adds a file of this machine, at the same path.
    pub fn copy(&mut self, path: &Path) {
        self.file(path, &read(path));
    }

    /// Adds a program of this machine at `path`, with its linked libraries (`ldd`).
    pub fn program(&mut self, source: &Path, path: impl AsRef<Path>) {
        self.file(path, &read(source));
        let output = Command::new("ldd").arg(source).output().expect("run ldd");
        // ldd fails for a static program, which needs no library.
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self.copy(Path::new(library));
            }
            assert!(!line.contains("not found"), "{}: {line}", source.display());
        }
    }

    /// Adds the shared libraries in a directory as files at `path`.
    pub fn libraries(&mut self, directory: &Path, path: &Path) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if entry.path().is_file() && name.to_string_lossy().contains(".so") {
                self.file(path.join(&name), &read(&entry.path()));
            }
        }
    }

    /// Adds the trailer of a cpio archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn directories(&mut self, path: &Path) {
        let mut above = PathBuf::new();
        for part in path {
            above.push(part);
            if !self.paths.contains(&above) {
                self.entry(&above.clone(), DIRECTORY, &[]);
            }
        }
    }

    fn entry(&mut self, path: &Path, mode: u32, contents: &[u8]) {
        let name = path.to_str().expect("a path in UTF-8");
        self.paths.insert(path.to_owned());
        let (inode, links) = (self.paths.len() as u32, 1);
        let size = u32::try_from(contents.len()).expect("a file below 4 GiB");
        // inode, mode, uid, gid, links, mtime, size, device (2), rdev (2),
        // length of the name with its NUL, checksum (unused).
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

pub fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// The path without its leading `/`, with the links `/bin` and so on resolved.
fn below_usr(path: &Path) -> PathBuf {
    let path = path.strip_prefix("/").unwrap_or(path);
    let linked = ["bin", "sbin", "lib", "lib64"].iter().any(|name| path.starts_with(name));
    if linked { Path::new("usr").join(path) } else { path.to_owned() }
}
