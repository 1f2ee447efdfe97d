//! Applies changes of packet filters without reading anything else.
//!
//! On a Kubernetes node rules change often, a few chains among thousands. A change may affect all
//! packets, so everything is withdrawn first. Then the named chains and sets are read, and a plan
//! is made from the existing snapshot and published. Changes of hooks, tables and anything else
//! cause a full read.

use std::sync::Arc;
use std::time::Duration;

use netstate::overlay::Change;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ruleset::{Renewed, Touched};

use super::super::incremental::Beyond;
use super::{ATTEMPTS, Reconciler};
use crate::Result;
use crate::model::Plan;

/// Notifications of a change arrive within this time.
const SOON: Duration = Duration::from_millis(5);

/// Pending notifications.
#[derive(Default)]
pub(super) struct News {
    /// Single entries, with the number of their namespace.
    pub(super) entries: Vec<(u16, Change)>,
    /// Changed rules of the NICs' namespace.
    pub(super) rules: Option<Touched>,
}

impl News {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.rules.is_none()
    }

    /// Adds the notifications of a namespace.
    pub(super) fn add(
        &mut self,
        netns: u16,
        entries: Vec<Change>,
        rules: &[Vec<u8>],
    ) -> std::result::Result<(), Beyond> {
        self.entries.extend(entries.into_iter().map(|change| (netns, change)));
        if rules.is_empty() {
            return Ok(());
        }
        // For sandboxes, rules are not evaluated, so any change needs a full read.
        if netns != 0 {
            return Err(Beyond);
        }
        let touched = self.rules.get_or_insert_default();
        // A loop, because `all()` would skip the remaining datagrams.
        for datagram in rules {
            if !touched.add(datagram) {
                return Err(Beyond);
            }
        }
        Ok(())
    }
}

impl Reconciler {
    /// Applies changes of rules; everything is withdrawn meanwhile. Returns false if that is
    /// impossible.
    pub(super) fn follow_rules(&mut self, mut news: News) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            // Neighbour notifications without a new address change nothing.
            if !self.machine.keys(&news.entries).is_ok_and(|keys| keys.is_empty()) {
                return Ok(false);
            }
            let touched = news.rules.get_or_insert_default();
            let renewed = self.home.renew(touched)?;
            if renewed == Renewed::Behind {
                self.await_filters();
            }
            let Ok(later) = self.notified_changes().0 else { return Ok(false) };
            match renewed {
                Renewed::Rules(rules) if later.is_empty() => {
                    let rules = Arc::new(rules);
                    let mut machine = std::mem::take(&mut self.machine);
                    machine.home.ruleset = rules.clone();
                    let wants = |name: &str| self.wanted.wants(name);
                    let plan = Plan::new(&machine.home, &machine.sandboxes, wants);
                    let joined = self.join(&plan)?;
                    self.home.know(rules);
                    if joined {
                        return Ok(false);
                    }
                    self.publish(machine, plan)?;
                    return Ok(true);
                }
                Renewed::Beyond => return Ok(false),
                Renewed::Rules(_) | Renewed::Behind => {}
            }
            news.entries.extend(later.entries);
            if let Some(later) = later.rules {
                news.rules.get_or_insert_default().extend(later);
            }
        }
        Ok(false)
    }

    /// Waits briefly for a notification of rules.
    fn await_filters(&self) {
        let fds = self.home.watch.fds().filter(|(_, name)| *name == "nftables");
        let mut fds: Vec<PollFd> = fds.map(|(fd, _)| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, PollTimeout::try_from(SOON).unwrap_or(PollTimeout::ZERO));
    }
}
