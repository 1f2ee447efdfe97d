//! Checks whether another user could replace files on a path.
//!
//! A path is walked from the root, one name at a time, by descriptors, so that the checked
//! directory is the opened one. Each directory and symbolic link on the path must belong to root or
//! to this user. None may be writable by its group or by others, except that parents may be sticky
//! (`/tmp`): there no user can remove or rename another user's files.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::geteuid;

/// Most symbolic links on a path, as in the kernel (`MAXSYMLINKS`).
const MOST_LINKS: u32 = 40;
/// `DEFAULT_OVERFLOWUID`: an owner without an ID in this user namespace.
const OVERFLOW_UID: u32 = 65534;

/// Why a path is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It could not be examined.
    Failed(&'static str, PathBuf, Errno),
    /// Another user could change it: fault and remedy.
    Untrusted(PathBuf, String),
}

/// Returns why a file is not trusted; `None` if it is.
pub(crate) fn fault(stat: &FileStat) -> Option<String> {
    if ![0, geteuid().as_raw()].contains(&stat.st_uid) {
        return Some(format!("belongs to user {}, expected {}", stat.st_uid, geteuid()));
    }
    let mode = stat.st_mode & 0o7777;
    (mode & 0o022 != 0).then(|| format!("mode {mode:04o}: others may write it (chmod go-w)"))
}

/// Opens a directory that no other user could replace or write to. With `make`, creates missing
/// directories, accessible to their owner only.
pub(crate) fn open(path: &Path, make: bool) -> Result<File, Refusal> {
    let absolute =
        std::path::absolute(path).map_err(|e| Refusal::Failed("find", path.to_owned(), raw(&e)))?;
    let mut left = names(&absolute);
    let mut at = PathBuf::from("/");
    let mut here = root()?;
    let mut links = 0;
    check(&here, &at, left.is_empty())?;
    while let Some(name) = left.pop_front() {
        let next = at.join(&name);
        let failed = |operation| {
            let next = next.clone();
            move |errno| Refusal::Failed(operation, next, errno)
        };
        let look = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = match openat(&here, &*name, look, Mode::empty()) {
            Err(Errno::ENOENT) if make => {
                match mkdirat(&here, &*name, Mode::S_IRWXU) {
                    // Another process created it first: it is checked like any other.
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(errno) => return Err(failed("create")(errno)),
                }
                openat(&here, &*name, look, Mode::empty()).map_err(failed("open"))?
            }
            found => found.map_err(failed("open"))?,
        };
        let stat = fstat(&found).map_err(failed("examine"))?;
        if kind(&stat) == SFlag::S_IFLNK {
            links += 1;
            // Links may form a cycle.
            if links > MOST_LINKS {
                return Err(failed("follow")(Errno::ELOOP));
            }
            // Anyone may have created the link, and its owner chooses where it leads.
            owned(&stat, &next, false)?;
            let target = readlinkat(&found, OsStr::new("")).map_err(failed("follow"))?;
            let target = PathBuf::from(target);
            for name in names(&target).into_iter().rev() {
                left.push_front(name);
            }
            if target.is_absolute() {
                (at, here) = (PathBuf::from("/"), root()?);
            }
            continue;
        }
        if kind(&stat) != SFlag::S_IFDIR {
            return Err(failed("open")(Errno::ENOTDIR));
        }
        if name == ".." {
            at.pop();
        } else {
            at = next;
        }
        here = found;
        check(&here, &at, left.is_empty())?;
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // Reopen the checked descriptor for reading.
    let directory = openat(&here, ".", flags, Mode::empty());
    directory.map(File::from).map_err(|errno| Refusal::Failed("open", at, errno))
}

fn root() -> Result<OwnedFd, Refusal> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = nix::fcntl::open("/", flags, Mode::empty());
    root.map_err(|errno| Refusal::Failed("open", PathBuf::from("/"), errno))
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

fn check(directory: &impl AsFd, path: &Path, last: bool) -> Result<(), Refusal> {
    let stat =
        fstat(directory).map_err(|errno| Refusal::Failed("examine", path.to_owned(), errno))?;
    owned(&stat, path, last)?;
    let mode = stat.st_mode & 0o7777;
    let sticky = mode & 0o1000 != 0 && !last;
    // Another user could replace the entries, which contain commands that root runs.
    if mode & 0o022 != 0 && !sticky {
        let problem = format!("mode {mode:04o}: others may write in it (chmod go-w)");
        return Err(Refusal::Untrusted(path.to_owned(), problem));
    }
    Ok(())
}

fn owned(stat: &FileStat, path: &Path, last: bool) -> Result<(), Refusal> {
    let own = geteuid().as_raw();
    // In a user namespace the machine's root has no ID, but owns the parent directories.
    let outside = stat.st_uid == OVERFLOW_UID && !sys::userns::in_initial_user_namespace();
    if [0, own].contains(&stat.st_uid) || outside && !last {
        return Ok(());
    }
    let expected = if own == 0 { "root".to_owned() } else { format!("user {own} or root") };
    let problem = format!("belongs to user {}, expected {expected}", stat.st_uid);
    Err(Refusal::Untrusted(path.to_owned(), problem))
}

/// Returns the kind of a file (inode(7)).
pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// Returns the errno of an error of the standard library.
pub(crate) fn raw(error: &std::io::Error) -> Errno {
    // Errors of the library itself have no errno.
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
