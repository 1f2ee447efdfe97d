//! `overlane measure run`: measures a path to another machine, and compares it with a second path.

use std::sync::Arc;
use std::time::SystemTime;

use measure::path_under_test::PathUnderTest;
use measure::plan;
use measure::remote::{Remote, RemoteError};
use measure::run::Ended;
use measure::sampler::Machine;
use sys::netns::NetNs;

use crate::args::MeasureRun;
use crate::exit::{Exit, usage};
use crate::measure_options::{Asked, Manner};
use crate::output::{Destination, deliver};
use crate::progress::Progress;
use crate::remote::{Target, privileges, token};
use crate::remote_paths::{self, Path};
use crate::{assembly, interrupt, run_session, survey};

/// Maximum length of a path's name, in bytes.
const LONGEST_NAME: usize = 32;

/// Measures the path to another machine, and prints or writes the results.
///
/// # Errors
/// Wrong usage; a server that is unreachable or refuses the token; results that cannot be
/// written.
pub fn run(arguments: &MeasureRun) -> anyhow::Result<Exit> {
    let mut manner = Manner::check(&arguments.measuring)?;
    let asked = Asked::check(&arguments.asking, manner.impact)?;
    manner.shorten_bursts(&arguments.measuring, &asked);
    remote_paths::check_engines(&asked)?;
    let destination = arguments.output.out.as_deref().map(Destination::check).transpose()?;
    let token = token(arguments.token.as_deref())?;
    let mut targets = vec![(&arguments.name, "ADDR", &arguments.address)];
    if let Some(baseline) = &arguments.baseline {
        if arguments.name == arguments.baseline_name {
            return Err(usage(
                "--name",
                "both paths have the same name: change --name or --baseline-name",
            ));
        }
        targets.insert(0, (&arguments.baseline_name, "--baseline", baseline));
    }
    let mut addresses = Vec::new();
    for (name, argument, text) in &targets {
        check_name(name)?;
        addresses.push(Target::parse(argument, text)?.resolve(argument)?);
    }
    if let [baseline, path] = addresses[..]
        && baseline.is_ipv4() != path.is_ipv4()
    {
        let problem = format!(
            "{} and {} are of different address families, whose headers differ by 20 bytes: use \
             one family",
            baseline.ip(),
            path.ip()
        );
        return Err(usage("--baseline", problem));
    }

    let stop = interrupt::flag()?;
    let started = SystemTime::now();
    let mut progress = Progress::new("reading both machines");
    let here = Arc::new(NetNs::current()?);
    let mut paths = Vec::new();
    for ((name, ..), address) in targets.iter().zip(&addresses) {
        progress.prepare(format!("connecting to {address}"));
        let remote = match Remote::connect(*address, token.clone(), &here, Arc::clone(&stop)) {
            Ok(remote) => Arc::new(remote),
            Err(RemoteError::Stopped) => return Ok(Exit::Interrupted),
            Err(error) => return Err(error.into()),
        };
        paths.push(Path { name: (*name).clone(), remote });
    }
    remote_paths::check_limits(&asked, &manner, &paths)?;
    let mut machine = Machine::open(true)?;
    for pid in paths.iter().filter_map(|path| path.remote.process_here()) {
        machine.add_own_process(pid);
    }
    manner.placement = remote_paths::placement(arguments.measuring.placement(), &paths)?;
    let may_unpin = arguments.measuring.placement.is_none() && remote_paths::on_one_machine(&paths);
    let of_server = remote_paths::first_lines(&paths, &manner);
    let survey =
        survey::look_and_place(&mut machine, &mut manner, may_unpin, of_server, &progress)?;

    // All cells use the MTU of the baseline, whose device is the underlay's.
    let mtu = paths[0].mtu();
    let subjects: Vec<PathUnderTest> = paths.iter().map(|path| path.subject(&here, mtu)).collect();
    let keys: Vec<(&str, &str, u32)> =
        subjects.iter().map(|s| (s.mode.as_str(), s.offload.name(), s.mtu)).collect();
    let unset = vec![Vec::new(); subjects.len()];
    let cells = plan::cells(&keys, &paths[0].name, &asked.asks, &unset);
    let plan = manner.plan(cells, Vec::new(), &survey);
    let (outcome, timeline) = run_session::run(
        &mut progress,
        &plan,
        &subjects,
        &machine,
        &mut run_session::Nothing,
        &stop,
    )?;

    let ended = outcome.ended;
    let mut warnings = remote_paths::warnings(&paths);
    warnings.extend(survey::warnings(&survey, &manner));
    // Partial results are still useful, but must be recognisable.
    if ended == Ended::Failed {
        warnings
            .push("the server disappeared before the last block: these are partial results".into());
    }
    let record = remote_paths::record(&paths, Vec::new());
    let run = assembly::FinishedRun {
        asked: &asked,
        manner: &manner,
        started,
        machine: &machine,
        privileges: privileges(),
        survey: &survey,
    };
    let results = run.results(outcome, record, timeline, warnings)?;
    // Close the sessions before printing: a stalled reader must not keep them open.
    drop((paths, subjects));
    deliver(&results, ended, &arguments.output, destination.as_ref())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(usage("--name", format!("{name:?}: expected 1 to {LONGEST_NAME} printable bytes")))
}
