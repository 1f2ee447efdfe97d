//! The state is read again once a second, and compared with what the plan was made from: for
//! what the kernel does not notify, and for what was missed.

use super::super::gather::Extent;
use super::Reconciler;
use crate::Result;
use crate::model::MachineSnapshot;

/// Entries, too, each so many times; there may be many, and the kernel tells of each.
const WHOLE: u64 = 30;

impl Reconciler {
    /// Whether everything is as it was when the plan was made.
    pub(super) fn is_as_planned(&mut self) -> Result<bool> {
        // What has changed just now is told in a moment.
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
            self.add_routes(&mut now)?;
            return Ok(now == self.machine);
        }
        // Which routes are asked for depends on the entries.
        now.give_entries(self.machine.take_entries());
        let routed = self.add_routes(&mut now);
        let entries = now.take_entries();
        let same = now == self.machine;
        self.machine.give_entries(entries);
        routed.map(|()| same)
    }
}
