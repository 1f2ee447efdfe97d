//! The thread that keeps maps and hooks in step with the kernel.
//!
//! A notification first withdraws the maps, then everything is read anew; one of rules of
//! nftables has the chains and sets that it names read again (`rules`); one of single
//! forwarding entries withdraws and reads those only (`incremental`). The
//! heartbeat is written by the same thread: when it hangs, packets take the slow
//! path. What the kernel does not notify is looked at with each heartbeat (tables
//! of iptables-legacy, what br_netfilter calls), each fifth (BPF links, tcx programs of
//! others, IPVS; in sandboxes all those) or once a second (path MTUs, sysctls, functions at
//! netfilter's hooks).

mod audit;
mod rules;
mod sandboxes;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netstate::overlay::{Change, Overlay};
use netstate::watch::Told;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::netns::NetNs;

use rules::News;

use super::crossing_veth::remove_stale;
use super::gather::{add_routes, security};
use super::incremental::Beyond;
use super::listeners::listeners;
use super::netns_state::NetnsState;
use super::sandbox::Sandbox;
use super::search::Search;
use super::shared::Shared;
use super::spares::Spares;
use crate::Result;
use crate::lock::lock;
use crate::model::{Basis, DeviceId, MachineSnapshot, Plan, SandboxSnapshot, Wanted};
use crate::programs::{Counters, Listing, Maps, Programs, Role, STALE_MS};
use crate::status::DeviceStatus;

/// Between heartbeats, ms; one that is late or two do not send packets the slow way.
const BEAT: u16 = 20;
const _: () = assert!(BEAT as u32 * 3 < STALE_MS);
/// Programs of others are looked for each so many heartbeats.
const LOOK: u64 = 5;
/// After this time everything but entries is read anew, whatever was notified.
const AUDIT: Duration = Duration::from_secs(1);
/// Attempts to read the state without a change meanwhile.
const ATTEMPTS: usize = 10;
/// So many changes of entries are followed one by one; more would be longer under way than
/// a datagram may leave as before.
const MOST: usize = 256;

/// The thread's own.
pub(crate) struct Reconciler {
    shared: Arc<Shared>,
    maps: Maps,
    home: NetnsState,
    /// By inode.
    sandboxes: BTreeMap<u64, Sandbox>,
    /// Programs for the next ones.
    spares: Spares,
    search: Option<Search>,
    /// Programs of the whole machine.
    links: Listing,
    /// Security modules that look at packets; they do not change while a kernel runs.
    security: Vec<String>,
    /// Programs can look up connections.
    connections: bool,
    /// What verdicts on flows are given by, of the last plan.
    basis: Arc<Basis>,
    /// What the maps are made from.
    machine: MachineSnapshot,
    /// What they are made to.
    plan: Plan,
    wanted: Wanted,
    beats: u64,
    audits: u64,
    /// The last audit has found other rules than those that were read.
    was_behind: bool,
    /// Of the last heartbeat.
    beat_at: Instant,
    /// Everything was read, and had changed again by then.
    unsettled: bool,
    read_at: Instant,
}

impl Reconciler {
    pub(crate) fn new(
        netns: &NetNs,
        programs: Programs,
        (shared, counters): (Arc<Shared>, Arc<Mutex<Counters>>),
        spares: u16,
    ) -> Result<Reconciler> {
        let spares = Spares::new(&programs, spares)?;
        let wanted = lock(&shared.wanted).clone();
        let maps = Maps::of(&programs, counters)?;
        let mut reconciler = Reconciler {
            maps,
            home: NetnsState::new(0, netns.try_clone()?, programs, shared.clone())?,
            shared,
            sandboxes: BTreeMap::new(),
            spares,
            search: None,
            links: Listing::default(),
            security: security(),
            connections: Programs::can_look_up_connections(),
            basis: Arc::default(),
            machine: MachineSnapshot::default(),
            plan: Plan::default(),
            wanted,
            beats: 0,
            audits: 0,
            was_behind: false,
            beat_at: Instant::now(),
            unsettled: false,
            read_at: Instant::now(),
        };
        reconciler.look_for_sandboxes()?;
        Ok(reconciler)
    }

    /// Removes what a killed process has left, and brings the first plan in force.
    pub(crate) fn begin(&mut self) -> Result<()> {
        remove_stale(&self.home.netlink)?;
        self.rebuild()
    }

    pub(crate) fn run(&mut self) {
        // A machine under load would hold the heartbeat up, so that everything would go
        // the slow path just when it matters.
        if let Err(error) = sys::priority::real_time() {
            tracing::info!("a loaded machine may hold the heartbeat up: {error}");
        }
        while !self.shared.stop.load(Ordering::Acquire) {
            let states =
                std::iter::once(&self.home).chain(self.sandboxes.values().map(|s| &s.state));
            let mut fds: Vec<PollFd> = states
                .flat_map(|state| state.watch.fds())
                .map(|(fd, _)| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            let _ = poll(&mut fds, PollTimeout::from(BEAT));
            #[cfg(feature = "test-support")]
            if self.shared.paused.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(BEAT.into()));
                continue;
            }
            if let Err(error) = self.step() {
                // The slow path goes on; the next audit tries again.
                tracing::warn!("the fast path is off: {error}");
                let _ = self.withdraw();
                let generation = self.maps.generation();
                self.shared.note(|status| {
                    status.problem = Some(error.to_string());
                    status.generation = generation;
                });
            }
        }
        // Detaching is not one step for all hooks: none may take a packet that
        // another would have to give back.
        let _ = self.maps.withdraw();
    }

    /// Sends every packet by the slow path until the next plan is in force.
    fn withdraw(&mut self) -> Result<()> {
        if self.maps.generation() & 1 == 0 {
            self.shared.pulse.withdrawn();
        }
        self.maps.withdraw()?;
        self.shared.pulse.beat();
        Ok(())
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
            Ok(news) if news.is_empty() => {}
            Ok(news) if news.rules.is_some() => {
                // Without a plan in force the snapshot is of who knows when.
                let is_current = !self.unsettled && self.maps.generation() & 1 == 0;
                // As below.
                self.withdraw()?;
                if !is_current || !self.follow_rules(news)? {
                    return self.rebuild();
                }
            }
            Ok(news) => {
                if !self.follow(&news.entries)? {
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
                self.withdraw()?;
                if wanted != self.wanted {
                    self.wanted = wanted;
                    self.look_for_sandboxes()?;
                }
                return self.rebuild();
            }
        }
        self.beat_at = Instant::now();
        self.maps.beat()?;
        self.shared.pulse.beat();
        self.beats += 1;
        let look = self.beats.is_multiple_of(LOOK);
        let mut anew = self.unsettled || self.home.has_changed(look)?;
        if look {
            anew |= self.links.look()?;
            anew |= self.socket_lookups()? != self.machine.home.socket_lookups;
        }
        // Entering a namespace is not for free.
        if look {
            for sandbox in self.sandboxes.values_mut() {
                anew |= sandbox.state.has_changed(look)?;
            }
        }
        if anew {
            return self.rebuild();
        }
        if self.read_at.elapsed() >= AUDIT {
            self.read_at = Instant::now();
            self.listen();
            if self.maps.generation() & 1 == 1 || !self.is_as_planned()? {
                return self.rebuild();
            }
        }
        Ok(())
    }

    /// What has changed in any namespace, where these are single entries, or rules of the NICs'
    /// namespace; forgets it.
    fn told(&self) -> std::result::Result<News, Beyond> {
        let mut all = Ok(News::default());
        let sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.state);
        // Of each: what is not asked for would be told later.
        for state in std::iter::once(&self.home).chain(sandboxes) {
            match (state.watch.told(MOST), &mut all) {
                (Told::These { entries, rules }, Ok(news)) => {
                    if news.add(state.number, entries, &rules).is_err() {
                        all = Err(Beyond);
                    }
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
        let Ok(keys) = self.machine.keys(changes) else { return Ok(false) };
        if keys.is_empty() {
            return Ok(true);
        }
        for key in &keys {
            self.maps.withdraw_entry(&self.plan, *key)?;
        }
        self.shared.pulse.revoked(keys.len());
        let mut before = Vec::with_capacity(keys.len());
        for key in &keys {
            let view = self.machine.view(key.0.netns);
            match view.and_then(|view| self.plan.behind(view, *key)) {
                Ok(behind) => before.push((*key, behind)),
                Err(Beyond) => return Ok(false),
            }
        }
        let mut followed = 0;
        for (number, change) in changes {
            let Change::Entry(change) = change else { continue };
            let mut sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.state);
            let state = sandboxes.find(|state| state.number == *number).unwrap_or(&self.home);
            self.machine.follow(&state.netlink, &self.home.netlink, *number, change)?;
            followed += 1;
        }
        for (key, behind) in before {
            let view = self.machine.view(key.0.netns);
            if view.and_then(|view| self.plan.follow(view, key, behind)).is_err() {
                return Ok(false);
            }
        }
        for key in &keys {
            self.maps.publish_entry(&self.plan, *key)?;
        }
        self.maps.fill()?;
        self.shared.note(|status| status.followed += followed);
        self.note(&self.plan);
        Ok(true)
    }

    /// Completes what was read by the ways to remote VTEPs, and leaves out our own pairs.
    fn add_routes(&self, machine: &mut MachineSnapshot) -> Result<()> {
        let MachineSnapshot { home, sandboxes } = machine;
        let netlink = &self.home.netlink;
        let overlay = std::mem::take(&mut home.overlay);
        let added = add_routes(netlink, home, 0, &overlay);
        home.overlay = overlay;
        added?;
        for (number, sandboxed) in sandboxes {
            add_routes(netlink, home, *number, &sandboxed.snapshot.overlay)?;
        }
        for crossing in self.sandboxes.values().filter_map(|sandbox| sandbox.crossing) {
            home.overlay.links.remove(&crossing.outer);
        }
        Ok(())
    }

    /// Completes what was read by what no namespace has by itself.
    fn add_machine(&self, machine: &mut MachineSnapshot) -> Result<()> {
        machine.home.links = self.links.links.clone();
        machine.home.socket_lookups = self.socket_lookups()?;
        machine.home.security = self.security.clone();
        machine.home.connections = self.connections;
        Ok(())
    }

    /// Whether programs choose the sockets of what comes to the NICs' namespace.
    fn socket_lookups(&self) -> Result<bool> {
        Ok(sys::bpf_link::socket_lookups(self.home.netns.as_fd())? > 0)
    }

    /// Notes who listens where the fast path passes by.
    fn listen(&self) {
        let states = (self.sandboxes.values())
            .map(|sandbox| (sandbox.state.number, &sandbox.state.netns))
            .chain([(0, &self.home.netns)]);
        let listeners = listeners(&self.plan, &self.machine, states);
        self.shared.note(|status| status.listeners = listeners);
    }

    /// Reads everything, and plans.
    pub(super) fn plan_anew(&mut self) -> Result<(MachineSnapshot, Plan)> {
        self.read_at = Instant::now();
        self.links.look()?;
        let mut machine =
            MachineSnapshot { home: self.home.read_anew()?, ..MachineSnapshot::default() };
        self.add_machine(&mut machine)?;
        for sandbox in self.sandboxes.values_mut() {
            let snapshot = sandbox.state.read_anew()?;
            machine.sandboxes.insert(sandbox.state.number, sandbox.snapshot(snapshot)?);
        }
        self.add_routes(&mut machine)?;
        let plan = Plan::new(&machine.home, &machine.sandboxes, |name| self.wanted.wants(name));
        Ok((machine, plan))
    }

    /// The state of a namespace by its number.
    pub(super) fn netns(&self, number: u16) -> &NetnsState {
        let mut sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.state);
        sandboxes.find(|state| state.number == number).unwrap_or(&self.home)
    }

    /// Reads everything and brings maps and hooks to it.
    fn rebuild(&mut self) -> Result<()> {
        self.withdraw()?;
        self.shared.pulse.rebuilt();
        for attempt in 0.. {
            // It reads for long on a large machine: that is no hanging.
            self.shared.pulse.beat();
            let (machine, plan) = self.plan_anew()?;
            let joined = self.join(&plan)?;
            // The answers may be of different moments when something changed
            // between them; then they are not published.
            if self.told().is_ok_and(|news| news.is_empty()) && !joined {
                return self.publish(machine, plan);
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

    /// Brings maps and hooks to a plan.
    pub(super) fn publish(&mut self, machine: MachineSnapshot, plan: Plan) -> Result<()> {
        self.give_verdicts_by(Basis::new(&machine.home, &plan, &self.basis));
        self.hook(&plan, &machine.home.overlay, &machine.sandboxes)?;
        self.maps.set_rules(machine.home.ruleset.generation);
        self.maps.publish(&plan)?;
        (self.machine, self.plan) = (machine, plan);
        self.unsettled = false;
        self.note(&self.plan);
        self.listen();
        Ok(())
    }

    /// Has verdicts on flows given by this; those that were given hold where it says so.
    fn give_verdicts_by(&mut self, mut basis: Basis) {
        if !self.shared.accounting {
            basis.succeed(&self.basis);
        }
        self.maps.set_verdicts(basis.number);
        let basis = Arc::new(basis);
        *lock(&self.shared.verdicts.basis) = basis.clone();
        self.basis = basis;
    }

    fn hook(
        &mut self,
        plan: &Plan,
        home: &Overlay,
        sandboxes: &BTreeMap<u16, SandboxSnapshot>,
    ) -> Result<()> {
        let ports = |number: u16| {
            let of = move |id: &&DeviceId| id.netns == number;
            plan.ports.keys().filter(of).map(|id| (id.index, Role::Encap))
        };
        let pairs = self.sandboxes.values().filter_map(|sandbox| sandbox.crossing);
        // Where packets leave is of interest where flows want verdicts.
        let tenants = self.basis.ports.keys().map(|index| (*index, Role::Leave));
        let tunnels = self.basis.tunnels.iter().map(|(index, tunnel)| match tunnel.is_bridged() {
            true => (*index, Role::Leave),
            false => (*index, Role::Depart),
        });
        let gives_verdicts = !self.basis.is_idle() && self.basis.number > 0;
        let ends = tenants.chain(tunnels).filter(|_| gives_verdicts);
        let wanted = (ports(0).chain(plan.nics.iter().map(|nic| (*nic, Role::Decap))))
            .chain(ends)
            .chain(pairs.map(|pair| (pair.outer, Role::Outward)))
            .collect();
        self.home.hook(&wanted, home)?;
        for sandbox in self.sandboxes.values_mut() {
            let number = sandbox.state.number;
            let pair = sandbox.crossing.map(|pair| (pair.inner, Role::Inward));
            let wanted = ports(number).chain(pair).collect();
            sandbox.state.hook(&wanted, &sandboxes[&number].snapshot.overlay)?;
        }
        Ok(())
    }

    fn note(&self, plan: &Plan) {
        let devices = DeviceStatus::all(plan);
        self.shared.note(|status| {
            status.generation = self.maps.generation();
            status.entries = self.maps.entries();
            status.left_out = self.maps.left_out();
            status.problem = None;
            status.devices = devices;
        });
        if self.maps.generation() & 1 == 0 {
            self.shared.pulse.in_force();
        }
        *lock(&self.shared.in_force) = self.wanted.clone();
        self.shared.followed.notify_all();
    }
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        let inodes: Vec<u64> = self.sandboxes.keys().copied().collect();
        for inode in inodes {
            self.let_go(inode);
        }
    }
}
