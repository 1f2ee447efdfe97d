//! The search for sandboxes.
//!
//! The kernel lists no namespaces: a thread looks through `/proc` for them, when
//! something has changed but once a second at the most, and each ten seconds. A sandbox
//! is let go when whoever keeps it does: a descriptor of ours must not keep it, nor the
//! VNI of a VXLAN device in it.
//!
//! Looking into other processes needs rights that nothing else here needs. A program that
//! gives them up starts a [`Finder`] before: a process that looks, and hands over the
//! namespaces that it found.

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
use sys::monitor::{Answer, Asker, Item, Monitor};
use sys::netns::NetNs;

use crate::lock::lock;
use crate::{Error, Result};

/// At least between two searches.
const PAUSE: Duration = Duration::from_secs(1);
/// At most between two searches.
const PERIOD: Duration = Duration::from_secs(10);
/// Between two looks at whether known sandboxes are kept.
const LOOK: Duration = Duration::from_millis(200);
/// What a search may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The name of the process that looks.
const FINDER: &CStr = c"accel-finder";
/// Asks for all sandboxes.
const FIND: u8 = b'f';
/// Asks which of these are kept.
const KEPT: u8 = b'k';

/// A sandbox that was found.
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
            // It is looked at again: a namespace, and one of networks.
            netns: NetNs::from_fd(item.descriptor?).ok()?,
            path: OsStr::from_bytes(path).into(),
            name: String::from_utf8_lossy(name).into_owned(),
            underlay: u32::from_ne_bytes(*underlay),
        })
    }
}

/// A namespace that someone keeps at a path.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(super) inode: u64,
    pub(super) path: PathBuf,
}

impl Kept {
    /// Whether it still is. The path may lead to a descriptor of a process that has put
    /// another file there.
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

/// A process that looks into other processes for the fast path, which then needs no right
/// to. It takes no request but for all sandboxes of one namespace, and for whether a path
/// still leads to a namespace. Dropping it ends the process.
#[derive(Debug)]
pub struct Finder {
    monitor: Monitor,
    stopped: AtomicBool,
}

impl Finder {
    /// Starts it, for sandboxes of `home`; `prepare` gives up what it has no use for. To be
    /// called before there are threads.
    ///
    /// # Errors
    /// When there can be no other process, or it could not be prepared.
    pub fn start(home: &NetNs, prepare: impl FnOnce() -> sys::Result<()>) -> Result<Finder> {
        let home = home.try_clone()?;
        let kept = [home.as_fd().as_raw_fd()];
        let monitor =
            Monitor::start(FINDER, &kept, prepare, |asker, request| answer(&home, asker, request))?;
        Ok(Finder { monitor, stopped: AtomicBool::new(false) })
    }

    /// Ends the process, and whatever is asked of it now.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.monitor.stop();
    }

    fn ask(&self, request: &[u8]) -> Result<Vec<Item>> {
        match self.monitor.ask(request, LIMIT)? {
            Answer::Found(items) => Ok(items),
            Answer::Failed(problem) => Err(Error::Finder { problem }),
        }
    }
}

/// What the other process says.
fn answer(home: &NetNs, asker: &Asker, request: &[u8]) -> std::result::Result<Vec<Item>, String> {
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
        // Nobody asks anything else.
        _ => Err("no such request".into()),
    }
}

/// Where it is looked from.
#[derive(Clone)]
pub(crate) enum Source {
    /// This process.
    Here,
    /// Another.
    Finder(Arc<Finder>),
}

impl Source {
    /// Whether it was ended on purpose.
    fn is_stopped(&self) -> bool {
        matches!(self, Source::Finder(finder) if finder.stopped.load(Ordering::Acquire))
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

    /// Inodes of those that are kept no more.
    fn gone(&self, known: &[Kept]) -> Result<BTreeSet<u64>> {
        let mut gone: BTreeSet<u64> = known.iter().map(|one| one.inode).collect();
        match self {
            Source::Here => {
                for one in known.iter().filter(|one| one.is_there()) {
                    gone.remove(&one.inode);
                }
            }
            Source::Finder(finder) => {
                // Each fits into a request: a path has at most 4 KiB.
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

/// Sandboxes of `home`. Gives tenants' namespaces numbers there, by which a program asks
/// for their sockets.
///
/// A namespace of another user namespace than `home`'s is no sandbox: whoever made it may
/// change what is in it without any right over `home`. Ends early, with what it has found,
/// once `goes_on` says no.
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
        // One that is just going is no sandbox.
        let Ok(netlink) = Netlink::open_in(&found.netns) else { continue };
        let Ok(links) = netlink.links() else { continue };
        if !links.iter().any(|link| link.vxlan.is_some() && link.link_netns.is_some()) {
            continue;
        }
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

/// What the search and who follows its finds both have.
#[derive(Default)]
struct Common {
    stop: AtomicBool,
    /// The other process that looked is gone.
    lost: AtomicBool,
    /// Sandboxes that are followed.
    known: Mutex<Vec<Kept>>,
    /// Those of them that nobody keeps any more.
    gone: Mutex<BTreeSet<u64>>,
}

/// The thread that looks for sandboxes.
pub(crate) struct Search {
    wake: Option<SyncSender<()>>,
    common: Arc<Common>,
    found: Receiver<Vec<FoundSandbox>>,
    thread: Option<JoinHandle<()>>,
}

impl Search {
    /// Starts one, and gives what there is now. Ends early, with what it has found, once
    /// `goes_on` says no.
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
                        // The finder was killed. Nobody tells any more who keeps a sandbox,
                        // and a descriptor of ours must not: all go back to the slow path.
                        Err(error) => {
                            tracing::warn!("sandboxes are let go and not looked for: {error}");
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
                        Err(error) => tracing::warn!("sandboxes are not looked for: {error}"),
                    }
                }
            })
            .map_err(|e| sys::Error::io("start thread", "accel-search", &e))?;
        Ok((Search { wake: Some(wake), common, found, thread: Some(thread) }, first))
    }

    /// Something has changed.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            // Full: it is awake already. Gone: it has said why.
            let _ = wake.try_send(());
        }
    }

    /// The latest answer, if there is a new one.
    pub(crate) fn found(&self) -> Option<Vec<FoundSandbox>> {
        self.found.try_iter().last()
    }

    /// Those of the known ones that nobody keeps any more.
    pub(crate) fn gone(&self) -> BTreeSet<u64> {
        std::mem::take(&mut lock(&self.common.gone))
    }

    /// Whether nobody looks any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.common.lost.load(Ordering::Acquire)
    }

    /// These are followed now.
    pub(crate) fn know(&self, known: Vec<Kept>) {
        *lock(&self.common.known) = known;
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.wake = None;
        // A search of many processes takes longer than anyone waits for the end.
        self.common.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
