//! Finds leftovers of foreign programs in test hosts.

/// Files that the daemons could leave on the machine at their built-in paths, and mounts there.
/// Other processes may add and remove some during this test.
pub fn left_on_the_machine() -> (Vec<String>, Vec<String>) {
    let mut files = Vec::new();
    for directory in ["/run", "/run/frr", "/run/bird", "/tmp", "/var/tmp", "/var/tmp/frr"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.path().display().to_string());
        files.extend(names.filter(|name| name.contains("frr") || name.contains("bird")));
    }
    files.sort();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    // The mount point (proc_pid_mountinfo(5)).
    let at = |line: &&str| {
        let at = line.split(' ').nth(4).unwrap();
        ["/run", "/tmp", "/var/tmp"].contains(&at) || at.contains("frr") || at.contains("bird")
    };
    (files, mounts.lines().filter(at).map(str::to_owned).collect())
}
