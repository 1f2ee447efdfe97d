//! Network namespaces without names, held by a file descriptor.
//!
//! A [`NetNs`] exists as long as a descriptor or process refers to it. Nothing is mounted, and all
//! descriptors are close-on-exec. When the process that holds it ends for any reason, the kernel
//! removes the namespace and its devices.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, fstat};

use crate::nsfs::{self, Owner};

use crate::{Error, Result};

/// The path of the network namespace of the calling *thread*; `/proc/self` is that of the main
/// thread.
const THREAD_NETNS: &str = "/proc/thread-self/ns/net";

/// A network namespace, kept open.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    inode: u64,
}

impl NetNs {
    /// Creates an empty namespace. The namespace of the calling thread does not change.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the user namespace, `ENOSPC` above
    /// `/proc/sys/user/max_net_namespaces`.
    pub fn new() -> Result<NetNs> {
        // A separate thread, so that the caller can never remain in the new namespace if the return
        // to the old one fails.
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    unshare(CloneFlags::CLONE_NEWNET)
                        .map_err(|e| Error::new("unshare(CLONE_NEWNET)", "network namespace", e))?;
                    NetNs::current()
                })
                .join()
                .unwrap_or_else(|_| {
                    Err(Error::new("unshare(CLONE_NEWNET)", "network namespace", Errno::EIO))
                })
        })
    }

    /// Returns the namespace of the calling thread.
    ///
    /// # Errors
    /// If `/proc` is not mounted or there are no more descriptors.
    pub fn current() -> Result<NetNs> {
        NetNs::open(Path::new(THREAD_NETNS))
    }

    /// Opens a namespace by path (`/proc/PID/ns/net`, `/run/netns/NAME`, `/proc/PID/fd/N`).
    ///
    /// The file is checked before it is opened: a FIFO would block, and opening a device can have
    /// side effects.
    ///
    /// # Errors
    /// If the path does not exist; `EINVAL` if it is not a network namespace.
    pub fn open(path: &Path) -> Result<NetNs> {
        NetNs::from_place(&NetNs::place(path)?, || path.display().to_string())
    }

    /// Returns a descriptor of a path without opening the file (`O_PATH`). This is for use from
    /// another mount namespace, whose `/proc` may not show this process: the path is looked up
    /// outside it.
    pub fn place(path: &Path) -> Result<OwnedFd> {
        nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| Error::new("open", path.display().to_string(), e))
    }

    /// Opens a namespace by an `O_PATH` descriptor; `name` is for errors.
    ///
    /// # Errors
    /// `EINVAL` if it is not a network namespace.
    pub fn from_place(place: &OwnedFd, name: impl Fn() -> String) -> Result<NetNs> {
        let fd = nsfs::open(place, &name)?;
        NetNs::checked(fd, name)
    }

    /// Takes a namespace by descriptor.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is not a network namespace.
    pub fn from_fd(fd: OwnedFd) -> Result<NetNs> {
        let number = fd.as_raw_fd();
        NetNs::checked(fd, || format!("fd {number}"))
    }

    fn checked(fd: OwnedFd, name: impl Fn() -> String) -> Result<NetNs> {
        // setns(2) would fail later, in another thread.
        if nsfs::kind(&fd).ok() != Some(libc::CLONE_NEWNET) {
            let object = format!("{} (not a network namespace)", name());
            return Err(Error::new("open", object, Errno::EINVAL));
        }
        let inode = fstat(&fd).map_err(|e| Error::new("fstat", name(), e))?.st_ino;
        Ok(NetNs { fd, inode })
    }

    /// Returns a number that identifies this namespace until the machine restarts
    /// (`SO_NETNS_COOKIE`; inode numbers are reused). `None` before Linux 5.14.
    pub fn cookie(&self) -> Result<Option<u64>> {
        self.run(nsfs::cookie_here)?
    }

    /// Returns the owner of the user namespace to which the namespace belongs.
    ///
    /// # Errors
    /// If the kernel does not report it.
    pub fn owner(&self) -> Result<Owner> {
        nsfs::owner(&self.fd)
    }

    /// Returns the inode number of the namespace, as shown by `lsns` and `ls -l /proc/PID/ns`.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns a second handle for the same namespace.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn try_clone(&self) -> Result<NetNs> {
        let fd = self
            .fd
            .try_clone()
            .map_err(|e| Error::io("dup", format!("net:[{}]", self.inode), &e))?;
        Ok(NetNs { fd, inode: self.inode })
    }

    /// Moves the calling thread into the namespace until the guard is dropped.
    ///
    /// # Errors
    /// If the kernel refuses (`EPERM`).
    pub fn enter(&self) -> Result<Entered> {
        let previous = NetNs::current()?;
        self.enter_for_good()?;
        Ok(Entered { previous, _thread_bound: PhantomData })
    }

    /// Moves the calling thread into the namespace permanently: for threads created for one
    /// namespace, and for a child before `exec`.
    ///
    /// # Errors
    /// If the kernel refuses (`EPERM`).
    pub fn enter_for_good(&self) -> Result<()> {
        match setns(&self.fd, CloneFlags::CLONE_NEWNET) {
            Ok(()) => Ok(()),
            // An ordinary user may not enter any namespace, not even the current one.
            Err(Errno::EPERM) if NetNs::current().is_ok_and(|here| here.inode == self.inode) => {
                Ok(())
            }
            Err(e) => Err(Error::new("setns", format!("net:[{}]", self.inode), e)),
        }
    }

    /// Runs `f` in the namespace in a separate thread and waits for it.
    ///
    /// # Panics
    /// If `f` panics.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter_for_good()?;
                Ok(f())
            });
            match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl From<NetNs> for OwnedFd {
    fn from(netns: NetNs) -> OwnedFd {
        netns.fd
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The calling thread is in another namespace until this is dropped.
#[derive(Debug)]
pub struct Entered {
    previous: NetNs,
    // If the guard moved to another thread, it would return the wrong thread.
    _thread_bound: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // This cannot fail for a namespace that this thread was in. If it did, continuing in the
        // wrong namespace would be worse than aborting.
        if self.previous.enter_for_good().is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_and_clone_name_the_same_namespace() {
        let here = NetNs::current().unwrap();
        assert_eq!(here.inode(), here.try_clone().unwrap().inode());
        assert_eq!(here.inode(), NetNs::open(Path::new("/proc/self/ns/net")).unwrap().inode());
    }

    #[test]
    fn a_cookie_is_given_once() {
        let here = NetNs::current().unwrap().cookie().unwrap();
        assert_eq!(here, nsfs::cookie_here().unwrap());
        test_support::require!(test_support::need::networks());
        let mut seen = std::collections::BTreeSet::from([here]);
        for _ in 0..4 {
            assert!(seen.insert(NetNs::new().unwrap().cookie().unwrap()), "{seen:?}");
        }
    }

    #[test]
    fn a_new_namespace_is_entered_and_left() {
        test_support::require!(test_support::need::networks());
        let before = NetNs::current().unwrap().inode();
        let ns = NetNs::new().unwrap();
        assert_ne!(ns.inode(), before);
        let inside = ns.run(|| NetNs::current().unwrap().inode()).unwrap();
        assert_eq!(inside, ns.inode());
        {
            let _entered = ns.enter().unwrap();
            assert_eq!(NetNs::current().unwrap().inode(), ns.inode());
        }
        assert_eq!(NetNs::current().unwrap().inode(), before);
    }
}
