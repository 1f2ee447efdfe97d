//! Names processes that are left.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// The command lines of all processes in one of these network namespaces, by inode number: only
/// those of a testbed.
pub fn processes_in(namespaces: &BTreeSet<u64>) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let namespace = std::fs::metadata(entry.path().join("ns/net"));
        if namespace.is_ok_and(|namespace| namespaces.contains(&namespace.ino())) {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.push(line.replace('\0', " "));
        }
    }
    found
}
