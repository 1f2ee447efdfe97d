//! A namespace that the mirror follows: its state, and the programs at its devices.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use netstate::Netlink;
use netstate::netfilter::{BridgeCalls, LegacyTables, ebtables};
use netstate::overlay::Overlay;
use netstate::watch::Watch;
use sys::netns::{Entered, NetNs};
use sys::tcx::{self, Hook};

use crate::Result;
use crate::bpf::{Programs, Role};
use crate::facts::{Extent, gather};
use crate::plan::Facts;

pub(crate) struct Space {
    /// Its number in the maps; 0: the one with the NICs, in which the thread lives.
    pub(crate) number: u16,
    pub(crate) netns: NetNs,
    pub(crate) watch: Watch,
    pub(crate) netlink: Netlink,
    // Links before the programs: detached first.
    hooks: BTreeMap<(u32, Role), OwnedFd>,
    pub(crate) programs: Programs,
    tables: LegacyTables,
    legacy: Vec<String>,
    calls: BridgeCalls,
    calls_made: bool,
    ebtables: Vec<String>,
    /// Links that matter, to look at for programs of others.
    looked_at: BTreeSet<u32>,
    occupied: BTreeSet<u32>,
}

impl Space {
    /// Follows `netns`.
    pub(crate) fn new(number: u16, netns: NetNs, programs: Programs) -> Result<Space> {
        let _inside = netns.enter()?;
        Ok(Space {
            number,
            // Before the first reading: nothing is missed between.
            watch: Watch::open()?,
            netlink: Netlink::open()?,
            hooks: BTreeMap::new(),
            programs,
            tables: LegacyTables::default(),
            legacy: Vec::new(),
            calls: BridgeCalls::default(),
            calls_made: false,
            ebtables: Vec::new(),
            looked_at: BTreeSet::new(),
            occupied: BTreeSet::new(),
            netns: netns.try_clone()?,
        })
    }

    /// Brings the thread there until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Option<Entered>> {
        Ok(if self.number == 0 { None } else { Some(self.netns.enter()?) })
    }

    /// Reads its state.
    pub(crate) fn read(&self, extent: Extent) -> Result<Facts> {
        let _inside = self.enter()?;
        Ok(gather(&self.netlink, &self.occupied, extent)?)
    }

    /// Reads its state, and looks for what is not notified.
    pub(crate) fn read_anew(&mut self) -> Result<Facts> {
        let _inside = self.enter()?;
        let mut facts = gather(&self.netlink, &self.occupied, Extent::Whole)?;
        self.looked_at = facts.overlay.links.keys().copied().collect();
        self.occupied = self.occupied();
        facts.occupied = self.occupied.clone();
        self.legacy = self.tables.names();
        self.calls_made = facts.bridge_netfilter;
        self.ebtables = ebtables();
        Ok(facts)
    }

    /// Whether something has changed that is not notified; what takes longer to ask for,
    /// programs of others and tables of ebtables, where `all` says so.
    pub(crate) fn has_changed(&mut self, all: bool) -> Result<bool> {
        let _inside = self.enter()?;
        let (tables, calls) = (self.tables.names(), self.calls.are_made());
        let rest = || self.occupied() != self.occupied || ebtables() != self.ebtables;
        Ok(tables != self.legacy || calls != self.calls_made || (all && rest()))
    }

    /// Links at whose hooks there are other programs than ours: one at the egress of a
    /// VXLAN device or a tenant's port would be passed by.
    fn occupied(&self) -> BTreeSet<u32> {
        let ours = |index: u32| self.hooks.keys().filter(|(at, _)| *at == index).count() as u32;
        // A device that has gone has none.
        let at = |index: u32, hook| tcx::count(index, hook).unwrap_or(0);
        let is_occupied =
            |index: &u32| at(*index, Hook::Ingress) > ours(*index) || at(*index, Hook::Egress) > 0;
        self.looked_at.iter().copied().filter(is_occupied).collect()
    }

    /// Brings the hooks to these.
    pub(crate) fn hook(&mut self, wanted: &BTreeSet<(u32, Role)>, at: &Overlay) -> Result<()> {
        self.hooks.retain(|hook, _| wanted.contains(hook));
        let _inside = self.enter()?;
        for hook in wanted {
            if !self.hooks.contains_key(hook) {
                let name = at.links.get(&hook.0).map_or("?", |link| link.name.as_str());
                let link = self.programs.attach(hook.1, hook.0, name)?;
                let link = match hook.1 {
                    // In a killed process these go first: none may send to the end of a
                    // veth pair whose program has gone.
                    Role::Egress | Role::Ingress => tcx::released_early(link)?,
                    Role::Outward | Role::Inward => link,
                };
                self.hooks.insert(*hook, link);
            }
        }
        Ok(())
    }
}
