//! The directory for sockets and locks, which only its owner may enter.
//!
//! Root uses `/run/overlane`. Other users use `overlane` in `$XDG_RUNTIME_DIR` or `/run/user/UID`,
//! otherwise `/tmp/overlane-UID`. So does root of a user namespace that may not write to `/run`.
//! `OVERLANE_RUNTIME_DIR` sets another directory.
//!
//! The directory is used only through a checked descriptor: a real directory, owned by the caller,
//! with mode 0700. If anything else is in its place, the result is an error, never a socket or lock
//! that other users can reach.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, lstat};
use nix::unistd::{UnlinkatFlags, geteuid, mkdir, unlinkat};

use crate::userns::in_initial_user_namespace;
use crate::{Error, Result};

/// Environment variable that sets another directory.
pub const VARIABLE: &str = "OVERLANE_RUNTIME_DIR";
/// Directory for processes of root.
const OF_ROOT: &str = "/run/overlane";
/// Time between two attempts to take a lock.
const TICK: Duration = Duration::from_millis(5);

/// The directory, kept open.
#[derive(Debug)]
pub struct RuntimeDir {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
}

/// A lock that is held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock(OwnedFd);

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the candidate directories in order of preference. The flag is true if the next candidate
/// is tried when another user has taken this one.
fn places() -> Vec<(PathBuf, bool)> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    if let Some(path) = variable(VARIABLE) {
        return vec![(path, false)];
    }
    let user = geteuid();
    let mut places = Vec::new();
    if user.is_root() {
        let last = in_initial_user_namespace();
        places.push((PathBuf::from(OF_ROOT), !last));
        if last {
            return places;
        }
    }
    let run = PathBuf::from(format!("/run/user/{user}"));
    for parent in variable("XDG_RUNTIME_DIR").into_iter().chain([run]) {
        // It is missing, or belongs to another user after `su`: try the next one.
        if parent.is_absolute()
            && lstat(&parent).is_ok_and(|stat| problem(&stat, Some(user.as_raw())).is_none())
        {
            places.push((parent.join("overlane"), false));
        }
    }
    places.push((PathBuf::from(format!("/tmp/overlane-{user}")), false));
    places
}

/// Returns why a directory cannot be trusted.
fn problem(stat: &FileStat, owner: Option<u32>) -> Option<String> {
    let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
    let mode = stat.st_mode & 0o7777;
    if kind == SFlag::S_IFLNK {
        Some("it is a symbolic link, expected a directory".to_owned())
    } else if kind != SFlag::S_IFDIR {
        Some("it is not a directory".to_owned())
    } else if let Some(owner) = owner.filter(|owner| *owner != stat.st_uid) {
        Some(format!("it belongs to user {}, expected {owner}", stat.st_uid))
    } else if mode & 0o777 != 0o700 {
        Some(format!("its mode is {mode:04o}, expected 0700"))
    } else {
        None
    }
}

impl RuntimeDir {
    /// Opens the caller's directory and creates it if it does not exist.
    ///
    /// # Errors
    /// `EPERM` if something else is in its place; the error of `mkdir`.
    pub fn open() -> Result<RuntimeDir> {
        let mut last = None;
        for (path, may_be_taken) in places() {
            let made = mkdir(&path, Mode::S_IRWXU);
            match made {
                Ok(()) | Err(Errno::EEXIST) => match RuntimeDir::at(&path) {
                    // Another user may have taken the name in /tmp: try the next place.
                    Err(_) if may_be_taken => {}
                    answer => return answer,
                },
                Err(errno) => {
                    last = Some(Error::new("mkdir", path.display().to_string(), errno));
                }
            }
        }
        Err(last.unwrap_or_else(|| Error::new("mkdir", OF_ROOT, Errno::EPERM)))
    }

    /// Opens the caller's directory if it exists. Root may set the directory of a service that runs
    /// as another user.
    ///
    /// # Errors
    /// `EPERM` if something else is in its place.
    pub fn find() -> Result<Option<RuntimeDir>> {
        let is_named = std::env::var_os(VARIABLE).is_some();
        let owner = (!is_named || !geteuid().is_root()).then(|| geteuid().as_raw());
        for (path, may_be_taken) in places() {
            match RuntimeDir::of(&path, owner) {
                Ok(found) => return Ok(Some(found)),
                // Nothing has been served from there.
                Err(error) if error.errno == Errno::ENOENT || may_be_taken => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Opens the directory at a path.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist, `EPERM` if it is not a directory that only the caller may
    /// enter.
    pub fn at(path: &Path) -> Result<RuntimeDir> {
        RuntimeDir::of(path, Some(geteuid().as_raw()))
    }

    fn of(path: &Path, owner: Option<u32>) -> Result<RuntimeDir> {
        let name = |why: &str| format!("{}{why}", path.display());
        let refused = |why: String| {
            let hint = format!(" ({why}; remove it, or set {VARIABLE})");
            Error::new("use directory", name(&hint), Errno::EPERM)
        };
        let before = lstat(path).map_err(|e| Error::new("stat", name(""), e))?;
        // Another user could answer in the place of a daemon.
        if let Some(why) = problem(&before, owner) {
            return Err(refused(why));
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty())
            .map_err(|e| Error::new("open", name(""), e))?;
        // Check what was opened, because the path may have changed meanwhile.
        let stat = fstat(&fd).map_err(|e| Error::new("fstat", name(""), e))?;
        match problem(&stat, owner) {
            Some(why) => Err(refused(why)),
            None => Ok(RuntimeDir { fd, path: path.to_owned(), owner: stat.st_uid }),
        }
    }

    /// Returns the user who owns the directory.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns the path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path to a file in the directory through its descriptor, which is short enough for
    /// a socket address.
    pub fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// Returns the UTF-8 names in the directory; overlane uses no others.
    pub fn names(&self) -> Result<Vec<String>> {
        let failed = |errno| Error::new("readdir", self.path.display().to_string(), errno);
        let again = self.again()?;
        let mut listing = nix::dir::Dir::from_fd(again).map_err(failed)?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if let Ok(name) = OsString::from_vec(name).into_string()
                && name != "."
                && name != ".."
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Renames a file and replaces an existing one.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        nix::fcntl::renameat(&self.fd, from, &self.fd, to)
            .map_err(|e| Error::new("rename", self.path.join(from).display().to_string(), e))
    }

    /// Returns another handle for the same directory.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn try_clone(&self) -> Result<RuntimeDir> {
        Ok(RuntimeDir { fd: self.again()?, path: self.path.clone(), owner: self.owner })
    }

    /// Removes a file if it exists.
    pub fn remove(&self, name: &str) -> Result<()> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            // Another process may have removed it.
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(Error::new("unlink", self.path.join(name).display().to_string(), e)),
        }
    }

    fn again(&self) -> Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.fd, ".", flags, Mode::empty())
            .map_err(|e| Error::new("open", self.path.display().to_string(), e))
    }

    /// Locks the directory itself; the holder may replace unused files. The kernel releases the
    /// lock when the holder ends. Returns `None` if another process holds it for longer than
    /// `patience`.
    ///
    /// # Errors
    /// The error of flock(2).
    pub fn lock(&self, patience: Duration) -> Result<Option<Lock>> {
        let (lock, end) = (Lock(self.again()?), Instant::now() + patience);
        loop {
            match try_lock(&lock.0) {
                Ok(true) => return Ok(Some(lock)),
                Ok(false) if Instant::now() < end => std::thread::sleep(TICK),
                // Another process holds the lock for longer than the caller waits.
                Ok(false) => return Ok(None),
                Err(errno) => {
                    return Err(Error::new("lock", self.path.display().to_string(), errno));
                }
            }
        }
    }

    /// Locks a file in the directory and creates it if needed; `None` if another process holds the
    /// lock. The file is not removed.
    pub fn lock_file(&self, name: &str) -> Result<Option<Lock>> {
        let shown = || self.path.join(name).display().to_string();
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)
            .map_err(|e| Error::new("open", shown(), e))?;
        match try_lock(&file) {
            Ok(true) => Ok(Some(Lock(file))),
            Ok(false) => Ok(None),
            Err(errno) => Err(Error::new("lock", shown(), errno)),
        }
    }
}

impl AsFd for RuntimeDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn try_lock(fd: &OwnedFd) -> std::result::Result<bool, Errno> {
    // SAFETY: flock uses only a descriptor.
    let done = unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    match Errno::result(done) {
        Ok(_) => Ok(true),
        Err(Errno::EWOULDBLOCK | Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn fresh() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("overlane");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        (parent, path)
    }

    fn refusal(path: &Path) -> String {
        let error = RuntimeDir::at(path).unwrap_err();
        assert_eq!(error.errno, Errno::EPERM, "{error}");
        error.to_string()
    }

    #[test]
    fn a_directory_that_others_made_is_refused_and_said_why() {
        let (parent, path) = fresh();
        let link = parent.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(refusal(&link).contains("it is a symbolic link"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(refusal(&path).contains("its mode is 0755, expected 0700"));
        let file = parent.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(refusal(&file).contains("it is not a directory"));
        let missing = RuntimeDir::at(&parent.path().join("missing")).unwrap_err();
        assert_eq!(missing.errno, Errno::ENOENT);
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        test_support::require!(test_support::need::root());
        let (_parent, path) = fresh();
        chown(&path, Some(65_534), Some(65_534)).unwrap();
        assert!(refusal(&path).contains("it belongs to user 65534, expected 0"));
    }

    #[test]
    fn one_at_a_time_has_the_lock() {
        let (_parent, path) = fresh();
        let [one, other] = [(); 2].map(|()| RuntimeDir::at(&path).unwrap());
        let held = one.lock(Duration::ZERO).unwrap().unwrap();
        assert!(other.lock(Duration::from_millis(20)).unwrap().is_none());
        drop(held);
        // A process that another test has just started holds a copy until it calls exec.
        const PATIENCE: Duration = Duration::from_secs(20);
        other.lock(PATIENCE).unwrap().unwrap();
        let file = one.lock_file("a").unwrap().unwrap();
        assert!(other.lock_file("a").unwrap().is_none());
        drop(file);
        let begun = Instant::now();
        while other.lock_file("a").unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE);
        }
        assert_eq!(one.names().unwrap(), ["a"]);
        one.remove("a").unwrap();
        one.remove("a").unwrap();
    }
}
