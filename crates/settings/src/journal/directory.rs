//! The journal's directory: complete files, which are on disk before anything depends on them.
//!
//! Every file is opened relative to the directory's descriptor, so that moving a parent directory
//! redirects nothing. Symbolic links are not followed, FIFOs are not waited for, and devices are
//! not opened.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::trust::{self, Refusal, fault, kind};
use super::{BeforeStep, JournalError};

/// Largest file that is read, bytes.
pub(super) const LONGEST: usize = 1 << 16;
/// Files are padded to a multiple of this many bytes, the block size of most file systems.
const BLOCK: usize = 4096;
/// Interval between attempts to get a lock.
const AGAIN: Duration = Duration::from_millis(20);

impl From<Refusal> for JournalError {
    fn from(refusal: Refusal) -> JournalError {
        match refusal {
            Refusal::Failed(operation, path, errno) => {
                JournalError::File { operation, path, error: errno.into() }
            }
            Refusal::Untrusted(path, problem) => JournalError::Untrusted { path, problem },
        }
    }
}

pub(super) struct Directory {
    fd: File,
    path: PathBuf,
    /// Called before each step, to make it fail (tests).
    before: Option<BeforeStep>,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Directory").field(&self.path).finish()
    }
}

impl Directory {
    pub(super) fn open(path: &Path, before: Option<BeforeStep>) -> Result<Directory, JournalError> {
        let fd = trust::open(path, true)?;
        Ok(Directory { fd, path: path.to_owned(), before })
    }

    /// An open directory, for reading.
    pub(super) fn of(fd: File, path: &Path) -> Directory {
        Directory { fd, path: path.to_owned(), before: None }
    }

    pub(super) fn fd(&self) -> &File {
        &self.fd
    }

    pub(super) fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Fails a step on behalf of a test.
    pub(super) fn step(&self, step: &'static str) -> io::Result<()> {
        self.before.as_ref().map_or(Ok(()), |before| before(step))
    }

    fn failed(
        &self,
        operation: &'static str,
        name: &OsStr,
    ) -> impl Fn(io::Error) -> JournalError + use<> {
        let path = self.file(name);
        move |error| JournalError::File { operation, path: path.clone(), error }
    }

    /// Returns the names in it, unsorted.
    pub(super) fn names(&self) -> Result<Vec<OsString>, JournalError> {
        let failed = self.failed("list", OsStr::new(""));
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let names = entries.map_err(&failed)?.map(|entry| entry.map(|entry| entry.file_name()));
        names.collect::<io::Result<_>>().map_err(failed)
    }

    /// Returns the content of a file that only this user and root can write, or the file's fault.
    pub(super) fn read(&self, name: &OsStr) -> Result<Vec<u8>, String> {
        let (mut file, stat) = self.regular(name, OFlag::O_RDONLY)?;
        // Refuse before reading, so that a huge file takes no memory.
        if stat.st_size as u64 > LONGEST as u64 {
            return Err(format!("{} bytes, an entry has at most {LONGEST}", stat.st_size));
        }
        let mut content = Vec::new();
        let read = Read::by_ref(&mut file).take(LONGEST as u64 + 1).read_to_end(&mut content);
        read.map_err(|error| error.to_string())?;
        Ok(content)
    }

    fn regular(&self, name: &OsStr, access: OFlag) -> Result<(File, FileStat), String> {
        let said = |errno: Errno| errno.desc().to_owned();
        // Check the type first, because opening a device can have effects.
        let seen = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(said)?;
        let what = match kind(&seen) {
            SFlag::S_IFREG => None,
            SFlag::S_IFLNK => Some("a symbolic link"),
            SFlag::S_IFDIR => Some("a directory"),
            SFlag::S_IFIFO => Some("a FIFO"),
            SFlag::S_IFSOCK => Some("a socket"),
            _ => Some("a device"),
        };
        // Opening a FIFO or a device could block or have an effect, so the type is checked first.
        if let Some(what) = what {
            return Err(format!("{what}, expected a regular file"));
        }
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty()).map_err(said)?);
        let stat = fstat(&file).map_err(said)?;
        // The checked file is not the opened one.
        if (stat.st_dev, stat.st_ino) != (seen.st_dev, seen.st_ino) {
            return Err("was replaced while it was opened".to_owned());
        }
        match fault(&stat) {
            Some(fault) => Err(fault),
            None => Ok((file, stat)),
        }
    }

    /// Creates or replaces a file completely or not at all. On return it is on disk and has room
    /// for every later [`Directory::mark`].
    pub(super) fn put(&self, name: &str, text: &[u8]) -> Result<File, JournalError> {
        let temporary = format!("{}.new", name.trim_end_matches(".json"));
        let written = self.write(&temporary, text).and_then(|file| {
            let at = self.failed("rename", name.as_ref());
            self.step("rename").map_err(&at)?;
            renameat(&self.fd, &*temporary, &self.fd, name).map_err(|e| at(e.into()))?;
            self.sync()?;
            Ok(file)
        });
        if written.is_err() {
            // Nothing depends on it yet, and a leftover is no entry.
            let _ = unlinkat(&self.fd, &*temporary, UnlinkatFlags::NoRemoveDir);
        }
        written
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<File, JournalError> {
        let failed = |operation| self.failed(operation, name.as_ref());
        let mut content = text.to_vec();
        // Pad to whole blocks, so that a later mark needs no space on a full disk.
        content.resize((text.len() + 1).next_multiple_of(BLOCK) - 1, b' ');
        content.push(b'\n');
        self.step("create").map_err(failed("create"))?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = File::from(file.map_err(|errno| failed("create")(errno.into()))?);
        // Write two parts, so that tests can interrupt in the middle.
        let (first, second) = content.split_at(text.len() / 2);
        for part in [first, second] {
            self.step("write").map_err(failed("write"))?;
            file.write_all(part).map_err(failed("write"))?;
        }
        self.step("sync").map_err(failed("sync"))?;
        file.sync_all().map_err(failed("sync"))?;
        // A network file system may not have kept the data.
        self.step("read back").map_err(failed("read back"))?;
        let mut kept = Vec::with_capacity(content.len());
        file.rewind().map_err(failed("read back"))?;
        file.read_to_end(&mut kept).map_err(failed("read back"))?;
        // The disk reported success but stored something else: the change must not be made.
        if kept != content {
            let lost = io::Error::other("content differs from what was written");
            return Err(failed("read back")(lost));
        }
        Ok(file)
    }

    /// Changes one byte of a file in place, which needs no disk space, and syncs it.
    pub(super) fn mark(
        &self,
        name: &str,
        file: &File,
        at: u64,
        byte: u8,
    ) -> Result<(), JournalError> {
        let failed = |operation| self.failed(operation, name.as_ref());
        self.step("mark").map_err(failed("mark"))?;
        file.write_all_at(&[byte], at).map_err(failed("mark"))?;
        self.step("sync mark").map_err(failed("sync"))?;
        file.sync_all().map_err(failed("sync"))?;
        match fstat(file) {
            // The mark went to a file without a name, so the entry is lost.
            Ok(stat) if stat.st_nlink == 0 => {
                let gone = io::Error::other("another process has removed it");
                Err(failed("mark")(gone))
            }
            _ => Ok(()),
        }
    }

    /// Opens a file for [`Directory::mark`].
    pub(super) fn reopen(&self, name: &str) -> Result<File, JournalError> {
        let opened = self.regular(name.as_ref(), OFlag::O_RDWR);
        let (file, _) = opened.map_err(|problem| JournalError::File {
            operation: "open",
            path: self.file(name),
            error: io::Error::other(problem),
        })?;
        Ok(file)
    }

    pub(super) fn remove(&self, name: &OsStr) -> Result<(), JournalError> {
        let failed = self.failed("remove", name);
        self.step("remove").map_err(&failed)?;
        unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir).map_err(|e| failed(e.into()))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), JournalError> {
        let failed = self.failed("sync", OsStr::new(""));
        self.step("sync directory").map_err(&failed)?;
        self.fd.sync_all().map_err(failed)
    }

    /// Removes unfinished files of killed processes. The caller holds the lock.
    pub(super) fn sweep(&self) {
        // Leftovers are no entries, and the next process tries again.
        for name in self.names().unwrap_or_default() {
            let path = Path::new(&name);
            let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
            let digits = !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_digit());
            if digits && path.extension().is_some_and(|extension| extension == "new") {
                // A leftover of a process that was killed while it wrote; it describes no change.
                let _ = unlinkat(&self.fd, &*name, UnlinkatFlags::NoRemoveDir);
            }
        }
    }

    /// Locks a file, waiting up to `wait`. `None` while another process holds it.
    pub(super) fn lock(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Option<Flock<File>>, JournalError> {
        let failed = |operation| self.failed(operation, name.as_ref());
        let begun = Instant::now();
        let mut file = self.lock_file(name).map_err(|e| failed("open")(e.into()))?;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Some(lock)),
                // Another process holds the lock; the caller reports how long it was waited for.
                Err((_, Errno::EWOULDBLOCK)) if begun.elapsed() >= wait => return Ok(None),
                Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => {
                    std::thread::sleep(AGAIN);
                    file = back;
                }
                Err((_, errno)) => return Err(failed("lock")(errno.into())),
            }
        }
    }

    fn lock_file(&self, name: &str) -> Result<File, Errno> {
        let plain = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let open = |flags| openat(&self.fd, name, plain | flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let file: OwnedFd = match open(OFlag::O_RDWR | OFlag::O_CREAT) {
            // On a read-only disk, existing entries can still be undone.
            Err(Errno::EROFS) => match open(OFlag::O_RDONLY) {
                // No lock file can be created there: lock the directory itself.
                Err(Errno::ENOENT) => {
                    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                    openat(&self.fd, ".", flags, Mode::empty())?
                }
                file => file?,
            },
            file => file?,
        };
        match kind(&fstat(&file)?) {
            SFlag::S_IFREG | SFlag::S_IFDIR => Ok(file.into()),
            // A FIFO, socket or device with the lock's name is not part of the journal.
            _ => Err(Errno::EINVAL),
        }
    }
}
