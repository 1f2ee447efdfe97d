//! Builds the results file from the outcome of a run.

use std::time::SystemTime;

use measure::kept::Begun;
use measure::path_under_test::PathUnderTest;
use measure::plan::Plan;
use measure::run::Outcome;
use measure::sampler::{Machine, Survey};
use results::{
    Cell, Machine as MachineRecord, ModeRecord, Plan as PlanRecord, Privileges, Profile, Results,
    SCHEMA, Status, TestbedRecord, Timeline,
};

use crate::keeping::Keeping;
use crate::request::{self, Asked, RunOptions};

/// Data about a finished run.
pub struct FinishedRun<'a> {
    /// Requested workloads, message sizes and flows.
    pub asked: &'a Asked,
    /// Sampling options.
    pub run_options: &'a RunOptions,
    /// Wall-clock time of the start.
    pub started: SystemTime,
    pub machine: &'a Machine,
    pub privileges: Privileges,
    /// Load of other programs before the run.
    pub survey: &'a Survey,
}

/// Data about the paths of a run.
#[derive(Clone)]
pub struct Paths {
    pub plan: Option<String>,
    /// The path that ratios compare with.
    pub baseline: String,
    /// All paths, the baseline first.
    pub modes: Vec<ModeRecord>,
    pub testbeds: Vec<TestbedRecord>,
    pub offload: Vec<Profile>,
    /// Underlay MTUs in bytes.
    pub mtu: Vec<u32>,
    /// How NICs steer received packets.
    pub steering: results::Steering,
    /// Arguments of `--vary` and `--try`.
    pub vary: Vec<String>,
    /// The ends of the lab's modes use IPv6.
    pub ipv6: bool,
    /// The machine of the remote endpoint, if it is another one.
    pub peer: Option<MachineRecord>,
}

/// Returns whether a cell has a figure, or none was asked for.
fn has_figures(cells: &[Cell]) -> bool {
    cells.is_empty() || cells.iter().any(|cell| cell.status == Status::Ok)
}

impl FinishedRun<'_> {
    /// Begins to keep the samples, if they are kept.
    pub fn begin(
        &self,
        keeping: &mut Keeping,
        plan: &Plan,
        subjects: &[PathUnderTest],
        paths: &Paths,
    ) -> anyhow::Result<()> {
        if keeping.is_on() {
            let outcome = measure::run::not_begun(plan, subjects);
            let warnings = vec![
                "the run was killed, or still goes on: these are its samples until then".into(),
            ];
            let results = self.results(outcome, paths.clone(), None, warnings)?;
            keeping.begin(&Begun::new(plan, results));
        }
        Ok(())
    }

    /// Builds the results.
    pub fn results(
        &self,
        outcome: Outcome,
        paths: Paths,
        timeline: Option<Timeline>,
        mut warnings: Vec<String>,
    ) -> anyhow::Result<Results> {
        let plan = PlanRecord {
            name: paths.plan,
            baseline: paths.baseline,
            modes: paths.modes.iter().map(|mode| mode.mode.clone()).collect(),
            offload: paths.offload,
            mtu: paths.mtu,
            steering: paths.steering,
            vary: paths.vary,
            ipv6: paths.ipv6,
            ..request::record(self.asked, self.run_options, &outcome)
        };
        warnings.extend(outcome.notes);
        Ok(Results {
            schema: SCHEMA.to_owned(),
            overlane: env!("CARGO_PKG_VERSION").to_owned(),
            // A run without any figure is no result.
            complete: outcome.ended.is_complete() && has_figures(&outcome.cells),
            ended_by: outcome.ended.by(),
            started: humantime::format_rfc3339_seconds(self.started).to_string(),
            finished: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: self.machine.record(self.privileges, self.survey.busy)?,
            peer: paths.peer,
            plan,
            modes: paths.modes,
            testbeds: paths.testbeds,
            // Fault trials run after the blocks; `lab run` adds them later.
            faults: Vec::new(),
            cells: outcome.cells,
            timeline,
            warnings,
            background: Some(outcome.background),
        })
    }
}
