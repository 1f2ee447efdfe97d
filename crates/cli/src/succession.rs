//! Taking over from the process that serves a namespace.
//!
//! The successor attaches its programs behind those of its predecessor and publishes its own
//! plan. From then on every packet finds one of both. Only then it takes the name of the
//! control socket and has the predecessor end. Where it fails before, the predecessor goes on
//! as if nothing had been.
//!
//! A confined process renames no files. A process that is forked before does that, once, has
//! the predecessor end, and ends.

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

/// The name of the process that renames.
const HEIR: &CStr = c"accel-heir";
/// What renaming may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Request to the forked process: rename the socket and end the predecessor.
const TAKE: &[u8] = b"t";

/// What a successor has before it takes over.
pub struct Succession {
    predecessor: Predecessor,
    /// Of the predecessor's socket.
    name: String,
    heir: Option<Monitor>,
}

/// Claims a namespace, or a place beside the process that serves it.
///
/// # Errors
/// When another process is about to take over; when the one that serves it does not answer.
pub fn claim(netns: &NetNs) -> anyhow::Result<(Claim, Option<Succession>)> {
    let name = accelerator::name(netns)?;
    let Some(predecessor) = accelerator::predecessor(netns)? else {
        return Ok((accelerator::claim(netns)?, None));
    };
    let taken = format!("another process is taking over from process {}", predecessor.pid);
    let claim = control::claim(&format!("next-{name}"), &taken)?;
    Ok((claim, Some(Succession { predecessor, name, heir: None })))
}

impl Succession {
    /// Who serves the namespace.
    pub fn predecessor(&self) -> &Predecessor {
        &self.predecessor
    }

    /// Forks the process that renames the socket of `claim`, and `also` a file, once the
    /// time has come, and has the predecessor end. To be called before there are threads.
    ///
    /// # Errors
    /// When there can be no other process.
    pub fn prepare(
        &mut self,
        claim: &Claim,
        also: Option<(PathBuf, PathBuf)>,
    ) -> anyhow::Result<()> {
        let (directory, from) = (claim.directory()?, claim.file().to_owned());
        let name = self.name.clone();
        let kept = [directory.as_fd().as_raw_fd()];
        let prepare = || Rights::only(&[], None).map(drop);
        let heir = Monitor::start(HEIR, &kept, prepare, |_, request| {
            if request != TAKE {
                return Err("no such request".to_owned());
            }
            if let Some((from, to)) = &also {
                let failed = |e| format!("rename {}: {e}", from.display());
                std::fs::rename(from, to).map_err(failed)?;
            }
            let predecessor =
                control::take_name(&directory, &from, &name).map_err(|e| format!("{e:#}"))?;
            // Here, not in the successor: where that is killed now, nobody is left behind
            // whom no name leads to. The predecessor may have ended meanwhile, or hang: its
            // programs are before the successor's and do the same, until it ends.
            if let Some(Err(error)) = predecessor.map(|stream| accelerator::hand_over(&stream)) {
                tracing::warn!("the process that this one takes over from: {error:#}");
            }
            Ok(Vec::new())
        })?;
        self.heir = Some(heir);
        Ok(())
    }

    /// Takes the name and has the predecessor end. The fast path of this process is in
    /// force.
    ///
    /// # Errors
    /// When the name cannot be had: then the predecessor goes on.
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
