//! `overlane doctor`: finds problems in this host's virtual networks.

use std::fs::File;
use std::io::BufReader;

use anyhow::Context;
use doctor::{CHECKS, Diagnosis, Severity, diagnose};
use report::listing::ListedCheck;

use crate::doctor_args::{Doctor, DoctorVerb, FailOn};
use crate::exit::{Exit, usage};
use crate::host_reading::{check, read, read_with_eligible};
use crate::output::{Destination, print, print_json, style};
use crate::verb::doctor_fix::{self, Repair};

/// Exit code of findings at or above `--fail-on`.
const FOUND: u8 = 10;

/// Diagnoses the host, or runs the inner verb.
///
/// # Errors
/// Wrong usage; a host that cannot be read at all; a dump that is damaged or too large.
pub fn run(arguments: &Doctor) -> anyhow::Result<Exit> {
    match &arguments.verb {
        None => look(arguments),
        Some(DoctorVerb::List { json }) => list(*json),
        Some(DoctorVerb::Explain { code }) => explain(code),
        Some(DoctorVerb::Fix { code, reading, yes, confirm_within, journal }) => {
            let repair = Repair { code, yes: *yes, confirm_within_s: *confirm_within };
            doctor_fix::run(&repair, &journal.directory, || read(reading, &journal.directory))
        }
        Some(DoctorVerb::Confirm { journal }) => doctor_fix::confirm(&journal.directory),
        Some(DoctorVerb::Dump { reading, out, scrub, journal }) => {
            // Check the output first: reading a large host takes long.
            let destination = Destination::check(out)?;
            let mut host = read_with_eligible(reading, &journal.directory)?;
            if *scrub {
                host = doctor::scrub::scrub(&host).context("scrub")?;
            }
            // Build the dump in memory, so that a failure leaves no partial file.
            let mut bytes = Vec::new();
            doctor::dump::write(&host, &mut bytes)?;
            destination.write(&bytes)?;
            Ok(Exit::Done)
        }
    }
}

fn look(arguments: &Doctor) -> anyhow::Result<Exit> {
    let host = match &arguments.from {
        // A wrong or damaged dump is bad input, so it is a usage error (exit code 2).
        Some(path) => {
            let problem = |error: &dyn std::fmt::Display| {
                usage("--from", format!("{}: {error}", path.display()))
            };
            let file = File::open(path).map_err(|error| problem(&error))?;
            doctor::dump::read(BufReader::new(file)).map_err(|error| problem(&error))?
        }
        None => read_with_eligible(&arguments.reading, &arguments.journal.directory)?,
    };
    let diagnosis = diagnose(&host);
    match arguments.json {
        true => print_json(&diagnosis)?,
        false => print(&report::diagnosis_text(&diagnosis, style()))?,
    }
    Ok(verdict(&diagnosis, arguments.fail_on))
}

fn verdict(diagnosis: &Diagnosis, fail_on: FailOn) -> Exit {
    let least = match fail_on {
        FailOn::Info => Severity::Info,
        FailOn::Warn => Severity::Warn,
        FailOn::Error => Severity::Error,
        // Findings are still printed.
        FailOn::Never => return Exit::Done,
    };
    if diagnosis.worst() >= Some(least) { Exit::Code(FOUND) } else { Exit::Done }
}

fn list(json: bool) -> anyhow::Result<Exit> {
    match json {
        true => print_json(&CHECKS.iter().map(ListedCheck::from).collect::<Vec<_>>())?,
        false => print(&report::checks_text(CHECKS, style()))?,
    }
    Ok(Exit::Done)
}

fn explain(code: &str) -> anyhow::Result<Exit> {
    let check = check(code)?;
    print(&report::check_text(check, style()))?;
    Ok(Exit::Done)
}
