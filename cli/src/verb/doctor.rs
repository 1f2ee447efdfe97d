//! `overlane doctor`: what slows or breaks this host's virtual networks.

use std::fs::File;
use std::io::BufReader;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use doctor::host::FarEnd;
use doctor::{CHECKS, Check, Diagnosis, Host, Scope, Severity, collect, diagnose};
use measure::remote::tunnels_of;
use serde::Serialize;

use crate::doctor_args::{Doctor, DoctorVerb, FailOn, Reading};
use crate::exit::{Exit, usage};
use crate::foreground::netns;
use crate::output::{Destination, print, print_json, style};
use crate::remote::{Target, token};
use crate::verb::doctor_fix::{self, Wanted};

/// Exit code of findings at or above `--fail-on`.
const FOUND: u8 = 10;
/// As long as anyone wants to wait for counters; beyond it they wrap.
const LONGEST_WATCH_S: f64 = 3600.0;

/// Looks, or does what the inner verb says.
pub fn run(arguments: &Doctor) -> anyhow::Result<Exit> {
    match &arguments.verb {
        None => look(arguments),
        Some(DoctorVerb::List { json }) => list(*json),
        Some(DoctorVerb::Explain { code }) => explain(code),
        Some(DoctorVerb::Fix { code, reading, yes, confirm_within, journal }) => {
            let wanted = Wanted { code, yes: *yes, confirm_within_s: *confirm_within };
            doctor_fix::run(&wanted, &journal.directory, || read(reading))
        }
        Some(DoctorVerb::Confirm { journal }) => doctor_fix::confirm(&journal.directory),
        Some(DoctorVerb::Dump { reading, out, scrub }) => {
            let destination = Destination::check(out)?;
            let mut host = read(reading)?;
            if *scrub {
                host = doctor::scrub::scrub(&host).context("scrub")?;
            }
            let mut bytes = Vec::new();
            doctor::dump::write(&host, &mut bytes)?;
            destination.write(&bytes)?;
            Ok(Exit::Done)
        }
    }
}

fn look(arguments: &Doctor) -> anyhow::Result<Exit> {
    let host = match &arguments.from {
        Some(path) => {
            let problem = |error: &dyn std::fmt::Display| {
                usage("--from", format!("{}: {error}", path.display()))
            };
            let file = File::open(path).map_err(|error| problem(&error))?;
            doctor::dump::read(BufReader::new(file)).map_err(|error| problem(&error))?
        }
        None => read(&arguments.reading)?,
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
        FailOn::Never => return Exit::Done,
    };
    if diagnosis.worst() >= Some(least) { Exit::Code(FOUND) } else { Exit::Done }
}

/// Reads this host.
///
/// # Errors
/// Usage, and what the host cannot be read for.
pub fn read(reading: &Reading) -> anyhow::Result<Host> {
    let watch = reading.watch;
    if !(0.0..=LONGEST_WATCH_S).contains(&watch) {
        let wanted = format!("{watch}: wanted 0 to {LONGEST_WATCH_S} seconds");
        return Err(usage("--watch", wanted));
    }
    let scope = match reading.netns.as_str() {
        "all" => Scope::All,
        some => {
            let named = |one: &str| Ok((one.to_owned(), netns("--netns", Some(one))?));
            Scope::Some(some.split(',').map(named).collect::<anyhow::Result<_>>()?)
        }
    };
    let token = token(reading.token.as_deref())?;
    let peers = reading.peer.iter().map(|text| Target::parse("--peer", text)?.resolve("--peer"));
    let peers = peers.collect::<anyhow::Result<Vec<_>>>()?;
    let mut far_ends = Vec::new();
    for peer in peers {
        let tunnels = tunnels_of(peer, token.as_ref(), &AtomicBool::new(false))?;
        far_ends.push(FarEnd { address: peer.ip().to_canonical(), tunnels });
    }
    Ok(Host { far_ends, ..collect(scope, Duration::from_secs_f64(watch))? })
}

fn list(json: bool) -> anyhow::Result<Exit> {
    #[derive(Serialize)]
    struct Listed {
        code: &'static str,
        severity: Severity,
        title: &'static str,
        explanation: &'static str,
    }
    match json {
        true => print_json(
            &CHECKS
                .iter()
                .map(|check| Listed {
                    code: check.code,
                    severity: check.severity,
                    title: check.title,
                    explanation: check.explanation,
                })
                .collect::<Vec<_>>(),
        )?,
        false => print(&report::checks_text(CHECKS))?,
    }
    Ok(Exit::Done)
}

fn explain(code: &str) -> anyhow::Result<Exit> {
    let check = check(code)?;
    print(&report::check_text(check, style()))?;
    Ok(Exit::Done)
}

/// A check by code.
pub fn check(code: &str) -> anyhow::Result<&'static Check> {
    doctor::check::find(code).ok_or_else(|| {
        usage("CODE", format!("{code:?} is no check (overlane doctor list shows them)"))
    })
}
