//! A network at run time: its configuration, which a reload replaces, and its learned entries,
//! which a reload keeps.

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

/// Minimum time between two path MTU queries, seconds.
const PROBE_INTERVAL: u32 = 1;

/// A remote endpoint, or a multicast group.
#[derive(Debug)]
pub(super) struct Remote {
    address: IpAddr,
    /// MTU of the path in bytes.
    mtu: AtomicU32,
    /// Second of the last MTU query.
    probed: AtomicU32,
    /// Outer headers for packets that are passed on unsegmented.
    encap: Option<Encap>,
    /// Whether the route to it uses the NIC of the second TAP.
    whole: AtomicBool,
}

/// Configured rules of one network. A reload replaces them.
#[derive(Debug)]
pub(super) struct Policy {
    any_remote: bool,
    learning: bool,
    limits: Limits,
    /// Limits of learned neighbours; `None`: no neighbour suppression.
    neighbours: Option<Limits>,
    /// Configured remote endpoints and the group, sorted by address.
    remotes: Vec<Remote>,
    /// Path MTU to remote endpoints that are not in `remotes`, in bytes.
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
                // A group is reached through the sockets only, which know its link.
                encap: underlay.encap(config.vni, address).filter(|_| !address.is_multicast()),
                whole: underlay.second_tap().is_some_and(|tap| tap.leads_to(address)).into(),
            })
        })
    }

    /// Returns a policy whose paths have no MTU limit.
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
            // Without any known path MTU, leave the check to the kernel when the packet is sent.
            other_mtu: least.unwrap_or(u32::from(u16::MAX)),
            replication,
        })
    }

    /// Returns whether requests for neighbours are answered.
    pub(super) fn suppresses(&self) -> bool {
        self.neighbours.is_some()
    }

    fn remote(&self, address: IpAddr) -> Option<&Remote> {
        let at = self.remotes.binary_search_by_key(&address, |remote| remote.address);
        at.ok().map(|at| &self.remotes[at])
    }

    /// Returns whether packets from that endpoint are accepted.
    pub(super) fn may_send(&self, address: IpAddr) -> bool {
        self.any_remote || self.remote(address).is_some()
    }

    /// Returns the smallest path MTU of the remote endpoints, in bytes.
    pub(super) fn least_mtu(&self) -> u32 {
        self.other_mtu
    }

    /// Returns the last known path MTU to a remote endpoint in bytes.
    pub(super) fn path_mtu(&self, address: IpAddr) -> u32 {
        self.remote(address).map_or(self.other_mtu, |remote| remote.mtu.load(Ordering::Relaxed))
    }

    /// Returns the outer headers for a packet of `outer` bytes that can be passed on unsegmented;
    /// `None`: it must use the sockets.
    pub(super) fn whole(&self, address: IpAddr, outer: usize) -> Option<&Encap> {
        let remote = self.remote(address)?;
        // The second TAP does not fragment.
        let fits = outer <= remote.mtu.load(Ordering::Relaxed) as usize;
        let whole = fits && remote.whole.load(Ordering::Relaxed);
        // A packet that exceeds the path MTU is fragmented by the socket's path, not by the second
        // TAP.
        remote.encap.as_ref().filter(|_| whole)
    }

    /// Queries the MTU of every path, and the routes if `routes` is true.
    pub(super) fn look_at_paths(&self, underlay: &Underlay, routes: bool) {
        for remote in &self.remotes {
            if routes {
                let whole = underlay.second_tap().is_some_and(|tap| tap.leads_to(remote.address));
                remote.whole.store(whole, Ordering::Relaxed);
            }
            // If there is no route, sending through the sockets reports it.
            if let Ok(mtu) = underlay.path_mtu(remote.address) {
                remote.mtu.store(mtu, Ordering::Relaxed);
            }
        }
    }

    /// Queries the path MTU to an endpoint, unless that was done within the last second.
    pub(super) fn probe(&self, address: IpAddr, underlay: &Underlay, now: u32) {
        // Not an endpoint of this policy.
        let Some(remote) = self.remote(address) else { return };
        let last = remote.probed.swap(now, Ordering::Relaxed);
        // One probe at a time: each lost packet would otherwise cause another one.
        if now.saturating_sub(last) < PROBE_INTERVAL && last != 0 {
            return;
        }
        // If there is no route, sending fails as well and is counted there.
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

    /// Returns the current configuration.
    pub(super) fn policy(&self) -> Arc<Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a number that changes with every reload.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the configuration.
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

    /// Returns the place of an address, from static and learned entries.
    pub(super) fn find(&self, policy: &Policy, mac: MacAddr, now: u32) -> Option<Place> {
        self.fdb.find(mac, now, &policy.limits)
    }

    /// Learns the source address of a packet.
    pub(super) fn learn(&self, policy: &Policy, mac: MacAddr, place: Place, now: u32) -> Learned {
        if policy.learning {
            return self.fdb.learn(mac, place, now, &policy.limits);
        }
        if self.fdb.contradicts(mac, place) { Learned::Configured } else { Learned::Known }
    }

    /// Learns a neighbour from a sender's claim about itself.
    pub(super) fn notice(&self, policy: &Policy, claim: Claim, place: Place, now: u32) -> Learned {
        // Neighbours are needed only to answer requests.
        let Some(limits) = &policy.neighbours else { return Learned::Known };
        let (Claim::Has(address, _) | Claim::Uses(address, _)) = claim;
        if place == Place::Local {
            // Neighbours on the same side answer for themselves.
            self.neighbours.forget(address);
            return Learned::Known;
        }
        let known = self.neighbours.find(address, now, limits).map(|(neighbour, _)| neighbour);
        match (claim, known) {
            // RFC 4861, section 7.2.5: without the override flag, it does not replace another
            // address.
            (Claim::Has(_, new), Some(known)) if !new.overrides && new.mac != known.mac => {
                Learned::Known
            }
            (Claim::Has(_, new), _) => self.neighbours.learn(address, new, place, now, limits),
            (Claim::Uses(_, mac), Some(known)) if known.mac == mac => {
                self.neighbours.learn(address, known, place, now, limits)
            }
            // Router or host is unknown here; an advertisement will tell.
            (Claim::Uses(..), _) => {
                self.neighbours.forget(address);
                Learned::Known
            }
        }
    }

    /// Returns the neighbour that is asked for, if it is at a remote endpoint.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub(super) fn resolve(
        &self,
        policy: &Policy,
        who: &Who,
        now: u32,
    ) -> Result<Neighbour, Resolution> {
        let limits = policy.neighbours.as_ref().ok_or(Resolution::Unknown)?;
        let known = self.neighbours.find(who.address(), now, limits);
        let (neighbour, configured) = known.ok_or(Resolution::Unknown)?;
        // The requester asks for its own address.
        if neighbour.mac == who.mac {
            return Err(Resolution::OwnSide);
        }
        match self.find(policy, neighbour.mac, now) {
            Some(Place::Remote(_)) => Ok(neighbour),
            // The owner receives the request itself.
            Some(Place::Local) => Err(Resolution::OwnSide),
            // A static neighbour needs no known location.
            None if configured => Ok(neighbour),
            // The location of its hardware address has expired, so it may have moved.
            None => Err(Resolution::Unknown),
        }
    }
}
