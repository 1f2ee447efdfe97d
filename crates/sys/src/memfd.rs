//! Anonymous files in memory.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::{Error, Result};

/// Creates an anonymous file, which disappears with its last descriptor. All writes append to it.
///
/// # Errors
/// `EINVAL` for a name with a NUL byte, `EMFILE`.
pub fn create(name: &str) -> Result<OwnedFd> {
    let c_name = CString::new(name).map_err(|_| Error::new("memfd_create", name, Errno::EINVAL))?;
    let file = memfd_create(c_name.as_c_str(), MFdFlags::MFD_CLOEXEC)
        .map_err(|e| Error::new("memfd_create", name, e))?;
    // Several processes write to the descriptor at the same time. The kernel protects the position
    // of files on disk (FMODE_ATOMIC_POS) but not of these files, so one process could overwrite a
    // line of another.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))
        .map_err(|e| Error::new("fcntl(F_SETFL)", name, e))?;
    Ok(file)
}
