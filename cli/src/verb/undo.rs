//! `overlane undo`: what `doctor fix` has changed, taken back.

use std::time::Duration;

use doctor::journal::{Entry, Journal, Undone};

use crate::doctor_args::Undo;
use crate::exit::{Exit, usage};
use crate::output::print;

/// Takes changes back, or lists them.
pub fn run(arguments: &Undo) -> anyhow::Result<Exit> {
    if let Some(seconds) = arguments.when_due {
        // Entries count whole seconds.
        std::thread::sleep(Duration::from_secs(seconds.saturating_add(1)));
    }
    let journal = Journal::open(&arguments.journal.directory)?;
    let mut whole = repair(&journal)?;
    if arguments.when_due.is_some() {
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
    for entry in entries.iter().rev() {
        whole &= take_back(&journal, entry)?;
    }
    Ok(if whole { Exit::Done } else { Exit::Partly })
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
        Ok(Undone::Restored) => (format!("{id}: {object}: {from} again"), true),
        Ok(Undone::AlreadyThere { rebooted: false }) => {
            (format!("{id}: {object}: {from} already"), true)
        }
        Ok(Undone::AlreadyThere { rebooted: true }) => {
            (format!("{id}: {object}: {from} since the machine was started anew"), true)
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
        None => "",
    };
    let (id, code) = (entry.id, &entry.code);
    format!("{id}  {code}  {}: {} was {}{waits}", change.object(), change.to, change.from)
}
