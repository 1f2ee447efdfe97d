//! CPU bandwidth throttling of this process's control groups.
//!
//! A group and any group above it can throttle a process, so the reader covers each level up to the
//! mount. Source: `Documentation/admin-guide/cgroup-v2.rst` (`cpu.stat`, `throttled_usec`),
//! `Documentation/scheduler/sched-bwc.rst` for version 1 (`throttled_time`, nanoseconds).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::proc::{ParseError, ProcFile, Result, decimal, read_value};

/// The controller of CPU time.
const CPU: &str = "cpu";

/// The open `cpu.stat` files of this process's group and of those above it.
#[derive(Debug)]
pub struct CpuThrottle {
    files: Vec<ProcFile>,
}

/// Time throttled so far, by level.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Throttled {
    levels: Vec<Duration>,
}

impl Throttled {
    /// Returns the time throttled since `before`, of the level throttled longest: levels throttle
    /// at the same time.
    #[must_use]
    pub fn since(&self, before: &Throttled) -> Duration {
        let levels = self.levels.iter().zip(&before.levels);
        levels.map(|(after, before)| after.saturating_sub(*before)).max().unwrap_or_default()
    }
}

impl CpuThrottle {
    /// Opens the files. There are none if no CPU controller governs this process.
    ///
    /// # Errors
    /// If `/proc` is not mounted or has another format, or an existing `cpu.stat` cannot be opened.
    pub fn open() -> Result<CpuThrottle> {
        let groups = read_value("/proc/self/cgroup")?;
        let mounts = read_value("/proc/self/mountinfo")?;
        let mut files = Vec::new();
        for directory in directories(&groups, &mounts, CPU) {
            match ProcFile::open(directory.join("cpu.stat")) {
                // The root group of version 2 and groups without the controller report no
                // throttling.
                Ok(file) if throttled(&directory, &file.read()?)?.is_some() => files.push(file),
                Ok(_) => {}
                // The controller is not enabled at this level.
                Err(e) if e.errno == nix::errno::Errno::ENOENT => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(CpuThrottle { files })
    }

    /// Reads all levels.
    ///
    /// # Errors
    /// As [`ProcFile::read`], and if the format changed.
    pub fn read(&self) -> Result<Throttled> {
        let levels = self
            .files
            .iter()
            .map(|file| Ok(throttled(file.path(), &file.read()?)?.unwrap_or_default()));
        Ok(Throttled { levels: levels.collect::<Result<_>>()? })
    }
}

/// Returns the time that a CPU quota has stopped a process, for each of its groups from its own
/// upwards. `mounts` is the content of `/proc/self/mountinfo`. Empty if no group has a CPU
/// controller, and if the process has ended.
pub fn throttled_times(process: u32, mounts: &str) -> Vec<Duration> {
    let Ok(groups) = read_value(format!("/proc/{process}/cgroup")) else { return Vec::new() };
    let time = |directory: PathBuf| {
        let text = std::fs::read_to_string(directory.join("cpu.stat")).ok()?;
        throttled(&directory, &text).ok()?
    };
    directories(&groups, mounts, CPU).into_iter().filter_map(time).collect()
}

/// Returns the CPU quota of this process, in CPUs: the smallest of its group and the groups above
/// it. `None`: no quota.
///
/// # Errors
/// If `/proc` is not mounted or has another format.
pub fn cpu_quota() -> Result<Option<f64>> {
    let groups = read_value("/proc/self/cgroup")?;
    let mounts = read_value("/proc/self/mountinfo")?;
    let text = |directory: &Path, name: &str| std::fs::read_to_string(directory.join(name)).ok();
    let quotas = directories(&groups, &mounts, CPU).into_iter().filter_map(|directory| {
        let version_1 = || {
            let quota = text(&directory, "cpu.cfs_quota_us")?;
            Some(format!("{} {}", quota.trim(), text(&directory, "cpu.cfs_period_us")?))
        };
        quota(&text(&directory, "cpu.max").or_else(version_1)?)
    });
    Ok(quotas.reduce(f64::min))
}

/// Parses a `cpu.max` (quota and period, microseconds) into CPUs. `max` and -1 (version 1) mean no
/// quota.
fn quota(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let mut number = || words.next()?.parse::<f64>().ok().filter(|number| *number > 0.0);
    Some(number()? / number()?).filter(|cpus| cpus.is_finite())
}

/// Returns the throttled time of a `cpu.stat`, if it has one.
fn throttled(path: &Path, text: &str) -> std::result::Result<Option<Duration>, ParseError> {
    let file = path.display().to_string();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let unit = match words.next() {
            Some("throttled_usec") => Duration::from_micros,
            Some("throttled_time") => Duration::from_nanos,
            // Other counters of the group.
            _ => continue,
        };
        return decimal(&file, index + 1, "throttled", words.next()).map(|t| Some(unit(t)));
    }
    Ok(None)
}

/// Returns the directories of this process's groups with a controller, and of the groups above
/// them, below the mounts in `mountinfo` (proc_pid_mountinfo(5)).
pub(super) fn directories(groups: &str, mounts: &str, controller: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for group in groups.lines() {
        // hierarchy-ID:controllers:path; version 2 has ID 0 and no controllers.
        let mut parts = group.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            // A line of another format.
            continue;
        };
        let unified = id == "0" && controllers.is_empty();
        // Other hierarchies of version 1 have other controllers.
        if !unified && !controllers.split(',').any(|one| one == controller) {
            continue;
        }
        // The hierarchy is not mounted here.
        let Some((root, mount_point)) =
            mounts.lines().find_map(|line| mount(line, unified, controller))
        else {
            // The hierarchy is not mounted here.
            continue;
        };
        // In a container the mount may cover only a part of the hierarchy.
        let Ok(below) = Path::new(path).strip_prefix(root) else { continue };
        directories.extend(below.ancestors().map(|ancestor| Path::new(mount_point).join(ancestor)));
    }
    directories
}

/// Returns root and mount point of a `mountinfo` line, if it is the wanted hierarchy.
fn mount<'a>(line: &'a str, unified: bool, controller: &str) -> Option<(&'a str, &'a str)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, mount_point) = (mount.next()?, mount.next()?);
    let mut filesystem = filesystem.split(' ');
    let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
    let wanted = match kind {
        "cgroup2" => unified,
        "cgroup" => !unified && options.split(',').any(|option| option == controller),
        // Other file systems are no control groups.
        _ => false,
    };
    wanted.then_some((root, mount_point))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
31 29 0:27 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
38 29 0:34 /system.slice /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";

    #[test]
    fn both_versions_are_walked_up_to_their_mount() {
        let groups = "8:pids:/x\n2:cpuacct:/y\n1:cpu:/a/b\n0::/system.slice/c\n";
        let found = directories(groups, MOUNTS, CPU);
        let expected = [
            "/sys/fs/cgroup/cpu/a/b",
            "/sys/fs/cgroup/cpu/a",
            "/sys/fs/cgroup/cpu/",
            "/sys/fs/cgroup/unified/c",
            "/sys/fs/cgroup/unified/",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(directories("0::/user.slice\n", MOUNTS, CPU).is_empty());
    }

    #[test]
    fn throttled_time_has_its_versions_unit() {
        let path = Path::new("cpu.stat");
        let second = "usage_usec 5\nthrottled_usec 1500\n";
        assert_eq!(throttled(path, second), Ok(Some(Duration::from_micros(1500))));
        let first = "nr_periods 0\nthrottled_time 1500\n";
        assert_eq!(throttled(path, first), Ok(Some(Duration::from_nanos(1500))));
        assert_eq!(throttled(path, "usage_usec 5\n"), Ok(None));
        assert_eq!(throttled(path, "a\nthrottled_usec x\n").unwrap_err().line, 2);
    }

    #[test]
    fn a_quota_is_in_cpus_and_none_is_none() {
        for (text, cpus) in [
            ("50000 100000\n", Some(0.5)),
            ("200000 100000", Some(2.0)),
            ("max 100000", None),
            ("-1 100000", None),
            ("5 0", None),
            ("5", None),
            ("", None),
        ] {
            assert_eq!(quota(text), cpus, "{text:?}");
        }
        cpu_quota().unwrap();
    }

    #[test]
    fn the_longest_throttled_level_counts() {
        let levels =
            |values: [u64; 2]| Throttled { levels: values.map(Duration::from_millis).to_vec() };
        assert_eq!(levels([15, 27]).since(&levels([10, 20])), Duration::from_millis(7));
        assert_eq!(Throttled::default().since(&levels([1, 2])), Duration::ZERO);
    }

    #[test]
    fn times_of_a_process_are_those_of_its_groups() {
        let directory = tempfile::tempdir().unwrap();
        let mounts = format!("30 29 0:26 / {} rw - cgroup2 none rw\n", directory.path().display());
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let levels = Path::new(own).ancestors();
        let levels: Vec<PathBuf> = levels.map(|level| directory.path().join(level)).collect();
        std::fs::create_dir_all(&levels[0]).unwrap();
        for (at, level) in levels.iter().enumerate() {
            let text = format!("usage_usec 1\nthrottled_usec {at}\n");
            std::fs::write(level.join("cpu.stat"), text).unwrap();
        }
        let times = throttled_times(std::process::id(), &mounts);
        // Without version 2 of control groups, the process is in none of them.
        if !times.is_empty() {
            assert_eq!(times[0], Duration::ZERO);
            assert_eq!(times.len(), levels.len());
        }
        assert!(throttled_times(u32::MAX, &mounts).is_empty());
    }

    #[test]
    fn this_process_is_read() {
        let throttle = CpuThrottle::open().unwrap();
        let before = throttle.read().unwrap();
        let _ = throttle.read().unwrap().since(&before);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            groups in "([0-9]{0,2}:?[a-z,]{0,6}:?/?[a-z./]{0,8}\n){0,4}",
            mounts in "([0-9/ :a-z-]{0,30}( - (cgroup2?)?[a-z ,]{0,16})?\n){0,4}",
        ) {
            let _ = directories(&groups, &mounts, CPU);
            let _ = throttled(Path::new("x"), &groups);
        }
    }
}
