//! Sandboxes: namespaces with VXLAN devices whose underlay is in the namespace with the NICs, as in
//! Docker's overlay networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::crossing_veth::CrossingVeth;
use super::netns_state::NetnsState;
use super::search::{FoundSandbox, Kept};
use super::shared::Shared;
use super::spares::Spares;
use crate::Result;
use crate::model::{NetnsSnapshot, SandboxSnapshot};
use crate::programs::Programs;

/// A sandbox that is watched.
pub(crate) struct Sandbox {
    pub(crate) state: NetnsState,
    pub(crate) crossing: Option<CrossingVeth>,
    /// Why there is no pair.
    pub(crate) problem: Option<String>,
    /// The path that keeps it alive.
    pub(crate) kept: Kept,
    name: String,
    underlay: u32,
}

impl Sandbox {
    pub(crate) fn new(
        found: FoundSandbox,
        spares: &mut Spares,
        home: &Programs,
        shared: Arc<Shared>,
    ) -> Result<Sandbox> {
        // Fail early if the sandbox is gone, before taking programs.
        drop(found.netns.enter()?);
        let (number, programs) = spares.take(home)?;
        let state = NetnsState::new(number, found.netns, programs, shared)?;
        let FoundSandbox { path, name, underlay, .. } = found;
        let kept = Kept { inode: state.netns.inode(), path };
        Ok(Sandbox { state, crossing: None, problem: None, kept, name, underlay })
    }

    /// Completes the snapshot for a plan.
    pub(crate) fn snapshot(&self, mut snapshot: NetnsSnapshot) -> Result<SandboxSnapshot> {
        let mut numbers = BTreeMap::new();
        for link in snapshot.overlay.links.values() {
            if let (Some("veth"), Some(tenant)) = (link.kind.as_deref(), link.link_netns)
                // Without an id, frames are delivered to the port instead of the peer.
                && let Ok(Some(number)) = self.state.netlink.number_there(tenant, self.underlay)
            {
                numbers.insert(tenant, number);
            }
        }
        snapshot.numbers = Some(numbers);
        if let Some(crossing) = &self.crossing {
            snapshot.overlay.links.remove(&crossing.inner);
        }
        Ok(SandboxSnapshot {
            name: self.name.clone(),
            snapshot,
            underlay: self.underlay,
            crossing: self.crossing.map(|both| (both.inner, both.outer)),
            problem: self.problem.clone(),
        })
    }
}
