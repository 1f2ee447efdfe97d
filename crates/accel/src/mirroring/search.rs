//! Finds sandboxes.
//!
//! The kernel cannot list namespaces, so a thread searches `/proc`: after a change, but at most
//! once a second, and every ten seconds. A sandbox is released when its owner releases it: a file
//! descriptor of this process must not keep it alive, nor the VNI of a VXLAN device in it.
//!
//! Searching other processes needs privileges that nothing else here needs. A program that drops
//! them first starts a [`Finder`], a process that searches and passes the namespaces back.

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netstate::Netlink;
use netstate::namespace::discover_while;
use netstate::netns_holder::{Held, holder};
use sys::monitor::{Answer, Asker, Item, Monitor};
use sys::netns::NetNs;

use crate::lock::lock;
use crate::{Error, Result};

/// Minimum interval between searches.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum interval between searches.
const PERIOD: Duration = Duration::from_secs(10);
/// Interval between checks whether known sandboxes still exist.
const LOOK: Duration = Duration::from_millis(200);
/// Time limit of a search.
const LIMIT: Duration = Duration::from_secs(30);

/// Name of the finder process.
const FINDER: &CStr = c"accel-finder";
/// Request: find all sandboxes.
const FIND: u8 = b'f';
/// Request: which of these sandboxes still exist.
const KEPT: u8 = b'k';
/// Request: which other process keeps the namespace with the NICs alive. With the last answer.
const HELD: u8 = b'h';

/// A sandbox found by a search.
pub(crate) struct FoundSandbox {
    pub(super) netns: NetNs,
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) underlay: u32,
}

impl FoundSandbox {
    pub(crate) fn inode(&self) -> u64 {
        self.netns.inode()
    }

    fn item(self) -> Item {
        let path = self.path.as_os_str().as_bytes();
        let text = [
            &self.underlay.to_ne_bytes()[..],
            &(path.len() as u32).to_ne_bytes(),
            path,
            self.name.as_bytes(),
        ]
        .concat();
        Item { descriptor: Some(self.netns.into()), text }
    }

    fn of(item: Item) -> Option<FoundSandbox> {
        let (underlay, rest) = item.text.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (path, name) = rest.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
        Some(FoundSandbox {
            // Verify that the descriptor is a network namespace.
            netns: NetNs::from_fd(item.descriptor?).ok()?,
            path: OsStr::from_bytes(path).into(),
            name: String::from_utf8_lossy(name).into_owned(),
            underlay: u32::from_ne_bytes(*underlay),
        })
    }
}

/// A path that keeps a namespace alive.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(super) inode: u64,
    pub(super) path: PathBuf,
}

impl Kept {
    /// Whether it still does. The path may be a descriptor of a process that has since reused its
    /// number.
    fn is_there(&self) -> bool {
        NetNs::open(&self.path).is_ok_and(|there| there.inode() == self.inode)
    }

    fn write(&self, to: &mut Vec<u8>) {
        let path = self.path.as_os_str().as_bytes();
        to.extend(self.inode.to_ne_bytes());
        to.extend((path.len() as u32).to_ne_bytes());
        to.extend(path);
    }

    fn read(from: &mut &[u8]) -> Option<Kept> {
        let (inode, rest) = from.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (path, rest) = rest.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
        *from = rest;
        Some(Kept { inode: u64::from_ne_bytes(*inode), path: OsStr::from_bytes(path).into() })
    }
}

/// A process that searches other processes for the fast path, which then needs no privileges for
/// that. It accepts three requests: find all sandboxes of one namespace, check whether paths still
/// lead to a namespace, and check whether another process keeps the namespace alive. Dropping it
/// ends the process.
#[derive(Debug)]
pub struct Finder {
    monitor: Monitor,
    /// Held during a request.
    asking: Mutex<()>,
    stopped: AtomicBool,
}

impl Finder {
    /// Starts the process, for sandboxes of `home`. `own` are further processes of the fast path,
    /// which do not count as keeping `home` alive. `prepare` drops privileges that it does not
    /// need. Call this before any thread exists.
    ///
    /// # Errors
    /// If the process cannot be started or `prepare` fails.
    pub fn start(
        home: &NetNs,
        own: &[u32],
        prepare: impl FnOnce() -> sys::Result<()>,
    ) -> Result<Finder> {
        let home = home.try_clone()?;
        let kept = [home.as_fd().as_raw_fd()];
        let own = [own, &[std::process::id()]].concat();
        let monitor = Monitor::start(FINDER, &kept, prepare, |asker, request| {
            answer(&home, &own, asker, request)
        })?;
        Ok(Finder { monitor, asking: Mutex::default(), stopped: AtomicBool::new(false) })
    }

    /// Ends the process and any pending request.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.monitor.stop();
    }

    /// Looks for another process that keeps the namespace with the NICs alive. `last` is the process
    /// that the last call found.
    pub(super) fn holder(&self, last: Option<u32>) -> Result<Held> {
        let request = [&[HELD][..], &last.unwrap_or(0).to_ne_bytes()].concat();
        let text = self.ask(&request)?.pop().map(|item| item.text).unwrap_or_default();
        Ok(match text.split_first() {
            Some((b'b', pid)) => match pid.try_into() {
                Ok(pid) => Held::By(u32::from_ne_bytes(pid)),
                Err(_) => Held::Unknown,
            },
            Some((b'n', [])) => Held::No,
            _ => Held::Unknown,
        })
    }

    /// Whether the process was ended on purpose.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn ask(&self, request: &[u8]) -> Result<Vec<Item>> {
        let _asking = lock(&self.asking);
        match self.monitor.ask(request, LIMIT)? {
            Answer::Found(items) => Ok(items),
            Answer::Failed(problem) => Err(Error::Finder { problem }),
        }
    }
}

/// Answers a request in the finder process.
fn answer(
    home: &NetNs,
    own: &[u32],
    asker: &Asker,
    request: &[u8],
) -> std::result::Result<Vec<Item>, String> {
    match request.split_first() {
        Some((&FIND, [])) => {
            let found = find(home, &|| asker.is_there()).map_err(|error| error.to_string())?;
            Ok(found.into_iter().map(FoundSandbox::item).collect())
        }
        Some((&KEPT, mut rest)) => {
            let mut kept = Vec::new();
            while let Some(one) = Kept::read(&mut rest) {
                if one.is_there() {
                    kept.extend(one.inode.to_ne_bytes());
                }
            }
            Ok(vec![Item { descriptor: None, text: kept }])
        }
        Some((&HELD, last)) => {
            let last = last.try_into().map(u32::from_ne_bytes).ok().filter(|last| *last > 0);
            let text = match holder(home.inode(), &[own, &[std::process::id()]].concat(), last) {
                Held::By(pid) => [&b"b"[..], &pid.to_ne_bytes()].concat(),
                Held::No => b"n".to_vec(),
                Held::Unknown => b"u".to_vec(),
            };
            Ok(vec![Item { descriptor: None, text }])
        }
        _ => Err("unknown request".into()),
    }
}

/// Process that searches.
#[derive(Clone)]
pub(crate) enum Source {
    /// This process.
    Here,
    /// A finder process.
    Finder(Arc<Finder>),
}

impl Source {
    /// Whether the process was ended on purpose.
    fn is_stopped(&self) -> bool {
        matches!(self, Source::Finder(finder) if finder.is_stopped())
    }

    fn find(&self, home: &NetNs, goes_on: &dyn Fn() -> bool) -> Result<Vec<FoundSandbox>> {
        match self {
            Source::Here => find(home, goes_on),
            Source::Finder(finder) => {
                let found = finder.ask(&[FIND])?;
                Ok(found.into_iter().filter_map(FoundSandbox::of).collect())
            }
        }
    }

    /// Returns the inodes of sandboxes that no longer exist.
    fn gone(&self, known: &[Kept]) -> Result<BTreeSet<u64>> {
        let mut gone: BTreeSet<u64> = known.iter().map(|one| one.inode).collect();
        match self {
            Source::Here => {
                for one in known.iter().filter(|one| one.is_there()) {
                    gone.remove(&one.inode);
                }
            }
            Source::Finder(finder) => {
                // Eight fit into a request: a path has at most 4 KiB.
                for some in known.chunks(8) {
                    let mut request = vec![KEPT];
                    some.iter().for_each(|one| one.write(&mut request));
                    for item in finder.ask(&request)? {
                        for inode in item.text.as_chunks().0 {
                            gone.remove(&u64::from_ne_bytes(*inode));
                        }
                    }
                }
            }
        }
        Ok(gone)
    }
}

/// Finds sandboxes of `home`. Assigns ids there to tenants' namespaces, because BPF programs look
/// up tenants' sockets by id.
///
/// A namespace of another user namespace than `home`'s is ignored: its owner may change its content
/// without any privilege over `home`. Ends early with partial results once `goes_on` returns false.
pub(crate) fn find(home: &NetNs, goes_on: &dyn Fn() -> bool) -> Result<Vec<FoundSandbox>> {
    let machine = discover_while(goes_on)?;
    let owner = home.owner()?;
    let at_home = Netlink::open_in(home)?;
    let mut all = Vec::new();
    for found in machine.namespaces.values() {
        if found.netns.inode() == home.inode() || found.owner != owner {
            continue;
        }
        if !goes_on() {
            break;
        }
        // Skip namespaces that are being removed.
        let Ok(netlink) = Netlink::open_in(&found.netns) else { continue };
        let Ok(links) = netlink.links() else { continue };
        // Not a sandbox: no VXLAN device with its underlay elsewhere.
        if !links.iter().any(|link| link.vxlan.is_some() && link.link_netns.is_some()) {
            continue;
        }
        // Without an id for `home`, no underlay can be there.
        let Ok(Some(underlay)) = netlink.number_of(home) else { continue };
        let is_here = |link: &netstate::interface::Interface| {
            link.vxlan.is_some() && link.link_netns == Some(underlay)
        };
        if !links.iter().any(is_here) {
            continue;
        }
        let tenants = links.iter().filter(|link| link.kind.as_deref() == Some("veth"));
        for tenant in tenants.filter_map(|link| link.link_netns) {
            if tenant != underlay && !matches!(netlink.number_there(tenant, underlay), Ok(Some(_)))
            {
                let numbered = |other: &&netstate::namespace::Found| matches!(netlink.number_of(&other.netns), Ok(Some(number)) if number == tenant);
                if let Some(other) = machine.namespaces.values().find(numbered) {
                    at_home.give_number(&other.netns)?;
                }
            }
        }
        let by_inode = || format!("net:[{}]", found.netns.inode());
        all.push(FoundSandbox {
            netns: found.netns.try_clone()?,
            path: found.path.clone(),
            name: found.names.first().cloned().unwrap_or_else(by_inode),
            underlay,
        });
    }
    Ok(all)
}

/// State shared by the search thread and the reconciler.
#[derive(Default)]
struct Common {
    stop: AtomicBool,
    /// The finder process has ended.
    lost: AtomicBool,
    /// Sandboxes that are watched.
    known: Mutex<Vec<Kept>>,
    /// Watched sandboxes that no longer exist.
    gone: Mutex<BTreeSet<u64>>,
}

/// The thread that searches for sandboxes.
pub(crate) struct Search {
    wake: Option<SyncSender<()>>,
    common: Arc<Common>,
    found: Receiver<Vec<FoundSandbox>>,
    thread: Option<JoinHandle<()>>,
}

impl Search {
    /// Starts the search and returns the sandboxes that exist now. Ends early with partial results
    /// once `goes_on` returns false.
    pub(crate) fn start(
        home: &NetNs,
        source: &Source,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(Search, Vec<FoundSandbox>)> {
        let first = source.find(home, goes_on)?;
        let (home, theirs) = (home.try_clone()?, source.clone());
        let (wake, woken) = sync_channel(1);
        let (tell, found) = channel();
        let common = Arc::new(Common::default());
        let shared = common.clone();
        let thread = std::thread::Builder::new()
            .name("accel-search".into())
            .spawn(move || {
                let mut last = Instant::now();
                let mut wanted = false;
                loop {
                    match woken.recv_timeout(LOOK) {
                        Err(RecvTimeoutError::Disconnected) => return,
                        Ok(()) => wanted = true,
                        Err(RecvTimeoutError::Timeout) => {}
                    }
                    let known = lock(&shared.known).clone();
                    match theirs.gone(&known) {
                        Ok(gone) => lock(&shared.gone).extend(gone),
                        Err(_) if theirs.is_stopped() => return,
                        // The finder process was killed, so nothing detects the end of a sandbox,
                        // and our descriptor must not keep it alive. Release all sandboxes.
                        Err(error) => {
                            tracing::warn!(
                                "all sandboxes are released and take the slow path: {error}"
                            );
                            shared.lost.store(true, Ordering::Release);
                            lock(&shared.gone).extend(known.iter().map(|one| one.inode));
                            return;
                        }
                    }
                    if last.elapsed() < if wanted { PAUSE } else { PERIOD } {
                        continue;
                    }
                    (last, wanted) = (Instant::now(), false);
                    match theirs.find(&home, &|| !shared.stop.load(Ordering::Acquire)) {
                        Ok(all) => {
                            if tell.send(all).is_err() {
                                return;
                            }
                        }
                        Err(_) if theirs.is_stopped() => return,
                        Err(error) => tracing::warn!("cannot search for sandboxes: {error}"),
                    }
                }
            })
            .map_err(|e| sys::Error::io("start thread", "accel-search", &e))?;
        Ok((Search { wake: Some(wake), common, found, thread: Some(thread) }, first))
    }

    /// Requests a search because something has changed.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // Full: a search is already requested. Disconnected: the thread has logged why.
            let _ = wake.try_send(());
        }
    }

    /// Returns the latest result, if there is a new one.
    pub(crate) fn found(&self) -> Option<Vec<FoundSandbox>> {
        self.found.try_iter().last()
    }

    /// Takes the watched sandboxes that no longer exist.
    pub(crate) fn gone(&self) -> BTreeSet<u64> {
        std::mem::take(&mut lock(&self.common.gone))
    }

    /// Whether the finder process has ended.
    pub(crate) fn is_lost(&self) -> bool {
        self.common.lost.load(Ordering::Acquire)
    }

    /// Sets the list of watched sandboxes.
    pub(crate) fn know(&self, known: Vec<Kept>) {
        *lock(&self.common.known) = known;
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.wake = None;
        // Searching many processes can take longer than a caller wants to wait.
        self.common.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
