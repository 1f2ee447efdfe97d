//! The state of the machine that tests may change: a set of objects, each one line of text.
//!
//! It is read in the guard's network and mount namespaces. A line has no number that changes
//! while its object exists, so that two states can be compared.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use libbpf_rs::query::{LinkInfo, ProgInfoIter};

use crate::processes;

pub type Objects = BTreeSet<String>;

/// Where iproute2 and Docker keep names of network namespaces.
const NAMES: [&str; 2] = ["/run/netns", "/run/docker/netns"];
/// Name prefixes in `/run` and in the directory of temporary files that overlane and its tests'
/// daemons use. Other programs of the machine write there at any time.
const OURS: [&str; 9] = [
    "overlane",
    "openvswitch",
    "docker",
    "containerd",
    "runc",
    "frr",
    "bird",
    "keepalived",
    "flannel",
];
/// Ends of names of control groups that systemd creates and removes at any time.
const UNITS: [&str; 5] = [".slice", ".scope", ".service", ".socket", ".mount"];

/// Returns the state of the machine. Takes some milliseconds.
pub fn now() -> Objects {
    let mut state = Objects::new();
    for directory in NAMES {
        names(directory, |entry| state.extend(named("namespace", &entry.path())));
    }
    mounts(&mut state);
    links(&mut state);
    bpf(&mut state);
    below("pinned BPF object", Path::new("/sys/fs/bpf"), &mut state);
    groups(Path::new("/sys/fs/cgroup"), &mut state);
    files(&mut state);
    state
}

/// Tables of nftables, those of iptables-nft among them. It starts a program, and tests change
/// tables only in namespaces of their own, so only whole runs are checked for them.
pub fn tables() -> Objects {
    let output = Command::new("nft").args(["list", "tables"]).output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().map(|line| format!("nftables {line}")).collect()
}

/// Number of network namespaces in the kernel, where that can be read. The count includes
/// namespaces that are being removed, and some kernels merge it with other objects.
pub fn namespaces() -> Option<u64> {
    let text = fs::read_to_string("/proc/slabinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("net_namespace "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Removes BPF objects that a program holds which is no test.
pub fn drop_held(state: &mut Objects) {
    // Asking all processes takes long.
    if state.iter().any(|object| object.starts_with("BPF ")) {
        let held = processes::held_by_others();
        state.retain(|object| {
            let id: Vec<&str> = object.split(' ').take(3).collect();
            !held.contains(&id.join(" "))
        });
    }
}

fn names(directory: impl AsRef<Path>, mut each: impl FnMut(DirEntry)) {
    // A directory that is missing has no entries; one that has just gone, too.
    fs::read_dir(directory).into_iter().flatten().flatten().for_each(&mut each);
}

/// One object with a path, escaped so that it is one line.
fn named(kind: &str, path: &Path) -> Option<String> {
    Some(format!("{kind} {}", path.to_string_lossy().escape_debug()))
}

/// Adds all files below a directory, at any depth.
fn below(kind: &str, directory: &Path, state: &mut Objects) {
    names(directory, |entry| match entry.file_type() {
        Ok(kind_of) if kind_of.is_dir() => below(kind, &entry.path(), state),
        // Locks stay by design: removing a lock file is a race.
        Ok(_) if entry.path().extension().is_none_or(|end| end != "lock") => {
            state.extend(named(kind, &entry.path()));
        }
        _ => {}
    });
}

/// Mounts by number and mount point (proc_pid_mountinfo(5)).
fn mounts(state: &mut Objects) {
    for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
        let mut fields = line.split(' ');
        let (Some(id), Some(point)) = (fields.next(), fields.nth(3)) else { continue };
        // `ip netns add` mounts /run/netns on itself once, for all times, and a name of a
        // namespace is a mount, too.
        if !NAMES.iter().any(|names| point.starts_with(names)) {
            state.insert(format!("mount {id} {point}"));
        }
    }
}

fn links(state: &mut Objects) {
    // Asked by netlink: /sys/class/net may show another namespace.
    let Ok(links) = nix::net::if_::if_nameindex() else { return };
    for link in &links {
        state.insert(format!("link {} {}", link.index(), link.name().to_string_lossy()));
    }
}

fn bpf(state: &mut Objects) {
    for program in ProgInfoIter::default() {
        let name = program.name.to_string_lossy().escape_debug().to_string();
        state.insert(format!("BPF program {} {:?} {name}", program.id, program.ty));
    }
    // Not by libbpf-rs's iterator, which ends at a link that is being made.
    let mut id = 0;
    while let Ok(Some(next)) = sys::bpf_link::next(id) {
        id = next;
        let Ok(Some(link)) = sys::bpf_link::open(id) else { continue };
        let Ok(info) = LinkInfo::from_fd(link.as_fd()) else { continue };
        let kind = format!("{:?}", info.info);
        let kind = kind.split(['(', ' ']).next().unwrap_or_default();
        state.insert(format!("BPF link {id} {kind} of program {}", info.prog_id));
    }
}

fn groups(directory: &Path, state: &mut Objects) {
    names(directory, |entry| {
        // A link to a hierarchy of version 1 is no directory here.
        let Ok(status) = entry.metadata() else { return };
        let name = entry.file_name();
        let unit = name.to_str().is_none_or(|name| UNITS.iter().any(|end| name.ends_with(end)));
        if !status.is_dir() || unit {
            return;
        }
        // The machine may be a container whose manager makes groups at any time.
        let is_ours = |part: &std::ffi::OsStr| {
            part.to_str().is_some_and(|part| OURS.iter().any(|ours| part.starts_with(ours)))
        };
        if entry.path().iter().any(is_ours) {
            state.extend(named("cgroup", &entry.path()));
        }
        // Two links: it has no directory in it. Reading one with all its files is slow.
        if status.nlink() > 2 {
            groups(&entry.path(), state);
        }
    });
}

fn files(state: &mut Objects) {
    let mut places = vec!["/run/overlane".into(), "/var/lib/overlane".into()];
    names("/run/user", |entry| places.push(entry.path().join("overlane")));
    for place in places {
        below("file", &place, state);
    }
    for directory in [Path::new("/run"), &std::env::temp_dir()] {
        names(directory, |entry| {
            let name = entry.file_name();
            let ours = |name: &str| OURS.iter().any(|ours| name.starts_with(ours));
            // The directory itself stays by design.
            if name != "overlane" && name.to_str().is_some_and(ours) {
                state.extend(named("file", &entry.path()));
            }
        });
    }
}
