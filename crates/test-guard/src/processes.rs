//! Processes: the descendants of this one, processes with a test's mark, and holders of BPF
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{MARK, PATIENCE, RUN, TICK};

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns state and parent of a process (proc_pid_stat(5)). The name in front of them may contain
/// any character.
fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The descendants of this process that have not ended. A process that has just been forked may be
/// missing.
pub fn descendants() -> Vec<i32> {
    let mut children = BTreeMap::<i32, Vec<i32>>::new();
    for pid in all() {
        // A zombie holds nothing, and is gone as soon as its parent waits for it.
        match state_and_parent(pid) {
            Some((state, parent)) if state != 'Z' => children.entry(parent).or_default().push(pid),
            _ => {}
        }
    }
    let mut found = Vec::new();
    let mut next = vec![std::process::id().cast_signed()];
    while let Some(parent) = next.pop() {
        let of_parent = children.remove(&parent).unwrap_or_default();
        next.extend(&of_parent);
        found.extend(of_parent);
    }
    found
}

/// Whether a process has each of these variables. One with the value `None` may have any value.
fn has(pid: i32, variables: &[(&str, Option<&str>)]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    variables.iter().all(|(name, value)| {
        environment.split(|byte| *byte == 0).any(|line| {
            let line = String::from_utf8_lossy(line);
            let is = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
            is.is_some_and(|is| value.is_none_or(|value| value == is))
        })
    })
}

pub fn of_run(directory: &str) -> Vec<i32> {
    all().filter(|pid| has(*pid, &[(MARK, None), (RUN, Some(directory))])).collect()
}

/// A process as reports name it.
pub fn shown(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    // A process that is about to end, or a kernel thread, has no command line.
    let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let line = if line.is_empty() { name().trim_end().to_owned() } else { line };
    format!("process {pid} {line:?}")
}

/// Waits for the children that have ended; whether a child is left.
///
/// No child means no descendant: a living descendant has an ancestor that is a child, as this
/// process is a subreaper. `/proc` cannot show that. Its entries are read one after the other, and
/// a process that is forked meanwhile, by one that ends, may be missed with its parent.
pub fn reap() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Kills these processes and those that they start meanwhile. A process in uninterruptible sleep
/// may stay.
pub fn kill_all(find: impl Fn() -> Vec<i32>) {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let found = find();
        if !reap() && found.is_empty() {
            return;
        }
        for pid in found {
            // It may have ended since.
            let _: Result<(), Errno> = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(TICK / 4);
    }
}

/// Returns the BPF objects, named as in [`crate::state`], of processes that no test has started.
///
/// They belong to the machine: systemd, for example, loads programs when it starts a unit.
pub fn held_by_others() -> BTreeSet<String> {
    let own: BTreeSet<i32> = descendants().into_iter().collect();
    let mut held = BTreeSet::new();
    for pid in all().filter(|pid| !own.contains(pid) && !has(*pid, &[(MARK, None)])) {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for descriptor in descriptors {
            let target = fs::read_link(descriptor.path()).unwrap_or_default();
            let (key, kind) = match target.to_str() {
                Some("anon_inode:bpf-prog") => ("prog_id:", "BPF program"),
                Some("anon_inode:bpf_link" | "anon_inode:bpf-link") => ("link_id:", "BPF link"),
                _ => continue,
            };
            let number = descriptor.file_name().to_string_lossy().into_owned();
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
            let info = info.unwrap_or_default();
            let id = info.lines().find_map(|line| line.strip_prefix(key));
            held.extend(id.map(|id| format!("{kind} {}", id.trim())));
        }
    }
    held
}
