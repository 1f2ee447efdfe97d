//! Traces of a run on the machine: its processes, its namespaces, its links.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::launch::{MARK, eventually};

/// A process that belongs to a test, by its mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub pid: i32,
    /// Name, as `/proc/PID/comm` has it.
    pub name: String,
}

/// Every process whose environment has `mark`. Children inherit it, and no program here rewrites
/// its environment.
pub fn marked(mark: &str) -> Vec<Found> {
    let wanted = format!("{MARK}={mark}");
    processes()
        .into_iter()
        .filter(|at| {
            // A process that ends meanwhile cannot be read, and counts as ended.
            fs::read(at.join("environ")).is_ok_and(|environment| {
                environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
            })
        })
        .filter_map(|at| {
            let name = fs::read_to_string(at.join("comm")).ok()?.trim().to_owned();
            let pid = at.file_name()?.to_str()?.parse().ok()?;
            Some(Found { pid, name })
        })
        .collect()
}

fn processes() -> Vec<PathBuf> {
    let is_process =
        |at: &PathBuf| at.file_name().unwrap().to_str().unwrap().parse::<i32>().is_ok();
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(is_process).collect()
}

/// Waits until nothing that carries `mark` is left.
#[track_caller]
pub fn nothing_left(mark: &str) {
    eventually("the end of every process", || match marked(mark) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

/// Network namespaces that a process holds open, as paths for `nsenter --net=`,
/// without its own.
pub fn held(pid: i32) -> Vec<String> {
    let own = fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let mut seen = BTreeSet::new();
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.path(), fs::read_link(entry.path()).ok()?)))
        .filter(|(_, target)| target.to_string_lossy().starts_with("net:["))
        .filter(|(_, target)| Some(target) != own.as_ref() && seen.insert(target.clone()))
        .map(|(path, _)| path.to_string_lossy().into_owned())
        .collect()
}

/// Links of the machine's own namespace.
pub fn links() -> BTreeSet<String> {
    fs::read_dir("/sys/class/net")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}
