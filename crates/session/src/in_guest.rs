//! `lab run` of modes `…@guest`: the whole run takes place inside one guest. This side boots the
//! guest, sends it the command line, and renames the modes in its results.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use lab::Capabilities;
use lab::at_guest::{self, AtGuest};
use lab::guest::exec::{Done, RunError};
use measure::run::Ended;
use results::{EndedBy, ModeRecord, Results, Status};

use crate::finished::Finished;
use crate::lab_run::LabRun;
use crate::progress::{self, Progress};

/// Estimated boot time of the guest, in s.
const BOOT_SECONDS: u32 = 10;
/// Maximum number of guests per run, if guests hang. Emulated CPUs may deadlock while the kernel
/// patches its own code.
const MOST_GUESTS: usize = 3;

/// Measures the modes, the baseline first. `command_line` returns the command line for the guest,
/// `request` is the same request on this side. `None` if it was interrupted before the first sample.
///
/// # Errors
/// A baseline that cannot be built; a guest that does not boot or exits during the run.
pub fn run(
    modes: &[&'static AtGuest],
    command_line: &dyn Fn(&[&AtGuest]) -> anyhow::Result<Vec<String>>,
    request: &LabRun,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Option<Finished>> {
    let privileges = testbed::acquire()
        .context("user namespaces are disabled for ordinary users on this machine: run as root")?;
    let progress = Progress::new("reading the machine");
    let capabilities = Capabilities::new(privileges)?;
    let (mut able, mut records) = (Vec::new(), Vec::new());
    for &mode in modes {
        match mode.probe(&capabilities) {
            Ok(()) => able.push(mode),
            Err(missing) if records.is_empty() && able.is_empty() => {
                progress.finish();
                anyhow::bail!(
                    "baseline {} cannot be built: {}; {}",
                    mode.name,
                    missing.reason,
                    missing.remedy
                );
            }
            Err(missing) => records.push(ModeRecord {
                mode: mode.name.to_owned(),
                path: mode.path.to_owned(),
                status: Status::Unsupported,
                reason: Some(missing.reason),
                remedy: Some(missing.remedy),
                notes: Vec::new(),
                alternatives: Vec::new(),
            }),
        }
    }
    testbed::set_cancel_flag(Arc::clone(stop));
    let words = command_line(&able)?;
    let interrupted = || stop.load(Ordering::Relaxed);
    let mut attempt = run_inside(&able, &words, &progress, stop);
    let mut stood_still = Vec::new();
    // Only a guest that hangs is retried.
    while let Err(RunError::Silent(error)) = &attempt
        && stood_still.len() + 1 < MOST_GUESTS
        && !interrupted()
    {
        let why = format!("{error}; the run was restarted in another guest");
        progress.aside(|| tracing::warn!("{why}"));
        stood_still.push(why);
        attempt = run_inside(&able, &words, &progress, stop);
    }
    progress.finish();
    let Some((done, note)) = attempt? else { return Ok(None) };
    // Interrupted before the first sample: there are no results to print.
    if done.results.is_empty() && interrupted() {
        return Ok(None);
    }
    let mut results = outcome(done)?;
    rename(&mut results, &note);
    results.warnings.extend(stood_still);
    results.cells.extend(request.missing_cells(&records));
    results.modes.extend(records);
    results.plan.modes = results.modes.iter().map(|mode| mode.mode.clone()).collect();
    let ended = match results.ended_by {
        EndedBy::Interrupted => Ended::Interrupted,
        EndedBy::Failed => Ended::Failed,
        _ => Ended::Blocks,
    };
    Ok(Some(Finished { results, ended }))
}

/// Boots a guest for these modes and runs the program in it. Returns the results and a note about
/// the guest. `None` if interrupted during the boot.
fn run_inside(
    modes: &[&AtGuest],
    words: &[String],
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Option<(Done, String)>, RunError> {
    progress.build("the guest", Some(BOOT_SECONDS));
    let guest = at_guest::start(modes);
    progress.built();
    let guest = match guest {
        // Ctrl-C also interrupts the boot, so its error is no failure.
        Err(_) if stop.load(Ordering::Relaxed) => return Ok(None),
        guest => guest?,
    };
    let note = guest.note();
    guest.run(words, stop, |line| tell(progress, line)).map(|done| Some((done, note)))
}

/// Shows progress lines and warnings from the guest's log.
fn tell(progress: &Progress, line: &str) {
    if let Some((_, message)) = line.split_once(&format!("{}: ", progress::LOG)) {
        progress.prepare(format!("in the guest: {message}"));
    } else if line.contains(" WARN ") {
        progress.aside(|| tracing::warn!("in the guest: {line}"));
    }
}

/// Parses the results of the program in the guest.
fn outcome(done: Done) -> anyhow::Result<Results> {
    if done.results.is_empty() {
        let said = done.last_lines.iter().rfind(|line| line.starts_with("error: "));
        let said = said.map_or_else(|| done.last_lines.join(" | "), |line| line[7..].to_owned());
        anyhow::bail!("the run in the guest ended with status {}: {said}", done.status);
    }
    Results::from_json(&done.results).context("results of the guest")
}

/// Renames the modes from their names inside the guest, and adds the note about the guest.
fn rename(results: &mut Results, note: &str) {
    let outside = |mode: &mut String| *mode = AtGuest::outside(mode);
    outside(&mut results.plan.baseline);
    for record in &mut results.modes {
        outside(&mut record.mode);
        if let Some(mode) = at_guest::find(&record.mode) {
            mode.path.clone_into(&mut record.path);
        }
        // Alternatives that are faster in the guest need not be faster on this machine.
        record.alternatives.clear();
    }
    // One note is enough: all modes ran in the same guest.
    if let Some(baseline) = results.modes.first_mut() {
        baseline.notes.push(note.to_owned());
    }
    results.testbeds.iter_mut().for_each(|testbed| outside(&mut testbed.mode));
    results.cells.iter_mut().for_each(|cell| outside(&mut cell.mode));
    results.warnings.insert(
        0,
        format!(
            "{note}: ratios only between modes …@guest; the guest cannot see disturbances by other \
             programs on the host"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_results_the_last_error_is_reported() {
        let done = |lines: &[&str]| Done {
            status: 2,
            results: Vec::new(),
            last_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        let said = outcome(done(&["x", "error: no such thing", "y"])).unwrap_err().to_string();
        assert_eq!(said, "the run in the guest ended with status 2: no such thing");
        let said = outcome(done(&["x", "y"])).unwrap_err().to_string();
        assert!(said.ends_with("status 2: x | y"), "{said}");
        let none = Done { results: b"{}".to_vec(), ..done(&[]) };
        assert!(outcome(none).unwrap_err().to_string().contains("results of the guest"));
    }
}
