//! Properties of a namespace by descriptor: its type, and the owner of the user namespace to which
//! it belongs (ioctl_nsfs(2)).
//!
//! A path chosen by another user is opened in two steps. `O_PATH` does not open the file, so no
//! FIFO blocks and no device is activated. The file is opened only if it is a namespace.

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
/// Maximum nesting depth of user namespaces (user_namespaces(7)).
const DEEPEST: usize = 33;

/// The owner of the user namespace to which a namespace belongs, relative to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// It is the caller's own user namespace.
    Own,
    /// It is neither the caller's user namespace nor below it.
    Beyond,
    /// It is below the caller's user namespace: `user` created the topmost namespace on the path to
    /// it, whose inode is `namespace`.
    Below {
        /// User ID of the creator in the caller's user namespace (`NS_GET_OWNER_UID`).
        user: u32,
        /// Inode of that user namespace.
        namespace: u64,
    },
}

/// Opens the file of an `O_PATH` descriptor if it is a namespace.
pub(crate) fn open(place: &OwnedFd, name: &impl Fn() -> String) -> Result<OwnedFd> {
    let kind = fstatfs(place).map_err(|e| Error::new("fstatfs", name(), e))?;
    // Opening another kind of file could block, or have an effect.
    if kind.filesystem_type().0 as u64 != NSFS_MAGIC {
        let object = format!("{} (not a namespace)", name());
        return Err(Error::new("open", object, Errno::EINVAL));
    }
    let path = format!("/proc/thread-self/fd/{}", place.as_raw_fd());
    nix::fcntl::open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|e| Error::new("open", name(), e))
}

/// Returns the descriptor created by an ioctl on a namespace.
fn related(fd: &impl AsFd, request: libc::c_ulong) -> std::result::Result<OwnedFd, Errno> {
    // SAFETY: these requests take no argument and access no memory of the process.
    let made = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _) };
    let made = Errno::result(made)?;
    // SAFETY: the kernel has just created this descriptor; no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Returns the namespace type, such as `CLONE_NEWNET`.
pub(crate) fn kind(fd: &impl AsFd) -> std::result::Result<libc::c_int, Errno> {
    // SAFETY: the request takes no argument and returns a number.
    Errno::result(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), NS_GET_NSTYPE as _) })
}

fn inode(fd: &OwnedFd) -> std::result::Result<u64, Errno> {
    Ok(fstat(fd)?.st_ino)
}

/// Returns the inode of the caller's user namespace.
pub(crate) fn own_user_namespace() -> Result<u64> {
    const PATH: &str = "/proc/thread-self/ns/user";
    Ok(stat(PATH).map_err(|e| Error::new("stat", PATH, e))?.st_ino)
}

/// Returns the owner of the user namespace to which a namespace of any type belongs.
pub(crate) fn owner(fd: &OwnedFd) -> Result<Owner> {
    let failed = |operation| move |errno| Error::new(operation, "namespace", errno);
    let own = own_user_namespace()?;
    let mut at = match related(fd, NS_GET_USERNS) {
        Ok(owner) => owner,
        // The owner is not below this user namespace.
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
            // The owner is not below this user namespace.
            Err(Errno::EPERM) => return Ok(Owner::Beyond),
            Err(errno) => return Err(failed("ioctl(NS_GET_PARENT)")(errno)),
        };
        if inode(&parent).map_err(failed("fstat"))? == own {
            let mut user: libc::uid_t = 0;
            // SAFETY: the request writes one uid_t to the address of a valid uid_t.
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

/// Returns the cookie of the network namespace of the calling thread.
pub(crate) fn cookie_here() -> Result<Option<u64>> {
    let failed = |operation| move |errno| Error::new(operation, "SO_NETNS_COOKIE", errno);
    let socket = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)
        .map_err(failed("socket"))?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which has that size.
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
        // Linux before 5.14 has no cookies.
        Err(Errno::ENOPROTOOPT) => Ok(None),
        Err(errno) => Err(failed("getsockopt")(errno)),
    }
}
