//! `lab run`: builds modes, measures them, and injects faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use anyhow::Context;
use lab::{Capabilities, Mode};
use load::ask::Task;
use measure::path_under_test::PathUnderTest;
use measure::run::Ended;
use measure::sampler::Machine;
use results::{Cell, ModeRecord, PlacementPolicy, Results, Steering};
use testbed::{Offload, Privileges};

use crate::assembly::{FinishedRun, Paths};
use crate::execute::{self, InTestbeds};
use crate::fault_runs::FaultRuns;
use crate::finished::Finished;
use crate::keeping::Keeping;
use crate::missing_cells;
use crate::path_probes;
use crate::progress::Progress;
use crate::request::{Asked, RunOptions};
use crate::survey;
use crate::testbeds::{
    BuildOptions, build, build_varied, ended_early, failed, profile, settings, subject,
    testbed_record,
};
use crate::variation::Varied;

/// A checked request to measure modes of the lab.
pub struct LabRun {
    pub modes: Vec<&'static dyn Mode>,
    pub baseline: &'static dyn Mode,
    pub asked: Asked,
    pub run_options: RunOptions,
    pub offloads: Vec<Offload>,
    pub mtus: Vec<u32>,
    pub steering: Steering,
    /// Steering was requested, so the run fails without it.
    pub steering_given: bool,
    /// Arguments of `--vary` and `--try`; `settings` has their parsed form.
    pub vary: Vec<String>,
    pub settings: Vec<Varied>,
    pub plan: Option<String>,
    pub faults: u32,
    /// The ends of all modes use IPv6.
    pub ipv6: bool,
    /// Probe each path before the first sample.
    pub probe: bool,
    pub keeping: Keeping,
}

impl LabRun {
    /// Builds the modes, measures them, and injects the requested faults.
    ///
    /// # Errors
    /// A baseline that cannot be built; a machine that cannot be read. Any other mode that cannot be
    /// built or measured is in the results.
    pub fn run(mut self, stop: &Arc<AtomicBool>) -> anyhow::Result<Finished> {
        // Before any thread starts: only a single-threaded process can enter a user namespace.
        let privileges = testbed::acquire().context(
            "user namespaces are disabled for ordinary users on this machine: run as root",
        )?;
        let started = SystemTime::now();
        let mut keeping = std::mem::take(&mut self.keeping);
        let mut progress = Progress::new("reading the machine");
        let capabilities = Capabilities::new(privileges)?;
        let mut machine = Machine::open(true)?;
        let survey = survey::look(&mut machine, &self.run_options, &progress)?;

        let mut cannot_steer = None;
        if self.steering == Steering::Rss && !self.steering_given {
            // RSS is only the default here: without it, go on and warn.
            let tried = testbed::Host::new("steering").and_then(|host| host.steer("lo", &[]));
            if let Err(error) = tried {
                self.steering = Steering::None;
                cannot_steer = Some(format!(
                    "the wire's NICs do not steer flows ({error}): TCP flows are reordered on it"
                ));
            }
        }
        let wanted = self.build_options();
        let mut records = Vec::new();
        let mut for_root = Vec::new();
        let mut built = Vec::new();
        for mode in &self.modes {
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
            testbed::set_cancel_flag(Arc::clone(stop));
        }
        // Ratios are impossible without the baseline.
        if !built.iter().any(|built| built.mode.name() == self.baseline.name()) {
            progress.finish();
            let why = records
                .iter()
                .find(|record| record.mode == self.baseline.name())
                .and_then(|record| record.reason.clone())
                .unwrap_or_default();
            anyhow::bail!("baseline {} cannot be built: {why}", self.baseline.name());
        }

        let run_options = &self.run_options;
        let mut refused = Vec::new();
        let varied = &self.settings;
        let mut steps =
            build_varied(varied, &wanted, &progress, &mut built, &mut records, &mut refused);
        let as_found = steps.len();
        for (at, steps) in steps.iter_mut().enumerate() {
            steps.extend(settings(&built[at], at, varied, &mut refused));
            steps.sort_by_key(|step| step.setting);
        }
        let mut subjects: Vec<PathUnderTest> = built.iter().map(subject).collect();
        let testbeds = built.iter().map(|built| testbed_record(built, varied));
        let mut testbeds = testbeds.collect::<anyhow::Result<Vec<_>>>()?;
        let damaged = match self.probe {
            true => path_probes::probe(&mut subjects, &mut testbeds, &progress, stop),
            false => Vec::new(),
        };
        let keys: Vec<(&str, &str, u32)> = subjects[..as_found]
            .iter()
            .map(|s| (s.mode.as_str(), s.offload.name(), s.mtu))
            .collect();
        let plan = run_options.plan(
            measure::plan::cells(&keys, self.baseline.name(), &self.asked.asks, &steps),
            self.settings.iter().map(ToString::to_string).collect(),
            &survey,
        );
        let hosts = built.iter().map(|built| built.network.hosts()).collect();
        let faults = FaultRuns::of(&built, self.faults);
        progress.followed_by(faults.expected());
        let paths = Paths {
            plan: self.plan.clone(),
            baseline: self.baseline.name().to_owned(),
            modes: records,
            testbeds,
            offload: self.offloads.iter().copied().map(profile).collect(),
            mtu: self.mtus.clone(),
            steering: self.steering,
            vary: self.vary.clone(),
            ipv6: self.ipv6,
            peer: None,
        };
        let run = FinishedRun {
            asked: &self.asked,
            run_options,
            started,
            machine: &machine,
            privileges: match privileges {
                Privileges::Root => results::Privileges::Root,
                Privileges::UserNamespace => results::Privileges::UserNamespace,
            },
            survey: &survey,
        };
        run.begin(&mut keeping, &plan, &subjects, &paths)?;
        let mut vary = InTestbeds::new(&self.settings, hosts);
        let (outcome, timeline) =
            execute::run(&mut progress, &plan, &subjects, &machine, &mut vary, &mut keeping, stop)?;

        let mut warnings = warnings(privileges, &for_root, &plan);
        warnings.extend(survey::warnings(&survey, run_options));
        warnings.extend(cannot_steer);
        warnings.extend(damaged);
        if self.settings.contains(&Varied::Ipv6) {
            warnings.push(FAMILIES.to_owned());
        }
        let mut missing = missing_cells::of_modes(&wanted, &self.asked.asks, &paths.modes);
        missing.extend(missing_cells::of_settings(&self.settings, &self.asked.asks, &refused));
        let ended = outcome.ended;
        let mut results = run.results(outcome, paths, timeline, warnings)?;
        results.cells.extend(missing);
        for built in &mut built {
            // A daemon may have died during the run, which invalidates the mode.
            if let Err(error) = built.network.check() {
                let setting = built.setting.map(|at| self.settings[at].to_string());
                let (modes, cells) = (&mut results.modes, &mut results.cells);
                ended_early(built, setting.as_deref(), &error, modes, cells);
            }
        }
        // Remove the testbeds before printing: a stalled reader must not keep them alive.
        drop(built);
        let ended = inject(faults, &mut results, ended, &wanted, &mut progress, stop);
        Ok(Finished { results, ended })
    }

    /// Returns a cell without values for every combination that these modes could not measure.
    pub fn missing_cells(&self, records: &[ModeRecord]) -> Vec<Cell> {
        missing_cells::of_modes(&self.build_options(), &self.asked.asks, records)
    }

    fn build_options(&self) -> BuildOptions<'_> {
        BuildOptions {
            offloads: &self.offloads,
            mtus: &self.mtus,
            steered_to: (self.steering == Steering::Rss).then_some(&self.run_options.placement),
            ipv6: self.ipv6,
            ecn: self.asked.ecn,
        }
    }
}

/// Injects faults into fresh testbeds if all blocks were measured, and adds the trials to the
/// results. Returns how the run ended.
fn inject(
    mut faults: FaultRuns,
    results: &mut Results,
    mut ended: Ended,
    wanted: &BuildOptions<'_>,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Ended {
    // After an interrupt, fault trials would only delay the exit.
    if ended.is_complete() && !faults.is_whole() {
        faults.inject(wanted, progress, stop);
        if !faults.is_whole() {
            ended = Ended::Interrupted;
            (results.complete, results.ended_by) = (ended.is_complete(), ended.by());
        }
        results.finished = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    }
    results.faults = faults.records();
    ended
}

/// Warning about ratios between address families.
const FAMILIES: &str = "ip=6 is compared with IPv4: headers of IPv6 are 20 bytes longer, so that \
                        packets of one MTU carry less";

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
