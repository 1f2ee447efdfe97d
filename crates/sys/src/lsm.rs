//! The active security modules.
//!
//! Source: `lsm_list_modules` (`security/lsm_syscalls.c`, Linux 6.8), `LSM_ID_*`
//! (`include/uapi/linux/lsm.h`); on older kernels `/sys/kernel/security/lsm`.

use nix::errno::Errno;

use crate::{Error, Result};

/// The number is the same on all architectures.
const SYS_LSM_LIST_MODULES: libc::c_long = 461;
/// At present there are 15.
const MOST: usize = 64;

/// Names of the modules by kernel ID, Linux 6.8 and later.
const NAMES: &[(u64, &str)] = &[
    (100, "capability"),
    (101, "selinux"),
    (102, "smack"),
    (103, "tomoyo"),
    (104, "apparmor"),
    (105, "yama"),
    (106, "loadpin"),
    (107, "safesetid"),
    (108, "lockdown"),
    (109, "bpf"),
    (110, "landlock"),
    (111, "ima"),
    (112, "evm"),
    (113, "ipe"),
];

/// Returns the active modules with the names used in `/sys/kernel/security/lsm`; a module that is
/// not in `NAMES` is shown by its ID.
///
/// # Errors
/// If neither the system call nor the file is available.
pub fn active() -> Result<Vec<String>> {
    match listed() {
        Ok(ids) => Ok(ids.iter().map(|id| name(*id)).collect()),
        Err(Errno::ENOSYS) => match std::fs::read_to_string("/sys/kernel/security/lsm") {
            Ok(text) => Ok(text.trim().split(',').map(str::to_owned).collect()),
            Err(error) => Err(Error::io("read", "/sys/kernel/security/lsm", &error)),
        },
        Err(errno) => Err(Error::new("lsm_list_modules", "security modules".to_owned(), errno)),
    }
}

fn name(id: u64) -> String {
    let known = NAMES.iter().find(|(known, _)| *known == id);
    known.map_or_else(|| format!("number {id}"), |(_, name)| (*name).to_owned())
}

fn listed() -> std::result::Result<Vec<u64>, Errno> {
    let mut ids = [0_u64; MOST];
    let mut size = size_of_val(&ids) as u32;
    // SAFETY: the kernel writes at most `size` bytes to `ids`, and the required size to `size`;
    // both outlive the call.
    let answer = unsafe { libc::syscall(SYS_LSM_LIST_MODULES, ids.as_mut_ptr(), &raw mut size, 0) };
    let count = Errno::result(answer)?;
    Ok(ids[..usize::try_from(count).unwrap_or(0).min(MOST)].to_vec())
}

#[cfg(test)]
mod tests {
    #[test]
    fn modules_have_names() {
        assert_eq!(super::name(101), "selinux");
        assert_eq!(super::name(7), "number 7");
        // The file requires a mounted file system; without it the system call reports the modules.
        if let Ok(active) = super::active() {
            assert!(!active.iter().any(String::is_empty), "{active:?}");
        }
    }
}
