//! Memory limits of this process's control groups, and the room below them.
//!
//! A group and any group above it can have a limit, above which the kernel kills processes. Source:
//! `Documentation/admin-guide/cgroup-v2.rst` (`memory.max`, `memory.current`, `memory.stat`),
//! `Documentation/admin-guide/cgroup-v1/memory.rst` for version 1. Reading does not allocate.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::cgroup::directories;
use crate::proc::{Result, read_value};

/// Names of the files of a group.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Keys of `memory.stat`: page cache that the kernel reclaims before it kills.
    cache: [&'static str; 2],
}

const VERSIONS: [Names; 2] = [
    Names { limit: "memory.max", usage: "memory.current", cache: ["active_file", "inactive_file"] },
    Names {
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cache: ["total_active_file", "total_inactive_file"],
    },
];
/// Longest `memory.stat` that is read, bytes. The keys of the page cache come early.
const STAT: usize = 4096;

/// The memory limits that apply to this process.
#[derive(Debug, Default)]
pub struct MemoryLimits {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    limit: File,
    usage: File,
    stat: File,
    cache: [&'static str; 2],
}

impl MemoryLimits {
    /// Opens the files of this process's groups. There are none if no memory controller governs
    /// this process.
    ///
    /// # Errors
    /// If `/proc` is not mounted or has another format.
    pub fn open() -> Result<MemoryLimits> {
        let groups = read_value("/proc/self/cgroup")?;
        let mounts = read_value("/proc/self/mountinfo")?;
        Ok(MemoryLimits::of(&directories(&groups, &mounts, "memory")))
    }

    /// Opens the files of these groups.
    pub fn of(directories: &[PathBuf]) -> MemoryLimits {
        MemoryLimits { groups: directories.iter().filter_map(|at| Group::open(at)).collect() }
    }

    /// Whether no group can limit this process.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns how many bytes this process can still take until the groups' memory without page
    /// cache exceeds three quarters of a limit. `None`: there is no limit.
    pub fn room(&self) -> Option<u64> {
        self.groups.iter().filter_map(Group::room).min()
    }
}

impl Group {
    fn open(directory: &Path) -> Option<Group> {
        let open = |name: &str| File::open(directory.join(name)).ok();
        VERSIONS.iter().find_map(|names| {
            Some(Group {
                limit: open(names.limit)?,
                usage: open(names.usage)?,
                stat: open("memory.stat")?,
                cache: names.cache,
            })
        })
    }

    /// `None`: the group has no limit, or was removed.
    fn room(&self) -> Option<u64> {
        // "max" is no limit. In version 1 it is a number that no usage reaches.
        let limit = number(&self.limit)? / 4 * 3;
        let usage = number(&self.usage)?;
        if usage < limit {
            return Some(limit - usage);
        }
        let mut buffer = [0; STAT];
        let text = read(&self.stat, &mut buffer)?;
        let values = self.cache.iter().filter_map(|key| value(text, key));
        Some(limit.saturating_sub(usage.saturating_sub(values.sum())))
    }
}

fn read<'a>(file: &File, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = file.read_at(buffer, 0).ok()?;
    let whole = &buffer[..length];
    // The last line may have been cut.
    std::str::from_utf8(whole).ok()
}

fn number(file: &File) -> Option<u64> {
    read(file, &mut [0; 32])?.trim_end().parse().ok()
}

/// Returns the value of a line `KEY VALUE`.
fn value(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, MemoryLimits) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let limits = MemoryLimits::of(&[directory.path().to_owned()]);
        (directory, limits)
    }

    #[test]
    fn the_room_ends_at_three_quarters_and_page_cache_is_room() {
        let stat = "anon 5\nfile 3\ninactive_file 100\nactive_file 50\nx_active_file 7\n";
        let files =
            |usage| [("memory.max", "1000\n"), ("memory.current", usage), ("memory.stat", stat)];
        for (usage, room) in [("0\n", 750), ("749\n", 1), ("750\n", 150), ("900\n", 0), ("999", 0)]
        {
            let (_directory, limits) = group(&files(usage));
            assert_eq!(limits.room(), Some(room), "{usage}");
        }
    }

    #[test]
    fn version_1_has_other_names_and_max_is_no_limit() {
        let (_directory, limits) = group(&[
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "800\n"),
            ("memory.stat", "inactive_file 9\ntotal_inactive_file 60\ntotal_active_file 0\n"),
        ]);
        assert_eq!(limits.room(), Some(10));
        let none = [("memory.max", "max\n"), ("memory.current", "5\n"), ("memory.stat", "")];
        assert_eq!(group(&none).1.room(), None);
        let (_directory, nothing) = group(&[]);
        assert!(nothing.is_empty() && nothing.room().is_none());
    }

    #[test]
    fn the_smallest_room_of_this_process_counts() {
        let directories: Vec<_> = ["400\n", "300\n"]
            .map(|limit| {
                let directory = tempfile::tempdir().unwrap();
                for (name, text) in
                    [("memory.max", limit), ("memory.current", "0\n"), ("memory.stat", "")]
                {
                    std::fs::write(directory.path().join(name), text).unwrap();
                }
                directory
            })
            .into();
        let paths: Vec<_> = directories.iter().map(|one| one.path().to_owned()).collect();
        assert_eq!(MemoryLimits::of(&paths).room(), Some(225));
        MemoryLimits::open().unwrap().room();
    }
}
