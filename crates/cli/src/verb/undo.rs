//! `overlane undo`: what `doctor fix` and `try` have changed, taken back.

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

/// How often a process that nobody watches tries to take back what is due.
const ATTEMPTS: u32 = 600;
/// Between two of these.
const BETWEEN: Duration = Duration::from_secs(1);

/// Takes changes back, or lists them.
///
/// # Errors
/// A usage error for a number that is no change; a journal that cannot be used. A change
/// that cannot be taken back is told of, and is in the exit code.
pub fn run(arguments: &Undo) -> anyhow::Result<Exit> {
    let directory = &arguments.journal.directory;
    if let Some(seconds) = arguments.when_due {
        if !is_due_after(directory, Duration::from_secs(seconds))? {
            return Ok(Exit::Done);
        }
        return unwatched(directory);
    }
    if let Some(watched) = arguments.when_gone {
        return if was_killed(watched) { unwatched(directory) } else { Ok(Exit::Done) };
    }
    let absent = directory.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    if absent && arguments.id.is_none() {
        print("nothing to take back")?;
        return Ok(Exit::Done);
    }
    let journal = Journal::open(directory)?;
    // An entry that is to be forgotten is not taken back first.
    if arguments.forget {
        return forget(&journal, arguments.id.unwrap_or_default());
    }
    let mut told = Told::default();
    told.repair(&journal)?;
    if arguments.list {
        return list(&journal, told);
    }
    let contents = journal.contents()?;
    let mut entries = contents.entries;
    if let Some(id) = arguments.id {
        entries.retain(|entry| entry.id == id);
        // One that cannot be read was told of above.
        let unread = contents.left.iter().any(|left| left.id == Some(id));
        if entries.is_empty() && !unread && !told.of.contains(&id) {
            return Err(no_change(id));
        }
    }
    let (tried, entries): (Vec<Entry>, Vec<Entry>) =
        entries.into_iter().partition(|entry| entry.trial);
    let running = journal.trial_runs()?;
    for entry in &tried {
        told.whole = false;
        // Where none is running, what could not be taken back was told above.
        if running {
            let (id, object) = (entry.id, entry.change.object());
            told.say(&format!("{id}: {object}: left to the try that is running"));
        }
    }
    let again = told.of.clone();
    for entry in entries.iter().rev().filter(|entry| !again.contains(&entry.id)) {
        told.take_back(&journal, entry);
    }
    told.end()
}

fn no_change(id: u64) -> anyhow::Error {
    usage("ID", format!("{id} is no change (overlane undo --list)"))
}

fn list(journal: &Journal, mut told: Told) -> anyhow::Result<Exit> {
    let contents = journal.contents()?;
    if contents.entries.is_empty() && contents.left.is_empty() {
        told.say("nothing to take back");
    }
    for entry in &contents.entries {
        told.say(&describe(entry));
    }
    // What could not be taken back now is in the list.
    told.whole = contents.left.is_empty();
    told.end()
}

fn forget(journal: &Journal, id: u64) -> anyhow::Result<Exit> {
    let entry = journal.entries()?.into_iter().find(|entry| entry.id == id);
    let entry = entry.ok_or_else(|| no_change(id))?;
    if entry.trial && journal.trial_runs()? {
        return Err(usage("ID", format!("{id} is of the try that is running")));
    }
    journal.forget(&entry)?;
    print(&format!("{id}: {}: left as it is; forgotten", entry.change.object()))?;
    Ok(Exit::Done)
}

/// Takes back what is due, with nobody there who would do it instead.
fn unwatched(directory: &Path) -> anyhow::Result<Exit> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let mut told = Told::default();
        match Journal::open_patiently(directory).and_then(|journal| told.repair(&journal)) {
            Ok(()) => return told.end(),
            Err(error @ JournalError::Untrusted { .. }) => return Err(error.into()),
            Err(error) if attempt == ATTEMPTS => return Err(error.into()),
            // A disk or a table of files that is full now may not be so later.
            Err(_) => std::thread::sleep(BETWEEN),
        }
    }
}

/// Waits; whether there is still something at the end that nobody has confirmed or
/// taken back. Returns early when there is not. Time goes on while the machine sleeps.
fn is_due_after(directory: &Path, wait: Duration) -> anyhow::Result<bool> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC).context("inotify")?;
    // An entry is marked where it is: that a lock is taken changes no file.
    let events = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_DELETE;
    inotify.add_watch(directory, events).context("watch the journal")?;
    let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC).context("timer")?;
    let end = Expiration::OneShot(TimeSpec::from_duration(wait.max(Duration::from_nanos(1))));
    timer.set(end, TimerSetTimeFlags::empty()).context("timer")?;
    loop {
        // Whoever makes the changes has the journal until they are made.
        let entries = Journal::open_patiently(directory)?.entries()?;
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

/// Takes back what a killed process or an absent confirmation has left; says
/// whether all of it could be, and nothing was there that is no entry.
///
/// # Errors
/// A journal that cannot be listed; standard output.
pub fn repair(journal: &Journal) -> anyhow::Result<bool> {
    let mut told = Told::default();
    told.repair(journal)?;
    Ok(told.end()? == Exit::Done)
}

/// What was done so far, and said of it.
struct Told {
    /// Nothing is left to take back; decides the exit code.
    whole: bool,
    /// Numbers of the entries that were tried.
    of: Vec<u64>,
    /// Why it could not be said. That is no reason to leave the rest as it is.
    unsaid: Option<anyhow::Error>,
}

impl Default for Told {
    fn default() -> Told {
        Told { whole: true, of: Vec::new(), unsaid: None }
    }
}

impl Told {
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
        // Standard output may be a result's.
        let _ = writeln!(std::io::stderr(), "journal: skipped: {left}");
    }

    fn take_back(&mut self, journal: &Journal, entry: &Entry) {
        self.of.push(entry.id);
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
                (format!("{id}: {object}: gone since the machine was started anew"), true)
            }
            Ok(Undone::Unsure(reason)) => {
                let whether = "whether there was anything to take back is not known";
                (format!("{id}: {reason}: {whether}: see for yourself"), false)
            }
            Ok(Undone::Gone(reason)) => (format!("{id}: {reason}: nothing to take back"), true),
            Err(error @ JournalError::Stays { .. }) => (format!("{id}: {error}"), false),
            Err(error) => {
                let by_hand = format!("by hand, if that is right: {}", entry.change.undo());
                let after = format!("then overlane undo {id} --forget");
                (format!("{id}: not taken back: {error}\n  {by_hand}\n  {after}"), false)
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
            format!("{id}  {code}  {}: taken back by {}{waits}", change.object(), change.from)
        }
        _ => format!("{id}  {code}  {}: {} was {}{waits}", change.object(), change.to, change.from),
    }
}
