//! `overlane lab run`: builds the modes, measures them, prints and writes the
//! results.

use std::ffi::OsString;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use anyhow::Context;
use lab::{Capabilities, Mode, modes};
use measure::plan::{self, Task};
use measure::results::{ModeRecord, Plan as PlanRecord, Results, SCHEMA, Status};
use measure::run::Ended;
use measure::sampler::Machine;
use measure::subject::Subject;
use testbed::{Offload, Privileges};

use crate::args::{Asking, Placement, Run, Steering};
use crate::building::{Wanted, build, ended_early, failed, settings, subject, testbed_record};
use crate::exit::{Exit, usage};
use crate::load::{self, Asked, IDLE_WATCH, Manner, list};
use crate::output::{Destination, deliver};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::variation::Variation;
use crate::watching::{self, InTestbeds};
use crate::{interrupt, unmeasured};

/// Smallest MTU that IPv4 hosts must take (RFC 791); leaves room for a tunnel.
const SMALLEST_MTU: u32 = 576;
/// Largest that veth takes.
const LARGEST_MTU: u32 = 65535;

/// The arguments, checked.
struct Request {
    modes: Vec<&'static dyn Mode>,
    baseline: &'static dyn Mode,
    asked: Asked,
    manner: Manner,
    offloads: Vec<Offload>,
    mtus: Vec<u32>,
    steering: Steering,
    /// What `--vary` and `--try` said, and the settings they stand for.
    vary: Vec<String>,
    settings: Vec<Variation>,
    plan: Option<String>,
    destination: Option<Destination>,
}

/// Runs the verb.
pub fn run(arguments: &Run) -> anyhow::Result<Exit> {
    let Some(name) = &arguments.plan else {
        let request = Request::check(arguments, std::slice::from_ref(&arguments.asking))?;
        return measure(arguments, request);
    };
    let plan = Plan::find(name)?;
    let planned = plan.with(&given(), arguments.measuring.quick)?;
    let request = Request::check(&planned.run, &planned.parts);
    let request = request.with_context(|| format!("plan {}", plan.name))?;
    measure(&planned.run, Request { plan: Some(plan.name), ..request })
}

/// What was typed after `lab run`, without the plan's name.
fn given() -> Vec<OsString> {
    let mut words = std::env::args_os().skip_while(|word| word != "run").skip(1);
    let mut given = Vec::new();
    while let Some(word) = words.next() {
        if word == "--plan" {
            words.next();
        } else if !word.to_string_lossy().starts_with("--plan=") {
            given.push(word);
        }
    }
    given
}

fn measure(arguments: &Run, mut request: Request) -> anyhow::Result<Exit> {
    // Before anything that starts a thread: a user namespace can be entered by
    // a process with one thread only.
    let privileges = testbed::acquire()
        .context("this machine lets ordinary users make no user namespaces: run as root")?;
    let stop = interrupt::flag()?;
    let started = SystemTime::now();
    let mut progress = Progress::new("looking at the machine");
    let capabilities = Capabilities::new(privileges)?;
    let machine = Machine::open(true)?;
    let idle_load = machine.idle_load(IDLE_WATCH)?;

    let mut cannot_steer = None;
    if request.steering == Steering::Rss && arguments.steering.is_none() {
        // Not asked for: where it cannot be had, the run goes on and says so.
        let tried = testbed::Host::new("steering").and_then(|host| host.steer("lo", &[]));
        if let Err(error) = tried {
            request.steering = Steering::None;
            cannot_steer = Some(format!(
                "the wire's NICs do not steer flows ({error}): TCP flows are reordered on it"
            ));
        }
    }
    let wanted = Wanted {
        offloads: &request.offloads,
        mtus: &request.mtus,
        steered_to: (request.steering == Steering::Rss).then_some(&request.manner.placement),
    };
    let mut records = Vec::new();
    let mut built = Vec::new();
    for mode in &request.modes {
        // The baseline comes first, and without it there is nothing to write.
        if !built.is_empty() && stop.load(Ordering::Relaxed) {
            records.push(failed(*mode, "the run was interrupted before it was built"));
            continue;
        }
        let record = build(*mode, &wanted, &capabilities, &progress, &mut built);
        records.push(record);
    }
    if !built.iter().any(|built| built.mode.name() == request.baseline.name()) {
        progress.finish();
        let why = records
            .iter()
            .find(|record| record.mode == request.baseline.name())
            .and_then(|record| record.reason.clone())
            .unwrap_or_default();
        anyhow::bail!("baseline {} cannot be built: {why}", request.baseline.name());
    }

    let subjects: Vec<Subject> = built.iter().map(subject).collect();
    let keys: Vec<(&str, &str, u32)> =
        subjects.iter().map(|s| (s.mode.as_str(), s.offload.as_str(), s.mtu)).collect();
    let manner = &request.manner;
    let mut refused = Vec::new();
    let settings: Vec<Vec<usize>> =
        built.iter().map(|built| settings(built, &request.settings, &mut refused)).collect();
    let plan = manner.plan(
        plan::cells(&keys, request.baseline.name(), &request.asked.asks, &settings),
        request.settings.iter().map(ToString::to_string).collect(),
        idle_load,
    );
    let testbeds = built.iter().map(testbed_record).collect::<anyhow::Result<Vec<_>>>()?;
    let hosts = built.iter().map(|built| built.network.hosts()).collect();
    let mut vary = InTestbeds::new(&request.settings, hosts);
    let (outcome, timeline) =
        watching::run(&mut progress, &plan, &subjects, &machine, &mut vary, &stop)?;

    let record = load::record(&request.asked, manner, &outcome);
    let mut warnings = warnings(privileges, &records, &plan, idle_load);
    warnings.extend(cannot_steer);
    warnings.extend(outcome.notes);
    let mut cells = outcome.cells;
    cells.extend(unmeasured::of_modes(&wanted, &request.asked.asks, &records));
    cells.extend(unmeasured::of_settings(&request.settings, &request.asked.asks, &refused));
    for built in &mut built {
        if let Err(error) = built.network.check() {
            ended_early(built, &error, &mut records, &mut cells);
        }
    }
    let results = Results {
        schema: SCHEMA.to_owned(),
        overlane: env!("CARGO_PKG_VERSION").to_owned(),
        complete: outcome.ended != Ended::Interrupted,
        ended_by: outcome.ended.name().to_owned(),
        started: humantime::format_rfc3339_seconds(started).to_string(),
        finished: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        machine: machine.record(privileges.name(), idle_load)?,
        peer: None,
        plan: PlanRecord {
            name: request.plan.clone(),
            vary: request.vary.clone(),
            baseline: request.baseline.name().to_owned(),
            modes: request.modes.iter().map(|mode| mode.name().to_owned()).collect(),
            offload: request.offloads.iter().map(ToString::to_string).collect(),
            mtu: request.mtus.clone(),
            steering: match request.steering {
                Steering::None => "none".to_owned(),
                Steering::Rss => "rss".to_owned(),
            },
            ..record
        },
        modes: records,
        testbeds,
        cells,
        timeline,
        warnings,
    };
    // Testbeds first: a reader that goes away must not keep them standing.
    drop(built);
    deliver(&results, outcome.ended, &arguments.output, request.destination.as_ref())
}

impl Request {
    /// Checks the arguments; `asking` is what is asked, in one part or several.
    fn check(arguments: &Run, asking: &[Asking]) -> anyhow::Result<Request> {
        let all: Vec<&str> = modes().iter().map(|mode| mode.name()).collect();
        let find = |argument, name: &str| {
            lab::find(name).ok_or_else(|| {
                usage(argument, format!("unknown mode {name:?}; known: {}", all.join(", ")))
            })
        };
        let baseline = find("--baseline", &arguments.baseline)?;
        let mut chosen: Vec<&'static dyn Mode> = if arguments.modes == "all" {
            modes().iter().copied().filter(|mode| mode.in_all()).collect()
        } else {
            list("--modes", &arguments.modes, |name| find("--modes", name))?
        };
        // The baseline is part of every run, named or not.
        chosen.retain(|mode| mode.name() != baseline.name());
        chosen.insert(0, baseline);
        // What is tried is compared under one profile, unless more are asked for.
        let usual = if arguments.tries.is_empty() { "full,none" } else { "full" };
        let offload = arguments.offload.as_deref().unwrap_or(usual);
        let offloads = list("--offload", offload, |name| {
            Offload::from_str(name).map_err(|error| usage("--offload", error))
        })?;
        let mtus = list("--mtu", &arguments.mtu, check_mtu)?;
        if arguments.steering == Some(Steering::Rss)
            && arguments.measuring.placement == Placement::None
        {
            return Err(usage("--steering", "rss needs threads with CPUs: not --placement none"));
        }
        let mut asked = Asked::default();
        for part in asking {
            asked.join(Asked::check(part)?);
        }
        let mut settings = Vec::new();
        for text in &arguments.vary {
            settings.extend(Variation::varied(text)?);
        }
        for text in &arguments.tries {
            settings.push(Variation::tried(text)?);
        }
        Ok(Request {
            modes: chosen,
            baseline,
            asked,
            vary: arguments.vary.iter().chain(&arguments.tries).cloned().collect(),
            settings,
            plan: None,
            manner: Manner::check(&arguments.measuring)?,
            offloads,
            mtus,
            steering: match (arguments.steering, arguments.measuring.placement) {
                (Some(steering), _) => steering,
                (None, Placement::None) => Steering::None,
                (None, _) => Steering::Rss,
            },
            destination: arguments.output.out.as_deref().map(Destination::check).transpose()?,
        })
    }
}

pub(super) fn check_mtu(text: &str) -> anyhow::Result<u32> {
    text.parse().ok().filter(|mtu| (SMALLEST_MTU..=LARGEST_MTU).contains(mtu)).ok_or_else(|| {
        usage("--mtu", format!("{text:?}: allowed are {SMALLEST_MTU} to {LARGEST_MTU} bytes"))
    })
}

fn warnings(
    privileges: Privileges,
    records: &[ModeRecord],
    plan: &measure::plan::Plan,
    idle_load: f64,
) -> Vec<String> {
    let mut warnings = Vec::new();
    // What the kernel lacks, root would not have either.
    let for_root = |record: &&ModeRecord| {
        record.remedy.as_ref().is_some_and(|remedy| remedy.starts_with("run as root"))
    };
    let left_out: Vec<&str> = records
        .iter()
        .filter(|record| record.status == Status::Unsupported)
        .filter(for_root)
        .map(|record| record.mode.as_str())
        .collect();
    if privileges == Privileges::UserNamespace {
        let modes: String = left_out.iter().map(|mode| format!(", {mode}")).collect();
        warnings.push(format!(
            "run by an ordinary user, in a user namespace: left out what needs root: the exact \
             CPU clock (BPF){modes}"
        ));
    }
    if plan.placement.policy == "split" && plan.placement.client_cpus == plan.placement.server_cpus
    {
        warnings.push("one CPU only: client and server share it".to_owned());
    }
    let cpus = plan.placement.client_cpus.len() as u32;
    let crowded = plan.cells.iter().find(|cell| {
        let paced = cell.ask.task == Task::DropPoint || cell.ask.load_percent.is_some();
        paced && cpus > 0 && cell.ask.flows > cpus
    });
    if let Some(cell) = crowded {
        warnings.push(format!(
            "{} by {} flows on {cpus} client CPU(s): flows that share a CPU keep each other \
             from their schedule",
            cell.ask.task, cell.ask.flows
        ));
    }
    if idle_load > plan.limits.other_share {
        warnings.push(format!(
            "{:.0}% of all CPUs were busy before the run: something else is running",
            idle_load * 100.0
        ));
    }
    warnings
}
