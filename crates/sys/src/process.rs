//! A process's directory below `/proc`, held open.
//!
//! A process ID is used again; the directory is of one process and answers `ESRCH`
//! when that has ended. Nothing here opens a file that the process chose: descriptors
//! and mount points are examined as places (`O_PATH`) first.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, fstat, fstatat};

use crate::netns::NetNs;
use crate::nsfs::{self, Owner};
use crate::{Error, Result};

// include/uapi/linux/openat2.h.
const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
const RESOLVE_IN_ROOT: u64 = 0x10;

/// A process by its directory in `/proc`, which is held open: a later one with its id is another.
#[derive(Debug)]
pub struct Process {
    directory: OwnedFd,
    pid: u32,
}

/// A file's content, as much of it as was wanted.
#[derive(Debug)]
pub struct Text {
    /// UTF-8; other bytes are replaced.
    pub text: String,
    /// Whether the file has more than was wanted.
    pub cut: bool,
}

impl Process {
    /// The process that has this ID now.
    ///
    /// # Errors
    /// `ENOENT` where there is none.
    pub fn open(pid: u32) -> Result<Process> {
        let path = format!("/proc/{pid}");
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::open(path.as_str(), flags, Mode::empty())
            .map_err(|e| Error::new("open", path, e))?;
        Ok(Process { directory, pid })
    }

    /// Process ID that it was opened by.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn name(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.pid)
    }

    fn open_at(&self, file: &str, flags: OFlag) -> Result<OwnedFd> {
        openat(&self.directory, file, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| Error::new("open", self.name(file), e))
    }

    /// The effective user of the process; 0 also where others may not look into it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn user(&self) -> Result<u32> {
        Ok(fstat(&self.directory).map_err(|e| Error::new("fstat", self.name(""), e))?.st_uid)
    }

    /// Reads a file that the kernel writes (`comm`, `mountinfo`, `fdinfo/N`), `most` bytes
    /// of it at most.
    ///
    /// # Errors
    /// When the process has ended, or may not be looked into.
    pub fn read(&self, file: &str, most: usize) -> Result<Text> {
        let opened = File::from(self.open_at(file, OFlag::O_RDONLY)?);
        let mut bytes = Vec::new();
        opened
            .take(most as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| Error::io("read", self.name(file), &e))?;
        let cut = bytes.len() > most;
        bytes.truncate(most);
        Ok(Text { text: String::from_utf8_lossy(&bytes).into_owned(), cut })
    }

    /// The inode of one of its namespaces (`net`, `mnt`, `user`).
    ///
    /// # Errors
    /// When it has ended, or may not be looked into.
    pub fn namespace(&self, kind: &str) -> Result<u64> {
        let file = format!("ns/{kind}");
        let stat = fstatat(&self.directory, file.as_str(), AtFlags::empty())
            .map_err(|e| Error::new("stat", self.name(&file), e))?;
        Ok(stat.st_ino)
    }

    /// Its network namespace.
    ///
    /// # Errors
    /// As [`Process::namespace`].
    pub fn netns(&self) -> Result<NetNs> {
        self.netns_at("ns/net")
    }

    /// The network namespace that its descriptor `number` is of.
    ///
    /// # Errors
    /// `EINVAL` where it is of anything else; when the process has closed it.
    pub fn netns_of_descriptor(&self, number: &str) -> Result<NetNs> {
        self.netns_at(&format!("fd/{number}"))
    }

    fn netns_at(&self, file: &str) -> Result<NetNs> {
        let place = self.open_at(file, OFlag::O_PATH)?;
        NetNs::from_place(&place, || self.name(file))
    }

    /// Numbers of its descriptors, `most` at most, and whether there are more.
    ///
    /// # Errors
    /// When it has ended, or may not be looked into.
    pub fn descriptors(&self, most: usize) -> Result<(Vec<String>, bool)> {
        let failed = |errno| Error::new("readdir", self.name("fd"), errno);
        let opened = self.open_at("fd", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut listing = nix::dir::Dir::from_fd(opened).map_err(failed)?;
        let mut numbers = Vec::new();
        for entry in listing.iter() {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                continue;
            }
            if numbers.len() == most {
                return Ok((numbers, true));
            }
            numbers.push(name.to_owned());
        }
        Ok((numbers, false))
    }

    /// What its descriptor `number` is of, in the kernel's words. Nothing is opened.
    ///
    /// # Errors
    /// When it has closed it.
    pub fn descriptor(&self, number: &str) -> Result<OsString> {
        let file = format!("fd/{number}");
        readlinkat(&self.directory, file.as_str())
            .map_err(|e| Error::new("readlink", self.name(&file), e))
    }

    /// Whether only who administers the caller's own user namespace can mount something
    /// where this process sees files: neither it nor its mount namespace belongs to a user
    /// namespace below. A walk through other mounts may end in a file system of another
    /// user's making, which answers when that user likes.
    pub fn has_trusted_mounts(&self) -> bool {
        let trusted = || -> Result<bool> {
            if self.namespace("user")? != nsfs::own_user_namespace()? {
                return Ok(false);
            }
            let place = self.open_at("ns/mnt", OFlag::O_PATH)?;
            let mounts = nsfs::open(&place, &|| self.name("ns/mnt"))?;
            Ok(nsfs::owner(&mounts)? == Owner::Own)
        };
        trusted().unwrap_or(false)
    }

    /// The network namespace mounted at `path` in the process's tree of files. Symbolic
    /// links are not followed: a mount point's path has none.
    ///
    /// # Errors
    /// `EINVAL` where anything else is there; when it cannot be reached.
    pub fn netns_mounted_at(&self, path: &Path) -> Result<NetNs> {
        let place = self.walk(path)?;
        NetNs::from_place(&place, || self.below_root(path))
    }

    /// A file in the process's tree of files, not opened (`O_PATH`). Symbolic links do not
    /// lead out of that tree.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn place(&self, path: &Path) -> Result<OwnedFd> {
        self.resolve(path)
    }

    fn below_root(&self, path: &Path) -> String {
        format!("/proc/{}/root{}", self.pid, path.display())
    }

    /// One component after the other below the process's root, through no link. By
    /// `openat`, whose flags a filter of system calls can see, unlike those of `openat2`.
    fn walk(&self, path: &Path) -> Result<OwnedFd> {
        let failed = |errno| Error::new("open", self.below_root(path), errno);
        let mut names = Vec::new();
        for component in path.components() {
            match component {
                Component::RootDir => {}
                Component::Normal(name) => names.push(name),
                // Above the root there is what the process does not see.
                _ => return Err(failed(Errno::EINVAL)),
            }
        }
        let mut at = self.open_at("root", OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        for (number, name) in names.iter().enumerate() {
            let mut flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            // A link on the way is no directory; the last is examined by whoever asked.
            flags.set(OFlag::O_DIRECTORY, number + 1 < names.len());
            at = openat(&at, *name, flags, Mode::empty()).map_err(failed)?;
        }
        Ok(at)
    }

    fn resolve(&self, path: &Path) -> Result<OwnedFd> {
        let failed = |errno| Error::new("open", self.below_root(path), errno);
        let root = self.open_at("root", OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let text = std::ffi::CString::new(path.as_os_str().as_bytes())
            .map_err(|_| failed(Errno::EINVAL))?;
        let how: [u64; 3] =
            [(libc::O_PATH | libc::O_CLOEXEC) as u64, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS];
        // SAFETY: `text` ends with a zero byte, `how` is a struct open_how (three __u64)
        // of the length given; both live on.
        let opened = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                root.as_fd().as_raw_fd(),
                text.as_ptr(),
                how.as_ptr(),
                size_of_val(&how),
            )
        };
        let opened = Errno::result(opened).map_err(failed)?;
        // SAFETY: the kernel has just made this descriptor; nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(opened as i32) })
    }
}
