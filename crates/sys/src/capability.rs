//! Permanently dropping capabilities: all of them in programs that need them only for setup, all
//! but some in other programs.
//!
//! Source: capabilities(7), `include/uapi/linux/capability.h`.

use std::fmt;

use nix::errno::Errno;

use crate::{Error, Result};

/// `_LINUX_CAPABILITY_VERSION_3`: 64 bits in two halves.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// A capability that a program may keep, with its number in `include/uapi/linux/capability.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "capabilities(7) says what each is for")]
pub enum Capability {
    NetAdmin = 12,
    NetRaw = 13,
    SysPtrace = 19,
    SysAdmin = 21,
    SysNice = 23,
    Perfmon = 38,
    Bpf = 39,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        })
    }
}

/// Prevents the calling thread from gaining privileges by `execve`. Capabilities other than `kept`
/// cannot be gained from file capabilities either. Call this after switching to another user,
/// because the switch itself needs a capability.
///
/// # Errors
/// None is documented for dropping own capabilities.
pub fn bound(kept: &[Capability]) -> Result<()> {
    nix::sys::prctl::set_no_new_privs()
        .map_err(|e| Error::new("prctl(PR_SET_NO_NEW_PRIVS)", "calling thread", e))?;
    for capability in 0..64 {
        if kept.iter().any(|kept| *kept as i32 == capability) {
            continue;
        }
        // SAFETY: PR_CAPBSET_DROP takes a number and accesses no memory of this process.
        let done =
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) };
        match Errno::result(done) {
            Ok(_) => {}
            // The number is beyond the kernel's last capability, or the thread may not change the
            // bounding set. In the latter case the bounding set grants nothing, because
            // no_new_privs is set.
            Err(Errno::EINVAL | Errno::EPERM) => break,
            Err(e) => return Err(Error::new("prctl(PR_CAPBSET_DROP)", capability.to_string(), e)),
        }
    }
    Ok(())
}

/// Keeps the capabilities of `wanted` that the calling thread has, and drops all others like
/// [`drop_all`]. Returns the capabilities that are left.
///
/// # Errors
/// None is documented for dropping own capabilities.
pub fn keep(wanted: &[Capability]) -> Result<Vec<Capability>> {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Data::default(); 2];
    // SAFETY: capget reads one header and, for version 3, writes two data structures. Both have the
    // kernel's layout and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) };
    if done < 0 {
        return Err(Error::last("capget", "calling thread"));
    }
    let has = |capability: &&Capability| {
        let bit = **capability as u32;
        sets[bit as usize / 32].permitted & 1 << (bit % 32) != 0
    };
    let kept: Vec<Capability> = wanted.iter().filter(has).copied().collect();
    let mut left = [Data::default(); 2];
    for capability in &kept {
        let bit = *capability as u32;
        let half = &mut left[bit as usize / 32];
        half.permitted |= 1 << (bit % 32);
        half.effective |= 1 << (bit % 32);
    }
    give_up_but(&kept, &left)?;
    Ok(kept)
}

/// Empties all capability sets of the calling thread and prevents it from gaining capabilities by
/// `execve` (`PR_SET_NO_NEW_PRIVS`). Threads that it starts later have none either; threads that
/// already run keep theirs.
///
/// # Errors
/// None is documented for dropping own capabilities, except for a seccomp filter.
pub fn drop_all() -> Result<()> {
    give_up_but(&[], &[Data::default(); 2])
}

/// Sets all capability sets, including the bounding set.
fn give_up_but(kept: &[Capability], left: &[Data; 2]) -> Result<()> {
    bound(kept)?;
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: capset reads one header and, for version 3, two data structures. Both are
    // initialised, have the kernel's layout, and outlive the call. The ambient set follows the
    // permitted set automatically.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, left.as_ptr()) };
    if done < 0 {
        return Err(Error::last("capset", "calling thread"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(task: &str) -> Vec<String> {
        let status = std::fs::read_to_string(format!("/proc/{task}/status")).unwrap();
        status.lines().filter(|l| l.starts_with("Cap")).map(str::to_owned).collect()
    }

    #[test]
    fn nothing_is_left_and_nothing_comes_back() {
        let before = sets("thread-self");
        std::thread::spawn(|| {
            drop_all().unwrap();
            let left = |line: &String| !line.ends_with("\t0000000000000000");
            // Without CAP_SETPCAP the bounding set stays, but it grants nothing.
            let root = nix::unistd::geteuid().is_root();
            let held = move |lines: Vec<String>| {
                lines.into_iter().filter(|l| root || !l.starts_with("CapBnd")).any(|l| left(&l))
            };
            assert!(!held(sets("thread-self")), "{:?}", sets("thread-self"));
            std::thread::spawn(move || assert!(!held(sets("thread-self")))).join().unwrap();
            let exec = std::process::Command::new("grep")
                .args(["-c", "^CapEff:.*[1-9a-f]", "/proc/self/status"])
                .output()
                .unwrap();
            assert_eq!(exec.stdout, b"0\n", "a program that is started gets none");
        })
        .join()
        .unwrap();
        assert_eq!(sets("thread-self"), before, "other threads keep theirs");
    }
}
