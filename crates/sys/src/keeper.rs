//! A process that keeps access that a confined process must not have: to its configuration file,
//! and to a file that must be removed at the end.
//!
//! A confined process opens no files, and its user could not read a configuration of root anyway.
//! The keeper is forked before that, keeps its user, and waits on a socket. On request it reads the
//! one file that was set at its start; a request contains no path, no length and no other data.
//! When the other end of the socket closes for any reason, it removes the file that it was asked to
//! remove and exits. It has no capabilities, Landlock allows it only these directories, and its
//! system call filter allows little more than open, read and remove.
//!
//! Limit: with Landlock, a file that is replaced by a link into another directory can no longer be
//! read.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

use crate::capability;
use crate::landlock::{Restrictions, Stays};
use crate::monitor;
use crate::seccomp::{Argument, Filter, Otherwise};
use crate::{Error, Result};

/// Maximum length of the file in bytes.
pub const LONGEST: usize = 16 << 20;
const LIMIT: Duration = Duration::from_secs(10);

/// Requests the contents of the file.
const READ: u8 = b'r';
/// Requests removal of the other file at the end.
const REMOVE: u8 = b'd';
/// The answer after the start, and to [`REMOVE`].
const DONE: u8 = b'k';

/// A file in a directory that is kept open.
#[derive(Debug)]
struct KeptFile {
    path: PathBuf,
    directory: OwnedFd,
    name: CString,
}

impl KeptFile {
    fn of(path: &Path) -> Result<KeptFile> {
        let failed = |errno| Error::new("open directory of", path.display().to_string(), errno);
        let name = path.file_name().map(OsStr::as_bytes).ok_or_else(|| failed(Errno::EISDIR))?;
        let name = CString::new(name).map_err(|_| failed(Errno::EINVAL))?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(&parent(path), flags, Mode::empty()).map_err(failed)?;
        Ok(KeptFile { path: path.to_owned(), directory, name })
    }
}

/// Returns the directory of a path; the current directory for a bare name.
fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The client side of the keeper; dropping it ends the keeper.
#[derive(Debug)]
pub struct Keeper {
    socket: UnixStream,
    read: Option<PathBuf>,
}

impl Keeper {
    /// Starts a keeper that can read one file and remove another. Call this before opening anything
    /// that the keeper must not hold open: it keeps its inherited descriptors for a moment.
    ///
    /// # Errors
    /// If a directory cannot be opened or the process cannot be started.
    pub fn start(read: Option<&Path>, remove: Option<&Path>) -> Result<Keeper> {
        let (file, gone) =
            (read.map(KeptFile::of).transpose()?, remove.map(KeptFile::of).transpose()?);
        let kept = [&file, &gone].into_iter().flatten().map(|place| place.directory.as_raw_fd());
        let ours = monitor::fork_with(c"keeper", &kept.collect::<Vec<_>>(), |theirs| {
            work(theirs, file.as_ref(), gone.as_ref())
        })?;
        let failed = |e: std::io::Error| Error::io("set timeout of", "keeper", &e);
        ours.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        let keeper = Keeper { socket: ours, read: read.map(Path::to_owned) };
        // The keeper does not start if it cannot drop all its privileges.
        keeper.expect_done("start")?;
        Ok(keeper)
    }

    fn expect_done(&self, operation: &'static str) -> Result<()> {
        let mut byte = [0];
        (&self.socket).read_exact(&mut byte).map_err(|e| Error::io(operation, "keeper", &e))
    }

    /// Requests that the file is removed at the end.
    ///
    /// # Errors
    /// If the keeper was killed.
    pub fn remove_at_end(&self) -> Result<()> {
        (&self.socket).write_all(&[REMOVE]).map_err(|e| Error::io("ask", "keeper", &e))?;
        self.expect_done("ask")
    }

    /// Returns the current contents of the file.
    ///
    /// # Errors
    /// The error of reading; `EFBIG` if it is longer than [`LONGEST`]; a socket error if the keeper
    /// was killed; `ENOENT` if the keeper has no file to read.
    pub fn read(&self) -> Result<Vec<u8>> {
        let name = || self.read.as_deref().unwrap_or(Path::new("no file")).display().to_string();
        let failed = |e: std::io::Error| Error::io("read", format!("{} by keeper", name()), &e);
        let mut socket = &self.socket;
        socket.write_all(&[READ]).map_err(failed)?;
        let mut header = [0; 8];
        socket.read_exact(&mut header).map_err(failed)?;
        let length = i64::from_ne_bytes(header);
        if length < 0 {
            return Err(Error::new("read", name(), Errno::from_raw(-(length as i32))));
        }
        let mut contents = Vec::new();
        socket.take(length.cast_unsigned()).read_to_end(&mut contents).map_err(failed)?;
        Ok(contents)
    }

    /// Ends the keeper and waits until it has removed the file.
    pub fn end(self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let mut rest = [0];
        // The keeper closes the socket after that.
        let _ = (&self.socket).read(&mut rest);
    }
}

/// The child process.
fn work(mut socket: UnixStream, file: Option<&KeptFile>, gone: Option<&KeptFile>) -> Result<()> {
    let file_directory = file.map(|f| parent(&f.path));
    // A link may lead to another directory, which is then also needed.
    let linked = file.and_then(|f| f.path.canonicalize().ok()).map(|path| parent(&path));
    let gone_directory = gone.map(|g| parent(&g.path));
    let reading = file_directory.iter().chain(&linked).map(|path| (&**path, Stays::Reading));
    let removing = gone_directory.iter().map(|path| (&**path, Stays::Removing));
    let restrictions = Restrictions::but(&reading.chain(removing).collect::<Vec<_>>())?;
    capability::drop_all()?;
    restrictions.apply()?;
    filter(socket.as_raw_fd(), file, gone).apply(Otherwise::Kill)?;

    let answer = |mut socket: &UnixStream, bytes: &[u8]| {
        socket.write_all(bytes).map_err(|e| Error::io("answer", "keeper's socket", &e))
    };
    answer(&socket, &[DONE])?;
    let mut left = None;
    loop {
        let mut asked = [0];
        match socket.read(&mut asked) {
            Ok(1) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            // The other end has closed.
            _ => break,
        }
        match asked[0] {
            READ => match file.ok_or(Errno::ENOENT).and_then(contents) {
                Ok(contents) => {
                    answer(&socket, &(contents.len() as i64).to_ne_bytes())?;
                    answer(&socket, &contents)?;
                }
                Err(errno) => answer(&socket, &(-i64::from(errno as i32)).to_ne_bytes())?,
            },
            REMOVE => {
                left = gone;
                answer(&socket, &[DONE])?;
            }
            // The client sends no other requests.
            _ => break,
        }
    }
    if let Some(place) = left {
        // The socket may be gone already: another process removes those without a listener.
        let _ = unlinkat(&place.directory, place.name.as_c_str(), UnlinkatFlags::NoRemoveDir);
    }
    Ok(())
}

fn contents(place: &KeptFile) -> std::result::Result<Vec<u8>, Errno> {
    // Do not wait for a writer of a FIFO.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = openat(&place.directory, place.name.as_c_str(), flags, Mode::empty())?;
    let mut contents = Vec::new();
    let read = File::from(file).take(LONGEST as u64 + 1).read_to_end(&mut contents);
    read.map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    // The endpoint would need as much memory.
    if contents.len() > LONGEST {
        return Err(Errno::EFBIG);
    }
    Ok(contents)
}

/// The system calls that the child may still make.
fn filter(socket: RawFd, file: Option<&KeptFile>, gone: Option<&KeptFile>) -> Filter {
    let mut filter = Filter::default();
    filter.allow_basics().allow(&[
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_lseek,
    ]);
    for call in [libc::SYS_write, libc::SYS_sendto] {
        filter.allow_if(call, &[Argument::is(0, socket.into())]);
    }
    // On an owned descriptor before it is closed: checks that it is open.
    filter.allow_if(libc::SYS_fcntl, &[Argument::is(1, libc::F_GETFD.into())]);
    if let Some(file) = file {
        let directory = file.directory.as_raw_fd();
        let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
        let by = [Argument::is(0, directory.into()), Argument::has(2, writing.into(), 0)];
        filter.allow_if(libc::SYS_openat, &by);
    }
    if let Some(gone) = gone {
        let directory = gone.directory.as_raw_fd();
        let by =
            [Argument::is(0, directory.into()), Argument::is(2, AtFlags::empty().bits().into())];
        filter.allow_if(libc::SYS_unlinkat, &by);
    }
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_is_now_and_another_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let [file, gone, other] = ["file", "gone", "other"].map(|name| directory.path().join(name));
        std::fs::write(&file, "first").unwrap();
        std::fs::write(&gone, "").unwrap();
        let keeper = Keeper::start(Some(&file), Some(&gone)).unwrap();
        assert_eq!(keeper.read().unwrap(), b"first");
        // Editors replace files in this way.
        std::fs::write(&other, "second").unwrap();
        std::fs::rename(&other, &file).unwrap();
        assert_eq!(keeper.read().unwrap(), b"second");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(keeper.read().unwrap_err().errno, Errno::ENOENT);
        File::create(&file).unwrap().set_len(LONGEST as u64 + 1).unwrap();
        assert_eq!(keeper.read().unwrap_err().errno, Errno::EFBIG);
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, Mode::S_IRWXU).unwrap();
        assert_eq!(keeper.read().unwrap(), b"", "nobody waits for a FIFO's writer");
        keeper.end();
        assert!(gone.exists(), "it was not left to be removed");

        let keeper = Keeper::start(None, Some(&gone)).unwrap();
        assert_eq!(keeper.read().unwrap_err().errno, Errno::ENOENT);
        keeper.remove_at_end().unwrap();
        keeper.end();
        assert!(!gone.exists());
    }

    #[test]
    fn a_file_behind_a_link_is_read_too() {
        let [a, b] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (link, file) = (a.path().join("link"), b.path().join("file"));
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(Keeper::start(Some(&link), None).unwrap().read().unwrap(), b"text");
    }
}
