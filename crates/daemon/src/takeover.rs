//! Takeover from the process that serves a namespace.
//!
//! The successor attaches its programs behind those of its predecessor and publishes its own plan.
//! From then on, every packet passes one of the two fast paths. Only then, the successor takes over
//! the name of the control socket and tells the predecessor to exit. If it fails earlier, the
//! predecessor continues unchanged.
//!
//! A confined process cannot rename files. A helper process, forked before confinement, renames the
//! socket, tells the predecessor to exit, and exits.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use sys::monitor::{Answer, Monitor};
use sys::netns::NetNs;

use crate::accelerator::{self, Predecessor};
use crate::confinement::Rights;
use crate::control::{self, Claim};

/// Name of the helper process.
const HEIR: &CStr = c"accel-heir";
/// Time limit of the helper.
const LIMIT: Duration = Duration::from_secs(10);
/// Request to the helper: rename the socket and stop the predecessor.
const TAKE: &[u8] = b"t";

pub struct Takeover {
    predecessor: Predecessor,
    /// Name of the predecessor's socket.
    name: String,
    heir: Option<Monitor>,
}

/// Claims a namespace, or the place of its successor if a process serves it.
///
/// # Errors
/// If another process is taking over, or the serving process does not answer.
pub fn claim(netns: &NetNs) -> anyhow::Result<(Claim, Option<Takeover>)> {
    let name = accelerator::name(netns)?;
    // Without a running process, --takeover is a normal start.
    let Some(predecessor) = accelerator::predecessor(netns)? else {
        return Ok((accelerator::claim(netns)?, None));
    };
    let taken = format!("another process is taking over from process {}", predecessor.pid);
    let claim = control::claim(&format!("next-{name}"), &taken)?;
    Ok((claim, Some(Takeover { predecessor, name, heir: None })))
}

impl Takeover {
    /// Returns the process that serves the namespace.
    pub fn predecessor(&self) -> &Predecessor {
        &self.predecessor
    }

    /// Forks the helper, which will rename the socket of `claim` and the file `also`, and stop the
    /// predecessor. Must be called before any thread starts.
    ///
    /// # Errors
    /// If no process can be forked.
    pub fn prepare(
        &mut self,
        claim: &Claim,
        also: Option<(PathBuf, PathBuf)>,
    ) -> anyhow::Result<()> {
        let (directory, from) = (claim.directory()?, claim.file().to_owned());
        let name = self.name.clone();
        // The helper closes all other descriptors.
        let kept = [directory.as_fd().as_raw_fd()];
        let prepare = || Rights::only(&[], None).map(drop);
        let heir = Monitor::start(HEIR, &kept, prepare, |_, request| {
            // The process keeps root's rights for this one request, so it accepts no other.
            if request != TAKE {
                return Err("no such request".to_owned());
            }
            if let Some((from, to)) = &also {
                let failed = |e| format!("rename {}: {e}", from.display());
                std::fs::rename(from, to).map_err(failed)?;
            }
            let predecessor =
                control::take_name(&directory, &from, &name).map_err(|e| format!("{e:#}"))?;
            // The helper does this, not the successor: if the successor is killed now, the
            // predecessor still exits, although its name is gone. Only warn on errors: the
            // predecessor may have exited or may hang. Until it exits, its programs run before the
            // successor's and do the same.
            if let Some(Err(error)) = predecessor.map(|stream| accelerator::hand_over(&stream)) {
                tracing::warn!("takeover: the old process: {error:#}");
            }
            Ok(Vec::new())
        })?;
        self.heir = Some(heir);
        Ok(())
    }

    /// Takes over the name and stops the predecessor. Call it once the fast path of this process is
    /// in force.
    ///
    /// # Errors
    /// If the name cannot be taken over. The predecessor then continues.
    pub fn take_over(self) -> anyhow::Result<u32> {
        let pid = self.predecessor.pid;
        if let Some(heir) = &self.heir
            && let Answer::Failed(problem) = heir.ask(TAKE, LIMIT)?
        {
            bail!("take over from process {pid}: {problem}");
        }
        Ok(pid)
    }
}
