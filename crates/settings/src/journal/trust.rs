//! Whether anybody else could put something where this process will look.
//!
//! A path is walked from the root, one name at a time, by descriptors: what was checked
//! is what is opened. Each directory on the way, and each symbolic link, belongs to root
//! or to this user. None may be written by its group or by others; on the way only, a
//! sticky one may (`/tmp`): there nobody removes or renames what is another's.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::geteuid;

/// Symbolic links on the way, as the kernel counts them (`MAXSYMLINKS`).
const MOST_LINKS: u32 = 40;
/// `DEFAULT_OVERFLOWUID`: an owner that this user namespace has no number for.
const OVERFLOW_UID: u32 = 65534;

/// Why a path is not used.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It could not be looked at.
    Failed(&'static str, PathBuf, Errno),
    /// Somebody else could change it: what, and what would help.
    Untrusted(PathBuf, String),
}

/// What keeps a file from being trusted; nothing where it may be.
pub(crate) fn fault(stat: &FileStat) -> Option<String> {
    if ![0, geteuid().as_raw()].contains(&stat.st_uid) {
        return Some(format!("belongs to user {}, expected {}", stat.st_uid, geteuid()));
    }
    let mode = stat.st_mode & 0o7777;
    (mode & 0o022 != 0).then(|| format!("mode {mode:04o}: others may write it (chmod go-w)"))
}

/// Opens a directory that nobody else could replace or write to; makes what is missing
/// of it, for its owner only, if asked to.
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
                    // Somebody else was faster: it is checked as any other.
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
            if links > MOST_LINKS {
                return Err(failed("follow")(Errno::ELOOP));
            }
            // Anybody may have made the link; where it leads is its maker's choice.
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
    // The descriptor that was checked, opened for reading.
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
    if mode & 0o022 != 0 && !sticky {
        let problem = format!("mode {mode:04o}: others may write in it (chmod go-w)");
        return Err(Refusal::Untrusted(path.to_owned(), problem));
    }
    Ok(())
}

fn owned(stat: &FileStat, path: &Path, last: bool) -> Result<(), Refusal> {
    let own = geteuid().as_raw();
    // In a user namespace the machine's root has no number, and owns all of the way.
    let outside = stat.st_uid == OVERFLOW_UID && !sys::userns::in_initial_user_namespace();
    if [0, own].contains(&stat.st_uid) || outside && !last {
        return Ok(());
    }
    let expected = if own == 0 { "root".to_owned() } else { format!("user {own} or root") };
    let problem = format!("belongs to user {}, expected {expected}", stat.st_uid);
    Err(Refusal::Untrusted(path.to_owned(), problem))
}

/// Kind of a file (inode(7)).
pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// The number of an error of the standard library.
pub(crate) fn raw(error: &std::io::Error) -> Errno {
    // An error of the library's own has no number.
    Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
