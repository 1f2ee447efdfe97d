//! `overlane doctor fix` and `confirm`: change the settings of findings, through the journal.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

use anyhow::Context;
use daemon::background;
use doctor::Host;
use settings::Change;
use settings::journal::{Journal, seconds_from_now};

use crate::exit::{Exit, usage};
use crate::host_reading::{check, findings_of};
use crate::output::print;
use crate::verb::undo::repair;

/// Arguments of `doctor fix`.
pub struct Repair<'a> {
    pub code: &'a str,
    /// Do not ask on the terminal.
    pub yes: bool,
    /// Seconds after which unconfirmed changes are undone.
    pub confirm_within_s: Option<u64>,
}

/// Fixes all findings of a check.
///
/// # Errors
/// Wrong usage; an unusable journal; an unreadable host. A change that fails is reported and sets
/// the exit code.
pub fn run(
    fix: &Repair<'_>,
    directory: &Path,
    read: impl FnOnce() -> anyhow::Result<Host>,
) -> anyhow::Result<Exit> {
    let check = check(fix.code)?;
    // Do not lock the journal while reading and asking: other processes may need it to undo
    // changes.
    let mut partly = !repair(&Journal::open(directory)?)?;
    let (mut changes, mut text) = (Vec::<Change>::new(), String::new());
    for finding in &findings_of(check, &read()?) {
        let place = format!("{} {}", finding.namespace, finding.object);
        // Writing to a String cannot fail.
        match &finding.fix {
            // There is only advice, which the user must follow.
            Some(fix) if fix.changes.is_empty() => {
                partly = true;
                let _ = writeln!(text, "{place}: fix by hand: {}", fix.command);
            }
            Some(fix) => {
                // Findings at both endpoints may propose the same change.
                let mut new = fix.changes.clone();
                new.retain(|change| !changes.contains(change));
                for change in &new {
                    let (from, to) = (&change.from, &change.to);
                    let _ = writeln!(text, "{}: change {from} to {to}", change.object());
                }
                if !new.is_empty() {
                    let _ = writeln!(text, "  risk: {}", fix.risk);
                }
                changes.extend(new);
            }
            None => {
                partly = true;
                let _ = writeln!(text, "{place}: no command fixes this (overlane doctor explain)");
            }
        }
    }
    if text.is_empty() {
        print(&format!("{} has no finding here", check.code))?;
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
    // Start it before the changes, because one of them may cut this session's connection.
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
        print(&format!("undone in {seconds} s unless you run: overlane doctor confirm"))?;
    }
    Ok(if partly { Exit::Partly } else { Exit::Done })
}

fn agreed(changes: usize) -> anyhow::Result<bool> {
    // Never change a host from a script without --yes.
    if !std::io::stdin().is_terminal() {
        return Err(usage("--yes", "required if standard input is not a terminal"));
    }
    print(&format!("Make {changes} change(s)? [y/N]"))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

/// Starts a process that undoes unconfirmed changes.
fn start_waiting(directory: &Path, seconds: u64) -> anyhow::Result<()> {
    let directory = std::path::absolute(directory).context("path of --journal")?;
    let seconds = seconds.to_string();
    let words = ["undo", "--when-due", &seconds, "--journal"].map(OsStr::new);
    background::command(words.into_iter().chain([directory.as_os_str()]))?
        .spawn()
        .context("start the process that undoes changes")?;
    Ok(())
}

/// Confirms all changes made with `--confirm-within`.
///
/// # Errors
/// An unusable journal; standard output.
pub fn confirm(directory: &Path) -> anyhow::Result<Exit> {
    let journal = Journal::open(directory)?;
    let mut whole = repair(&journal)?;
    for entry in journal.entries()?.iter().filter(|entry| entry.waits()) {
        let (id, object) = (entry.id, entry.change.object());
        match journal.confirm(entry) {
            Ok(()) => print(&format!("{object}: kept (overlane undo {id})"))?,
            // Go on: this change will be undone, but the remaining ones can still be confirmed.
            Err(error) => {
                whole = false;
                print(&format!("{object}: not confirmed: {error}"))?;
            }
        }
    }
    Ok(if whole { Exit::Done } else { Exit::Partly })
}
