//! A queue of a TAP device held by another process.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::request_code_read;

use crate::{Error, Result};

// Declared with `unsigned int` in include/uapi/linux/if_tun.h.
const TUNGETSNDBUF: libc::Ioctl = request_code_read!(b'T', 211, size_of::<libc::c_int>());

/// Returns the send buffer size in bytes of a TAP queue held by another process (`TUNGETSNDBUF`):
/// how much of the data it has written may still be in flight behind the device. `descriptor` is
/// its number in that process.
///
/// # Errors
/// `ESRCH` if the process has ended, `EPERM` if this process may not trace it, `ENOSYS` before
/// Linux 5.6 (`pidfd_getfd`), `EBADFD` for a queue that is not attached to a device.
pub fn send_buffer(pid: u32, descriptor: &str) -> Result<u32> {
    let named = || format!("descriptor {descriptor} of process {pid}");
    let number: libc::c_uint =
        descriptor.parse().map_err(|_| Error::new("pidfd_getfd", named(), Errno::EBADF))?;
    // SAFETY: pidfd_open takes its arguments by value and accesses no memory of this process.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let process = Errno::result(process).map_err(|e| Error::new("pidfd_open", named(), e))?;
    // SAFETY: the kernel has just created this descriptor; no other code has it.
    let process = unsafe { OwnedFd::from_raw_fd(process as RawFd) };
    // SAFETY: pidfd_getfd takes its arguments by value and accesses no memory of this process.
    let queue = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    let queue = Errno::result(queue).map_err(|e| Error::new("pidfd_getfd", named(), e))?;
    // SAFETY: the kernel has just created this descriptor; no other code has it.
    let queue = unsafe { OwnedFd::from_raw_fd(queue as RawFd) };
    let mut bytes: libc::c_int = 0;
    // SAFETY: TUNGETSNDBUF writes one `int`; `bytes` is one and outlives the call. The request
    // number encodes that size, so another driver with the same number writes no more.
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
        // It is unlimited until it is set.
        assert_eq!(send_buffer(std::process::id(), &number).unwrap(), i32::MAX.unsigned_abs());
        let error = send_buffer(std::process::id(), "none").unwrap_err();
        assert_eq!(error.errno, Errno::EBADF);
    }
}
