//! Namespaces with VXLAN devices whose underlay is in the namespace with the NICs, as
//! Docker's overlay networks have them.
//!
//! The kernel lists no namespaces: a thread looks through `/proc` for them, when
//! something has changed but once a second at the most, and each ten seconds. A sandbox
//! is let go when whoever keeps it does: a descriptor of ours must not keep it, nor the
//! VNI of a VXLAN device in it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel,
};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netstate::Netlink;
use netstate::namespace::discover;
use sys::netns::NetNs;

use crate::Result;
use crate::bpf::Programs;
use crate::plan::{Facts, Sandboxed};
use crate::space::Space;
use crate::trampoline::Trampoline;

/// At least between two searches.
const PAUSE: Duration = Duration::from_secs(1);
/// At most between two searches.
const PERIOD: Duration = Duration::from_secs(10);

/// A sandbox that was found.
pub(crate) struct Found {
    netns: NetNs,
    path: PathBuf,
    name: String,
    underlay: u32,
}

impl Found {
    pub(crate) fn inode(&self) -> u64 {
        self.netns.inode()
    }
}

/// Sandboxes of `home`. Gives tenants' namespaces numbers there, by which a program asks
/// for their sockets.
pub(crate) fn find(home: &NetNs) -> Result<Vec<Found>> {
    let machine = discover()?;
    let at_home = Netlink::open_in(home)?;
    let mut all = Vec::new();
    for found in machine.namespaces.values() {
        if found.netns.inode() == home.inode() {
            continue;
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
        all.push(Found {
            netns: found.netns.try_clone()?,
            path: found.path.clone(),
            name: found.names.first().cloned().unwrap_or_else(by_inode),
            underlay,
        });
    }
    Ok(all)
}

/// A sandbox that is followed.
pub(crate) struct Sandbox {
    pub(crate) space: Space,
    pub(crate) trampoline: Option<Trampoline>,
    /// Why there can be none.
    pub(crate) problem: Option<String>,
    path: PathBuf,
    name: String,
    underlay: u32,
}

impl Sandbox {
    pub(crate) fn new(number: u16, found: Found, programs: &Programs) -> Result<Sandbox> {
        let space = Space::new(number, found.netns, programs.load_for(number)?)?;
        let Found { path, name, underlay, .. } = found;
        Ok(Sandbox { space, trampoline: None, problem: None, path, name, underlay })
    }

    /// Whether whoever keeps it still does.
    pub(crate) fn is_kept(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|meta| meta.ino() == self.space.netns.inode())
    }

    /// What a plan is made from.
    pub(crate) fn facts(&self, mut facts: Facts) -> Result<Sandboxed> {
        let mut numbers = BTreeMap::new();
        for link in facts.overlay.links.values() {
            if let (Some("veth"), Some(tenant)) = (link.kind.as_deref(), link.link_netns)
                && let Ok(Some(number)) = self.space.netlink.number_there(tenant, self.underlay)
            {
                numbers.insert(tenant, number);
            }
        }
        facts.numbers = Some(numbers);
        if let Some(trampoline) = &self.trampoline {
            facts.overlay.links.remove(&trampoline.inner);
        }
        Ok(Sandboxed {
            name: self.name.clone(),
            facts,
            underlay: self.underlay,
            trampoline: self.trampoline.map(|both| (both.inner, both.outer)),
            problem: self.problem.clone(),
        })
    }
}

/// The thread that looks for sandboxes.
pub(crate) struct Search {
    wake: Option<SyncSender<()>>,
    found: Receiver<Vec<Found>>,
    thread: Option<JoinHandle<()>>,
}

impl Search {
    pub(crate) fn start(home: &NetNs) -> Result<Search> {
        let home = home.try_clone()?;
        let (wake, woken) = sync_channel(1);
        let (tell, found) = channel();
        let thread = std::thread::Builder::new()
            .name("accel-search".into())
            .spawn(move || {
                let mut last = Instant::now();
                loop {
                    match woken.recv_timeout(PERIOD) {
                        Err(RecvTimeoutError::Disconnected) => return,
                        Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                    }
                    // Also ends at once when told to.
                    let rest = PAUSE.saturating_sub(last.elapsed());
                    let end = Instant::now() + rest;
                    while let Some(rest) = end.checked_duration_since(Instant::now()) {
                        match woken.recv_timeout(rest) {
                            Err(RecvTimeoutError::Disconnected) => return,
                            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                        }
                    }
                    last = Instant::now();
                    match find(&home) {
                        Ok(all) => {
                            if tell.send(all).is_err() {
                                return;
                            }
                        }
                        Err(error) => tracing::warn!("sandboxes are not looked for: {error}"),
                    }
                }
            })
            .map_err(|e| sys::Error::io("start thread", "accel-search", &e))?;
        Ok(Search { wake: Some(wake), found, thread: Some(thread) })
    }

    /// Something has changed.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake
            && let Err(TrySendError::Disconnected(())) = wake.try_send(())
        {
            tracing::warn!("sandboxes are not looked for any more");
        }
    }

    /// The latest answer, if there is a new one.
    pub(crate) fn found(&self) -> Option<Vec<Found>> {
        self.found.try_iter().last()
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
