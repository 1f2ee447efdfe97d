//! From a run's outcome to its results file: the one place that puts them together.

use std::time::SystemTime;

use measure::run::Outcome;
use measure::sampler::{Machine, Survey};
use results::{
    Machine as MachineRecord, ModeRecord, Plan as PlanRecord, Privileges, Profile, Results, SCHEMA,
    TestbedRecord, Timeline,
};

use crate::args::Steering;
use crate::measure_options::{self, Asked, Manner};

/// A run, as whoever started it knows it.
pub struct FinishedRun<'a> {
    /// Workloads, message sizes and flows that the options ask for.
    pub asked: &'a Asked,
    /// How it was measured.
    pub manner: &'a Manner,
    /// Wall-clock time of the start.
    pub started: SystemTime,
    /// The machine that it ran on.
    pub machine: &'a Machine,
    /// With what rights it ran, as the results file has it.
    pub privileges: Privileges,
    /// What else ran before it.
    pub survey: &'a Survey,
}

/// The paths of a run, as whoever built them knows them.
pub struct Paths {
    /// The plan that asked for them.
    pub plan: Option<String>,
    /// The path that ratios are taken to.
    pub baseline: String,
    /// Each path, the baseline first.
    pub modes: Vec<ModeRecord>,
    /// What each was built of.
    pub testbeds: Vec<TestbedRecord>,
    /// Offload profiles that were asked for, as the plan's record names them.
    pub offload: Vec<Profile>,
    /// Underlay MTUs, bytes.
    pub mtu: Vec<u32>,
    /// How NICs steer what they receive.
    pub steering: Steering,
    /// What was varied, as it was asked for.
    pub vary: Vec<String>,
    /// The machine at the other end, where it is another one.
    pub peer: Option<MachineRecord>,
}

impl FinishedRun<'_> {
    /// The results of what it came to.
    ///
    /// # Errors
    /// When the machine cannot be described.
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
            steering: paths.steering.into(),
            vary: paths.vary,
            ..measure_options::record(self.asked, self.manner, &outcome)
        };
        warnings.extend(outcome.notes);
        Ok(Results {
            schema: SCHEMA.to_owned(),
            overlane: env!("CARGO_PKG_VERSION").to_owned(),
            complete: outcome.ended.is_complete(),
            ended_by: outcome.ended.by(),
            started: humantime::format_rfc3339_seconds(self.started).to_string(),
            finished: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: self.machine.record(self.privileges, self.survey.busy)?,
            peer: paths.peer,
            plan,
            modes: paths.modes,
            testbeds: paths.testbeds,
            faults: Vec::new(),
            cells: outcome.cells,
            timeline,
            warnings,
            background: Some(outcome.background),
        })
    }
}
