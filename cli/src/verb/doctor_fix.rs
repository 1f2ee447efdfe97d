//! `overlane doctor fix` and `confirm`: a finding's setting changed, journal first.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::{BufRead, IsTerminal};
use std::path::Path;

use anyhow::Context;
use doctor::change::Change;
use doctor::journal::{Journal, seconds_from_now};
use doctor::{Check, Finding, Host, diagnose};

use crate::background;
use crate::exit::{Exit, usage};
use crate::output::print;
use crate::verb::doctor::check;
use crate::verb::undo::repair;

/// What is to be fixed.
pub struct Wanted<'a> {
    /// Code of the check.
    pub code: &'a str,
    /// Without asking.
    pub yes: bool,
    /// To be taken back after so many seconds, unless confirmed.
    pub confirm_within_s: Option<u64>,
}

/// Fixes every finding of one check.
pub fn run(
    wanted: &Wanted<'_>,
    directory: &Path,
    read: impl FnOnce() -> anyhow::Result<Host>,
) -> anyhow::Result<Exit> {
    let check = check(wanted.code)?;
    // Not held while reading and asking: others may have to take something back.
    let mut partly = !repair(&Journal::open(directory)?)?;
    let (mut changes, mut text) = (Vec::<Change>::new(), String::new());
    for finding in &findings_of(check, &read()?) {
        let place = format!("{} {}", finding.namespace, finding.object);
        // Writing to a String cannot fail.
        match &finding.fix {
            Some(fix) => match &fix.change {
                Some(change) => {
                    let (from, to) = (&change.from, &change.to);
                    let _ = writeln!(text, "{}: {from} to be {to}", change.object());
                    let _ = writeln!(text, "  risk: {}", fix.risk);
                    changes.push(change.clone());
                }
                None => {
                    partly = true;
                    let _ = writeln!(text, "{place}: by hand only: {}", fix.command);
                }
            },
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
    if !wanted.yes && !agreed(changes.len())? {
        return Ok(Exit::Partly);
    }
    let journal = Journal::open(directory)?;
    let until = wanted.confirm_within_s.map(seconds_from_now);
    // Before the changes: one of them may cut off whoever is to start it.
    if let Some(seconds) = wanted.confirm_within_s {
        start_waiting(directory, seconds)?;
    }
    for change in &changes {
        match journal.make(check.code, change, until) {
            Ok(entry) => {
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
    if let Some(seconds) = wanted.confirm_within_s {
        print(&format!("taken back in {seconds} s, unless: overlane doctor confirm"))?;
    }
    Ok(if partly { Exit::Partly } else { Exit::Done })
}

/// What one check finds.
pub fn findings_of(check: &Check, host: &Host) -> Vec<Finding> {
    let mut findings = diagnose(host).findings;
    findings.retain(|finding| finding.code == check.code);
    findings
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

/// Lets what was made stay.
pub fn confirm(directory: &Path) -> anyhow::Result<Exit> {
    let journal = Journal::open(directory)?;
    let whole = repair(&journal)?;
    for entry in journal.entries()? {
        if entry.confirm_until_s.is_some() {
            journal.confirm(&entry)?;
            print(&format!("{}: stays (overlane undo {})", entry.change.object(), entry.id))?;
        }
    }
    Ok(if whole { Exit::Done } else { Exit::Partly })
}
