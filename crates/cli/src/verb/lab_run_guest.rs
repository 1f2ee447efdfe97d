//! `overlane lab run` of modes `…@guest`: checks the arguments, and builds the command line for the
//! guest.

use std::ffi::OsString;

use clap::Args;
use lab::at_guest::{self, AtGuest};
use lab::guest;
use session::finished::Finished;
use session::{fault_runs, in_guest};

use super::lab_run::{CheckedRun, given};
use crate::args::Run;
use crate::by_name::ByName;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::{Destination, deliver};
use crate::quantity::alternatives;

/// Options that this side handles. The guest gets its own values or none.
const OWN: [&str; 7] =
    ["--modes", "--mode", "--baseline", "--guest-kernel", "--out", "--format", "--json"];
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
    if arguments.output.events.is_some() {
        return Err(usage("--events", "not with modes …@guest, whose samples come at the end"));
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
        at_guest::find(name).ok_or_else(|| {
            let known = at_guest::all().iter().map(|mode| mode.name);
            let others = alternatives(name, known, "overlane lab list guest");
            usage(argument, format!("unknown mode {name:?} in a guest{others}"))
        })
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

    let command_line = |modes: &[&AtGuest]| {
        let mut all = vec!["lab".to_owned(), "run".to_owned()];
        if let Some(plan) = &arguments.plan {
            all.push(format!("--plan={plan}"));
        }
        for word in inside(modes) {
            let word = word.into_string();
            all.push(word.map_err(|word| usage("lab run", format!("{word:?}: not UTF-8")))?);
        }
        Ok(all)
    };
    let stop = interrupt::flag()?;
    let finished = in_guest::run(modes, &command_line, &checked.request, &stop)?;
    let Some(Finished { results, ended }) = finished else { return Ok(Exit::Interrupted) };
    let by_name = ByName::of(&arguments.modes, arguments.plan.is_some());
    deliver(&results, ended, &arguments.output, destination.as_ref(), None, &by_name)
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
        let arguments = words(&given(&["--quick"]), &modes);
        assert_eq!(arguments, given(&["--quick", "--modes=host,vlan", "--baseline=host"]));
    }
}
