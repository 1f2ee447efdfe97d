//! Network namespaces without names: held by a file descriptor, gone with it.
//!
//! A [`NetNs`] lives as long as some descriptor or process refers to it. Nothing is
//! mounted, and every descriptor is close-on-exec. When the holding process ends, by any
//! cause, the kernel removes the namespace and its devices.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::{Mode, fstat};

use crate::nsfs::{self, Owner};

use crate::{Error, Result};

/// The path of the calling *thread's* network namespace; `/proc/self` would be
/// the main thread's.
const THREAD_NETNS: &str = "/proc/thread-self/ns/net";

/// A network namespace, held open.
#[derive(Debug)]
pub struct NetNs {
    fd: OwnedFd,
    inode: u64,
}

impl NetNs {
    /// Creates an empty namespace. The calling thread's own is not changed.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the user namespace, `ENOSPC` past
    /// `/proc/sys/user/max_net_namespaces`.
    pub fn new() -> Result<NetNs> {
        // A thread of its own: a failure to return to the old namespace can
        // then never leave the caller in the new one.
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

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// When `/proc` is not mounted or descriptors have run out.
    pub fn current() -> Result<NetNs> {
        NetNs::open(Path::new(THREAD_NETNS))
    }

    /// A namespace by path (`/proc/PID/ns/net`, `/run/netns/NAME`, `/proc/PID/fd/N`).
    ///
    /// What the path leads to is examined before it is opened: a FIFO would block, and
    /// opening a device has effects of its own.
    ///
    /// # Errors
    /// When the path leads nowhere; `EINVAL` where it leads to anything but a network
    /// namespace.
    pub fn open(path: &Path) -> Result<NetNs> {
        NetNs::from_place(&NetNs::place(path)?, || path.display().to_string())
    }

    /// The place of a namespace, not opened (`O_PATH`): for another mount namespace, whose
    /// `/proc` may not show this process, so that the place is opened outside of it.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn place(path: &Path) -> Result<OwnedFd> {
        nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| Error::new("open", path.display().to_string(), e))
    }

    /// A namespace by a descriptor of its place (`O_PATH`); `name` is for errors.
    ///
    /// # Errors
    /// `EINVAL` where it is anything but a network namespace.
    pub fn from_place(place: &OwnedFd, name: impl Fn() -> String) -> Result<NetNs> {
        let fd = nsfs::open(place, &name)?;
        NetNs::checked(fd, name)
    }

    /// A namespace by descriptor.
    ///
    /// # Errors
    /// `EINVAL` where the descriptor is of anything but a network namespace.
    pub fn from_fd(fd: OwnedFd) -> Result<NetNs> {
        let number = fd.as_raw_fd();
        NetNs::checked(fd, || format!("fd {number}"))
    }

    fn checked(fd: OwnedFd, name: impl Fn() -> String) -> Result<NetNs> {
        if nsfs::kind(&fd).ok() != Some(libc::CLONE_NEWNET) {
            let object = format!("{} (not a network namespace)", name());
            return Err(Error::new("open", object, Errno::EINVAL));
        }
        let inode = fstat(&fd).map_err(|e| Error::new("fstat", name(), e))?.st_ino;
        Ok(NetNs { fd, inode })
    }

    /// A number that this namespace alone has until the machine restarts
    /// (`SO_NETNS_COOKIE`; inode numbers are used again). `None` before Linux 5.14.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn cookie(&self) -> Result<Option<u64>> {
        self.run(nsfs::cookie_here)?
    }

    /// Who made the user namespace that the namespace belongs to.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn owner(&self) -> Result<Owner> {
        nsfs::owner(&self.fd)
    }

    /// The namespace's inode number, as `lsns` and `ls -l /proc/PID/ns` print it.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// A second handle on the same namespace.
    ///
    /// # Errors
    /// When descriptors have run out.
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
    /// When the kernel refuses (`EPERM`).
    pub fn enter(&self) -> Result<Entered> {
        let previous = NetNs::current()?;
        self.enter_for_good()?;
        Ok(Entered { previous, _thread_bound: PhantomData })
    }

    /// Moves the calling thread into the namespace and leaves it there: for
    /// threads made for one namespace, and for a child before `exec`.
    ///
    /// # Errors
    /// When the kernel refuses (`EPERM`).
    pub fn enter_for_good(&self) -> Result<()> {
        match setns(&self.fd, CloneFlags::CLONE_NEWNET) {
            Ok(()) => Ok(()),
            // An ordinary user may enter none, not even the one it is in.
            Err(Errno::EPERM) if NetNs::current().is_ok_and(|here| here.inode == self.inode) => {
                Ok(())
            }
            Err(e) => Err(Error::new("setns", format!("net:[{}]", self.inode), e)),
        }
    }

    /// Runs `f` in the namespace, on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    ///
    /// # Panics
    /// When `f` panics.
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
    // A guard that moved to another thread would bring the wrong thread back.
    _thread_bound: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Cannot fail for a namespace this thread was in; were it to, going on
        // in the wrong namespace would be worse than ending.
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
