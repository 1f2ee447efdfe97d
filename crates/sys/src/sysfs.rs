//! The sysfs of a network namespace, without mounting it on a path.
//!
//! `/sys/class/net` shows the namespace of the process that mounted it. A detached mount
//! (fsopen(2), fsmount(2)) belongs to the namespace of the calling thread, is invisible to other
//! processes, and disappears with its descriptor.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sched::{CloneFlags, unshare};

use crate::netns::NetNs;
use crate::{Error, Result};

/// `FSCONFIG_CMD_CREATE` of `include/uapi/linux/mount.h`.
const CMD_CREATE: libc::c_uint = 6;
/// `FSOPEN_CLOEXEC` and `FSMOUNT_CLOEXEC`.
const CLOEXEC: libc::c_uint = 1;

/// The sysfs of a network namespace, not mounted on any path.
#[derive(Debug)]
pub struct Sysfs {
    root: OwnedFd,
}

impl Sysfs {
    /// Opens the sysfs of a network namespace.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the user namespace of the namespace, or if the machine
    /// masks parts of `/sys`; `ENOSYS` before Linux 5.2.
    pub fn of(netns: &NetNs) -> Result<Sysfs> {
        netns.run(|| {
            // In a user namespace only an own mount namespace may get mounts. It ends with this
            // thread, the detached mount with its descriptor.
            unshare(CloneFlags::CLONE_NEWNS)
                .map_err(|e| Error::new("unshare(CLONE_NEWNS)", "thread", e))?;
            Sysfs::of_this_thread()
        })?
    }

    fn of_this_thread() -> Result<Sysfs> {
        let descriptor = |operation, answer: libc::c_long| {
            if answer < 0 {
                return Err(Error::last(operation, "sysfs"));
            }
            // SAFETY: the kernel has just returned this descriptor; no other code owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(answer as libc::c_int) })
        };
        // SAFETY: the name is a NUL-terminated constant.
        let context = unsafe { libc::syscall(libc::SYS_fsopen, c"sysfs".as_ptr(), CLOEXEC) };
        let context = descriptor("fsopen", context)?;
        let none = std::ptr::null::<libc::c_char>();
        // SAFETY: this command takes neither key nor value: null pointers and 0.
        let created = unsafe {
            libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CMD_CREATE, none, none, 0)
        };
        if created < 0 {
            return Err(Error::last("fsconfig", "sysfs"));
        }
        // SAFETY: plain integers.
        let root = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOEXEC, 0) };
        Ok(Sysfs { root: descriptor("fsmount", root)? })
    }

    /// Reads a file without the trailing newline.
    ///
    /// # Errors
    /// `ENOENT`, or the error of the attribute.
    pub fn read(&self, path: &str) -> Result<String> {
        std::fs::read_to_string(format!("/proc/self/fd/{}/{path}", self.root.as_raw_fd()))
            .map(|text| text.trim_end().to_owned())
            .map_err(|e| Error::io("read", format!("/sys/{path}"), &e))
    }

    /// Returns the names in a directory, sorted.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let failed = |e: std::io::Error| Error::io("readdir", format!("/sys/{path}"), &e);
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}/{path}", self.root.as_raw_fd()))
            .map_err(failed)?;
        let mut names = entries
            .map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<Vec<String>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    /// Writes a file (`class/net/nic0/queues/rx-0/rps_cpus`).
    ///
    /// # Errors
    /// `ENOENT`, or the error of the attribute.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        std::fs::write(format!("/proc/self/fd/{}/{path}", self.root.as_raw_fd()), text)
            .map_err(|e| Error::io("write", format!("/sys/{path}"), &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_own_devices_are_seen() {
        test_support::require!(test_support::need::networks());
        let netns = NetNs::new().unwrap();
        let sysfs = Sysfs::of(&netns).unwrap();
        sysfs.write("class/net/lo/mtu", "1234").unwrap();
        assert_eq!(sysfs.read("class/net/lo/mtu").unwrap(), "1234");
        assert_eq!(sysfs.list("class/net/lo/queues").unwrap(), ["rx-0", "tx-0"]);
        let own = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_ne!(own.trim(), "1234", "the machine's own loopback");
        let error = sysfs.write("class/net/no-such-dev/mtu", "1").unwrap_err();
        assert_eq!(error.errno, nix::errno::Errno::ENOENT);
    }
}
