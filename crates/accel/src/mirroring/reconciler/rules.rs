//! Changes of packet filters, followed without reading anything else.
//!
//! Rules change often on a node of Kubernetes, by a few chains among thousands. Everything is
//! withdrawn before one of them is looked at, as for any change that concerns all packets.
//! Then the chains and sets that notifications name are read again, the plan is made from the
//! snapshot that is there, and published. What a hook calls, tables and whatever else is told
//! has everything read anew.

use std::sync::Arc;
use std::time::Duration;

use netstate::overlay::Change;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ruleset::{Renewed, Touched};

use super::super::incremental::Beyond;
use super::{ATTEMPTS, Reconciler};
use crate::Result;
use crate::model::Plan;

/// A change's notifications come within this time after it.
const SOON: Duration = Duration::from_millis(5);

/// What notifications have told.
#[derive(Default)]
pub(super) struct News {
    /// Single entries, by the number of their namespace.
    pub(super) entries: Vec<(u16, Change)>,
    /// What has changed in the rules of the NICs' namespace.
    pub(super) rules: Option<Touched>,
}

impl News {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.rules.is_none()
    }

    /// Adds what a namespace tells.
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
        // Of sandboxes rules are only asked whether there are any.
        if netns != 0 {
            return Err(Beyond);
        }
        let touched = self.rules.get_or_insert_default();
        // A loop: all() would leave out what comes behind.
        for datagram in rules {
            if !touched.add(datagram) {
                return Err(Beyond);
            }
        }
        Ok(())
    }
}

impl Reconciler {
    /// Follows what was told of rules, with everything withdrawn. Says whether that was
    /// possible.
    pub(super) fn follow_rules(&mut self, mut news: News) -> Result<bool> {
        for _ in 0..ATTEMPTS {
            // Neighbours change their states all the time, which is no change.
            if !self.machine.keys(&news.entries).is_ok_and(|keys| keys.is_empty()) {
                return Ok(false);
            }
            let touched = news.rules.get_or_insert_default();
            let renewed = self.home.renew(touched)?;
            if renewed == Renewed::Behind {
                self.await_filters();
            }
            let Ok(later) = self.told() else { return Ok(false) };
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

    /// Waits for a notification of rules.
    fn await_filters(&self) {
        let fds = self.home.watch.fds().filter(|(_, name)| *name == "nftables");
        let mut fds: Vec<PollFd> = fds.map(|(fd, _)| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, PollTimeout::try_from(SOON).unwrap_or(PollTimeout::ZERO));
    }
}
