//! Reads the state once a second and compares it with the snapshot of the plan, to find changes
//! without notification and missed ones.

use super::super::gather::Extent;
use super::Reconciler;
use crate::Result;
use crate::model::MachineSnapshot;

/// Include entries every N audits. There may be many, and the kernel notifies each change.
const WHOLE: u64 = 30;

impl Reconciler {
    /// Whether the state equals the snapshot of the plan.
    pub(super) fn is_as_planned(&mut self) -> Result<bool> {
        // A change of this moment is notified shortly, so wait for a second mismatch.
        let was_behind = self.was_behind;
        self.was_behind = self.home.is_behind()?;
        for sandbox in self.sandboxes.values() {
            self.was_behind |= sandbox.state.is_behind()?;
        }
        if self.was_behind && was_behind {
            return Ok(false);
        }
        self.audits += 1;
        let whole = self.audits.is_multiple_of(WHOLE);
        let extent = if whole { Extent::Whole } else { Extent::ButEntries };
        let mut now =
            MachineSnapshot { home: self.home.read(extent)?, ..MachineSnapshot::default() };
        self.add_machine(&mut now)?;
        for sandbox in self.sandboxes.values() {
            let sandboxed = sandbox.snapshot(sandbox.state.read(extent)?)?;
            now.sandboxes.insert(sandbox.state.number, sandboxed);
        }
        if whole {
            self.leave_out_spent(&mut now);
            self.add_routes(&mut now)?;
            return Ok(now == self.machine);
        }
        // The routes to look up depend on the entries, so borrow them.
        now.give_entries(self.machine.take_entries());
        let routed = self.add_routes(&mut now);
        let entries = now.take_entries();
        let same = now == self.machine;
        self.machine.give_entries(entries);
        routed.map(|()| same)
    }
}
