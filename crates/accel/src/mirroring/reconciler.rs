//! The reconciler: the thread that keeps maps and hooks in step with the kernel.
//!
//! A notification withdraws the maps; then everything is read again. For nftables rules, only the
//! named chains and sets are read (`rules`). For single forwarding entries, only those are
//! withdrawn and read (`incremental`). The same thread writes the heartbeat, so if it hangs,
//! packets take the slow path. State without notifications is polled: with each heartbeat
//! (iptables-legacy tables, br_netfilter's calls, SELinux's state, the lists of functions at
//! netfilter's hooks, which the BPF programs also check themselves), with every fifth (BPF links,
//! foreign tcx programs, IPVS; in sandboxes all of these), or once a second (path MTUs, sysctls).

mod audit;
mod rules;
mod sandboxes;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use netstate::overlay::{Change, EntryChange, Overlay};
use netstate::watch::Notified;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::netns::NetNs;
use sys::priority::RealTime;

use rules::News;

use super::budget::{self, Budgets};
use super::crossing_veth::remove_stale;
use super::gather::{add_merging, add_routes};
use super::incremental::Beyond;
use super::listeners::listeners;
use super::netns_state::NetnsState;
use super::sandbox::Sandbox;
use super::search::Search;
use super::security::Security;
use super::shared::Shared;
use super::spares::Spares;
use crate::Result;
use crate::lock::lock;
use crate::model::{Basis, DeviceId, MachineSnapshot, Plan, SandboxSnapshot, Wanted};
use crate::programs::{Counters, Listing, Maps, Programs, Role, STALE_MS};
use crate::status::DeviceStatus;
use crate::vitals::Cause;

/// Changes with the number of their namespace: to be applied, and beyond their port's budget.
type Pending<'a> = (&'a [(u16, Change)], &'a [(u16, EntryChange)]);

/// Heartbeat interval, ms. One or two late beats do not force the slow path.
const BEAT: u16 = 20;
const _: () = assert!(BEAT as u32 * 3 < STALE_MS);
/// Check for foreign programs every N heartbeats.
const LOOK: u64 = 5;
/// Interval at which everything but entries is read again, without any notification.
const AUDIT: Duration = Duration::from_secs(1);
/// Attempts to read the state without a concurrent change.
const ATTEMPTS: usize = 10;
/// Maximum number of entry changes to apply one by one. More would take longer than an outdated
/// entry may stay in force.
const MOST: usize = 256;
const _: () = assert!(budget::MOST_AT_ONCE < MOST);

/// State of the reconciler thread.
pub(crate) struct Reconciler {
    shared: Arc<Shared>,
    maps: Maps,
    home: NetnsState,
    /// By inode of the namespace.
    sandboxes: BTreeMap<u64, Sandbox>,
    /// Programs for future sandboxes.
    spares: Spares,
    search: Option<Search>,
    /// BPF links of the whole machine.
    links: Listing,
    security: Security,
    /// BPF programs can look up connections.
    connections: bool,
    /// State that verdicts of the current plan depend on.
    basis: Arc<Basis>,
    /// Snapshot from which the maps were made.
    machine: MachineSnapshot,
    /// Plan in the maps.
    plan: Plan,
    wanted: Wanted,
    beats: u64,
    audits: u64,
    /// The last audit found other rules than those that were read.
    was_behind: bool,
    /// The thread has given up its real-time priority for work that may take long.
    works: bool,
    /// Real-time priority of the thread. `None`: not running yet, or not permitted.
    priority: Option<RealTime>,
    /// Changes of forwarding entries that each port may cause.
    budgets: Budgets,
    /// Time of the last heartbeat.
    beat_at: Instant,
    /// The last read was outdated before it was complete.
    unsettled: bool,
    read_at: Instant,
}

impl Reconciler {
    pub(crate) fn new(
        netns: &NetNs,
        programs: Programs,
        (shared, counters): (Arc<Shared>, Arc<Mutex<Counters>>),
        spares: u16,
        security: Security,
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
            security,
            connections: Programs::can_look_up_connections(),
            basis: Arc::default(),
            machine: MachineSnapshot::default(),
            plan: Plan::default(),
            wanted,
            beats: 0,
            audits: 0,
            was_behind: false,
            works: false,
            priority: None,
            budgets: Budgets::default(),
            beat_at: Instant::now(),
            unsettled: false,
            read_at: Instant::now(),
        };
        reconciler.look_for_sandboxes()?;
        Ok(reconciler)
    }

    /// Removes devices of a killed process and puts the first plan into force.
    pub(crate) fn begin(&mut self) -> Result<()> {
        remove_stale(&self.home.netlink)?;
        self.rebuild(Cause::Start)
    }

    pub(crate) fn run(&mut self) {
        // On a loaded machine the heartbeat could be late, and all packets would take the slow path
        // when speed matters most. Any other work has no such priority.
        let report = |error| {
            tracing::info!("no real-time priority, the heartbeat may be late under load: {error}");
        };
        self.priority = sys::priority::real_time().map_err(report).ok();
        while !self.shared.stop.load(Ordering::Acquire) {
            let states =
                std::iter::once(&self.home).chain(self.sandboxes.values().map(|s| &s.state));
            let mut fds: Vec<PollFd> = states
                .flat_map(|state| state.watch.fds())
                .map(|(fd, _)| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            // A signal only ends the wait early.
            let _ = poll(&mut fds, PollTimeout::from(BEAT));
            #[cfg(feature = "test-support")]
            if self.shared.paused.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(BEAT.into()));
                continue;
            }
            let done = self.step();
            if std::mem::take(&mut self.works)
                && self.priority.as_mut().is_some_and(|priority| priority.resume().is_err())
            {
                self.priority = None;
            }
            if let Err(error) = done {
                // All packets take the slow path. The next audit tries again.
                tracing::warn!("all packets take the slow path: {error}");
                let _ = self.withdraw();
                let generation = self.maps.generation();
                self.shared.note(|status| {
                    status.problem = Some(error.to_string());
                    status.generation = generation;
                });
            }
        }
        // Detaching all hooks is not atomic. No program may take a packet that a program on the way
        // back would no longer handle.
        let _ = self.maps.withdraw();
    }

    /// Sends all packets to the slow path until the next plan is in force.
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
        let (mut news, others) = (self.notified_changes().0, self.adopt()?);
        // The change may be a new sandbox.
        if news.is_err()
            && let Some(search) = &self.search
        {
            search.wake();
        }
        let asked = others || wanted != self.wanted;
        if asked {
            news = Err(Beyond);
        }
        match news {
            Ok(news) if news.is_empty() => {}
            Ok(news) if news.rules.is_some() => {
                // Without a plan in force, the snapshot may be outdated.
                let is_current = !self.unsettled && self.maps.generation() & 1 == 0;
                // Withdraw before reading anything, as for other changes below.
                self.withdraw()?;
                if !is_current || !self.follow_rules(news)? {
                    return self.rebuild(Cause::Change);
                }
            }
            Ok(news) => {
                if !self.follow(&news.entries)? {
                    return self.rebuild(Cause::Change);
                }
                // Entries keep arriving: still write the heartbeat in time.
                if self.beat_at.elapsed() < Duration::from_millis(BEAT.into()) {
                    return Ok(());
                }
            }
            Err(Beyond) => {
                // Withdraw before reading anything, so that no packet is forwarded by outdated
                // state.
                self.withdraw()?;
                if wanted != self.wanted {
                    self.wanted = wanted;
                    self.look_for_sandboxes()?;
                }
                return self.rebuild(if asked { Cause::Wanted } else { Cause::Change });
            }
        }
        self.beat_at = Instant::now();
        self.maps.beat()?;
        self.shared.pulse.beat();
        self.beats += 1;
        let look = self.beats.is_multiple_of(LOOK);
        let unfollowed = self.budgets.refused();
        if self.shared.status().unfollowed != unfollowed {
            self.shared.note(|status| status.unfollowed = unfollowed);
        }
        if self.unsettled {
            return self.rebuild(Cause::Retry);
        }
        let mut anew = self.home.has_changed(look)?;
        anew |= self.home.programs.hook_lists()? != self.machine.home.hook_lists;
        anew |= self.security.selinux() != self.machine.home.selinux;
        if look {
            anew |= self.links.look()?;
            anew |= self.socket_lookups()? != self.machine.home.socket_lookups;
        }
        // Entering namespaces is expensive.
        if look {
            for sandbox in self.sandboxes.values_mut() {
                anew |= sandbox.state.has_changed(look)?;
            }
        }
        if anew {
            return self.rebuild(Cause::Unnotified);
        }
        if self.budgets.want_read(self.beat_at) {
            return self.rebuild(Cause::Budget);
        }
        if self.read_at.elapsed() >= AUDIT {
            self.read_at = Instant::now();
            self.listen();
            if self.maps.generation() & 1 == 1 || !self.is_as_planned()? {
                return self.rebuild(Cause::Audit);
            }
        }
        Ok(())
    }

    /// Gives up real-time priority until the step ends, for work whose amount others decide. A
    /// policy that the administrator set stays.
    fn work(&mut self) {
        if !self.works
            && let Some(priority) = &self.priority
        {
            self.works = priority.suspend().unwrap_or(false);
        }
    }

    /// Takes the notified changes of all namespaces, if they are only single entries and rules of
    /// the NICs' namespace. Beyond a port's budget, a change of a known address is reported as its
    /// end. Other changes beyond it are not among them; the second value has them all.
    fn notified_changes(&mut self) -> (std::result::Result<News, Beyond>, Vec<(u16, EntryChange)>) {
        let mut all = Ok(News::default());
        let mut beyond = Vec::new();
        let Reconciler { home, sandboxes, budgets, machine, .. } = self;
        let now = Instant::now();
        let sandboxes = sandboxes.values().map(|sandbox| &sandbox.state);
        // Read every namespace: notifications left unread would be reported later.
        for state in std::iter::once(&*home).chain(sandboxes) {
            let number = state.number;
            let takes = |change: &Change| match change {
                Change::Entry(entry) if entry.learned && machine.matters(number, entry) => {
                    let port = DeviceId { netns: number, index: entry.port };
                    let is_admitted = budgets.admits(port, now);
                    if !is_admitted {
                        beyond.push((number, *entry));
                    }
                    is_admitted
                }
                _ => true,
            };
            match (state.watch.notified(MOST, takes), &mut all) {
                (Notified::These { entries, rules }, Ok(news)) => {
                    if news.add(state.number, entries, &rules).is_err() {
                        all = Err(Beyond);
                    }
                }
                (Notified::Anything, _) => all = Err(Beyond),
                (Notified::Nothing, _) | (_, Err(Beyond)) => {}
            }
        }
        if let Ok(news) = &mut all {
            let ends = beyond.iter().filter(|(number, entry)| machine.has(*number, entry));
            let end = |(number, entry): &(u16, EntryChange)| {
                (*number, Change::Entry(EntryChange { gone: true, ..*entry }))
            };
            news.entries.extend(ends.map(end));
        }
        (all, beyond)
    }

    /// Applies changes of single entries while all others stay in force. Returns false if that is
    /// impossible.
    fn follow(&mut self, changes: &[(u16, Change)]) -> Result<bool> {
        // Nothing is in force.
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
        self.work();
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

    /// Adds the routes to remote VTEPs, and removes overlane's own veth pairs.
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
        add_merging(home);
        for crossing in self.sandboxes.values().filter_map(|sandbox| sandbox.crossing) {
            home.overlay.links.remove(&crossing.outer);
        }
        Ok(())
    }

    /// Adds the state of the whole machine.
    fn add_machine(&self, machine: &mut MachineSnapshot) -> Result<()> {
        machine.home.links = self.links.links.clone();
        machine.home.socket_lookups = self.socket_lookups()?;
        machine.home.security = self.security.modules().to_vec();
        machine.home.selinux = self.security.selinux();
        machine.home.connections = self.connections;
        machine.home.accounting = self.shared.accounting;
        Ok(())
    }

    /// Whether BPF programs select the sockets of packets that arrive in the NICs' namespace.
    fn socket_lookups(&self) -> Result<bool> {
        Ok(sys::bpf_link::socket_lookups(self.home.netns.as_fd())? > 0)
    }

    /// Records the packet sockets that miss accelerated packets.
    fn listen(&self) {
        let states = (self.sandboxes.values())
            .map(|sandbox| (sandbox.state.number, &sandbox.state.netns))
            .chain([(0, &self.home.netns)]);
        let listeners = listeners(&self.plan, &self.machine, states);
        self.shared.note(|status| status.listeners = listeners);
    }

    /// Reads everything and makes a plan.
    pub(super) fn plan_anew(&mut self) -> Result<(MachineSnapshot, Plan)> {
        self.read_at = Instant::now();
        let mut machine =
            MachineSnapshot { home: self.home.read_anew()?, ..MachineSnapshot::default() };
        // After the addresses of the lists at hooks: a link that comes meanwhile makes them outdated.
        self.links.look()?;
        self.add_machine(&mut machine)?;
        for sandbox in self.sandboxes.values_mut() {
            let snapshot = sandbox.state.read_anew()?;
            machine.sandboxes.insert(sandbox.state.number, sandbox.snapshot(snapshot)?);
        }
        self.add_routes(&mut machine)?;
        self.leave_out_spent(&mut machine);
        let plan = Plan::new(&machine.home, &machine.sandboxes, |name| self.wanted.wants(name));
        Ok((machine, plan))
    }

    /// Removes the learned addresses behind ports that have spent their budget.
    fn leave_out_spent(&self, machine: &mut MachineSnapshot) {
        if self.budgets.spent() > 0 {
            machine.leave_out(|port| self.budgets.is_spent(port));
        }
    }

    /// Removes the addresses of changes that were notified during the read. Returns false if one
    /// affects more than its address.
    fn can_forget(
        &self,
        machine: &mut MachineSnapshot,
        plan: &mut Plan,
        (entries, beyond): Pending<'_>,
    ) -> bool {
        if entries.is_empty() && beyond.is_empty() {
            return true;
        }
        if machine.keys(entries).is_err() {
            return false;
        }
        let changed = entries.iter().filter_map(|(number, change)| match change {
            Change::Entry(entry) => Some((*number, *entry)),
            Change::Neighbour { .. } => None,
        });
        for (number, entry) in changed.chain(beyond.iter().copied()) {
            machine.forget(number, &entry);
        }
        *plan = Plan::new(&machine.home, &machine.sandboxes, |name| self.wanted.wants(name));
        true
    }

    /// Returns the state of a namespace by number.
    pub(super) fn netns(&self, number: u16) -> &NetnsState {
        let mut sandboxes = self.sandboxes.values().map(|sandbox| &sandbox.state);
        sandboxes.find(|state| state.number == number).unwrap_or(&self.home)
    }

    /// Reads everything, and updates maps and hooks.
    fn rebuild(&mut self, cause: Cause) -> Result<()> {
        self.withdraw()?;
        self.work();
        self.shared.pulse.rebuilt(cause);
        self.budgets.recover(Instant::now());
        for attempt in 0.. {
            // Reading a large machine takes long. The thread does not hang.
            self.shared.pulse.beat();
            let (mut machine, mut plan) = self.plan_anew()?;
            // New veth pairs change the state, so it must be read again.
            let joined = self.join(&plan)?;
            // If something changed during the read, parts of it are from different moments and must
            // not be published.
            let (news, beyond) = self.notified_changes();
            if let Ok(News { entries, rules: None }) = news
                && !joined
                && self.can_forget(&mut machine, &mut plan, (&entries, &beyond))
            {
                self.publish(machine, plan)?;
                // The changed addresses are not in the plan. Add them as they are now.
                if !self.follow(&entries)? {
                    // They affect others. The next heartbeat reads everything again.
                    self.unsettled = true;
                    self.withdraw()?;
                }
                return Ok(());
            }
            if attempt == ATTEMPTS {
                // The state changes too often to accelerate. The next heartbeat tries again.
                self.unsettled = true;
                self.note(&plan);
                break;
            }
        }
        Ok(())
    }

    /// Updates maps and hooks to a plan.
    pub(super) fn publish(&mut self, machine: MachineSnapshot, plan: Plan) -> Result<()> {
        self.give_verdicts_by(Basis::new(&machine.home, &plan, &self.basis));
        // Attach first: until the maps are published, programs pass all packets.
        if self.hook(&plan, &machine.home.overlay, &machine.sandboxes)? {
            // The guard is in one of the lists of functions: read them again.
            return self.rebuild(Cause::Retry);
        }
        self.maps.set_rules(machine.home.ruleset.generation);
        self.maps.set_hooks(machine.home.hook_lists);
        self.maps.publish(&plan)?;
        (self.machine, self.plan) = (machine, plan);
        self.unsettled = false;
        self.note(&self.plan);
        self.listen();
        Ok(())
    }

    /// Makes `basis` the state that verdicts depend on. Existing verdicts remain valid if it allows
    /// that.
    fn give_verdicts_by(&mut self, mut basis: Basis) {
        basis.succeed(&self.basis);
        self.maps.set_verdicts(basis.number);
        let basis = Arc::new(basis);
        *lock(&self.shared.verdicts.basis) = basis.clone();
        self.basis = basis;
    }

    /// Attaches the programs of a plan. Returns whether the guard came to a netfilter hook.
    fn hook(
        &mut self,
        plan: &Plan,
        home: &Overlay,
        sandboxes: &BTreeMap<u16, SandboxSnapshot>,
    ) -> Result<bool> {
        let ports = |number: u16| {
            let of = move |id: &&DeviceId| id.netns == number;
            plan.ports.keys().filter(of).map(|id| (id.index, Role::Encap))
        };
        let pairs = self.sandboxes.values().filter_map(|sandbox| sandbox.crossing);
        // Packets that leave are recorded only if flows need verdicts.
        let tenants = self.basis.ports.keys().map(|index| (*index, Role::Leave));
        let tunnels = self.basis.tunnels.iter().map(|(index, tunnel)| match tunnel.is_bridged() {
            true => (*index, Role::Leave),
            false => (*index, Role::Depart),
        });
        let gives_verdicts = !self.basis.is_idle() && self.basis.number > 0;
        let is_guarded_anew = gives_verdicts && self.home.guard()?;
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
        Ok(is_guarded_anew)
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
