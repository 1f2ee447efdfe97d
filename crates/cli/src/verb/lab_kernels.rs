//! `overlane lab kernels`: runs `lab run` in a guest with each of two kernels, and compares.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context;
use lab::guest::Kernel;

use super::report_compare;
use crate::args::Kernels;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::output::print;
use crate::report_args::Compare;

/// Modes that are measured unless the options name some.
const MODES: &str = "--modes=host@guest,vxlan@guest";
/// Options that this command sets itself.
const OWN: [&str; 2] = ["--guest-kernel", "--out"];

/// Measures with both kernels, prints the comparison, and fails above the limit.
///
/// # Errors
/// Wrong usage; a directory that cannot be written; results without common cells.
pub fn run(arguments: &Kernels) -> anyhow::Result<Exit> {
    // Both runs take minutes, so check everything before the first.
    report_compare::limit(&arguments.fail_on)?;
    for (argument, image) in [("OLD", &arguments.old), ("NEW", &arguments.new)] {
        Kernel::open(image).map_err(|error| usage(argument, error))?;
    }
    let options = options(&arguments.options)?;
    let temporary = tempfile::tempdir().context("create a directory for the results")?;
    let directory = arguments.keep.as_deref().unwrap_or_else(|| temporary.path());
    std::fs::create_dir_all(directory).map_err(|error| {
        usage("--keep", format!("cannot create {}: {error}", directory.display()))
    })?;
    let [before, after] = ["old.json", "new.json"].map(|name| directory.join(name));
    // Ctrl-C ends the child, which then ends this process.
    let _stop = interrupt::flag_that_waits()?;
    // The new kernel first: if it does not boot, nothing else needs measuring.
    for (kernel, results) in [(&arguments.new, &after), (&arguments.old, &before)] {
        print(&format!("kernel {}\n", kernel.display()))?;
        let status = measured(&options, kernel, results)?;
        if !status.success() {
            return Ok(failed(status));
        }
    }
    report_compare::run(&Compare {
        a: before,
        b: vec![after],
        fail_on: Some(arguments.fail_on.clone()),
        json: false,
        markdown: false,
        csv: false,
        html: None,
    })
}

/// Returns the options for `lab run`, with the usual modes if they name none.
fn options(given: &[OsString]) -> anyhow::Result<Vec<OsString>> {
    let names = || given.iter().map(|word| word.to_string_lossy());
    let is = |word: &str, name: &str| word.split('=').next() == Some(name);
    if let Some(own) = OWN.iter().find(|own| names().any(|word| is(&word, own))) {
        return Err(usage(
            "OPTIONS",
            format!("{own}: set by this command; see OLD, NEW and --keep"),
        ));
    }
    let mut options = given.to_vec();
    if !names().any(|word| ["--modes", "--mode", "--plan"].iter().any(|name| is(&word, name))) {
        options.push(MODES.into());
    }
    Ok(options)
}

fn measured(options: &[OsString], kernel: &Path, results: &Path) -> anyhow::Result<ExitStatus> {
    let program = std::env::current_exe().context("find this program")?;
    let mut command = Command::new(program);
    command.args(["lab", "run"]).args(options);
    command.arg("--guest-kernel").arg(kernel).arg("--out").arg(results);
    command.status().context("run overlane lab run")
}

/// Returns the exit code of a run that failed.
fn failed(status: ExitStatus) -> Exit {
    match status.code() {
        Some(130) => Exit::Interrupted,
        Some(code) => u8::try_from(code).map_or(Exit::Partly, Exit::Code),
        // Ended by a signal.
        None => Exit::Partly,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_usual_modes_are_measured_unless_others_are_named() {
        assert_eq!(options(&[]).unwrap(), words(MODES));
        assert_eq!(options(&words("--quick")).unwrap(), words(&format!("--quick {MODES}")));
        for own in ["--modes vlan@guest", "--mode=vlan@guest", "--plan x"] {
            assert_eq!(options(&words(own)).unwrap(), words(own));
        }
        for refused in ["--out x.json", "--guest-kernel=k"] {
            let error = options(&words(refused)).unwrap_err().to_string();
            assert!(error.contains("set by this command"), "{error}");
        }
    }
}
