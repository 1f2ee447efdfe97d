//! What programs of others in test hosts would leave.

/// What the daemons would leave on the machine: files at the paths that they were built with,
/// and mounts.
pub fn left_on_the_machine() -> (Vec<String>, String) {
    let mut files = Vec::new();
    for directory in ["/run", "/run/frr", "/run/bird", "/tmp", "/var/tmp", "/var/tmp/frr"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.path().display().to_string());
        files.extend(names.filter(|name| name.contains("frr") || name.contains("bird")));
    }
    files.sort();
    (files, std::fs::read_to_string("/proc/self/mountinfo").unwrap())
}

pub fn inode(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}
