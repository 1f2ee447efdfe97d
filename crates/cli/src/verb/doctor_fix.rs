//! `overlane doctor fix` and `confirm`: a finding's setting changed, journal first.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

use anyhow::Context;
use doctor::Host;
use settings::Change;
use settings::journal::{Journal, seconds_from_now};

use crate::background;
use crate::exit::{Exit, usage};
use crate::host_reading::{check, findings_of};
use crate::output::print;
use crate::verb::undo::repair;

/// What is to be fixed.
pub struct Repair<'a> {
    /// Code of the check.
    pub code: &'a str,
    /// Changes are made without asking on the terminal.
    pub yes: bool,
    /// To be taken back after so many seconds, unless confirmed.
    pub confirm_within_s: Option<u64>,
}

/// Fixes every finding of one check, journal first.
///
/// # Errors
/// Usage; a journal that cannot be used; a host that cannot be read. A change that does not
/// take is told of, and is in the exit code.
pub fn run(
    fix: &Repair<'_>,
    directory: &Path,
    read: impl FnOnce() -> anyhow::Result<Host>,
) -> anyhow::Result<Exit> {
    let check = check(fix.code)?;
    // Not held while reading and asking: others may have to take something back.
    let mut partly = !repair(&Journal::open(directory)?)?;
    let (mut changes, mut text) = (Vec::<Change>::new(), String::new());
    for finding in &findings_of(check, &read()?) {
        let place = format!("{} {}", finding.namespace, finding.object);
        // Writing to a String cannot fail.
        match &finding.fix {
            Some(fix) if fix.changes.is_empty() => {
                partly = true;
                let _ = writeln!(text, "{place}: by hand only: {}", fix.command);
            }
            Some(fix) => {
                // Two ends of one thing may propose the same.
                let mut new = fix.changes.clone();
                new.retain(|change| !changes.contains(change));
                for change in &new {
                    let (from, to) = (&change.from, &change.to);
                    let _ = writeln!(text, "{}: {from} to be {to}", change.object());
                }
                if !new.is_empty() {
                    let _ = writeln!(text, "  risk: {}", fix.risk);
                }
                changes.extend(new);
            }
            None => {
                partly = true;
                let _ = writeln!(text, "{place}: no command does it (overlane doctor explain)");
            }
        }
    }
    if text.is_empty() {
        print(&format!("{} finds nothing here", check.code))?;
        return Ok(if partly { Exit::Partly } else { Exit::Done });
    }
    print(&text)?;
    if changes.is_empty() {
        return Ok(Exit::Partly);
    }
    if !fix.yes && !agreed(changes.len())? {
        return Ok(Exit::Partly);
    }
    let journal = Journal::open(directory)?;
    let until = fix.confirm_within_s.map(seconds_from_now);
    // Before the changes: one of them may cut off whoever is to start it.
    if let Some(seconds) = fix.confirm_within_s {
        start_waiting(directory, seconds)?;
    }
    let mut made = false;
    for change in &changes {
        match journal.make(check.code, change, until) {
            Ok(entry) => {
                made = true;
                let (id, object) = (entry.id, change.object());
                let done = format!("{object}: {} (overlane undo {id})", change.to);
                print(&done)?;
            }
            Err(error) => {
                partly = true;
                print(&format!("not changed: {error}"))?;
            }
        }
    }
    if let Some(seconds) = fix.confirm_within_s.filter(|_| made) {
        print(&format!("taken back in {seconds} s, unless: overlane doctor confirm"))?;
    }
    Ok(if partly { Exit::Partly } else { Exit::Done })
}

fn agreed(changes: usize) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(usage("--yes", "needed where nobody can be asked"));
    }
    print(&format!("Make {changes} change(s)? [y/N]"))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// A process of its own that takes back what nobody has confirmed.
fn start_waiting(directory: &Path, seconds: u64) -> anyhow::Result<()> {
    let directory = std::path::absolute(directory).context("path of --journal")?;
    let seconds = seconds.to_string();
    let words = ["undo", "--when-due", &seconds, "--journal"].map(OsStr::new);
    background::command(words.into_iter().chain([directory.as_os_str()]))?
        .spawn()
        .context("start the process that takes changes back")?;
    Ok(())
}

/// Lets every change stay that waits to be confirmed.
///
/// # Errors
/// A journal that cannot be used; standard output.
pub fn confirm(directory: &Path) -> anyhow::Result<Exit> {
    let journal = Journal::open(directory)?;
    let mut whole = repair(&journal)?;
    for entry in journal.entries()?.iter().filter(|entry| entry.waits()) {
        let (id, object) = (entry.id, entry.change.object());
        match journal.confirm(entry) {
            Ok(()) => print(&format!("{object}: stays (overlane undo {id})"))?,
            // It will be taken back; the others need not be.
            Err(error) => {
                whole = false;
                print(&format!("{object}: not confirmed: {error}"))?;
            }
        }
    }
    Ok(if whole { Exit::Done } else { Exit::Partly })
}
