//! The error of the crate: the operation, its object, and the errno.

use nix::errno::Errno;

/// A system call that failed: the operation, its object and the errno.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {object}: {errno}", errno = describe(*errno))]
pub struct Error {
    /// The operation, as the kernel names it (`setns`, `ioctl(TUNSETIFF)`).
    pub operation: &'static str,
    /// The object of the attempt (a device, a path, a namespace).
    pub object: String,
    /// The errno that the kernel returned.
    pub errno: Errno,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(operation: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Error { operation, object: object.into(), errno }
    }

    /// Creates an error from a `std::io` error, keeping its errno (`EIO` if it has none).
    pub fn io(operation: &'static str, object: impl Into<String>, error: &std::io::Error) -> Self {
        Error::new(operation, object, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Creates an error from the last libc call of this thread.
    pub fn last(operation: &'static str, object: impl Into<String>) -> Self {
        Error::new(operation, object, Errno::last())
    }
}

fn describe(errno: Errno) -> String {
    format!("{} ({errno:?})", errno.desc())
}
