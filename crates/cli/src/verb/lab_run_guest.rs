//! `overlane lab run` of modes `…@guest`: the whole run takes place inside one guest. This side
//! boots the guest, sends it the command line, and renames the modes in its results.

use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Args;
use lab::at_guest::{self, AtGuest};
use lab::guest::exec::{Done, RunError};
use lab::{Capabilities, guest};
use measure::run::Ended;
use results::{EndedBy, ModeRecord, Results, Status};

use super::lab_run::{CheckedRun, given};
use crate::args::Run;
use crate::exit::{Exit, usage};
use crate::fault_runs;
use crate::interrupt;
use crate::output::{Destination, deliver};
use crate::progress::Progress;

/// Options that this side handles. The guest gets its own values or none.
const OWN: [&str; 7] =
    ["--modes", "--mode", "--baseline", "--guest-kernel", "--out", "--format", "--json"];
/// Estimated boot time of the guest, in s.
const BOOT_SECONDS: u32 = 10;
/// Maximum number of guests per run, if guests hang. Emulated CPUs may deadlock while the kernel
/// patches its own code.
const MOST_GUESTS: usize = 3;
/// Prefix of a line of [`Progress`] in the log.
const PROGRESS: &str = "overlane::progress: ";

/// Returns the requested modes `…@guest`, the baseline first. `None` if there are none.
///
/// # Errors
/// A usage error for a mix with other modes, or an unknown mode.
pub fn asked(arguments: &Run) -> anyhow::Result<Option<Vec<&'static AtGuest>>> {
    let names: Vec<&str> = arguments.modes.split(',').map(str::trim).collect();
    let is_at_guest = |name: &str| name == at_guest::GROUP || name.contains('@');
    if !names.iter().chain([&arguments.baseline.as_str()]).any(|name| is_at_guest(name)) {
        return Ok(None);
    }
    if let Some(other) = names.iter().find(|name| !is_at_guest(name)) {
        let besides = match names.iter().find(|name| is_at_guest(name)) {
            Some(named) => format!("mode {named}"),
            None => format!("--baseline {}", arguments.baseline),
        };
        let problem = format!(
            "{other:?} together with {besides}: modes …@guest need a separate run, because ratios \
             are only valid between them; --modes guest selects all of them"
        );
        return Err(usage("--modes", problem));
    }
    let find = |argument, name: &str| {
        let known: Vec<&str> = at_guest::all().iter().map(|mode| mode.name).collect();
        let unknown = || format!("unknown mode {name:?}; in a guest: {}", known.join(", "));
        at_guest::find(name).ok_or_else(|| usage(argument, unknown()))
    };
    let baseline = match arguments.baseline.as_str() {
        // The default of --baseline: use the guest's host mode.
        "host" => &at_guest::all()[0],
        name => find("--baseline", name)?,
    };
    let mut modes = vec![baseline];
    for name in names {
        let named = match name {
            at_guest::GROUP => at_guest::all().iter().collect(),
            name => vec![find("--modes", name)?],
        };
        for mode in named {
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
    }
    Ok(Some(modes))
}

/// Measures the modes, and prints or writes the results.
///
/// # Errors
/// Wrong usage; a guest that does not boot or exits during the run; results that cannot be
/// written.
pub fn run(arguments: &Run, modes: &[&'static AtGuest]) -> anyhow::Result<Exit> {
    if let Some(plan) = arguments.plan.as_deref().filter(|plan| plan.contains(['/', '.'])) {
        let problem =
            format!("{plan}: the guest cannot read files of this machine; use a built-in plan");
        return Err(usage("--plan", problem));
    }
    if arguments.faults > 0 {
        let problem = format!("modes …@guest support no fault; {}", fault_runs::known());
        return Err(usage("--faults", problem));
    }
    if let Some(image) = &arguments.guest_kernel {
        let kernel = guest::Kernel::open(image);
        guest::use_kernel(kernel.map_err(|error| usage("--guest-kernel", error))?);
    }
    let options = options(given());
    let inside = |modes: &[&AtGuest]| words(&options, modes);
    // Report wrong usage before starting a guest.
    let quick = arguments.measuring.quick;
    let checked = CheckedRun::of_words(arguments.plan.as_deref(), &inside(modes), quick)?;
    let destination = arguments.output.out.as_deref().map(Destination::check).transpose()?;

    let privileges = testbed::acquire()
        .context("user namespaces are disabled for ordinary users on this machine: run as root")?;
    let stop = interrupt::flag()?;
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
    testbed::heed(stop.clone());
    let mut told = vec!["lab".to_owned(), "run".to_owned()];
    if let Some(plan) = &arguments.plan {
        told.push(format!("--plan={plan}"));
    }
    for word in inside(&able) {
        let word = word.into_string();
        told.push(word.map_err(|word| usage("lab run", format!("{word:?}: not UTF-8")))?);
    }
    let interrupted = || stop.load(Ordering::Relaxed);
    let mut attempt = run_inside(&able, &told, &progress, &stop);
    let mut stood_still = Vec::new();
    // Only a guest that hangs is retried.
    while let Err(RunError::Silent(error)) = &attempt
        && stood_still.len() + 1 < MOST_GUESTS
        && !interrupted()
    {
        let why = format!("{error}; the run was restarted in another guest");
        progress.aside(|| tracing::warn!("{why}"));
        stood_still.push(why);
        attempt = run_inside(&able, &told, &progress, &stop);
    }
    progress.finish();
    let Some((done, note)) = attempt? else { return Ok(Exit::Interrupted) };
    // Interrupted before the first sample: there are no results to print.
    if done.results.is_empty() && interrupted() {
        return Ok(Exit::Interrupted);
    }
    let mut results = outcome(done)?;
    rename(&mut results, &note);
    results.warnings.extend(stood_still);
    results.cells.extend(checked.missing_cells(&records));
    results.modes.extend(records);
    results.plan.modes = results.modes.iter().map(|mode| mode.mode.clone()).collect();
    let ended = match results.ended_by {
        EndedBy::Interrupted => Ended::Interrupted,
        EndedBy::Failed => Ended::Failed,
        _ => Ended::Blocks,
    };
    deliver(&results, ended, &arguments.output, destination.as_ref())
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

/// Returns the command line without the options that this side handles.
fn options(given: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut given = given.into_iter();
    while let Some(word) = given.next() {
        let text = word.to_string_lossy();
        let name = text.split('=').next().unwrap_or_default();
        if !OWN.contains(&name) {
            kept.push(word);
        // Also skip the value of an option that this side handles.
        } else if name == text && takes_value(name) {
            given.next();
        }
    }
    kept
}

/// Returns whether an option without `=` takes the next word as its value.
fn takes_value(option: &str) -> bool {
    let known = Run::augment_args(clap::Command::new("run"));
    let named = |arg: &&clap::Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases).any(|long| option == format!("--{long}"))
    };
    known.get_arguments().find(named).is_some_and(|arg| arg.get_action().takes_values())
}

/// Returns the command line for the guest.
fn words(options: &[OsString], modes: &[&AtGuest]) -> Vec<OsString> {
    let names: Vec<&str> = modes.iter().map(|mode| mode.mode().name()).collect();
    let own = [format!("--modes={}", names.join(",")), format!("--baseline={}", names[0])];
    options.iter().cloned().chain(own.map(OsString::from)).collect()
}

/// Shows progress lines and warnings from the guest's log.
fn tell(progress: &Progress, line: &str) {
    if let Some((_, message)) = line.split_once(PROGRESS) {
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
    fn options_of_this_side_stay_here() {
        let given = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let all = given(&[
            "--modes",
            "guest",
            "--quick",
            "--out=x.json",
            "--json",
            "--sizes",
            "64",
            "--format",
            "csv",
            "--baseline=host@guest",
            "--guest-kernel",
            "/k",
            "--vary=ring=50",
        ]);
        assert_eq!(options(all), given(&["--quick", "--sizes", "64", "--vary=ring=50"]));
        let modes = [&at_guest::all()[0], at_guest::find("vlan@guest").unwrap()];
        let told = words(&given(&["--quick"]), &modes);
        assert_eq!(told, given(&["--quick", "--modes=host,vlan", "--baseline=host"]));
    }

    #[test]
    fn without_results_the_last_error_is_told() {
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
