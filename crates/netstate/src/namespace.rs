//! The network namespaces of a machine: who is in them, by what path they are
//! reached, and which processes hold their TAP devices.
//!
//! The kernel lists none of them. A namespace is kept by the processes in it,
//! by a bind mount (`ip netns`, container runtimes) in any mount namespace, or
//! by a descriptor that some process holds; all three are found below `/proc`,
//! as far as this process may look.
//!
//! Much of what is read was made by other users, and must neither block the reader nor
//! cost it more than a bounded amount. No file that another user chose is opened before it
//! has proven to be a network namespace ([`sys::process`]). Mount points are only opened
//! where nobody else can mount anything; elsewhere, a walk may end in another user's file
//! system. Of namespaces below the caller's user namespace each user gets so many, of
//! descriptors each process. What is left out is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::netns::NetNs;
use sys::nsfs::Owner;
use sys::process::Process;

/// Network namespaces that a user may have below the caller's user namespace (rootless
/// containers); more are left out.
pub const MOST_OF_A_USER: usize = 128;
/// Descriptors of a process that are looked at.
const MOST_DESCRIPTORS: usize = 16_384;
/// How long descriptors may take, those of root's processes first.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes of a `mountinfo`: 100,000 mounts (`fs.mount-max`) of usual length.
const MOST_MOUNTINFO: usize = 16 << 20;
/// Bytes of a `comm`, and of an `fdinfo` of a TAP device.
const MOST_SHORT: usize = 4096;

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
    /// Who made the user namespace that it belongs to.
    pub owner: Owner,
}

/// A process in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
}

/// A process that holds a queue of a TAP or TUN device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
    /// Name of the TAP or TUN device.
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
    /// Processes that could not be looked into: another user's, or just ended.
    pub unread: usize,
    /// What was left out because there was too much of it, in words.
    pub left_out: BTreeSet<String>,
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
    discover_while(&|| true)
}

/// The same, ending early with what was found once `goes_on` says no.
///
/// # Errors
/// As [`discover`].
pub fn discover_while(goes_on: &dyn Fn() -> bool) -> Result<Machine, sys::Error> {
    let mut search = Search::default();
    search.add(NetNs::current()?, Path::new("/proc/thread-self/ns/net"));
    let entries = fs::read_dir("/proc").map_err(|e| sys::Error::io("readdir", "/proc", &e))?;
    let mut pids: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut processes = Vec::new();
    for pid in pids {
        if !goes_on() {
            return Ok(search.machine);
        }
        // A process may end at any of these steps: it is then left out.
        match search.member(pid) {
            Ok(seen) => processes.push(seen),
            Err(_) => search.machine.unread += 1,
        }
    }
    // Root's first: however many descriptors others hold, those are read.
    processes.sort_by_key(|seen| (seen.user != 0, seen.pid));
    let end = Instant::now() + PATIENCE;
    for (at, seen) in processes.iter().enumerate() {
        if !goes_on() {
            break;
        }
        if Instant::now() >= end {
            let rest = processes.len() - at;
            let problem = format!("descriptors of {rest} processes: no time was left for them");
            search.machine.left_out.insert(problem);
            break;
        }
        search.descriptors(seen);
    }
    Ok(search.machine)
}

/// A process that was seen.
struct Seen {
    pid: u32,
    user: u32,
    command: String,
    netns: u64,
}

#[derive(Default)]
struct Search {
    machine: Machine,
    /// Mount namespaces that were looked into.
    mounts: BTreeSet<u64>,
    /// Namespaces of each stranger: of a user, or of a user namespace that root made.
    of: BTreeMap<Owner, BTreeSet<u64>>,
}

impl Search {
    /// Keeps a namespace, unless its owner has too many.
    fn add(&mut self, netns: NetNs, path: &Path) -> Option<u64> {
        let inode = netns.inode();
        if self.machine.namespaces.contains_key(&inode) {
            return Some(inode);
        }
        let owner = netns.owner().unwrap_or(Owner::Beyond);
        let account = match owner {
            // A user cannot have more by making more user namespaces. Those that root
            // made are containers, each of which may belong to someone else.
            Owner::Below { user, .. } if user != 0 => Owner::Below { user, namespace: 0 },
            other => other,
        };
        if let Owner::Below { user, .. } = account {
            let all = self.of.entry(account).or_default();
            if all.len() >= MOST_OF_A_USER {
                self.machine.left_out.insert(format!(
                    "network namespaces of user {user} beyond {MOST_OF_A_USER}: the rest is not read"
                ));
                return None;
            }
            all.insert(inode);
        }
        let (path, names, members) = (path.to_owned(), BTreeSet::new(), Vec::new());
        self.machine.namespaces.insert(inode, Found { netns, path, names, members, owner });
        Some(inode)
    }

    /// The namespace that a process is in, and what is mounted where it sees files.
    fn member(&mut self, pid: u32) -> Result<Seen, sys::Error> {
        let process = Process::open(pid)?;
        let command = process.read("comm", MOST_SHORT)?.text.trim_end().to_owned();
        // Following the link, not reading it, needs the right to look into the process;
        // kernel threads have no descriptors and no mounts of their own.
        let inode = process.namespace("net")?;
        if !self.machine.namespaces.contains_key(&inode) {
            self.add(process.netns()?, &PathBuf::from(format!("/proc/{pid}/ns/net")));
        }
        if let Some(found) = self.machine.namespaces.get_mut(&inode) {
            found.members.push(Member { pid, command: command.clone() });
        }
        if let Ok(mounts) = process.namespace("mnt")
            && !self.mounts.contains(&mounts)
            && process.has_trusted_mounts()
        {
            self.mounts.insert(mounts);
            self.mounted(&process);
        }
        Ok(Seen { pid, user: process.user()?, command, netns: inode })
    }

    /// Network namespaces mounted in the mount namespace of a process
    /// (proc_pid_mountinfo(5): `ID PARENT MAJOR:MINOR ROOT POINT … - nsfs …`).
    fn mounted(&mut self, process: &Process) {
        let Ok(mounts) = process.read("mountinfo", MOST_MOUNTINFO) else { return };
        if mounts.cut {
            let left_out = format!("mounts of process {}: there are too many", process.pid());
            self.machine.left_out.insert(left_out);
        }
        let remote: Vec<String> = mounts.text.lines().filter_map(remote_mount).collect();
        // The last mount at a place hides those before.
        let shown: BTreeMap<&str, &str> =
            mounts.text.lines().filter_map(|line| Some((mount_point(line)?, line))).collect();
        for line in shown.into_values() {
            let Some((number, point)) = mounted_namespace(line) else { continue };
            let point = unescape(point);
            if remote.iter().any(|mount| covers(mount, &point)) {
                let left_out = format!("{point}: on the way there is a file system of a server");
                self.machine.left_out.insert(left_out);
                continue;
            }
            let seen = Path::new(&point);
            // Not the number in the line decides, but what is there.
            let Ok(netns) = process.netns_mounted_at(seen) else { continue };
            if netns.inode() != number {
                continue;
            }
            // The shorter path where it leads to the same namespace from here.
            let here = self.own_mounts(process)
                && NetNs::open(seen).is_ok_and(|own| own.inode() == number);
            let inside = PathBuf::from(format!("/proc/{}/root{point}", process.pid()));
            let path = if here { seen } else { &inside };
            if let Some(inode) = self.add(netns, path)
                && let Some(found) = self.machine.namespaces.get_mut(&inode)
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
    fn descriptors(&mut self, seen: &Seen) {
        let Seen { pid, user: _, command, netns } = seen;
        let opened = Process::open(*pid).and_then(|process| {
            // Another process by now, with the same ID: what is found is not the first's.
            let same = process.namespace("net")? == *netns;
            Ok((process.descriptors(MOST_DESCRIPTORS)?, process, same))
        });
        let ((numbers, more), process) = match opened {
            Ok((numbers, process, true)) => (numbers, process),
            _ => {
                self.machine.unread += 1;
                return;
            }
        };
        if more {
            self.machine.left_out.insert(format!(
                "descriptors of process {pid} beyond {MOST_DESCRIPTORS}: the rest is not read"
            ));
        }
        let mut vhost = false;
        let mut queues: BTreeMap<String, u32> = BTreeMap::new();
        for number in numbers {
            let Ok(target) = process.descriptor(&number) else { continue };
            let Some(target) = target.to_str() else { continue };
            match target {
                "/dev/net/tun" => {
                    let info = process.read(&format!("fdinfo/{number}"), MOST_SHORT);
                    let text = info.map(|info| info.text).unwrap_or_default();
                    // tun_chr_show_fdinfo(), drivers/net/tun.c.
                    let device = text.lines().find_map(|line| line.strip_prefix("iff:\t"));
                    if let Some(device) = device.filter(|device| !device.is_empty()) {
                        *queues.entry(device.trim().to_owned()).or_default() += 1;
                    }
                }
                "/dev/vhost-net" => vhost = true,
                // Ours are handles on what is being found.
                _ if *pid != std::process::id() => {
                    let known = |inode| self.machine.namespaces.contains_key(&inode);
                    if let Some(inode) = numbered(target)
                        && !known(inode)
                        && let Ok(netns) = process.netns_of_descriptor(&number)
                    {
                        self.add(netns, &PathBuf::from(format!("/proc/{pid}/fd/{number}")));
                    }
                }
                _ => {}
            }
        }
        self.machine.holders.extend(queues.into_iter().map(|(device, queues)| {
            let (pid, command) = (*pid, command.clone());
            (Holder { pid, command, device, queues, vhost }, *netns)
        }));
    }

    /// Whether a process sees the caller's mounts.
    fn own_mounts(&self, process: &Process) -> bool {
        let own = Process::open(std::process::id()).and_then(|own| own.namespace("mnt"));
        matches!((own, process.namespace("mnt")), (Ok(own), Ok(other)) if own == other)
    }
}

/// The inode in `net:[INODE]`.
fn numbered(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Inode and place of a network namespace's mount, of a line of `mountinfo`.
fn mounted_namespace(line: &str) -> Option<(u64, &str)> {
    let (before, after) = line.split_once(" - ")?;
    if !after.starts_with("nsfs ") {
        return None;
    }
    let mut fields = before.split(' ').skip(3);
    Some((numbered(fields.next()?)?, fields.next()?))
}

fn mount_point(line: &str) -> Option<&str> {
    line.split(' ').nth(4)
}

/// Where a file system is mounted that a server answers for, a program or another machine,
/// which may take its time. That of `/` is none: this program came from there.
fn remote_mount(line: &str) -> Option<String> {
    const REMOTE: [&str; 12] = [
        "fuse", "fuseblk", "autofs", "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "coda",
        "virtiofs",
    ];
    let kind = line.split_once(" - ")?.1.split(' ').next()?;
    let kind = kind.split_once('.').map_or(kind, |(kind, _)| kind);
    let point = unescape(mount_point(line)?);
    (REMOTE.contains(&kind) && point != "/").then_some(point)
}

/// Whether a path leads through `mount`.
fn covers(mount: &str, path: &str) -> bool {
    path.strip_prefix(mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
    fn mounts_are_read_from_mountinfo() {
        let line = |point: &str, root: &str, kind: &str| {
            format!("331 29 0:4 {root} {point} rw,nosuid shared:5 - {kind} none rw")
        };
        let namespace = line("/run/netns/a\\040b", "net:[4026532]", "nsfs");
        assert_eq!(mounted_namespace(&namespace), Some((4026532, "/run/netns/a\\040b")));
        assert_eq!(mounted_namespace(&line("/run/x", "mnt:[4026532]", "nsfs")), None);
        assert_eq!(mounted_namespace(&line("/run/x", "net:[4026532]", "tmpfs")), None);
        assert_eq!(remote_mount(&line("/a", "/", "fuse.sshfs")), Some("/a".to_owned()));
        assert_eq!(remote_mount(&line("/", "/", "virtiofs")), None);
        assert_eq!(remote_mount(&line("/a", "/", "ext4")), None);
        assert!(covers("/a", "/a/b") && covers("/a", "/a") && !covers("/a", "/ab"));
    }

    #[test]
    fn this_process_is_found_in_its_namespace() {
        let machine = discover().unwrap();
        let own = NetNs::current().unwrap().inode();
        let found = &machine.namespaces[&own];
        assert!(found.members.iter().any(|member| member.pid == std::process::id()));
    }
}
