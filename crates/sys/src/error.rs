//! The crate's error: which operation, on what, and what the kernel answered.

use nix::errno::Errno;

/// A system call that failed: the operation, its object and the errno.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {object}: {errno}", errno = describe(*errno))]
pub struct Error {
    /// What was attempted, in the kernel's words (`setns`, `ioctl(TUNSETIFF)`).
    pub operation: &'static str,
    /// The thing it was attempted on (a device, a path, a namespace).
    pub object: String,
    /// Errno that the kernel answered.
    pub errno: Errno,
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error from an errno.
    pub fn new(operation: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Error { operation, object: object.into(), errno }
    }

    /// An error from `std::io`, keeping its errno (`EIO` where it has none).
    pub fn io(operation: &'static str, object: impl Into<String>, error: &std::io::Error) -> Self {
        Error::new(operation, object, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// The error of the last libc call of this thread.
    pub fn last(operation: &'static str, object: impl Into<String>) -> Self {
        Error::new(operation, object, Errno::last())
    }
}

fn describe(errno: Errno) -> String {
    format!("{} ({errno:?})", errno.desc())
}
