//! One network while it runs: what is configured, which a reload replaces, and
//! what was learned, which stays.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use packet::encap::Encap;
use packet::ethernet::MacAddr;
use packet::vxlan::Vni;

use super::config::{Entries, NetworkConfig};
use super::fdb::Fdb;
use super::neighbour::{Claim, Neighbour, Neighbours, Who};
use super::place::Place;
use super::table::{Learned, Limits};
use super::underlay::Underlay;
use crate::counters::Resolution;

/// Seconds between two questions for a path's MTU.
const PROBE_INTERVAL: u32 = 1;

/// A remote end, or the group of all.
#[derive(Debug)]
pub(super) struct Remote {
    address: IpAddr,
    /// MTU of the path in bytes.
    mtu: AtomicU32,
    /// Second of the last question for it.
    probed: AtomicU32,
    /// Outer headers of what is handed over whole.
    encap: Option<Encap>,
    /// Whether the way to it is that of what is handed over whole.
    whole: AtomicBool,
}

/// Rules of one network as the configuration has them; a reload replaces them.
#[derive(Debug)]
pub(super) struct Policy {
    any_remote: bool,
    learning: bool,
    limits: Limits,
    /// Of neighbours; `None`: nothing is answered.
    neighbours: Option<Limits>,
    /// Configured remote ends and the group, sorted by address.
    remotes: Vec<Remote>,
    /// MTU of the path to remote ends that are not among these, in bytes.
    other_mtu: u32,
    pub(super) replication: Vec<IpAddr>,
}

impl Policy {
    pub(super) fn new(config: &NetworkConfig, underlay: &Underlay) -> sys::Result<Policy> {
        Policy::with_paths(config, |address| {
            Ok(Remote {
                address,
                mtu: underlay.path_mtu(address)?.into(),
                probed: 0.into(),
                // Only the sockets know the way to a group.
                encap: underlay.encap(config.vni, address).filter(|_| !address.is_multicast()),
                whole: underlay.second_tap().is_some_and(|tap| tap.leads_to(address)).into(),
            })
        })
    }

    /// A policy whose paths take everything.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn without_paths(config: &NetworkConfig) -> Policy {
        let mtu = u32::from(u16::MAX);
        Policy::with_paths(config, |address| {
            Ok(Remote {
                address,
                mtu: mtu.into(),
                probed: 0.into(),
                encap: None,
                whole: false.into(),
            })
        })
        .unwrap()
    }

    fn with_paths(
        config: &NetworkConfig,
        remote: impl Fn(IpAddr) -> sys::Result<Remote>,
    ) -> sys::Result<Policy> {
        let mut addresses = config.remotes.clone();
        addresses.extend(config.group);
        addresses.sort_unstable();
        addresses.dedup();
        let remotes = addresses.into_iter().map(remote).collect::<sys::Result<Vec<_>>>()?;
        let least = remotes.iter().map(|remote| remote.mtu.load(Ordering::Relaxed)).min();
        let mut replication = config.replication().to_vec();
        replication.sort_unstable();
        replication.dedup();
        Ok(Policy {
            any_remote: config.any_remote,
            learning: config.learning,
            limits: config.limits(),
            neighbours: config.neighbour_limits(),
            remotes,
            // What nobody knows is not judged here; the kernel does when it is sent.
            other_mtu: least.unwrap_or(u32::from(u16::MAX)),
            replication,
        })
    }

    /// Whether questions for neighbours are answered.
    pub(super) fn suppresses(&self) -> bool {
        self.neighbours.is_some()
    }

    fn remote(&self, address: IpAddr) -> Option<&Remote> {
        let at = self.remotes.binary_search_by_key(&address, |remote| remote.address);
        at.ok().map(|at| &self.remotes[at])
    }

    /// Whether that end may send.
    pub(super) fn may_send(&self, address: IpAddr) -> bool {
        self.any_remote || self.remote(address).is_some()
    }

    /// The least MTU of the paths to the remote ends, in bytes.
    pub(super) fn least_mtu(&self) -> u32 {
        self.other_mtu
    }

    /// MTU of the path to a remote end in bytes, as last known.
    pub(super) fn path_mtu(&self, address: IpAddr) -> u32 {
        self.remote(address).map_or(self.other_mtu, |remote| remote.mtu.load(Ordering::Relaxed))
    }

    /// The outer headers of a packet of `outer` bytes that can go to a remote end
    /// whole; `None`: the sockets take it.
    pub(super) fn whole(&self, address: IpAddr, outer: usize) -> Option<&Encap> {
        let remote = self.remote(address)?;
        // Nobody would fragment it on that way.
        let fits = outer <= remote.mtu.load(Ordering::Relaxed) as usize;
        let whole = fits && remote.whole.load(Ordering::Relaxed);
        remote.encap.as_ref().filter(|_| whole)
    }

    /// Asks for the MTU of every path, and for the ways if `routes`.
    pub(super) fn look_at_paths(&self, underlay: &Underlay, routes: bool) {
        for remote in &self.remotes {
            if routes {
                let whole = underlay.second_tap().is_some_and(|tap| tap.leads_to(remote.address));
                remote.whole.store(whole, Ordering::Relaxed);
            }
            // Without a route the sockets say so.
            if let Ok(mtu) = underlay.path_mtu(remote.address) {
                remote.mtu.store(mtu, Ordering::Relaxed);
            }
        }
    }

    /// Asks the kernel for that MTU again, unless it was asked just now.
    pub(super) fn probe(&self, address: IpAddr, underlay: &Underlay, now: u32) {
        let Some(remote) = self.remote(address) else { return };
        let last = remote.probed.swap(now, Ordering::Relaxed);
        if now.saturating_sub(last) < PROBE_INTERVAL && last != 0 {
            return;
        }
        // Without a route nothing can be sent either, which is counted then.
        if let Ok(mtu) = underlay.path_mtu(address) {
            remote.mtu.store(mtu, Ordering::Relaxed);
        }
    }
}

/// A network, shared by all threads.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) vni: Vni,
    /// MTU of the TAP in bytes.
    pub(super) mtu: u32,
    pub(super) fdb: Fdb,
    pub(super) neighbours: Neighbours,
    policy: Mutex<Arc<Policy>>,
    generation: AtomicU64,
}

impl Network {
    pub(super) fn new(
        config: &NetworkConfig,
        entries: &Entries,
        policy: Policy,
        mtu: u32,
    ) -> Network {
        Network {
            vni: config.vni,
            mtu,
            fdb: Fdb::new(entries.places()),
            neighbours: Neighbours::new(entries.neighbours()),
            policy: Mutex::new(Arc::new(policy)),
            generation: AtomicU64::new(0),
        }
    }

    /// What is configured now.
    pub(super) fn policy(&self) -> Arc<Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes when what is configured does.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces what is configured.
    pub(super) fn reload(&self, policy: Policy, entries: &Entries) {
        let policy = Arc::new(policy);
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner) = policy.clone();
        self.generation.fetch_add(1, Ordering::Release);
        let keep = |place| match place {
            Place::Local => true,
            Place::Remote(remote) => policy.may_send(remote),
        };
        self.fdb.configure(entries.places(), keep);
        self.neighbours.configure(entries.neighbours(), |who| policy.suppresses() && keep(who));
    }

    /// Where an address is, by what is configured and learned.
    pub(super) fn find(&self, policy: &Policy, mac: MacAddr, now: u32) -> Option<Place> {
        self.fdb.find(mac, now, &policy.limits)
    }

    /// Takes notice of a source address.
    pub(super) fn learn(&self, policy: &Policy, mac: MacAddr, place: Place, now: u32) -> Learned {
        if policy.learning {
            return self.fdb.learn(mac, place, now, &policy.limits);
        }
        if self.fdb.contradicts(mac, place) { Learned::Configured } else { Learned::Known }
    }

    /// Takes notice of what a sender says about itself.
    pub(super) fn notice(&self, policy: &Policy, claim: Claim, place: Place, now: u32) -> Learned {
        let Some(limits) = &policy.neighbours else { return Learned::Known };
        let (Claim::Has(address, _) | Claim::Uses(address, _)) = claim;
        if place == Place::Local {
            // Neighbours of the same side answer for themselves.
            self.neighbours.forget(address);
            return Learned::Known;
        }
        let known = self.neighbours.find(address, now, limits).map(|(neighbour, _)| neighbour);
        match (claim, known) {
            // RFC 4861, section 7.2.5: it does not replace another's.
            (Claim::Has(_, new), Some(known)) if !new.overrides && new.mac != known.mac => {
                Learned::Known
            }
            (Claim::Has(_, new), _) => self.neighbours.learn(address, new, place, now, limits),
            (Claim::Uses(_, mac), Some(known)) if known.mac == mac => {
                self.neighbours.learn(address, known, place, now, limits)
            }
            // It may be a router or none: that an advertisement will say.
            (Claim::Uses(..), _) => {
                self.neighbours.forget(address);
                Learned::Known
            }
        }
    }

    /// Who it is that is asked for, if it is at a remote end.
    ///
    /// # Errors
    /// Why there is no answer.
    pub(super) fn resolve(
        &self,
        policy: &Policy,
        who: &Who,
        now: u32,
    ) -> Result<Neighbour, Resolution> {
        let limits = policy.neighbours.as_ref().ok_or(Resolution::Unknown)?;
        let known = self.neighbours.find(who.address(), now, limits);
        let (neighbour, configured) = known.ok_or(Resolution::Unknown)?;
        if neighbour.mac == who.mac {
            return Err(Resolution::OwnSide);
        }
        match self.find(policy, neighbour.mac, now) {
            Some(Place::Remote(_)) => Ok(neighbour),
            Some(Place::Local) => Err(Resolution::OwnSide),
            None if configured => Ok(neighbour),
            // It may be anywhere by now.
            None => Err(Resolution::Unknown),
        }
    }
}
