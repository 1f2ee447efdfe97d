//! Reads a host. Changes nothing, and contacts no other machine.

mod listeners;
mod machine;
mod namespace;
mod passages;
mod questions;
mod translations;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netstate::Netlink;
use netstate::namespace::{Holder, Member, discover, first};
use sys::netns::NetNs;
use sys::nsfs::Owner;

use crate::host::{FORMAT, Host, LeftOut, Namespace};

/// Namespaces to read.
#[derive(Debug)]
pub enum Scope {
    /// Every namespace of the machine that this process may enter.
    All,
    /// These, with their labels. Holders of their TAP devices are searched among all processes.
    Some(Vec<(String, NetNs)>),
}

/// Why a host cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A system call failed; it names the operation and the object.
    #[error(transparent)]
    Sys(#[from] sys::Error),
}

/// A namespace to be read.
#[derive(Debug)]
struct Subject {
    netns: NetNs,
    label: String,
    path: Option<PathBuf>,
    members: Vec<Member>,
    holders: Vec<Holder>,
    /// Whether another user created it in a user namespace below the reader's, and controls its
    /// contents.
    is_untrusted: bool,
}

/// Time limit for namespaces that other users created, because they may hold any amount of state.
const PATIENCE: Duration = Duration::from_millis(300);

/// Whether a check reads the setting with this path (`net/ipv4/ip_forward`). Settings of single
/// devices do not count.
pub(crate) fn is_setting(path: &str) -> bool {
    machine::SYSCTLS.contains(&path) || namespace::SYSCTLS.contains(&path)
}

pub(crate) use namespace::DEVICE_SYSCTLS;
pub(crate) use passages::OF_ANOTHER;

/// Processes listed per namespace, enough for a reader.
const MEMBERS_SHOWN: usize = 4;

/// Reads the host twice, `interval` apart.
///
/// # Errors
/// If `/proc` is not mounted or descriptors run out. Other failures are part of the result, with
/// their reasons.
pub fn collect(scope: Scope, interval: Duration) -> Result<Host, CollectError> {
    // Each namespace needs a descriptor, and there may be thousands.
    sys::limit::raise_descriptors();
    let (mut subjects, mut left_out) = subjects(scope)?;
    let taken_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let begun = Instant::now();
    let early_machine = machine::Early::read();
    // Namespaces of other users are last in the list, and are read last.
    let untrusted = subjects.iter().position(|subject| subject.is_untrusted);
    let untrusted = untrusted.unwrap_or(subjects.len());
    let mut namespaces = on_threads(&subjects[..untrusted], namespace::read);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let end = Instant::now() + PATIENCE;
    while namespaces.len() < subjects.len() && Instant::now() < end {
        let next = &subjects[namespaces.len()..];
        namespaces.extend(on_threads(&next[..threads.min(next.len())], namespace::read));
    }
    let unread = subjects.len() - namespaces.len();
    if unread > 0 {
        // Both lists are walked in parallel below.
        subjects.truncate(namespaces.len());
        left_out.push(LeftOut {
            object: format!("{unread} network namespaces of other users"),
            reason: format!(
                "time limit of {} ms for other users' namespaces reached",
                PATIENCE.as_millis()
            ),
        });
    }
    resolve_links(&subjects, &mut namespaces);
    namespace::read_tunnels(&subjects, &mut namespaces);
    passages::read(&subjects, &mut namespaces);
    std::thread::sleep(interval.saturating_sub(begun.elapsed()));
    let interval_s = begun.elapsed().as_secs_f64();
    let later = on_threads(&subjects, namespace::read_later);
    let machine = early_machine.finish();
    for (namespace, later) in namespaces.iter_mut().zip(later) {
        later.join(namespace);
    }
    listeners::read(&subjects, &mut namespaces);
    Ok(Host {
        format: FORMAT,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        taken_s,
        interval_s,
        machine,
        namespaces,
        left_out,
        far_ends: Vec::new(),
        eligible: Vec::new(),
        probed: Vec::new(),
    })
}

/// Returns the namespaces of a scope, the reader's own first.
fn subjects(scope: Scope) -> Result<(Vec<Subject>, Vec<LeftOut>), CollectError> {
    let own = NetNs::current()?.inode();
    let machine = discover()?;
    let mut left_out = Vec::new();
    // A reader that may inspect the kernel's own processes misses only those that ended meanwhile.
    if machine.unread > 0 && first().is_none() {
        left_out.push(LeftOut {
            object: format!("{} processes", machine.unread),
            reason: "not this user's, or ended meanwhile: their namespaces and TAP devices may \
                     be missing (root sees all)"
                .to_owned(),
        });
    }
    left_out.extend(machine.left_out.iter().map(|text| {
        let (object, reason) = text.split_once(": ").unwrap_or((text, "limit reached"));
        LeftOut { object: object.to_owned(), reason: reason.to_owned() }
    }));
    let mut holders: BTreeMap<u64, Vec<Holder>> = BTreeMap::new();
    for (holder, inode) in machine.holders {
        holders.entry(inode).or_default().push(holder);
    }
    let mut subjects = Vec::new();
    match scope {
        Scope::Some(named) => {
            for (label, netns) in named {
                let found = machine.namespaces.get(&netns.inode());
                subjects.push(Subject {
                    path: found.filter(|_| netns.inode() != own).map(|found| found.path.clone()),
                    members: found.map(|found| found.members.clone()).unwrap_or_default(),
                    holders: holders.remove(&netns.inode()).unwrap_or_default(),
                    netns,
                    label,
                    // The caller named it, so the time limit does not apply.
                    is_untrusted: false,
                });
            }
            // A holder may be in another namespace than its device, like a test's own process. If its
            // own namespace has a device of this name, it is that one.
            for (inode, mut others) in holders {
                let home = machine.namespaces.get(&inode);
                let home = home.and_then(|found| Netlink::open_in(&found.netns).ok());
                if let Some(home) = home {
                    others.retain(|holder| home.link(&holder.device).is_err());
                }
                for subject in &mut subjects {
                    subject.holders.extend(others.iter().cloned());
                }
            }
        }
        Scope::All => {
            for (inode, found) in machine.namespaces {
                let here = inode == own;
                let first = found.members.first();
                let label = match (here, found.name(), first) {
                    (true, ..) => "here".to_owned(),
                    (_, Some(name), _) => name,
                    (_, None, Some(first)) => format!("{}/{}", first.command, first.pid),
                    (_, None, None) => format!("net:[{inode}]"),
                };
                subjects.push(Subject {
                    path: (!here).then_some(found.path),
                    is_untrusted: matches!(found.owner, Owner::Below { .. }),
                    holders: holders.remove(&inode).unwrap_or_default(),
                    members: found.members,
                    netns: found.netns,
                    label,
                });
            }
            subjects.sort_by_key(|subject| {
                let here = subject.netns.inode() == own;
                (!here, subject.is_untrusted, subject.label.clone())
            });
            tell_apart(&mut subjects);
        }
    }
    Ok((subjects, left_out))
}

/// Appends the inode number to the labels of namespaces that are mounted under one name in several
/// mount namespaces.
fn tell_apart(subjects: &mut [Subject]) {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for subject in &*subjects {
        *seen.entry(subject.label.clone()).or_default() += 1;
    }
    for subject in subjects {
        if seen[&subject.label] > 1 {
            subject.label = format!("{}[{}]", subject.label, subject.netns.inode());
        }
    }
}

/// Finds the namespace of each link's other end. The kernel reports a number that is valid in the
/// link's namespace only, so each candidate's number there is queried. Candidates with a link that
/// points back come first.
fn resolve_links(subjects: &[Subject], namespaces: &mut [Namespace]) {
    // Key: index of a link and index of its other end.
    let mut ends: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    for (at, namespace) in namespaces.iter().enumerate() {
        for interface in namespace.interfaces.get().into_iter().flatten() {
            if let Some(link) = interface.link {
                ends.entry((interface.index, link)).or_default().push(at);
            }
        }
    }
    for at in 0..namespaces.len() {
        // Key: the kernel's number of the other namespace.
        let mut wanted: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for interface in namespaces[at].interfaces.get().into_iter().flatten() {
            if let Some(number) = interface.link_netns {
                // A VXLAN device that is bound to no link still has an underlay namespace.
                let link = interface.link.unwrap_or(0);
                wanted.entry(number).or_default().push((interface.index, link));
            }
        }
        // All links stay within this namespace.
        if wanted.is_empty() {
            continue;
        }
        // Without a socket in the namespace its links stay unresolved, and paths end at them.
        let Ok(netlink) = netstate::Netlink::open_in(&subjects[at].netns) else { continue };
        let likely: Vec<usize> = wanted
            .values()
            .flatten()
            .flat_map(|(index, link)| ends.get(&(*link, *index)).into_iter().flatten().copied())
            .collect();
        let mut asked = vec![false; subjects.len()];
        for candidate in likely.into_iter().chain(0..subjects.len()) {
            if wanted.is_empty() || std::mem::replace(&mut asked[candidate], true) {
                continue;
            }
            // Without a number for the candidate, no link of this namespace leads to it.
            let Ok(Some(number)) = netlink.number_of(&subjects[candidate].netns) else { continue };
            for (index, _) in wanted.remove(&number).unwrap_or_default() {
                namespaces[at].devices.entry(index).or_default().link_namespace =
                    Some(subjects[candidate].netns.inode());
            }
        }
    }
}

/// Runs `work` for each subject on several threads. Results keep the order.
fn on_threads<T: Send>(subjects: &[Subject], work: impl Fn(&Subject) -> T + Sync) -> Vec<T> {
    /// More than there are CPUs: a thread that leaves a namespace waits for the kernel.
    const LEAST: usize = 8;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).max(LEAST);
    let threads = threads.min(subjects.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(subjects.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(subject) = subjects.get(at) else { break };
                    let answer = work(subject);
                    // The scope propagates another thread's panic.
                    done.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((at, answer));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, answer)| answer).collect()
}
