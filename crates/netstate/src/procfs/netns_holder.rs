//! The process that keeps a network namespace alive.
//!
//! A namespace ends with its last reference: a process in it, a bind mount (`ip netns`, container
//! runtimes), or an open file descriptor. A program whose own sockets are in a namespace cannot see
//! its end, because these sockets keep it alive. It can only look whether any other process does.
//!
//! Some holders are not found: sockets of processes elsewhere, because `/proc` does not show where a
//! socket is; descriptors of other users' processes, which only `CAP_DAC_READ_SEARCH` could list; and
//! processes that the kernel hides even from `CAP_SYS_PTRACE`.

use std::collections::BTreeSet;
use std::fs;

use nix::errno::Errno;
use sys::process::Process;

use super::namespace::mounted_namespace;

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h). Only its
/// `/proc` has all processes.
const INITIAL: u64 = 0xefff_fffc;
/// Bit of `CAP_SYS_PTRACE` (include/uapi/linux/capability.h).
const SYS_PTRACE: u64 = 1 << 19;
/// Limit of descriptors read per process.
const MOST_DESCRIPTORS: usize = 65_536;
/// Limit of bytes of a `mountinfo`: 100,000 mounts (`fs.mount-max`) of usual length.
const MOST_MOUNTINFO: usize = 16 << 20;

/// Whether a network namespace is kept alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// By this process: it is in the namespace, has it open, or sees a mount of it.
    By(u32),
    /// By no process that can be seen.
    No,
    /// This process may not inspect others, or a limit was reached.
    Unknown,
}

/// Looks for a process that keeps a network namespace alive, other than the processes `but`. Looks
/// at `last` first, the result of an earlier call.
pub fn holder(inode: u64, but: &[u32], last: Option<u32>) -> Held {
    let pids = || Process::open(std::process::id())?.namespace("pid");
    if !pids().is_ok_and(|inode| inode == INITIAL) || !may_inspect() {
        return Held::Unknown;
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Held::Unknown };
    let mut all: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable_by_key(|pid| (Some(*pid) != last, *pid));
    let (mut mounts, mut failed) = (BTreeSet::new(), false);
    for pid in all.into_iter().filter(|pid| !but.contains(pid)) {
        match holds(pid, inode, &mut mounts) {
            Ok(true) => return Held::By(pid),
            Ok(false) => {}
            // The process has ended, or is hidden.
            Err(Some(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM)) => {}
            Err(_) => failed = true,
        }
    }
    if failed { Held::Unknown } else { Held::No }
}

/// Whether this process may inspect processes with more capabilities than its own.
fn may_inspect() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|effective| effective & SYS_PTRACE != 0)
}

/// Whether a process keeps a namespace alive. `seen` has the mount namespaces that were read. An
/// error without a number means that a limit was reached.
fn holds(pid: u32, inode: u64, seen: &mut BTreeSet<u64>) -> Result<bool, Option<Errno>> {
    let failed = |error: sys::Error| Some(error.errno);
    let process = Process::open(pid).map_err(failed)?;
    if process.namespace("net").map_err(failed)? == inode {
        return Ok(true);
    }
    if seen.insert(process.namespace("mnt").map_err(failed)?) {
        let mounts = process.read("mountinfo", MOST_MOUNTINFO).map_err(failed)?;
        let is_there = |line| mounted_namespace(line).is_some_and(|(number, _)| number == inode);
        if mounts.text.lines().any(is_there) {
            return Ok(true);
        }
        // The holder may be among the mounts that were not read.
        if mounts.cut {
            return Err(None);
        }
    }
    let (descriptors, more) = process.descriptors(MOST_DESCRIPTORS).map_err(failed)?;
    let target = format!("net:[{inode}]");
    // Closed meanwhile: it does not hold the namespace.
    let is_there = |number: &String| {
        process.descriptor(number).is_ok_and(|there| there.to_str() == Some(target.as_str()))
    };
    match descriptors.iter().any(is_there) {
        true => Ok(true),
        false if more => Err(None),
        false => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use sys::netns::NetNs;

    use super::*;

    #[test]
    fn this_process_holds_its_own_namespace() {
        let own = NetNs::current().unwrap().inode();
        let last = Some(std::process::id());
        let held = holder(own, &[], last);
        assert!(matches!(held, Held::Unknown) || held == Held::By(std::process::id()), "{held:?}");
        // No namespace has this number.
        assert!(!matches!(holder(1, &[], None), Held::By(_)));
    }
}
