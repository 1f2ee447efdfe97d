//! `overlane undo`: undoes the changes of `doctor fix` and `try`.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use settings::Setting;
use settings::journal::{Entry, Journal, JournalError, Left, Undone};

use crate::doctor_args::Undo;
use crate::exit::{Exit, usage};
use crate::output::print;
use crate::trial_guard::was_killed;

/// Attempts of an unattended process to undo the changes that are due.
const ATTEMPTS: u32 = 600;
/// Time between two attempts.
const BETWEEN: Duration = Duration::from_secs(1);

/// Undoes changes, or lists them.
///
/// # Errors
/// A usage error for an unknown number; an unusable journal. A change that cannot be undone is
/// reported and sets the exit code.
pub fn run(arguments: &Undo) -> anyhow::Result<Exit> {
    let directory = &arguments.journal.directory;
    if let Some(seconds) = arguments.when_due {
        if !is_due_after(directory, Duration::from_secs(seconds))? {
            return Ok(Exit::Done);
        }
        return unwatched(directory);
    }
    // A trial that ended normally has undone its changes itself.
    if let Some(watched) = arguments.when_gone {
        return if was_killed(watched) { unwatched(directory) } else { Ok(Exit::Done) };
    }
    let absent = directory.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    if absent && arguments.id.is_none() {
        print("nothing to undo")?;
        return Ok(Exit::Done);
    }
    let journal = Journal::open(directory)?;
    // Before the repair below, which would undo an entry that is to be forgotten.
    if arguments.forget {
        return forget(&journal, arguments.id.unwrap_or_default());
    }
    let mut output = UndoOutput::default();
    output.repair(&journal)?;
    if arguments.list {
        return list(&journal, output);
    }
    let contents = journal.contents()?;
    let mut entries = contents.entries;
    if let Some(id) = arguments.id {
        entries.retain(|entry| entry.id == id);
        // The repair above reported an entry that cannot be read.
        let unread = contents.left.iter().any(|left| left.id == Some(id));
        if entries.is_empty() && !unread && !output.of.contains(&id) {
            return Err(no_change(id));
        }
    }
    let (tried, entries): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.trial);
    let running = journal.trial_runs()?;
    for entry in &tried {
        output.whole = false;
        // Without a running trial, the repair above has undone or reported the entry.
        if running {
            let (id, object) = (entry.id, entry.change.object());
            output.say(&format!("{id}: {object}: belongs to a running try"));
        }
    }
    let again = output.of.clone();
    for entry in entries.iter().rev().filter(|entry| !again.contains(&entry.id)) {
        output.take_back(&journal, entry);
    }
    output.end()
}

fn no_change(id: u64) -> anyhow::Error {
    usage("ID", format!("no change {id} (overlane undo --list)"))
}

fn list(journal: &Journal, mut output: UndoOutput) -> anyhow::Result<Exit> {
    let contents = journal.contents()?;
    if contents.entries.is_empty() && contents.left.is_empty() {
        output.say("nothing to undo");
    }
    for entry in &contents.entries {
        output.say(&describe(entry));
    }
    // Changes that could not be undone are in the list, so only unreadable files are a failure.
    output.whole = contents.left.is_empty();
    output.end()
}

fn forget(journal: &Journal, id: u64) -> anyhow::Result<Exit> {
    let entry = journal.entries()?.into_iter().find(|entry| entry.id == id);
    let entry = entry.ok_or_else(|| no_change(id))?;
    // The running trial still needs its entry to undo the change.
    if entry.trial && journal.trial_runs()? {
        return Err(usage("ID", format!("{id} belongs to a running try")));
    }
    journal.forget(&entry)?;
    print(&format!("{id}: {}: setting unchanged, entry deleted", entry.change.object()))?;
    Ok(Exit::Done)
}

/// Undoes the changes that are due, without a user who could retry.
fn unwatched(directory: &Path) -> anyhow::Result<Exit> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut output = UndoOutput::default();
        match Journal::open_patiently(directory).and_then(|journal| output.repair(&journal)) {
            Ok(()) => return output.end(),
            // Retrying cannot make the directory safe.
            Err(error @ JournalError::Untrusted { .. }) => return Err(error.into()),
            Err(error) if attempt == ATTEMPTS => return Err(error.into()),
            // Retry: a full disk or file table may be temporary.
            Err(_) => std::thread::sleep(BETWEEN),
        }
    }
}

/// Waits, and returns whether unconfirmed changes remain at the end. Returns early once there are
/// none. The clock also runs while the machine is suspended.
fn is_due_after(directory: &Path, wait: Duration) -> anyhow::Result<bool> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC).context("inotify")?;
    // Confirming modifies an entry in place. Taking the lock changes no file, so causes no event.
    let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
    inotify.add_watch(directory, events).context("watch the journal")?;
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC).context("timer")?;
    let end = Expiration::OneShot(TimeSpec::from_duration(wait.max(Duration::from_nanos(1))));
    timer.set(end, TimerSetTimeFlags::empty()).context("timer")?;
    loop {
        // The process that makes the changes locks the journal until it is done.
        let entries = Journal::open_patiently(directory)?.entries()?;
        // All changes were confirmed or undone in the meantime.
        if !entries.iter().any(Entry::waits) {
            return Ok(false);
        }
        let mut fds = [inotify.as_fd(), timer.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error).context("poll"),
            Ok(_) => {}
        }
        if fds[1].any() == Some(true) {
            return Ok(true);
        }
        inotify.read_events().context("inotify")?;
    }
}

/// Undoes changes of killed processes and unconfirmed ones. Returns whether all of them could be
/// undone and the journal has no other files.
///
/// # Errors
/// A journal that cannot be listed; standard output.
pub fn repair(journal: &Journal) -> anyhow::Result<bool> {
    let mut output = UndoOutput::default();
    output.repair(journal)?;
    Ok(output.end()? == Exit::Done)
}

/// Progress of an undo, and its output.
struct UndoOutput {
    /// Nothing is left to undo; decides the exit code.
    whole: bool,
    /// Numbers of the entries that were attempted.
    of: Vec<u64>,
    /// The first output error. It must not keep the remaining changes from being undone.
    unsaid: Option<anyhow::Error>,
}

impl Default for UndoOutput {
    fn default() -> UndoOutput {
        UndoOutput { whole: true, of: Vec::new(), unsaid: None }
    }
}

impl UndoOutput {
    fn say(&mut self, text: &str) {
        if let Err(error) = print(text) {
            self.unsaid.get_or_insert(error);
        }
    }

    fn end(self) -> anyhow::Result<Exit> {
        match self.unsaid {
            Some(error) => Err(error),
            None if self.whole => Ok(Exit::Done),
            None => Ok(Exit::Partly),
        }
    }

    fn repair(&mut self, journal: &Journal) -> Result<(), JournalError> {
        for left in &journal.contents()?.left {
            self.left(left);
        }
        for entry in journal.overdue()? {
            self.take_back(journal, &entry);
        }
        Ok(())
    }

    fn left(&mut self, left: &Left) {
        self.whole = false;
        // Standard error, because a JSON result may go to standard output.
        let _ = writeln!(std::io::stderr(), "journal: skipped: {left}");
    }

    fn take_back(&mut self, journal: &Journal, entry: &Entry) {
        self.of.push(entry.id);
        let (id, object, from) = (entry.id, entry.change.object(), &entry.change.from);
        let (said, done) = match journal.undo(entry) {
            Ok(Undone::Restored) if entry.change.setting == Setting::Command => {
                (format!("{id}: {from}"), true)
            }
            Ok(Undone::Restored) => (format!("{id}: {object}: restored to {from}"), true),
            Ok(Undone::AlreadyThere { rebooted: false }) => {
                (format!("{id}: {object}: already {from}"), true)
            }
            Ok(Undone::AlreadyThere { rebooted: true }) => {
                (format!("{id}: {object}: gone since the reboot"), true)
            }
            Ok(Undone::Unsure(reason)) => {
                let whether = "unknown whether there was anything to undo";
                (format!("{id}: {reason}: {whether}: check by hand"), false)
            }
            Ok(Undone::Gone(reason)) => (format!("{id}: {reason}: nothing to undo"), true),
            // The change is undone; only its entry is left.
            Err(error @ JournalError::Stays { .. }) => (format!("{id}: {error}"), false),
            Err(error) => {
                let by_hand = format!("to undo it by hand: {}", entry.change.undo());
                let after = format!("then overlane undo {id} --forget");
                (format!("{id}: not undone: {error}\n  {by_hand}\n  {after}"), false)
            }
        };
        self.whole &= done;
        self.say(&said);
    }
}

fn describe(entry: &Entry) -> String {
    let change = &entry.change;
    let waits = match entry.waits() {
        true => "; to be confirmed (overlane doctor confirm)",
        false if entry.trial => "; on trial",
        false => "",
    };
    let (id, code) = (entry.id, &entry.code);
    match change.setting {
        Setting::Command => {
            format!("{id}  {code}  {}: undone by {}{waits}", change.object(), change.from)
        }
        _ => format!("{id}  {code}  {}: {} was {}{waits}", change.object(), change.to, change.from),
    }
}
