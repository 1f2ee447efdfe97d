//! What a descriptor of a namespace tells: its kind, and who made the user namespace
//! that it belongs to (ioctl_nsfs(2)).
//!
//! A path that another user chose is opened in two steps. `O_PATH` opens nothing: no
//! FIFO blocks, no device acts. Only what then proves to be a namespace is opened.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::{Mode, fstat, stat};
use nix::sys::statfs::fstatfs;

use crate::{Error, Result};

// include/uapi/linux/nsfs.h: _IO(0xb7, N).
const NS_GET_USERNS: libc::c_ulong = 0xb701;
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_NSTYPE: libc::c_ulong = 0xb703;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
/// `NSFS_MAGIC` of `include/uapi/linux/magic.h`.
const NSFS_MAGIC: u64 = 0x6e73_6673;
/// `include/uapi/asm-generic/socket.h`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// User namespaces nest at most so deep (user_namespaces(7)).
const DEEPEST: usize = 33;

/// Who made the user namespace that a namespace belongs to, as the caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// It is the caller's own user namespace.
    Own,
    /// It is none of the caller's, nor below it.
    Beyond,
    /// It is below the caller's: `user` made the uppermost namespace on the way there,
    /// whose inode is `namespace`.
    Below {
        /// User ID of the maker, in the caller's user namespace (`NS_GET_OWNER_UID`).
        user: u32,
        /// Inode of that user namespace.
        namespace: u64,
    },
}

/// Opens what a descriptor of a place (`O_PATH`) stands for, if it is a namespace.
pub(crate) fn open(place: &OwnedFd, name: &impl Fn() -> String) -> Result<OwnedFd> {
    let kind = fstatfs(place).map_err(|e| Error::new("fstatfs", name(), e))?;
    if kind.filesystem_type().0 as u64 != NSFS_MAGIC {
        let object = format!("{} (not a namespace)", name());
        return Err(Error::new("open", object, Errno::EINVAL));
    }
    let path = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    nix::fcntl::open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|e| Error::new("open", name(), e))
}

/// A descriptor that an ioctl of a namespace makes.
fn related(fd: &impl AsFd, request: libc::c_ulong) -> std::result::Result<OwnedFd, Errno> {
    // SAFETY: these requests take no argument and touch no memory of the process.
    let made = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _) };
    let made = Errno::result(made)?;
    // SAFETY: the kernel has just made this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// `CLONE_NEWNET` and the like.
pub(crate) fn kind(fd: &impl AsFd) -> std::result::Result<libc::c_int, Errno> {
    // SAFETY: the request takes no argument and answers with a number.
    Errno::result(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), NS_GET_NSTYPE as _) })
}

fn inode(fd: &OwnedFd) -> std::result::Result<u64, Errno> {
    Ok(fstat(fd)?.st_ino)
}

/// The inode of the caller's user namespace.
pub(crate) fn own_user_namespace() -> Result<u64> {
    const PATH: &str = "/proc/thread-self/ns/user";
    Ok(stat(PATH).map_err(|e| Error::new("stat", PATH, e))?.st_ino)
}

/// Who made the user namespace that a namespace of any kind belongs to.
pub(crate) fn owner(fd: &OwnedFd) -> Result<Owner> {
    let failed = |operation| move |errno| Error::new(operation, "namespace", errno);
    let own = own_user_namespace()?;
    let mut at = match related(fd, NS_GET_USERNS) {
        Ok(owner) => owner,
        Err(Errno::EPERM) => return Ok(Owner::Beyond),
        Err(errno) => return Err(failed("ioctl(NS_GET_USERNS)")(errno)),
    };
    for _ in 0..DEEPEST {
        let namespace = inode(&at).map_err(failed("fstat"))?;
        if namespace == own {
            return Ok(Owner::Own);
        }
        let parent = match related(&at, NS_GET_PARENT) {
            Ok(parent) => parent,
            Err(Errno::EPERM) => return Ok(Owner::Beyond),
            Err(errno) => return Err(failed("ioctl(NS_GET_PARENT)")(errno)),
        };
        if inode(&parent).map_err(failed("fstat"))? == own {
            let mut user: libc::uid_t = 0;
            // SAFETY: the request writes one uid_t to the address, which is of that type
            // and lives on.
            let done = unsafe {
                libc::ioctl(at.as_raw_fd(), NS_GET_OWNER_UID as _, std::ptr::from_mut(&mut user))
            };
            Errno::result(done).map_err(failed("ioctl(NS_GET_OWNER_UID)"))?;
            return Ok(Owner::Below { user, namespace });
        }
        at = parent;
    }
    Ok(Owner::Beyond)
}

/// The cookie of the calling thread's network namespace.
pub(crate) fn cookie_here() -> Result<Option<u64>> {
    let failed = |operation| move |errno| Error::new(operation, "SO_NETNS_COOKIE", errno);
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(failed("socket"))?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has as many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut length,
        )
    };
    match Errno::result(done) {
        Ok(_) => Ok(Some(cookie)),
        Err(Errno::ENOPROTOOPT) => Ok(None),
        Err(errno) => Err(failed("getsockopt")(errno)),
    }
}
