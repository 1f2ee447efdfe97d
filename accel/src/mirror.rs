//! The thread that keeps maps and hooks in step with the kernel.
//!
//! A notification first withdraws the maps, then everything is read anew; one of single
//! forwarding entries withdraws and reads those only ([`crate::follow`]). The
//! heartbeat is written by the same thread: when it hangs, packets take the slow
//! path. What the kernel does not notify is looked at with each heartbeat (tables
//! of iptables-legacy, what br_netfilter calls), each fifth (tcx programs of others; in
//! sandboxes those, too) or once a second (XDP attached by a link, path MTUs, sysctls).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netstate::overlay::{Change, Overlay};
use netstate::watch::Told;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::netns::NetNs;

use crate::abi::Place;
use crate::bpf::{Programs, Role};
use crate::counters::Counters;
use crate::daemon::{Shared, Wanted};
use crate::facts::{Extent, Seen};
use crate::follow::Beyond;
use crate::maps::Maps;
use crate::plan::{DevicePlan, Plan, Sandboxed};
use crate::sandbox::{Sandbox, Search};
use crate::space::Space;
use crate::status::DeviceStatus;
use crate::trampoline::Trampoline;
use crate::{Result, facts, lock, sandbox, trampoline};

/// Between heartbeats; the programs allow 100 ms.
const BEAT: u16 = 20;
/// Programs of others are looked for each so many heartbeats.
const LOOK: u64 = 5;
/// After this time everything but entries is read anew, whatever was notified.
const AUDIT: Duration = Duration::from_secs(1);
/// Entries, too, each so many times; there may be many, and the kernel tells of each.
const WHOLE: u64 = 30;
/// Attempts to read the state without a change meanwhile.
const ATTEMPTS: usize = 10;
/// So many changes of entries are followed one by one; more would be longer under way than
/// a datagram may leave as before.
const MOST: usize = 256;

/// The thread's own.
pub(crate) struct Mirror {
    shared: Arc<Shared>,
    maps: Maps,
    home: Space,
    /// By inode.
    sandboxes: BTreeMap<u64, Sandbox>,
    /// The next one's number.
    next: u16,
    search: Option<Search>,
    /// What the maps are made from.
    seen: Seen,
    /// What they are made to.
    plan: Plan,
    wanted: Wanted,
    beats: u64,
    audits: u64,
    /// Of the last heartbeat.
    beat_at: Instant,
    /// Everything was read, and had changed again by then.
    unsettled: bool,
    read_at: Instant,
}

impl Mirror {
    pub(crate) fn new(
        netns: &NetNs,
        programs: Programs,
        (shared, counters): (Arc<Shared>, Arc<Mutex<Counters>>),
    ) -> Result<Mirror> {
        let wanted = lock(&shared.wanted).clone();
        let mut mirror = Mirror {
            shared,
            maps: Maps::of(&programs, counters)?,
            home: Space::new(0, netns.try_clone()?, programs)?,
            sandboxes: BTreeMap::new(),
            next: 1,
            search: None,
            seen: Seen::default(),
            plan: Plan::default(),
            wanted,
            beats: 0,
            audits: 0,
            beat_at: Instant::now(),
            unsettled: false,
            read_at: Instant::now(),
        };
        trampoline::remove_stale(&mirror.home.netlink)?;
        mirror.look_for_sandboxes()?;
        Ok(mirror)
    }

    pub(crate) fn run(&mut self) {
        // A machine under load would hold the heartbeat up, so that everything would go
        // the slow path just when it matters.
        if let Err(error) = sys::priority::real_time() {
            tracing::info!("a loaded machine may hold the heartbeat up: {error}");
        }
        while !self.shared.stop.load(Ordering::Acquire) {
            let spaces =
                std::iter::once(&self.home).chain(self.sandboxes.values().map(|s| &s.space));
            let mut fds: Vec<PollFd> = spaces
                .flat_map(|space| space.watch.fds())
                .map(|(fd, _)| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            let _ = poll(&mut fds, PollTimeout::from(BEAT));
            if self.shared.paused.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(BEAT.into()));
                continue;
            }
            if let Err(error) = self.step() {
                // The slow path goes on; the next audit tries again.
                tracing::warn!("the fast path is off: {error}");
                lock(&self.shared.status).problem = Some(error.to_string());
                let _ = self.maps.withdraw();
                lock(&self.shared.status).generation = self.maps.generation();
            }
        }
        // Detaching is not one step for all hooks: none may take a packet that
        // another would have to give back.
        let _ = self.maps.withdraw();
    }

    fn step(&mut self) -> Result<()> {
        let wanted = lock(&self.shared.wanted).clone();
        let (mut told, others) = (self.told(), self.adopt()?);
        if told.is_err()
            && let Some(search) = &self.search
        {
            search.wake();
        }
        if others || wanted != self.wanted {
            told = Err(Beyond);
        }
        match told {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => {
                if !self.follow(&changes)? {
                    return self.rebuild();
                }
                // However many come, the rest has its turn.
                if self.beat_at.elapsed() < Duration::from_millis(BEAT.into()) {
                    return Ok(());
                }
            }
            Err(Beyond) => {
                // Before anything is read: from now on nothing is forwarded by what
                // may no longer be so.
                self.maps.withdraw()?;
                if wanted != self.wanted {
                    self.wanted = wanted;
                    self.look_for_sandboxes()?;
                }
                return self.rebuild();
            }
        }
        self.beat_at = Instant::now();
        self.maps.beat()?;
        self.beats += 1;
        let look = self.beats.is_multiple_of(LOOK);
        let mut anew = self.unsettled || self.home.has_changed(look)?;
        // Entering a namespace is not for free.
        if look {
            for sandbox in self.sandboxes.values_mut() {
                anew |= sandbox.space.has_changed(look)?;
            }
        }
        if anew {
            return self.rebuild();
        }
        if self.read_at.elapsed() >= AUDIT {
            self.read_at = Instant::now();
            if self.maps.generation() & 1 == 1 || !self.is_as_seen()? {
                return self.rebuild();
            }
        }
        Ok(())
    }

    /// Whether everything is as it was when the plan was made.
    fn is_as_seen(&mut self) -> Result<bool> {
        self.audits += 1;
        let whole = self.audits.is_multiple_of(WHOLE);
        let extent = if whole { Extent::Whole } else { Extent::ButEntries };
        let mut now = Seen { home: self.home.read(extent)?, ..Seen::default() };
        for sandbox in self.sandboxes.values() {
            let sandboxed = sandbox.facts(sandbox.space.read(extent)?)?;
            now.sandboxes.insert(sandbox.space.number, sandboxed);
        }
        if whole {
            self.add_routes(&mut now)?;
            return Ok(now == self.seen);
        }
        // Which routes are asked for depends on the entries.
        now.give_entries(self.seen.take_entries());
        let routed = self.add_routes(&mut now);
        let entries = now.take_entries();
        let same = now == self.seen;
        self.seen.give_entries(entries);
        routed.map(|()| same)
    }

    /// What has changed in any namespace, by its number, where these are single entries;
    /// forgets it.
    fn told(&self) -> std::result::Result<Vec<(u16, Change)>, Beyond> {
        let mut all = Ok(Vec::new());
        let sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.space);
        // Of each: what is not asked for would be told later.
        for space in std::iter::once(&self.home).chain(sandboxes) {
            match (space.watch.told(MOST), &mut all) {
                (Told::Entries(changes), Ok(all)) => {
                    all.extend(changes.into_iter().map(|change| (space.number, change)));
                }
                (Told::Anything, _) => all = Err(Beyond),
                (Told::Nothing, _) | (_, Err(Beyond)) => {}
            }
        }
        all
    }

    /// Brings single entries up to date, and says whether that was possible; all others
    /// stay in force meanwhile.
    fn follow(&mut self, changes: &[(u16, Change)]) -> Result<bool> {
        // Nothing is in force that could stay so.
        if self.unsettled || self.maps.generation() & 1 == 1 {
            return Ok(false);
        }
        let Ok(keys) = self.seen.keys(changes) else { return Ok(false) };
        if keys.is_empty() {
            return Ok(true);
        }
        for key in &keys {
            self.maps.withdraw_entry(&self.plan, *key)?;
        }
        let mut before = Vec::with_capacity(keys.len());
        for key in &keys {
            let space = self.seen.space(key.0.netns);
            match space.and_then(|space| self.plan.behind(space, *key)) {
                Ok(behind) => before.push((*key, behind)),
                Err(Beyond) => return Ok(false),
            }
        }
        let mut followed = 0;
        for (number, change) in changes {
            let Change::Entry(change) = change else { continue };
            let mut sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.space);
            let space = sandboxes.find(|space| space.number == *number).unwrap_or(&self.home);
            self.seen.follow(&space.netlink, &self.home.netlink, *number, change)?;
            followed += 1;
        }
        for (key, behind) in before {
            let space = self.seen.space(key.0.netns);
            if space.and_then(|space| self.plan.follow(space, key, behind)).is_err() {
                return Ok(false);
            }
        }
        for key in &keys {
            self.maps.publish_entry(&self.plan, *key)?;
        }
        self.maps.fill()?;
        lock(&self.shared.status).followed += followed;
        self.note(&self.plan);
        Ok(true)
    }

    /// Looks for sandboxes now, and from now on where some are wanted.
    fn look_for_sandboxes(&mut self) -> Result<()> {
        if !self.wanted.wants_sandboxes() {
            self.search = None;
            return Ok(());
        }
        if self.search.is_none() {
            self.search = Some(Search::start(&self.home.netns)?);
        }
        self.take_up(sandbox::find(&self.home.netns)?)?;
        Ok(())
    }

    /// Takes up sandboxes that were found, lets go those that nobody keeps; whether
    /// there were any.
    fn adopt(&mut self) -> Result<bool> {
        let gone: Vec<u64> = (self.sandboxes.iter())
            .filter(|(_, sandbox)| !sandbox.is_kept() || self.search.is_none())
            .map(|(inode, _)| *inode)
            .collect();
        for inode in &gone {
            self.maps.withdraw()?;
            self.let_go(*inode);
        }
        let found = self.search.as_ref().and_then(Search::found).unwrap_or_default();
        Ok(self.take_up(found)? || !gone.is_empty())
    }

    fn take_up(&mut self, found: Vec<sandbox::Found>) -> Result<bool> {
        let mut any = false;
        for found in found {
            let inode = found.inode();
            if self.sandboxes.contains_key(&inode) || self.next == u16::MAX {
                continue;
            }
            match Sandbox::new(self.next, found, &self.home.programs) {
                Ok(sandbox) => drop(self.sandboxes.insert(inode, sandbox)),
                // Tried again when it is found again; the others go on.
                Err(error) => {
                    tracing::warn!("net:[{inode}] stays slow: {error}");
                    continue;
                }
            }
            self.next += 1;
            any = true;
        }
        Ok(any)
    }

    fn let_go(&mut self, inode: u64) {
        let Some(mut sandbox) = self.sandboxes.remove(&inode) else { return };
        // Those at the tenants' first: none may send into a pair without programs.
        let _ = sandbox.space.hook(&BTreeSet::new(), &Overlay::default());
        if sandbox.trampoline.is_some() {
            Trampoline::remove(&self.home, &sandbox.space);
        }
    }

    /// Completes what was read by the ways to remote VTEPs, and leaves out our own pairs.
    fn add_routes(&self, seen: &mut Seen) -> Result<()> {
        let Seen { home, sandboxes } = seen;
        let netlink = &self.home.netlink;
        let overlay = std::mem::take(&mut home.overlay);
        let added = facts::add_routes(netlink, home, 0, &overlay);
        home.overlay = overlay;
        added?;
        for (number, sandboxed) in sandboxes {
            facts::add_routes(netlink, home, *number, &sandboxed.facts.overlay)?;
        }
        for trampoline in self.sandboxes.values().filter_map(|sandbox| sandbox.trampoline) {
            home.overlay.links.remove(&trampoline.outer);
        }
        Ok(())
    }

    /// Reads everything and brings maps and hooks to it.
    pub(crate) fn rebuild(&mut self) -> Result<()> {
        self.maps.withdraw()?;
        for attempt in 0.. {
            self.read_at = Instant::now();
            let mut seen = Seen { home: self.home.read_anew()?, ..Seen::default() };
            for sandbox in self.sandboxes.values_mut() {
                let facts = sandbox.space.read_anew()?;
                seen.sandboxes.insert(sandbox.space.number, sandbox.facts(facts)?);
            }
            self.add_routes(&mut seen)?;
            let plan = Plan::new(&seen.home, &seen.sandboxes, |name| self.wanted.wants(name));
            let joined = self.join(&plan)?;
            // The answers may be of different moments when something changed
            // between them; then they are not published.
            if self.told().is_ok_and(|changes| changes.is_empty()) && !joined {
                self.hook(&plan, &seen.home.overlay, &seen.sandboxes)?;
                self.maps.publish(&plan)?;
                (self.seen, self.plan) = (seen, plan);
                self.unsettled = false;
                self.note(&self.plan);
                return Ok(());
            }
            if attempt == ATTEMPTS {
                // So much changes that the slow path is the right one; the next
                // beat comes back to it.
                self.unsettled = true;
                self.note(&plan);
                break;
            }
        }
        Ok(())
    }

    /// Joins sandboxes that need it to the NICs' namespace, and parts those that are not
    /// wanted any more; whether there were any.
    fn join(&mut self, plan: &Plan) -> Result<bool> {
        let mut any = false;
        for sandbox in self.sandboxes.values_mut() {
            let of = |device: &&DevicePlan| device.sandbox == Some(sandbox.space.number);
            let mut devices = plan.devices.iter().filter(of);
            match sandbox.trampoline {
                None if devices.any(|device| device.refused.is_none()) => {
                    match Trampoline::make(&self.home, &sandbox.space) {
                        Ok(both) => sandbox.trampoline = Some(both),
                        // The others go on.
                        Err(error) => sandbox.problem = Some(error.to_string()),
                    }
                    any = true;
                }
                Some(_) if devices.next().is_none() => {
                    // As in let_go().
                    sandbox.space.hook(&BTreeSet::new(), &Overlay::default())?;
                    Trampoline::remove(&self.home, &sandbox.space);
                    sandbox.trampoline = None;
                    any = true;
                }
                _ => {}
            }
        }
        Ok(any)
    }

    fn hook(
        &mut self,
        plan: &Plan,
        home: &Overlay,
        sandboxes: &BTreeMap<u16, Sandboxed>,
    ) -> Result<()> {
        let ports = |number: u16| {
            let of = move |place: &&Place| place.netns == number;
            plan.ports.keys().filter(of).map(|place| (place.index, Role::Egress))
        };
        let pairs = self.sandboxes.values().filter_map(|sandbox| sandbox.trampoline);
        let wanted = (ports(0).chain(plan.nics.iter().map(|nic| (*nic, Role::Ingress))))
            .chain(pairs.map(|pair| (pair.outer, Role::Outward)))
            .collect();
        self.home.hook(&wanted, home)?;
        for sandbox in self.sandboxes.values_mut() {
            let number = sandbox.space.number;
            let pair = sandbox.trampoline.map(|pair| (pair.inner, Role::Inward));
            let wanted = ports(number).chain(pair).collect();
            sandbox.space.hook(&wanted, &sandboxes[&number].facts.overlay)?;
        }
        Ok(())
    }

    fn note(&self, plan: &Plan) {
        let mut status = lock(&self.shared.status);
        status.generation = self.maps.generation();
        status.entries = self.maps.entries();
        status.left_out = self.maps.left_out();
        status.problem = None;
        status.devices = DeviceStatus::all(plan);
        drop(status);
        *lock(&self.shared.in_force) = self.wanted.clone();
        self.shared.followed.notify_all();
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let inodes: Vec<u64> = self.sandboxes.keys().copied().collect();
        for inode in inodes {
            self.let_go(inode);
        }
    }
}
