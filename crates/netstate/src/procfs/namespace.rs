//! Network namespaces of a machine: their processes, a path to each, and the processes that hold
//! their TAP devices.
//!
//! The kernel cannot list namespaces. Processes, bind mounts (`ip netns`, container runtimes) in
//! any mount namespace, or open file descriptors keep a namespace alive. All three are found in
//! `/proc`, as far as this process's privileges allow.
//!
//! Other users control much of this data, and must neither block the reader nor make it use
//! unbounded resources. A file chosen by another user is opened only after it has proved to be a
//! network namespace ([`sys::process`]). Mount points are opened only in mount namespaces where no
//! other user can mount, because a path lookup may otherwise enter another user's file system. The
//! number of namespaces per user below the caller's user namespace is limited, and so is the number
//! of descriptors per process. Everything left out is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sys::netns::NetNs;
use sys::nsfs::Owner;
use sys::process::Process;

use super::container::{Identity, Store};

/// Limit of network namespaces per user below the caller's user namespace (rootless containers).
pub const MOST_OF_A_USER: usize = 128;
/// Limit of descriptors read per process.
const MOST_DESCRIPTORS: usize = 16_384;
/// Time limit for reading descriptors. Root's processes come first.
const PATIENCE: Duration = Duration::from_millis(500);
/// Limit of bytes of a `mountinfo`: 100,000 mounts (`fs.mount-max`) of usual length.
const MOST_MOUNTINFO: usize = 16 << 20;
/// Limit of bytes of a `comm` or of a TAP device's `fdinfo`.
const MOST_SHORT: usize = 4096;
/// Limit of bytes of a `cgroup`: a dozen hierarchies, each with a long path.
const MOST_GROUPS: usize = 64 << 10;

/// A network namespace.
#[derive(Debug)]
pub struct Found {
    /// The namespace, kept open.
    pub netns: NetNs,
    /// A path that opens it while its owner keeps it alive.
    pub path: PathBuf,
    /// Names under which it is mounted.
    pub names: BTreeSet<String>,
    /// Processes in it, lowest process ID first.
    pub members: Vec<Member>,
    /// Owner of the user namespace that it belongs to.
    pub owner: Owner,
    /// Container of its first process, if the container's own first process is in it.
    pub container: Option<Identity>,
}

impl Found {
    /// Returns a name that people gave it: that of its mount (`ip netns`), else of its pod or
    /// container. Names of mounts that runtimes generate come last.
    pub fn name(&self) -> Option<String> {
        self.name_in(Store::of_machine())
    }

    fn name_in(&self, store: &Store) -> Option<String> {
        if let Some(given) = self.names.iter().find(|name| !is_generated(name)) {
            return Some(given.clone());
        }
        let of_container = self.container.as_ref().and_then(|container| store.name(container));
        if let Some(name) = of_container {
            return Some(name.to_string());
        }
        let mount = self.names.first()?;
        Some(match store.network(mount) {
            Some(network) => format!("{mount}({network})"),
            None => mount.clone(),
        })
    }
}

/// Whether a runtime generated the name of a mount: `cni-UUID` of containerd, a UUID of CRI-O, 12
/// hexadecimal digits of Docker, and Docker's `1-ID` of a network.
fn is_generated(name: &str) -> bool {
    /// Bytes of a UUID as text, and its dashes.
    const UUID: (usize, [usize; 4]) = (36, [8, 13, 18, 23]);
    let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let uuid = name.strip_prefix("cni-").unwrap_or(name);
    let is_uuid = uuid.len() == UUID.0
        && uuid.bytes().enumerate().all(|(at, byte)| match UUID.1.contains(&at) {
            true => byte == b'-',
            false => byte.is_ascii_hexdigit(),
        });
    let is_of_docker = name.len() == 12 && hexadecimal(name);
    let is_of_network = name.strip_prefix("1-").is_some_and(|id| id.len() == 10);
    is_uuid || is_of_docker || is_of_network
}

/// A process in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
}

/// A process that has queues of a TAP or TUN device open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process ID in this process's PID namespace.
    pub pid: u32,
    /// Command, at most 15 bytes.
    pub command: String,
    /// Name of the TAP or TUN device.
    pub device: String,
    /// Number of queues that it has open.
    pub queues: u32,
    /// It has `/dev/vhost-net` open, so packets are moved in the kernel.
    pub vhost: bool,
}

/// Result of a search in `/proc`.
#[derive(Debug, Default)]
pub struct MachineNamespaces {
    /// Namespaces by inode number.
    pub namespaces: BTreeMap<u64, Found>,
    /// Processes with TAP and TUN devices, and the process's namespace. A descriptor reports the
    /// device's name, not its namespace, which is usually the process's own.
    pub holders: Vec<(Holder, u64)>,
    /// Number of processes that could not be inspected: they belong to another user, or have ended.
    pub unread: usize,
    /// Data left out because of limits, as text.
    pub left_out: BTreeSet<String>,
}

/// Returns the machine's initial network namespace, which has the global settings. `None` if its
/// processes cannot be inspected, as in a container.
pub fn first() -> Option<NetNs> {
    // Kernel threads are always in the initial namespace. Their parent is process 2 of the initial
    // PID namespace.
    let is_parent = fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm.trim() == "kthreadd");
    let of_parent = || NetNs::open("/proc/2/ns/net".as_ref()).ok();
    is_parent.then(of_parent)?
}

/// Inspects every process.
///
/// # Errors
/// If `/proc` cannot be listed.
pub fn discover() -> Result<MachineNamespaces, sys::Error> {
    discover_while(&|| true)
}

/// Inspects every process until `goes_on` returns false, and returns the results so far.
///
/// # Errors
/// As [`discover`].
pub fn discover_while(goes_on: &dyn Fn() -> bool) -> Result<MachineNamespaces, sys::Error> {
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
        // A process may end at any step; it is left out then.
        match search.member(pid) {
            Ok(seen) => processes.push(seen),
            Err(_) => search.machine.unread += 1,
        }
    }
    // Root's processes first, so that other users' descriptors cannot use up the time limit.
    processes.sort_by_key(|seen| (seen.user != 0, seen.pid));
    let end = Instant::now() + PATIENCE;
    for (at, seen) in processes.iter().enumerate() {
        // The caller's time for the search is over.
        if !goes_on() {
            break;
        }
        if Instant::now() >= end {
            let rest = processes.len() - at;
            let problem = format!("descriptors of {rest} processes: time limit reached");
            search.machine.left_out.insert(problem);
            break;
        }
        search.descriptors(seen);
    }
    Ok(search.machine)
}

/// A process that was inspected.
struct Inspected {
    pid: u32,
    user: u32,
    command: String,
    netns: u64,
}

#[derive(Default)]
struct Search {
    machine: MachineNamespaces,
    /// Mount namespaces that were searched.
    mounts: BTreeSet<u64>,
    /// Containers whose namespace was found. A program in a container may create others.
    containers: BTreeSet<Identity>,
    /// Number of namespaces per foreign owner: a user, or a user namespace that root created.
    of: BTreeMap<Owner, BTreeSet<u64>>,
}

impl Search {
    /// Adds a namespace, unless its owner has too many.
    fn add(&mut self, netns: NetNs, path: &Path) -> Option<u64> {
        let inode = netns.inode();
        if self.machine.namespaces.contains_key(&inode) {
            return Some(inode);
        }
        let owner = netns.owner().unwrap_or(Owner::Beyond);
        let account = match owner {
            // Limit per user, because a user can create more user namespaces. User namespaces
            // created by root are containers, each of which may belong to somebody else.
            Owner::Below { user, .. } if user != 0 => Owner::Below { user, namespace: 0 },
            other => other,
        };
        if let Owner::Below { user, .. } = account {
            let all = self.of.entry(account).or_default();
            // A user could otherwise exhaust file descriptors.
            if all.len() >= MOST_OF_A_USER {
                self.machine.left_out.insert(format!(
                    "network namespaces of user {user}: only the first {MOST_OF_A_USER} are read"
                ));
                // One user must not fill the list with namespaces.
                return None;
            }
            all.insert(inode);
        }
        let (path, names, members) = (path.to_owned(), BTreeSet::new(), Vec::new());
        let container = None;
        let found = Found { netns, path, names, members, owner, container };
        self.machine.namespaces.insert(inode, found);
        Some(inode)
    }

    /// Adds the namespace of a process, and the namespaces mounted in its mount namespace.
    fn member(&mut self, pid: u32) -> Result<Inspected, sys::Error> {
        let process = Process::open(pid)?;
        let command = process.read("comm", MOST_SHORT)?.text.trim_end().to_owned();
        // Following the link, unlike reading it, needs the right to inspect the process. Kernel
        // threads have no descriptors and no mounts of their own.
        let inode = process.namespace("net")?;
        if !self.machine.namespaces.contains_key(&inode) {
            self.add(process.netns()?, &PathBuf::from(format!("/proc/{pid}/ns/net")));
        }
        if let Some(found) = self.machine.namespaces.get_mut(&inode) {
            // Processes come in the order of their IDs, so the first one seen is the container's.
            if found.members.is_empty()
                && let Ok(groups) = process.read("cgroup", MOST_GROUPS)
                && let Some(container) = Identity::of_groups(&groups.text)
                && self.containers.insert(container.clone())
            {
                found.container = Some(container);
            }
            found.members.push(Member { pid, command: command.clone() });
        }
        if let Ok(mounts) = process.namespace("mnt")
            && !self.mounts.contains(&mounts)
            && process.has_trusted_mounts()
        {
            self.mounts.insert(mounts);
            self.mounted(&process);
        }
        Ok(Inspected { pid, user: process.user()?, command, netns: inode })
    }

    /// Adds network namespaces mounted in the mount namespace of a process (proc_pid_mountinfo(5):
    /// `ID PARENT MAJOR:MINOR ROOT POINT … - nsfs …`).
    fn mounted(&mut self, process: &Process) {
        let Ok(mounts) = process.read("mountinfo", MOST_MOUNTINFO) else { return };
        // Namespaces in the rest of the file are missed.
        if mounts.cut {
            let left_out = format!("mounts of process {}: too many", process.pid());
            self.machine.left_out.insert(left_out);
        }
        let remote: Vec<String> = mounts.text.lines().filter_map(remote_mount).collect();
        // The last mount at a path hides earlier ones.
        let shown: BTreeMap<&str, &str> =
            mounts.text.lines().filter_map(|line| Some((mount_point(line)?, line))).collect();
        for line in shown.into_values() {
            let Some((number, point)) = mounted_namespace(line) else { continue };
            let point = unescape(point);
            if remote.iter().any(|mount| covers(mount, &point)) {
                let left_out = format!("{point}: the path crosses a network or FUSE file system");
                self.machine.left_out.insert(left_out);
                // Opening the path could hang.
                continue;
            }
            let seen = Path::new(&point);
            // The number in the line may be outdated, so compare it with the opened namespace.
            let Ok(netns) = process.netns_mounted_at(seen) else { continue };
            // Another mount now covers the path.
            if netns.inode() != number {
                continue;
            }
            // Prefer the shorter path if it leads to the same namespace from here.
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

    /// Adds namespaces and TAP devices that a process has open.
    fn descriptors(&mut self, seen: &Inspected) {
        let Inspected { pid, user: _, command, netns } = seen;
        let opened = Process::open(*pid).and_then(|process| {
            // The PID may have been reused by another process.
            let same = process.namespace("net")? == *netns;
            Ok((process.descriptors(MOST_DESCRIPTORS)?, process, same))
        });
        let ((numbers, more), process) = match opened {
            Ok((numbers, process, true)) => (numbers, process),
            _ => {
                self.machine.unread += 1;
                // The process has ended, or may not be inspected.
                return;
            }
        };
        if more {
            self.machine.left_out.insert(format!(
                "descriptors of process {pid}: only the first {MOST_DESCRIPTORS} are read"
            ));
        }
        let mut vhost = false;
        let mut queues: BTreeMap<String, u32> = BTreeMap::new();
        for number in numbers {
            // Closed meanwhile.
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
                // Skip our own descriptors, which this search has opened.
                _ if *pid != std::process::id() => {
                    let known = |inode| self.machine.namespaces.contains_key(&inode);
                    if let Some(inode) = numbered(target)
                        && !known(inode)
                        && !is_child(&process)
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

/// Whether this process started the other. Before it executes its program, a child has copies of our
/// descriptors, and a path through them is gone a moment later.
fn is_child(process: &Process) -> bool {
    let stat = process.read("stat", MOST_SHORT).map(|stat| stat.text).unwrap_or_default();
    // proc_pid_stat(5): the name may contain spaces and parentheses; then state and parent.
    let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
    parent.and_then(|pid| pid.parse().ok()) == Some(std::process::id())
}

/// Returns the inode in `net:[INODE]`.
fn numbered(text: &str) -> Option<u64> {
    text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Returns inode and mount point of a network namespace from a line of `mountinfo`.
pub(super) fn mounted_namespace(line: &str) -> Option<(u64, &str)> {
    let (before, after) = line.split_once(" - ")?;
    // Only nsfs mounts hold namespaces.
    if !after.starts_with("nsfs ") {
        return None;
    }
    let mut fields = before.split(' ').skip(3);
    Some((numbered(fields.next()?)?, fields.next()?))
}

fn mount_point(line: &str) -> Option<&str> {
    line.split(' ').nth(4)
}

/// Returns the mount point of a file system that a server implements, a program or another machine,
/// which may respond slowly. Excludes `/`, because this program was loaded from there.
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

/// Whether a path crosses `mount`.
fn covers(mount: &str, path: &str) -> bool {
    path.strip_prefix(mount).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Decodes octal escapes of mountinfo.
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
    fn names_that_people_gave_come_before_generated_ones() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::below(root.path());
        let found = |names: &[&str], container: Option<&str>| Found {
            netns: NetNs::current().unwrap(),
            path: PathBuf::from("/proc/1/ns/net"),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            members: Vec::new(),
            owner: Owner::Beyond,
            container: container.map(|name| Identity::Lxc { name: name.to_owned() }),
        };
        let uuid = "8b7fa3c2-0d1e-4f5a-9b6c-7d8e9f0a1b2c";
        let cni = format!("cni-{uuid}");
        for (names, container, expected) in [
            (&["blue"][..], Some("web"), Some("blue")),
            (&[cni.as_str()], Some("web"), Some("web")),
            (&[uuid], Some("web"), Some("web")),
            (&["0a1b2c3d4e5f", "blue"], Some("web"), Some("blue")),
            (&["0a1b2c3d4e5f"], Some("web"), Some("web")),
            (&[cni.as_str()], None, Some(cni.as_str())),
            (&["1-mz3xk2v0q9"], None, Some("1-mz3xk2v0q9")),
            (&["qrouter-8b7fa3c2-0d1e-4f5a-9b6c-7d8e9f0a1b2c"], Some("web"), None),
            (&[], Some("web"), Some("web")),
            (&[], None, None),
        ] {
            let expected = expected.or(names.first().copied());
            assert_eq!(found(names, container).name_in(&store).as_deref(), expected, "{names:?}");
        }
    }

    #[test]
    fn this_process_is_found_in_its_namespace() {
        let machine = discover().unwrap();
        let own = NetNs::current().unwrap().inode();
        let found = &machine.namespaces[&own];
        assert!(found.members.iter().any(|member| member.pid == std::process::id()));
    }
}
