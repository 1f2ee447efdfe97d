//! Anonymous files in memory.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::{Error, Result};

/// An anonymous file, gone with its last descriptor; append-only by habit of
/// its users, not by force.
///
/// # Errors
/// `EINVAL` for a name with a NUL byte, `EMFILE`.
pub fn create(name: &str) -> Result<OwnedFd> {
    let c_name = CString::new(name).map_err(|_| Error::new("memfd_create", name, Errno::EINVAL))?;
    memfd_create(c_name.as_c_str(), MFdFlags::MFD_CLOEXEC)
        .map_err(|e| Error::new("memfd_create", name, e))
}
