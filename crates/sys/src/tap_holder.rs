//! A queue of a TAP device that another process holds.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::request_code_read;

use crate::{Error, Result};

// Declared with `unsigned int` in include/uapi/linux/if_tun.h.
const TUNGETSNDBUF: libc::Ioctl = request_code_read!(b'T', 211, size_of::<libc::c_int>());

/// The send buffer of a TAP's queue that another process holds (`TUNGETSNDBUF`), bytes: how
/// much of what it has written may be under way behind the device. `descriptor` is its number
/// there.
///
/// # Errors
/// `ESRCH` when the process has ended, `EPERM` where this one may not trace it, `ENOSYS`
/// before Linux 5.6 (`pidfd_getfd`), `EBADFD` for a queue that is attached to no device.
pub fn send_buffer(pid: u32, descriptor: &str) -> Result<u32> {
    let named = || format!("descriptor {descriptor} of process {pid}");
    let number: libc::c_uint =
        descriptor.parse().map_err(|_| Error::new("pidfd_getfd", named(), Errno::EBADF))?;
    // SAFETY: pidfd_open takes its arguments by value and touches no memory of ours.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let process = Errno::result(process).map_err(|e| Error::new("pidfd_open", named(), e))?;
    // SAFETY: the kernel has just made this descriptor; nobody else has it.
    let process = unsafe { OwnedFd::from_raw_fd(process as RawFd) };
    // SAFETY: pidfd_getfd takes its arguments by value and touches no memory of ours.
    let queue = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    let queue = Errno::result(queue).map_err(|e| Error::new("pidfd_getfd", named(), e))?;
    // SAFETY: the kernel has just made this descriptor; nobody else has it.
    let queue = unsafe { OwnedFd::from_raw_fd(queue as RawFd) };
    let mut bytes: libc::c_int = 0;
    // SAFETY: TUNGETSNDBUF writes one `int`; `bytes` is one and outlives the call. The number
    // holds that size, so that another driver which has it for itself writes no more.
    let done = unsafe { libc::ioctl(queue.as_raw_fd(), TUNGETSNDBUF, &raw mut bytes) };
    if done < 0 {
        return Err(Error::last("ioctl(TUNGETSNDBUF)", named()));
    }
    Ok(bytes.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;
    use crate::netns::NetNs;
    use crate::tap::{Tap, TapOptions};

    #[test]
    fn the_send_buffer_of_a_queue_is_that_of_the_kernel() {
        test_support::require!(test_support::need::networks());
        let netns = NetNs::new().unwrap();
        let tap = netns.run(|| Tap::open(&TapOptions::default())).unwrap().unwrap();
        let number = tap.as_fd().as_raw_fd().to_string();
        // Nothing limits it, until somebody sets it.
        assert_eq!(send_buffer(std::process::id(), &number).unwrap(), i32::MAX.unsigned_abs());
        let error = send_buffer(std::process::id(), "none").unwrap_err();
        assert_eq!(error.errno, Errno::EBADF);
    }
}
