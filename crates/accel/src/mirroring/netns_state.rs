//! A namespace that the reconciler watches: its state, and the programs at its devices.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use libbpf_rs::Link;
use netstate::Netlink;
use netstate::netfilter::{BridgeCalls, LegacyTables, ebtables, has_virtual_services};
use netstate::overlay::Overlay;
use netstate::watch::StateWatch;
use ruleset::{Nftables, Renewed, Ruleset, Touched};
use sys::netns::{Entered, NetNs};
use sys::tcx::{self, Hook};

use super::gather::{Extent, gather};
use super::shared::Shared;
use crate::Result;
use crate::lock::lock;
use crate::model::NetnsSnapshot;
use crate::programs::{Programs, Role};

pub(crate) struct NetnsState {
    /// Number in the maps. 0 is the namespace with the NICs, in which the thread lives.
    pub(crate) number: u16,
    pub(crate) netns: NetNs,
    pub(crate) watch: StateWatch,
    pub(crate) netlink: Netlink,
    // Before `programs`: fields are dropped in order, and links must be detached first.
    hooks: BTreeMap<(u32, Role), tcx::Link>,
    guards: Option<Vec<Link>>,
    pub(crate) programs: Programs,
    nftables: RefCell<Nftables>,
    /// The rules of the last read. There may be many.
    rules: RefCell<Arc<Ruleset>>,
    tables: LegacyTables,
    legacy: Vec<String>,
    calls: BridgeCalls,
    calls_made: bool,
    ebtables: Vec<String>,
    services: bool,
    /// Links to check for foreign programs.
    looked_at: BTreeSet<u32>,
    occupied: BTreeSet<u32>,
    shared: Arc<Shared>,
}

impl NetnsState {
    /// Starts watching `netns`.
    pub(crate) fn new(
        number: u16,
        netns: NetNs,
        programs: Programs,
        shared: Arc<Shared>,
    ) -> Result<NetnsState> {
        let _inside = netns.enter()?;
        lock(&shared.programs).extend(programs.ids()?);
        Ok(NetnsState {
            number,
            // Open the sockets before the first read, so that no change is missed.
            watch: StateWatch::open()?,
            netlink: Netlink::open()?,
            hooks: BTreeMap::new(),
            guards: None,
            programs,
            nftables: RefCell::new(Nftables::open()?),
            rules: RefCell::default(),
            tables: LegacyTables::default(),
            legacy: Vec::new(),
            calls: BridgeCalls::default(),
            calls_made: false,
            ebtables: Vec::new(),
            services: false,
            looked_at: BTreeSet::new(),
            occupied: BTreeSet::new(),
            shared,
            netns: netns.try_clone()?,
        })
    }

    /// Moves the thread into the namespace until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Option<Entered>> {
        Ok(if self.number == 0 { None } else { Some(self.netns.enter()?) })
    }

    /// Whether this process took over from another.
    pub(crate) fn succeeds(&self) -> bool {
        !self.shared.predecessor.is_empty()
    }

    /// Reads the state, except rules, which come from the last read.
    pub(crate) fn read(&self, extent: Extent) -> Result<NetnsSnapshot> {
        let _inside = self.enter()?;
        let hook_lists = self.programs.hook_lists()?;
        let rules = self.rules.borrow().clone();
        let mut snapshot = gather(&self.netlink, rules, &self.occupied, extent)?;
        #[cfg(feature = "test-support")]
        self.assume(&mut snapshot);
        snapshot.hook_lists = hook_lists;
        Ok(snapshot)
    }

    /// Gives VXLAN devices the limits of GSO packets that a test wants.
    #[cfg(feature = "test-support")]
    fn assume(&self, snapshot: &mut NetnsSnapshot) {
        let Some(size) = self.shared.gso_max_size.get().copied() else { return };
        for link in snapshot.overlay.links.values_mut().filter(|link| link.vxlan.is_some()) {
            (link.gso_max_size, link.gso_ipv4_max_size) = (Some(size), Some(size));
        }
        snapshot.big_tunnels = true;
    }

    /// Whether the rules' generation differs from the last read.
    pub(crate) fn is_behind(&self) -> Result<bool> {
        Ok(ruleset::is_behind(&mut self.nftables.borrow_mut(), &self.rules.borrow())?)
    }

    /// Updates the rules that notifications have named.
    pub(crate) fn renew(&self, touched: &Touched) -> Result<Renewed> {
        Ok(ruleset::renew(&mut self.nftables.borrow_mut(), &self.rules.borrow(), touched)?)
    }

    /// Replaces the rules.
    pub(crate) fn know(&self, rules: Arc<Ruleset>) {
        self.rules.replace(rules);
    }

    /// Reads the nftables rules. Returns the known value if they are unchanged.
    fn rules(&self) -> Result<Arc<Ruleset>> {
        let rules = ruleset::refresh(&mut self.nftables.borrow_mut(), &self.rules.borrow())?;
        self.rules.replace(rules.clone());
        Ok(rules)
    }

    /// Reads the state, including state without notifications.
    pub(crate) fn read_anew(&mut self) -> Result<NetnsSnapshot> {
        let _inside = self.enter()?;
        // Before the functions: if one comes meanwhile, the lists are outdated and packets slow.
        let hook_lists = self.programs.hook_lists()?;
        let mut snapshot = gather(&self.netlink, self.rules()?, &self.occupied, Extent::Whole)?;
        #[cfg(feature = "test-support")]
        self.assume(&mut snapshot);
        snapshot.hook_lists = hook_lists;
        self.looked_at = snapshot.overlay.links.keys().copied().collect();
        self.occupied = self.occupied();
        snapshot.occupied = self.occupied.clone();
        self.legacy = self.tables.names();
        self.calls_made = snapshot.bridge_netfilter;
        self.ebtables = ebtables();
        self.services = has_virtual_services();
        Ok(snapshot)
    }

    /// Whether state without notifications has changed. With `all`, also checks foreign programs,
    /// ebtables and IPVS, which takes longer.
    pub(crate) fn has_changed(&mut self, all: bool) -> Result<bool> {
        let _inside = self.enter()?;
        let (tables, calls) = (self.tables.names(), self.calls.are_made());
        let rest = || {
            self.occupied() != self.occupied
                || ebtables() != self.ebtables
                || has_virtual_services() != self.services
        };
        Ok(tables != self.legacy || calls != self.calls_made || (all && rest()))
    }

    /// Returns the links whose hooks have foreign programs. The fast path would bypass a program at
    /// the egress of a VXLAN device or a tenant's port.
    fn occupied(&self) -> BTreeSet<u32> {
        let ours = |index: u32, hook: Hook| {
            let is_ours = |(at, role): &&(u32, Role)| *at == index && role.hook() == hook;
            self.hooks.keys().filter(is_ours).count() as u32
        };
        let predecessor = &self.shared.predecessor;
        let at = |index: u32, hook| {
            // A device that has been removed has no programs.
            if predecessor.is_empty() {
                return tcx::count(index, hook).unwrap_or(0);
            }
            // The predecessor's programs do the same as this process's programs.
            let programs = tcx::programs(index, hook).unwrap_or_default();
            programs.iter().filter(|id| !predecessor.contains(id)).count() as u32
        };
        let others = |index: u32, hook: Hook| at(index, hook) > ours(index, hook);
        let is_occupied =
            |index: &u32| others(*index, Hook::Ingress) || others(*index, Hook::Egress);
        self.looked_at.iter().copied().filter(is_occupied).collect()
    }

    /// Attaches the guard of connections, if it is not there. It remains to the end, because
    /// conntrack does not track these connections alone. Returns whether a hook has changed.
    pub(crate) fn guard(&mut self) -> Result<bool> {
        let is_new = self.guards.is_none();
        if is_new {
            self.guards = Some(self.programs.guard()?);
        }
        Ok(is_new && self.programs.has_guard())
    }

    /// Attaches and detaches programs, so that these hooks are in place.
    pub(crate) fn hook(&mut self, wanted: &BTreeSet<(u32, Role)>, at: &Overlay) -> Result<()> {
        self.hooks.retain(|hook, _| wanted.contains(hook));
        let _inside = self.enter()?;
        for hook in wanted {
            if !self.hooks.contains_key(hook) {
                let name = at.links.get(&hook.0).map_or("?", |link| link.name.as_str());
                let link = self.programs.attach(hook.1, hook.0, name)?;
                let link = match hook.1 {
                    // Detach these first if the process is killed: none may send to a veth pair
                    // whose program is already detached.
                    Role::Encap | Role::Decap => link.released_early()?,
                    Role::Outward | Role::Inward | Role::Leave | Role::Depart => link,
                };
                self.hooks.insert(*hook, link);
            }
        }
        Ok(())
    }
}
