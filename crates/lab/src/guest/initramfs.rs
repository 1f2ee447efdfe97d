//! A guest's file system: this program, the libraries that it runs with, and modules of the
//! guest's kernel, as a cpio archive in the "newc" format
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`). It is in memory only.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::kernel::Kernel;
use crate::Result;
use crate::guest_files::Besides;

/// Path of this program in the guest.
pub(super) const PROGRAM: &str = "/overlane";
/// Directory of the guest's `PATH` with links to all its programs.
pub(super) const FOUND: &str = "/usr/sbin";
/// Directory of modules. File names sort in load order.
pub(super) const MODULES: &str = "/modules";

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Builds the archive for a kernel.
///
/// # Errors
/// If this program, a library, a module or another file cannot be read.
pub(super) fn build(kernel: &Kernel, besides: &Besides) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["proc", "sys", "dev", "run", "tmp", "var/tmp"] {
        archive.directories(Path::new(directory));
    }
    let mut program = read(Path::new("/proc/self/exe"))?;
    let interpreter = strip(&mut program)?;
    archive.file(Path::new(PROGRAM), &program);
    for library in libraries()? {
        archive.library(&library)?;
    }
    // The interpreter's path may be a link: store it under the path that the program names.
    if let Some(interpreter) = interpreter.filter(|path| !archive.has(path)) {
        archive.file(&interpreter, &read(&interpreter)?);
    }
    for path in &besides.programs {
        let mut program = read(path)?;
        let interpreter = strip(&mut program)?;
        archive.file(path, &program);
        // Programs may be outside the guest's PATH: link to them.
        if let Some(name) = path.file_name() {
            archive.link(&Path::new(FOUND).join(name), path);
        }
        // A static program has no interpreter and needs no library.
        if let Some(interpreter) = interpreter {
            if !archive.has(&interpreter) {
                archive.file(&interpreter, &read(&interpreter)?);
            }
            for library in libraries_of(&interpreter, path)? {
                archive.library(&library)?;
            }
        }
    }
    for path in &besides.files {
        archive.file(path, &read(path)?);
    }
    for (number, module) in kernel.modules().iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.file(&Path::new(MODULES).join(format!("{number:02}-{name}")), &read(module)?);
    }
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| sys::Error::io("read", path.display().to_string(), &error);
    Ok(std::fs::read(path).map_err(failed)?)
}

/// Returns the shared libraries of this process: the guest runs the same program.
fn libraries() -> Result<BTreeSet<PathBuf>> {
    const MAPS: &str = "/proc/self/maps";
    let maps = String::from_utf8(read(Path::new(MAPS))?).unwrap_or_default();
    let own = std::env::current_exe().ok();
    // Address, permissions, offset, device, inode, path (proc(5)).
    let paths = maps.lines().filter_map(|line| {
        let mut fields = line.splitn(6, ' ');
        let permissions = fields.nth(1)?;
        let path = fields.nth(3)?.trim_start();
        (permissions.contains('x') && path.starts_with('/')).then(|| PathBuf::from(path))
    });
    Ok(paths.filter(|path| Some(path) != own.as_ref()).collect())
}

/// Returns the shared libraries of a program. Its interpreter lists them (ld.so(8)) without
/// running it.
fn libraries_of(interpreter: &Path, program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new(interpreter).arg("--list").arg(program).output();
    let output =
        output.map_err(|e| sys::Error::io("run", interpreter.display().to_string(), &e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The list marks missing libraries as not found.
    if !output.status.success() || text.contains("not found") {
        let missing = text.lines().find(|line| line.contains("not found")).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(testbed::Error::NotStarted {
            part: "the guests' file system".to_owned(),
            reason: format!(
                "libraries of {}: {} {}",
                program.display(),
                said.trim(),
                missing.trim()
            ),
        });
    }
    let files = text.lines().filter_map(listed).map(|path| {
        let failed = |e| sys::Error::io("read", path.to_owned(), &e).into();
        Path::new(path).canonicalize().map_err(failed)
    });
    files.collect()
}

/// Returns the path in a line of that list, which may contain blanks:
/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f…)`.
fn listed(line: &str) -> Option<&str> {
    let (_, path) = line.split_once(" => ")?;
    path.rsplit_once(" (0x").map(|(path, _)| path)
}

/// Returns the names of links to a file in its own directory.
fn links_to(file: &Path) -> Vec<OsString> {
    let Some(directory) = file.parent() else { return Vec::new() };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .filter(|entry| entry.path().canonicalize().is_ok_and(|at| at == file))
        .map(|entry| entry.file_name())
        .collect()
}

/// Removes everything that is not loaded (symbols, debugging information, section headers),
/// most of a program, and returns its interpreter. Nothing at run time needs the rest.
fn strip(elf: &mut Vec<u8>) -> Result<Option<PathBuf>> {
    const LOAD: u64 = 1;
    const INTERPRETER: u64 = 3;
    let bad = || testbed::Error::NotStarted {
        part: "the guests' file system".to_owned(),
        reason: "a program or library is not a 64-bit ELF file".to_owned(),
    };
    let word = |at: u64, length: usize| -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = elf.get(at..at.checked_add(length)?)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    // Another format would be truncated at a wrong offset.
    if elf.get(..6) != Some(b"\x7fELF\x02\x01") {
        return Err(bad());
    }
    let (mut end, mut interpreter) = (0x40, None);
    // Fields of the header and of program headers (elf(5)).
    let table = word(0x20, 8).zip(word(0x36, 2)).zip(word(0x38, 2));
    let ((offset, size), count) = table.ok_or_else(bad)?;
    for number in 0..count {
        let header = offset.saturating_add(number * size);
        let field = |at: u64, length| word(header.saturating_add(at), length).ok_or_else(bad);
        let (kind, from, length) = (field(0, 4)?, field(8, 8)?, field(0x20, 8)?);
        let to = from.saturating_add(length).min(elf.len() as u64);
        if kind == LOAD {
            end = end.max(to);
        }
        if kind == INTERPRETER {
            let path = elf.get(from as usize..to as usize).ok_or_else(bad)?;
            let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
            interpreter = Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)));
        }
    }
    end = end.max(offset.saturating_add(count * size)).min(elf.len() as u64);
    elf.truncate(end as usize);
    elf[0x28..0x30].fill(0);
    elf[0x3c..0x40].fill(0);
    Ok(interpreter)
}

/// An archive being written.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<PathBuf>,
}

impl Archive {
    fn has(&self, path: &Path) -> bool {
        self.paths.contains(path.strip_prefix("/").unwrap_or(path))
    }

    fn file(&mut self, path: &Path, contents: &[u8]) {
        self.entry(path, FILE, contents);
    }

    fn library(&mut self, path: &Path) -> Result<()> {
        // Libraries share libraries.
        if self.has(path) {
            return Ok(());
        }
        let mut bytes = read(path)?;
        strip(&mut bytes)?;
        self.file(path, &bytes);
        // Programs name a library by a link to its file (its soname).
        for name in links_to(path) {
            self.link(&path.with_file_name(name), path);
        }
        Ok(())
    }

    fn link(&mut self, path: &Path, target: &Path) {
        self.entry(path, LINK, target.as_os_str().as_bytes());
    }

    fn directories(&mut self, path: &Path) {
        let mut above = PathBuf::new();
        for part in path {
            above.push(part);
            if !self.paths.contains(&above) {
                self.raw(&above.clone(), DIRECTORY, &[]);
            }
        }
    }

    fn entry(&mut self, path: &Path, mode: u32, contents: &[u8]) {
        let path = path.strip_prefix("/").unwrap_or(path);
        // Programs share libraries: store each file once.
        if self.paths.contains(path) {
            return;
        }
        if let Some(parent) = path.parent() {
            self.directories(parent);
        }
        self.raw(path, mode, contents);
    }

    fn raw(&mut self, path: &Path, mode: u32, contents: &[u8]) {
        self.paths.insert(path.to_owned());
        let (name, inode) = (path.as_os_str().as_bytes(), self.paths.len());
        // inode, mode, uid, gid, links, mtime, size, device (2), rdev (2), length of the
        // name with its NUL, checksum (unused).
        let fields =
            [inode, mode as usize, 0, 0, 1, 0, contents.len(), 0, 0, 0, 0, name.len() + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.raw(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_may_be_below_a_path_with_blanks() {
        let of = |line| listed(line);
        assert_eq!(of("\tlibc.so.6 => /lib/libc.so.6 (0x00007f79)"), Some("/lib/libc.so.6"));
        assert_eq!(
            of("\tliba.so => /two at (once)/liba.so (0x00)"),
            Some("/two at (once)/liba.so")
        );
        assert_eq!(of("\tlinux-vdso.so.1 (0x00007f79)"), None);
    }

    #[test]
    fn a_program_without_its_symbols_still_runs() {
        let whole = read(Path::new("/proc/self/exe")).unwrap();
        let mut cut = whole.clone();
        let interpreter = strip(&mut cut).unwrap().unwrap();
        assert!(interpreter.is_absolute() && cut.len() < whole.len());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        test_support::install(&cut, &path);
        let output = std::process::Command::new(&path).arg("--list").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn a_program_comes_with_its_libraries() {
        let own = std::env::current_exe().unwrap();
        let interpreter = strip(&mut read(&own).unwrap()).unwrap().unwrap();
        let listed = libraries_of(&interpreter, &own).unwrap();
        let c = listed.iter().find(|path| path.to_string_lossy().contains("libc"));
        let mut archive = Archive::default();
        archive.library(c.unwrap()).unwrap();
        assert!(archive.has(c.unwrap()));
        let refused = libraries_of(&interpreter, Path::new("/etc/passwd")).unwrap_err();
        assert!(refused.to_string().contains("libraries of /etc/passwd"), "{refused}");
    }

    #[test]
    fn invalid_programs_are_refused() {
        for bytes in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01", b"\x7fELF\x01\x01"] {
            assert!(strip(&mut bytes.to_vec()).is_err(), "{bytes:?}");
        }
        let mut wild = vec![0xff; 0x80];
        wild[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(strip(&mut wild).is_err());
    }

    #[test]
    fn the_kernel_s_own_layout_is_kept() {
        let mut archive = Archive::default();
        archive.file(Path::new("/a/b"), b"hello");
        archive.link(Path::new("/a/c"), Path::new("/a/b"));
        assert!(archive.has(Path::new("/a/b")) && !archive.has(Path::new("/b")));
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        // Check with the reference implementation.
        test_support::require!(test_support::need::tool("cpio"));
        let mut child = std::process::Command::new("cpio")
            .args(["-t", "--quiet"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), &bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a\na/b\na/c\n");
    }
}
