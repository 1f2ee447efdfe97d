//! `overlane undo`: what `doctor fix` and `try` have changed, taken back.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use doctor::change::Setting;
use doctor::journal::{Entry, Journal, Undone};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::doctor_args::Undo;
use crate::exit::{Exit, usage};
use crate::output::print;
use crate::trial_guard::was_killed;

/// Takes changes back, or lists them.
pub fn run(arguments: &Undo) -> anyhow::Result<Exit> {
    let directory = &arguments.journal.directory;
    if let Some(seconds) = arguments.when_due
        // Entries count whole seconds.
        && !is_due_after(directory, Duration::from_secs(seconds.saturating_add(1)))?
    {
        return Ok(Exit::Done);
    }
    if arguments.when_gone.is_some_and(|watched| !was_killed(watched)) {
        return Ok(Exit::Done);
    }
    let journal = Journal::open(directory)?;
    let mut whole = repair(&journal)?;
    if arguments.when_due.is_some() || arguments.when_gone.is_some() {
        return Ok(if whole { Exit::Done } else { Exit::Partly });
    }
    let mut entries = journal.entries()?;
    if arguments.list {
        if entries.is_empty() {
            print("nothing to take back")?;
        }
        for entry in &entries {
            print(&describe(entry))?;
        }
        return Ok(Exit::Done);
    }
    if let Some(id) = arguments.id {
        entries.retain(|entry| entry.id == id);
        if entries.is_empty() {
            return Err(usage("ID", format!("{id} is no change (overlane undo --list)")));
        }
    }
    let (tried, entries): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.trial);
    let running = journal.trial_runs()?;
    for entry in &tried {
        whole = false;
        // Where none is running, what could not be taken back was told above.
        if running {
            let (id, object) = (entry.id, entry.change.object());
            print(&format!("{id}: {object}: left to the try that is running"))?;
        }
    }
    for entry in entries.iter().rev() {
        whole &= take_back(&journal, entry)?;
    }
    Ok(if whole { Exit::Done } else { Exit::Partly })
}

/// Waits; whether there is still something at the end that nobody has confirmed or
/// taken back. Returns early when there is not.
fn is_due_after(directory: &Path, wait: Duration) -> anyhow::Result<bool> {
    let start = Instant::now();
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC).context("inotify")?;
    let events = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
    inotify.add_watch(directory, events).context("watch the journal")?;
    loop {
        // Whoever makes the changes has the journal until they are made.
        let entries = Journal::open(directory)?.entries()?;
        if entries.iter().all(|entry| entry.confirm_until_s.is_none()) {
            return Ok(false);
        }
        let left = wait.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(true);
        }
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => drop(inotify.read_events().context("inotify")?),
            Err(error) => return Err(error).context("poll"),
        }
    }
}

/// Takes back what a killed process or an absent confirmation has left; says
/// whether all of it could be.
pub fn repair(journal: &Journal) -> anyhow::Result<bool> {
    let mut whole = true;
    for entry in journal.overdue()? {
        whole &= take_back(journal, &entry)?;
    }
    Ok(whole)
}

fn take_back(journal: &Journal, entry: &Entry) -> anyhow::Result<bool> {
    let (id, object, from) = (entry.id, entry.change.object(), &entry.change.from);
    let (said, done) = match journal.undo(entry) {
        Ok(Undone::Restored) if entry.change.setting == Setting::Command => {
            (format!("{id}: {from}"), true)
        }
        Ok(Undone::Restored) => (format!("{id}: {object}: {from} again"), true),
        Ok(Undone::AlreadyThere { rebooted: false }) => {
            (format!("{id}: {object}: {from} already"), true)
        }
        Ok(Undone::AlreadyThere { rebooted: true }) => {
            (format!("{id}: {object}: {from} since the machine was started anew"), true)
        }
        Ok(Undone::Unsure(reason)) => {
            let whether = "whether there was anything to take back is not known";
            (format!("{id}: {reason}: {whether}: see for yourself"), false)
        }
        Ok(Undone::Gone(reason)) => (format!("{id}: {reason}: nothing to take back"), true),
        Err(error) => (format!("{id}: not taken back: {error}"), false),
    };
    print(&said)?;
    Ok(done)
}

fn describe(entry: &Entry) -> String {
    let change = &entry.change;
    let waits = match entry.confirm_until_s {
        Some(_) => "; to be confirmed (overlane doctor confirm)",
        None if entry.trial => "; on trial",
        None => "",
    };
    let (id, code) = (entry.id, &entry.code);
    match change.setting {
        Setting::Command => {
            format!("{id}  {code}  {}: taken back by {}{waits}", change.object(), change.from)
        }
        _ => format!("{id}  {code}  {}: {} was {}{waits}", change.object(), change.to, change.from),
    }
}
