//! Life cycle of sandboxes: find them, load programs, connect them to the NICs' namespace, release
//! them.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use netstate::overlay::Overlay;

use super::super::crossing_veth::CrossingVeth;
use super::super::sandbox::Sandbox;
use super::super::search::{FoundSandbox, Search};
use super::Reconciler;
use crate::Result;
use crate::model::{DevicePlan, Plan};

impl Reconciler {
    /// Searches for sandboxes now and periodically, if any are wanted.
    pub(super) fn look_for_sandboxes(&mut self) -> Result<()> {
        if !self.wanted.wants_sandboxes() {
            self.search = None;
            return Ok(());
        }
        if self.search.is_none() {
            let goes_on = || !self.shared.stop.load(Ordering::Acquire);
            let (search, found) = Search::start(&self.home.netns, &self.shared.source, &goes_on)?;
            self.search = Some(search);
            self.take_up(found)?;
        }
        Ok(())
    }

    /// Adds sandboxes that were found and releases those that no longer exist. Returns whether
    /// there were any.
    pub(super) fn adopt(&mut self) -> Result<bool> {
        if self.search.as_ref().is_some_and(Search::is_lost) {
            self.shared.pulse.finder_lost();
        }
        let gone: Vec<u64> = match &self.search {
            Some(search) => search.gone().into_iter().collect(),
            // Sandboxes are no longer wanted: release all.
            None => self.sandboxes.keys().copied().collect(),
        };
        let gone: Vec<u64> =
            gone.into_iter().filter(|inode| self.sandboxes.contains_key(inode)).collect();
        for inode in &gone {
            self.withdraw()?;
            self.let_go(*inode);
        }
        let found = self.search.as_ref().and_then(Search::found).unwrap_or_default();
        Ok(self.take_up(found)? || !gone.is_empty())
    }

    fn take_up(&mut self, found: Vec<FoundSandbox>) -> Result<bool> {
        let mut any = false;
        for found in found {
            let inode = found.inode();
            if self.sandboxes.contains_key(&inode) {
                continue;
            }
            let (spares, home) = (&mut self.spares, &self.home.programs);
            match Sandbox::new(found, spares, home, self.shared.clone()) {
                Ok(sandbox) => drop(self.sandboxes.insert(inode, sandbox)),
                // It is tried again when the next search finds it. Other sandboxes continue.
                Err(error) => {
                    tracing::warn!("net:[{inode}] takes the slow path: {error}");
                    continue;
                }
            }
            any = true;
        }
        if any {
            self.tell_search();
        }
        Ok(any)
    }

    /// Passes the list of watched sandboxes to the search thread.
    fn tell_search(&self) {
        if let Some(search) = &self.search {
            search.know(self.sandboxes.values().map(|sandbox| sandbox.kept.clone()).collect());
        }
    }

    pub(super) fn let_go(&mut self, inode: u64) {
        let Some(mut sandbox) = self.sandboxes.remove(&inode) else { return };
        self.tell_search();
        // Detach the tenants' programs first: none may send into a pair without programs.
        let _ = sandbox.state.hook(&BTreeSet::new(), &Overlay::default());
        if let Some(crossing) = sandbox.crossing {
            crossing.remove(&self.home, &sandbox.state);
        }
        let (number, programs) = (sandbox.state.number, sandbox.state.programs);
        if self.spares.give_back(number, programs) {
            // The next sandbox with this number must not inherit the counters.
            self.maps.forget(number);
        }
    }

    /// Connects sandboxes that need it to the NICs' namespace, and disconnects those that are no
    /// longer wanted. Returns whether there were any.
    pub(super) fn join(&mut self, plan: &Plan) -> Result<bool> {
        let mut any = false;
        for sandbox in self.sandboxes.values_mut() {
            let of = |device: &&DevicePlan| device.sandbox == Some(sandbox.state.number);
            let mut devices = plan.devices.iter().filter(of);
            match sandbox.crossing {
                None if devices.any(|device| device.refused.is_none()) => {
                    match CrossingVeth::make(&self.home, &sandbox.state) {
                        Ok(both) => sandbox.crossing = Some(both),
                        // Other sandboxes continue.
                        Err(error) => sandbox.problem = Some(error.to_string()),
                    }
                    any = true;
                }
                Some(crossing) if devices.next().is_none() => {
                    // Detach the tenants' programs first, as in let_go().
                    sandbox.state.hook(&BTreeSet::new(), &Overlay::default())?;
                    crossing.remove(&self.home, &sandbox.state);
                    sandbox.crossing = None;
                    any = true;
                }
                _ => {}
            }
        }
        Ok(any)
    }
}
