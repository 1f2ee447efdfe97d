//! `overlane measure run`: a path to another machine, measured, and set against
//! a second path to it.

use std::sync::Arc;
use std::time::SystemTime;

use measure::plan;
use measure::remote::{Remote, RemoteError};
use measure::results::Results;
use measure::run::Ended;
use measure::sampler::Machine;
use measure::subject::Subject;
use sys::netns::NetNs;

use crate::args::MeasureRun;
use crate::away::{self, Path};
use crate::exit::{Exit, usage};
use crate::load::{Asked, IDLE_WATCH, Manner};
use crate::output::{Destination, deliver};
use crate::progress::Progress;
use crate::remote::{Target, token};
use crate::{interrupt, watching};

/// Longest label of a path.
const LONGEST_NAME: usize = 32;

/// Runs the verb.
pub fn run(arguments: &MeasureRun) -> anyhow::Result<Exit> {
    let asked = Asked::check(&arguments.asking)?;
    away::check_engines(&asked)?;
    let mut manner = Manner::check(&arguments.measuring)?;
    let destination = arguments.output.out.as_deref().map(Destination::check).transpose()?;
    let token = token(arguments.token.as_deref())?;
    let mut targets = vec![(&arguments.name, "ADDR", &arguments.address)];
    if let Some(baseline) = &arguments.baseline {
        if arguments.name == arguments.baseline_name {
            return Err(usage("--name", "two paths need two names (--baseline-name)"));
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
            "{} and {} are of two families, whose headers differ by 20 bytes: compare paths of one",
            baseline.ip(),
            path.ip()
        );
        return Err(usage("--baseline", problem));
    }

    let stop = interrupt::flag()?;
    let started = SystemTime::now();
    let mut progress = Progress::new("looking at both machines");
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
    away::check_limits(&asked, &manner, &paths)?;
    let mut machine = Machine::open(true)?;
    for pid in paths.iter().filter_map(|path| path.remote.process_here()) {
        machine.add_own_process(pid);
    }
    let idle_load = machine.idle_load(IDLE_WATCH)?;
    manner.placement = away::placement(arguments.measuring.placement, &paths)?;

    // One key for all cells: the baseline's, whose device is the underlay's.
    let mtu = paths[0].mtu();
    let subjects: Vec<Subject> = paths.iter().map(|path| path.subject(&here, mtu)).collect();
    let keys: Vec<(&str, &str, u32)> =
        subjects.iter().map(|s| (s.mode.as_str(), s.offload.as_str(), s.mtu)).collect();
    let unset = vec![Vec::new(); subjects.len()];
    let cells = plan::cells(&keys, &paths[0].name, &asked.asks, &unset);
    let plan = manner.plan(cells, Vec::new(), idle_load);
    let (outcome, timeline) =
        watching::run(&mut progress, &plan, &subjects, &machine, &mut watching::Nothing, &stop)?;

    let ended = outcome.ended;
    let mut warnings = away::warnings(&paths, &plan, idle_load);
    if ended == Ended::Failed {
        warnings.push("the server was gone before the last block: what there was is here".into());
    }
    let run = away::Run { asked: &asked, manner: &manner, started, paths: &paths, idle_load };
    let results: Results = run.results(outcome, timeline, &machine, warnings)?;
    // Sessions first: a reader that goes away must not keep them open.
    drop((paths, subjects));
    deliver(&results, ended, &arguments.output, destination.as_ref())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(usage("--name", format!("{name:?}: wanted 1 to {LONGEST_NAME} printable bytes")))
}
