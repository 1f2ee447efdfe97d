//! `overlane lab run`: builds the modes, measures them, and prints or writes the results.

use std::ffi::OsString;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::Context;
use lab::{Capabilities, Mode, at_guest, groups, modes};
use load::ask::Task;
use measure::path_under_test::PathUnderTest;
use measure::run::Ended;
use measure::sampler::Machine;
use results::{Cell, ModeRecord, PlacementPolicy, Results};
use testbed::{Offload, Privileges};

use crate::args::{Asking, Placement, Run, Steering};
use crate::assembly::Paths;
use crate::exit::{Exit, usage};
use crate::fault_runs::{self, FaultRuns};
use crate::measure_options::{Asked, Manner, list};
use crate::output::{Destination, deliver};
use crate::plan::{self, Plan};
use crate::progress::Progress;
use crate::run_session::{self, InTestbeds};
use crate::survey;
use crate::testbeds::{
    BuildOptions, build, build_varied, ended_early, failed, profile, settings, subject,
    testbed_record,
};
use crate::variation::{Varied, tried, varied};
use crate::{assembly, interrupt, missing_cells};

/// Datagram size that every IPv4 host must accept (RFC 791); leaves room for a tunnel.
const SMALLEST_MTU: u32 = 576;
/// Largest MTU of veth.
const LARGEST_MTU: u32 = 65535;

/// Checked arguments of `lab run`.
pub(super) struct CheckedRun {
    modes: Vec<&'static dyn Mode>,
    baseline: &'static dyn Mode,
    asked: Asked,
    manner: Manner,
    offloads: Vec<Offload>,
    mtus: Vec<u32>,
    steering: Steering,
    /// Arguments of `--vary` and `--try`; `settings` has their parsed form.
    vary: Vec<String>,
    settings: Vec<Varied>,
    plan: Option<String>,
    /// Trials per fault.
    faults: u32,
    destination: Option<Destination>,
}

/// Measures modes outside of guests, and prints or writes the results.
///
/// # Errors
/// Wrong usage; a baseline that cannot be built; results that cannot be written. Any other mode
/// that cannot be built or measured is in the results and sets the exit code.
pub fn run(arguments: &Run) -> anyhow::Result<Exit> {
    let Some(name) = &arguments.plan else {
        let request = CheckedRun::check(arguments, std::slice::from_ref(&arguments.asking))?;
        return measure(arguments, request);
    };
    let (request, planned) = planned(name, &given(), arguments.measuring.quick)?;
    measure(&planned, request)
}

fn planned(name: &str, words: &[OsString], quick: bool) -> anyhow::Result<(CheckedRun, Run)> {
    let plan = Plan::find(name)?;
    let planned = plan.with(words, quick)?;
    let request = CheckedRun::check(&planned.run, &planned.parts);
    let request = request.with_context(|| format!("plan {}", plan.name))?;
    Ok((CheckedRun { plan: Some(plan.name), ..request }, planned.run))
}

/// Returns the words after `lab run` on the command line, without `--plan`.
pub(super) fn given() -> Vec<OsString> {
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

fn measure(arguments: &Run, mut request: CheckedRun) -> anyhow::Result<Exit> {
    // Before any thread starts: only a single-threaded process can enter a user namespace.
    let privileges = testbed::acquire()
        .context("user namespaces are disabled for ordinary users on this machine: run as root")?;
    let stop = interrupt::flag()?;
    let started = SystemTime::now();
    let mut progress = Progress::new("reading the machine");
    let capabilities = Capabilities::new(privileges)?;
    let mut machine = Machine::open(true)?;
    let survey = survey::look(&mut machine, &request.manner, &progress)?;

    let mut cannot_steer = None;
    if request.steering == Steering::Rss && arguments.steering.is_none() {
        // RSS is only the default here: without it, go on and warn.
        let tried = testbed::Host::new("steering").and_then(|host| host.steer("lo", &[]));
        if let Err(error) = tried {
            request.steering = Steering::None;
            cannot_steer = Some(format!(
                "the wire's NICs do not steer flows ({error}): TCP flows are reordered on it"
            ));
        }
    }
    let wanted = request.build_options();
    let mut records = Vec::new();
    let mut for_root = Vec::new();
    let mut built = Vec::new();
    for mode in &request.modes {
        // The baseline comes first. Without it there are no results, so it is never skipped.
        if !built.is_empty() && stop.load(Ordering::Relaxed) {
            records.push(failed(*mode, "the run was interrupted before this mode was built"));
            continue;
        }
        let attempt = build(*mode, &wanted, &capabilities, &progress, &mut built);
        if attempt.needs_root {
            for_root.push(mode.name());
        }
        records.push(attempt.record);
        // From the second mode on, Ctrl-C also stops a build.
        testbed::heed(stop.clone());
    }
    // Ratios are impossible without the baseline.
    if !built.iter().any(|built| built.mode.name() == request.baseline.name()) {
        progress.finish();
        let why = records
            .iter()
            .find(|record| record.mode == request.baseline.name())
            .and_then(|record| record.reason.clone())
            .unwrap_or_default();
        anyhow::bail!("baseline {} cannot be built: {why}", request.baseline.name());
    }

    let manner = &request.manner;
    let mut refused = Vec::new();
    let varied = &request.settings;
    let mut steps =
        build_varied(varied, &wanted, &progress, &mut built, &mut records, &mut refused);
    let as_found = steps.len();
    for (at, steps) in steps.iter_mut().enumerate() {
        steps.extend(settings(&built[at], at, varied, &mut refused));
        steps.sort_by_key(|step| step.setting);
    }
    let subjects: Vec<PathUnderTest> = built.iter().map(subject).collect();
    let keys: Vec<(&str, &str, u32)> =
        subjects[..as_found].iter().map(|s| (s.mode.as_str(), s.offload.name(), s.mtu)).collect();
    let plan = manner.plan(
        measure::plan::cells(&keys, request.baseline.name(), &request.asked.asks, &steps),
        request.settings.iter().map(ToString::to_string).collect(),
        &survey,
    );
    let testbeds = built.iter().map(|built| testbed_record(built, varied));
    let testbeds = testbeds.collect::<anyhow::Result<Vec<_>>>()?;
    let hosts = built.iter().map(|built| built.network.hosts()).collect();
    let faults = FaultRuns::of(&built, request.faults);
    progress.followed_by(faults.expected());
    let mut vary = InTestbeds::new(&request.settings, hosts);
    let (outcome, timeline) =
        run_session::run(&mut progress, &plan, &subjects, &machine, &mut vary, &stop)?;

    let mut warnings = warnings(privileges, &for_root, &plan);
    warnings.extend(survey::warnings(&survey, manner));
    warnings.extend(cannot_steer);
    let mut missing = missing_cells::of_modes(&wanted, &request.asked.asks, &records);
    missing.extend(missing_cells::of_settings(&request.settings, &request.asked.asks, &refused));
    let ended = outcome.ended;
    let paths = Paths {
        plan: request.plan.clone(),
        baseline: request.baseline.name().to_owned(),
        modes: records,
        testbeds,
        offload: request.offloads.iter().copied().map(profile).collect(),
        mtu: request.mtus.clone(),
        steering: request.steering,
        vary: request.vary.clone(),
        peer: None,
    };
    let run = assembly::FinishedRun {
        asked: &request.asked,
        manner,
        started,
        machine: &machine,
        privileges: match privileges {
            Privileges::Root => results::Privileges::Root,
            Privileges::UserNamespace => results::Privileges::UserNamespace,
        },
        survey: &survey,
    };
    let mut results = run.results(outcome, paths, timeline, warnings)?;
    results.cells.extend(missing);
    for built in &mut built {
        // A daemon may have died during the run, which invalidates the mode.
        if let Err(error) = built.network.check() {
            let setting = built.setting.map(|at| request.settings[at].to_string());
            let (modes, cells) = (&mut results.modes, &mut results.cells);
            ended_early(built, setting.as_deref(), &error, modes, cells);
        }
    }
    // Remove the testbeds before printing: a stalled reader must not keep them alive.
    drop(built);
    let ended = befall(faults, &mut results, ended, &wanted, &mut progress, &stop);
    deliver(&results, ended, &arguments.output, request.destination.as_ref())
}

/// Injects faults into fresh testbeds if all blocks were measured, and adds the trials to the
/// results. Returns how the run ended.
fn befall(
    mut faults: FaultRuns,
    results: &mut Results,
    mut ended: Ended,
    wanted: &BuildOptions<'_>,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Ended {
    // After an interrupt, fault trials would only delay the exit.
    if ended.is_complete() && !faults.is_whole() {
        faults.befall(wanted, progress, stop);
        if !faults.is_whole() {
            ended = Ended::Interrupted;
            (results.complete, results.ended_by) = (ended.is_complete(), ended.by());
        }
        results.finished = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    }
    results.faults = faults.records();
    ended
}

/// Returns the modes of `all` or of a group. `None` for any other name.
pub fn named(name: &str) -> Option<Vec<&'static dyn Mode>> {
    if name == "all" {
        return Some(modes().iter().copied().filter(|mode| mode.in_all()).collect());
    }
    groups().iter().find(|group| group.name == name).map(|group| group.modes.to_vec())
}

impl CheckedRun {
    /// Checks command-line words that did not come from this process's command line, merged with
    /// a plan if there is one.
    ///
    /// # Errors
    /// Wrong usage.
    pub(super) fn of_words(
        plan: Option<&str>,
        words: &[OsString],
        quick: bool,
    ) -> anyhow::Result<CheckedRun> {
        if let Some(name) = plan {
            return Ok(planned(name, words, quick)?.0);
        }
        let run = plan::arguments(words)?;
        CheckedRun::check(&run, std::slice::from_ref(&run.asking))
    }

    /// Returns a cell without values for every combination that these modes could not measure.
    pub(super) fn missing_cells(&self, records: &[ModeRecord]) -> Vec<Cell> {
        missing_cells::of_modes(&self.build_options(), &self.asked.asks, records)
    }

    fn build_options(&self) -> BuildOptions<'_> {
        BuildOptions {
            offloads: &self.offloads,
            mtus: &self.mtus,
            steered_to: (self.steering == Steering::Rss).then_some(&self.manner.placement),
        }
    }

    /// Checks the arguments. `asking` has the workload options of each part.
    fn check(arguments: &Run, asking: &[Asking]) -> anyhow::Result<CheckedRun> {
        let all: Vec<&str> = modes().iter().map(|mode| mode.name()).collect();
        let find = |argument, name: &str| {
            // `lab_run_guest` handles them if --modes names them.
            if name == at_guest::GROUP || name.contains('@') {
                let problem =
                    format!("{name:?}: modes …@guest are not allowed in a plan; use --modes");
                return Err(usage(argument, problem));
            }
            lab::find(name).ok_or_else(|| {
                let groups: Vec<&str> = groups().iter().map(|group| group.name).collect();
                let groups = match argument {
                    "--modes" => {
                        format!("; groups: all, {}, {}", groups.join(", "), at_guest::GROUP)
                    }
                    _ => String::new(),
                };
                usage(argument, format!("unknown mode {name:?}; known: {}{groups}", all.join(", ")))
            })
        };
        if let Some(image) = &arguments.guest_kernel {
            let kernel = lab::guest::Kernel::open(image);
            lab::guest::use_kernel(kernel.map_err(|error| usage("--guest-kernel", error))?);
        }
        let baseline = find("--baseline", &arguments.baseline)?;
        let named = list("--modes", &arguments.modes, |name| match named(name) {
            Some(modes) => Ok(modes),
            None => find("--modes", name).map(|mode| vec![mode]),
        })?;
        let mut chosen: Vec<&'static dyn Mode> = Vec::new();
        for mode in named.into_iter().flatten() {
            // Drop duplicates: groups overlap with each other and with `all`.
            if chosen.iter().all(|other| other.name() != mode.name()) {
                chosen.push(mode);
            }
        }
        // The baseline is always part of the run, and comes first.
        chosen.retain(|mode| mode.name() != baseline.name());
        chosen.insert(0, baseline);
        fault_runs::check(arguments.faults, &chosen)?;
        // --try compares under one profile by default.
        let usual = if arguments.tries.is_empty() { "full,none" } else { "full" };
        let offload = arguments.offload.as_deref().unwrap_or(usual);
        let offloads = list("--offload", offload, |name| {
            Offload::from_str(name).map_err(|error| usage("--offload", error))
        })?;
        let mtus = list("--mtu", &arguments.mtu, check_mtu)?;
        if arguments.steering == Some(Steering::Rss)
            && arguments.measuring.placement() == Placement::None
        {
            return Err(usage("--steering", "rss needs pinned threads: not with --placement none"));
        }
        let mut manner = Manner::check(&arguments.measuring)?;
        let mut asked = Asked::default();
        for part in asking {
            asked.join(Asked::check(part, manner.impact)?);
        }
        manner.shorten_bursts(&arguments.measuring, &asked);
        let mut settings = Vec::new();
        for text in &arguments.vary {
            settings.extend(varied(text)?);
        }
        for text in &arguments.tries {
            settings.push(tried(text)?);
        }
        Ok(CheckedRun {
            modes: chosen,
            baseline,
            asked,
            vary: arguments.vary.iter().chain(&arguments.tries).cloned().collect(),
            settings,
            plan: None,
            faults: arguments.faults,
            manner,
            offloads,
            mtus,
            steering: match (arguments.steering, arguments.measuring.placement()) {
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
        usage("--mtu", format!("{text:?}: expected {SMALLEST_MTU} to {LARGEST_MTU} bytes"))
    })
}

fn warnings(privileges: Privileges, for_root: &[&str], plan: &measure::plan::Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    if privileges == Privileges::UserNamespace {
        let modes: String = for_root.iter().map(|mode| format!(", {mode}")).collect();
        warnings.push(format!(
            "run by an ordinary user, in a user namespace: features that need root were skipped: \
             the exact CPU clock (BPF){modes}"
        ));
    }
    if plan.placement.policy == PlacementPolicy::Split
        && plan.placement.client_cpus == plan.placement.server_cpus
    {
        warnings.push("one CPU only: client and server share it".to_owned());
    }
    // Paced flows wait actively for their schedule, so each needs a CPU.
    let cpus = plan.placement.client_cpus.len() as u32;
    let crowded = plan.cells.iter().find(|cell| {
        let paced = cell.ask.task == Task::DropPoint || cell.ask.load_percent.is_some();
        paced && cpus > 0 && cell.ask.flows > cpus
    });
    if let Some(cell) = crowded {
        warnings.push(format!(
            "{} by {} flows on {cpus} client CPU(s): flows that share a CPU delay each other's \
             schedule",
            cell.ask.task, cell.ask.flows
        ));
    }
    warnings
}
