//! The network namespaces of a machine: who is in them, by what path they are
//! reached, and which processes hold their TAP devices.
//!
//! The kernel lists none of them. A namespace is kept by the processes in it,
//! by a bind mount (`ip netns`, container runtimes) in any mount namespace, or
//! by a descriptor that some process holds; all three are found below `/proc`,
//! as far as this process may look.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sys::netns::NetNs;

use crate::proc::read_value;

/// A namespace that was found.
#[derive(Debug)]
pub struct Found {
    /// The namespace, held open.
    pub netns: NetNs,
    /// A path that opens it while whoever keeps it is there.
    pub path: PathBuf,
    /// Names by which it is mounted.
    pub names: BTreeSet<String>,
    /// Processes in it, as [`Member`]s, lowest process ID first.
    pub members: Vec<Member>,
}

/// A process in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Process ID.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
}

/// A process that holds a queue of a TAP or TUN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process ID.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
    /// The device's name.
    pub device: String,
    /// Queues that it holds.
    pub queues: u32,
    /// It has `/dev/vhost-net` open: packets are moved in the kernel.
    pub vhost: bool,
}

/// What was found below `/proc`.
#[derive(Debug, Default)]
pub struct Machine {
    /// Namespaces by inode number.
    pub namespaces: BTreeMap<u64, Found>,
    /// Holders of TAP and TUN devices. A descriptor tells the device's name, not
    /// its namespace: mostly, but not always, the process's own.
    pub holders: Vec<(Holder, u64)>,
    /// Processes that could not be looked into, and why.
    pub unread: usize,
}

/// The machine's first network namespace, in which the settings are that all share;
/// `None` where no process of it may be looked into, as in a container.
pub fn first() -> Option<NetNs> {
    // Kernel threads are in no other; their parent is the second process, where process
    // numbers are the machine's own.
    let is_parent = fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd");
    let of_parent = || NetNs::open("/proc/2/ns/net".as_ref()).ok();
    is_parent.then(of_parent)?
}

/// Looks at every process.
///
/// # Errors
/// Where `/proc` cannot be listed.
pub fn discover() -> Result<Machine, sys::Error> {
    let mut machine = Machine::default();
    let mut mounts = BTreeSet::new();
    let here = Path::new("/proc/thread-self/ns/net");
    machine.add(here, None)?;
    let entries = fs::read_dir("/proc").map_err(|e| sys::Error::io("readdir", "/proc", &e))?;
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        // A process may end at any of these steps: it is then left out.
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let command = read_value(directory.join("comm")).unwrap_or_default();
        let net = directory.join("ns/net");
        // Following the link, not reading it, needs the right to look into the
        // process; kernel threads have no descriptors and no mounts of their own.
        let Some(inode) = fs::metadata(&net).ok().map(|meta| meta.ino()) else {
            machine.unread += 1;
            continue;
        };
        if machine.add(&net, Some(inode)).is_err() {
            continue;
        }
        if let Some(found) = machine.namespaces.get_mut(&inode) {
            found.members.push(Member { pid, command: command.clone() });
        }
        if let Ok(mount) = fs::metadata(directory.join("ns/mnt"))
            && mounts.insert(mount.ino())
        {
            machine.mounted(&directory);
        }
        machine.descriptors(&directory, pid, &command, inode);
    }
    Ok(machine)
}

impl Machine {
    fn add(&mut self, path: &Path, inode: Option<u64>) -> Result<u64, sys::Error> {
        if let Some(inode) = inode.filter(|inode| self.namespaces.contains_key(inode)) {
            return Ok(inode);
        }
        let netns = NetNs::open(path)?;
        let inode = netns.inode();
        self.namespaces.entry(inode).or_insert_with(|| Found {
            netns,
            path: path.to_owned(),
            names: BTreeSet::new(),
            members: Vec::new(),
        });
        Ok(inode)
    }

    /// Network namespaces mounted in the mount namespace of a process
    /// (proc_pid_mountinfo(5): `ID PARENT MAJOR:MINOR ROOT POINT … - nsfs …`).
    fn mounted(&mut self, process: &Path) {
        let Ok(text) = read_value(process.join("mountinfo")) else { return };
        for line in text.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let mut fields = before.split(' ').skip(3);
            let (Some(root), Some(point)) = (fields.next(), fields.next()) else { continue };
            if !after.starts_with("nsfs ") || !root.starts_with("net:[") {
                continue;
            }
            let point = unescape(point);
            let seen = Path::new(&point);
            let own = fs::metadata(seen).ok().map(|meta| meta.ino());
            let inside = process.join("root").join(point.trim_start_matches('/'));
            let number = root.trim_start_matches("net:[").trim_end_matches(']').parse().ok();
            // The shorter path where it leads to the same namespace from here.
            let path = if own.is_some() && own == number { seen } else { &inside };
            if let Ok(inode) = self.add(path, number)
                && let Some(found) = self.namespaces.get_mut(&inode)
            {
                if found.names.is_empty() {
                    path.clone_into(&mut found.path);
                }
                let name = seen.file_name().unwrap_or_default().to_string_lossy();
                found.names.insert(name.into_owned());
            }
        }
    }

    /// Namespaces and TAP devices that a process holds by descriptors.
    fn descriptors(&mut self, process: &Path, pid: u32, command: &str, netns: u64) {
        let Ok(entries) = fs::read_dir(process.join("fd")) else {
            self.unread += 1;
            return;
        };
        let mut vhost = false;
        let mut queues: BTreeMap<String, u32> = BTreeMap::new();
        for entry in entries.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let Some(target) = target.to_str() else { continue };
            match target {
                "/dev/net/tun" => {
                    let info = process.join("fdinfo").join(entry.file_name());
                    let text = read_value(info).unwrap_or_default();
                    // tun_chr_show_fdinfo(), drivers/net/tun.c.
                    let device = text.lines().find_map(|line| line.strip_prefix("iff:\t"));
                    if let Some(device) = device.filter(|device| !device.is_empty()) {
                        *queues.entry(device.trim().to_owned()).or_default() += 1;
                    }
                }
                "/dev/vhost-net" => vhost = true,
                _ if target.starts_with("net:[") => {
                    let number = target.trim_start_matches("net:[").trim_end_matches(']');
                    // Ours are handles on what is being found.
                    if pid != std::process::id() {
                        let _ = self.add(&entry.path(), number.parse().ok());
                    }
                }
                _ => {}
            }
        }
        self.holders.extend(queues.into_iter().map(|(device, queues)| {
            let command = command.to_owned();
            (Holder { pid, command, device, queues, vhost }, netns)
        }));
    }
}

/// Blanks in mountinfo are octal escapes.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after.first_chunk::<3>().filter(|_| *first == b'\\');
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_of_mount_points_are_unescaped() {
        assert_eq!(unescape("/run/a\\040b\\134c"), "/run/a b\\c");
        assert_eq!(unescape("/run/a\\04"), "/run/a\\04");
    }

    #[test]
    fn this_process_is_found_in_its_namespace() {
        let machine = discover().unwrap();
        let own = NetNs::current().unwrap().inode();
        let found = &machine.namespaces[&own];
        assert!(found.members.iter().any(|member| member.pid == std::process::id()));
    }
}
