//! Programs of others in test hosts: started by the test, and what they would leave.

use std::process::{Child, Command, Stdio};

use lab::Network;

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

/// Starts a command where the programs of a host run.
pub fn start(network: &Network, host: &str, command: &[String]) -> Child {
    let init = network.init_pid(host).unwrap();
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--mount=/proc/{init}/ns/mnt")).arg(format!("--pid=/proc/{init}/ns/pid"));
    enter.arg("--").args(command).stdout(Stdio::piped()).stderr(Stdio::piped());
    network.host(host).unwrap().netns().run(|| enter.spawn()).unwrap().unwrap()
}

pub fn inode(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

/// Ends with the test, if the network did not end it.
pub struct Restarted(pub Child);

impl Drop for Restarted {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
