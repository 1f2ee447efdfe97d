//! The plan of a run: its cells, the number of blocks, and when to stop.

use std::time::Duration;

use crate::impact::Impact;
use crate::sampler::{Disturbance, Rule};
use load::ask::Ask;
use load::{Load, Workload};
pub use results::PlacementPolicy;
use results::stats::{StatsError, StopRule};
use results::{Placement, Role};

/// One cell of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannedCell {
    /// Index of its subject.
    pub subject: usize,
    /// Baseline, A/A or measured.
    pub role: Role,
    /// Measurement request.
    pub ask: Ask,
    /// Index of the varied setting in [`Plan::settings`]; `None`: as found.
    pub setting: Option<usize>,
    /// Index of the baseline cell for its ratios.
    pub baseline: usize,
}

/// Stopping condition of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stopping {
    /// Coverage of every interval, 0..1.
    pub level: f64,
    /// Number of blocks if there is no goal; a maximum with `proof`.
    pub blocks: u32,
    /// Without a goal: stop once the change under test is decided.
    pub proof: bool,
    /// Stop when every ratio's relative half-width is at most this.
    pub half_width: Option<f64>,
    /// Maximum number of blocks with a goal.
    pub max_blocks: u32,
}

impl Stopping {
    /// Returns the rule that decides after each block.
    pub fn rule(&self) -> Result<StopRule, StatsError> {
        match self.half_width {
            // A single block allows no interim analysis.
            None if self.proof && self.blocks > 1 => StopRule::proof(self.level, self.blocks),
            None => Ok(StopRule::Blocks { blocks: self.blocks, level: self.level }),
            Some(half_width) => StopRule::goal(self.level, half_width, self.max_blocks),
        }
    }
}

/// The plan of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Seed of the block order.
    pub seed: u64,
    /// The cells of every block.
    pub cells: Vec<PlannedCell>,
    /// Condition that ends the run.
    pub stopping: Stopping,
    /// Varied settings, one per step (`sysctl:net.core.netdev_budget=1000`).
    pub settings: Vec<String>,
    /// Measured interval of a sample.
    pub duration: Duration,
    /// Discarded traffic before each measured interval.
    pub warmup: Duration,
    /// CPUs of the clients' and servers' threads.
    pub placement: Placement,
    /// Rule that judges a sample's disturbance.
    pub rule: Rule,
    /// Other load on this machine before the run, per step.
    pub before: Vec<Disturbance>,
    /// Bound on the test's own load; `None`: unlimited.
    pub impact: Option<Impact>,
    /// Share of all CPUs busy before the run, 0..1.
    pub idle_load: f64,
    /// Time limit for the first exchange, and for a path without progress.
    pub setup_limit: Duration,
    /// Number of unproved first samples after which a cell is given up. Its path is broken, and
    /// each attempt may cost the set-up limit.
    pub hopeless_after: usize,
}

impl Plan {
    /// Returns the closed-loop load of a request.
    pub fn load(&self, ask: &Ask) -> Load {
        let workload = ask.task.workload();
        Load {
            message_bytes: ask.message_bytes,
            flows: ask.flows,
            outstanding: ask.outstanding,
            beside: ask.beside,
            // Other workloads ignore it.
            gso: ask.gso && workload == Workload::UdpStream,
            socket_buffer_bytes: ask.socket_buffer_bytes,
            dscp: ask.dscp,
            ecn: ask.ecn,
            warmup: self.warmup,
            duration: self.duration,
            client_cpus: self.placement.client_cpus.clone(),
            server_cpus: self.placement.server_cpus.clone(),
            setup_limit: self.setup_limit,
            ..Load::new(workload)
        }
    }
}

/// A setting under which a path is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Index in [`Plan::settings`].
    pub setting: usize,
    /// Index of the subject with the setting: the path itself, or one built for the setting.
    pub subject: usize,
}

/// Default of [`Plan::hopeless_after`].
pub const HOPELESS_AFTER: usize = 2;

/// Returns every combination of subject and request, with a baseline and an A/A cell for each
/// offload profile, MTU and request. For each of the `settings` every mode is measured again;
/// its ratio refers to the same mode as found and shows the effect of the setting.
///
/// `subjects` are (mode, offload, mtu). Cells without a baseline subject are left out. `settings`
/// lists the settings per subject. Subjects built for a setting occur only under that setting.
pub fn cells(
    subjects: &[(&str, &str, u32)],
    baseline: &str,
    asks: &[Ask],
    settings: &[Vec<Step>],
) -> Vec<PlannedCell> {
    let mut cells = Vec::new();
    for (reference, (_, offload, mtu)) in
        subjects.iter().enumerate().filter(|(_, (mode, _, _))| *mode == baseline)
    {
        for &ask in asks {
            let at = cells.len();
            let cell =
                |subject, role| PlannedCell { subject, role, ask, setting: None, baseline: at };
            cells.push(cell(reference, Role::Baseline));
            cells.push(cell(reference, Role::Aa));
            for (subject, other) in subjects.iter().enumerate() {
                // Compare only paths with the same offload profile and MTU.
                if subject != reference && (other.1, other.2) == (*offload, *mtu) {
                    cells.push(cell(subject, Role::Measured));
                }
            }
            for found in at..cells.len() {
                // The A/A cell only measures noise, so no setting is tried on it.
                if cells[found].role != Role::Aa {
                    let as_found = cells[found];
                    let taken = settings.get(as_found.subject).into_iter().flatten();
                    cells.extend(taken.map(|&Step { setting, subject }| PlannedCell {
                        subject,
                        role: Role::Measured,
                        setting: Some(setting),
                        baseline: found,
                        ..as_found
                    }));
                }
            }
        }
    }
    cells
}

/// Returns cells for each request on subject 0, as found and with setting 0. There is no A/A cell:
/// the verdict does not use one, and it would take a third of all samples.
pub fn trial_cells(asks: &[Ask]) -> Vec<PlannedCell> {
    let pair = |(at, &ask): (usize, &Ask)| {
        let cell = |role, setting| PlannedCell { subject: 0, role, ask, setting, baseline: 2 * at };
        [cell(Role::Baseline, None), cell(Role::Measured, Some(0))]
    };
    asks.iter().enumerate().flat_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use load::ask::Task;

    #[test]
    fn every_group_has_its_own_baseline_and_floor() {
        let subjects = [("host", "full", 1500), ("host", "none", 1500), ("vxlan", "none", 1500)];
        let asks = [Workload::TcpRr, Workload::UdpStream].map(|w| Ask::new(Task::Steady(w)));
        let cells = cells(&subjects, "host", &asks, &[]);
        assert_eq!(cells.len(), 2 * 2 + 2 * 3);
        for cell in &cells {
            let baseline = &cells[cell.baseline];
            assert_eq!(baseline.role, Role::Baseline);
            assert_eq!(subjects[baseline.subject].1, subjects[cell.subject].1);
            assert_eq!(baseline.ask, cell.ask);
        }
        assert_eq!(cells.iter().filter(|cell| cell.role == Role::Aa).count(), 4);
    }

    #[test]
    fn a_setting_is_compared_with_the_same_mode_as_found() {
        let subjects = [("host", "full", 1500), ("vxlan", "full", 1500)];
        let step = |setting, subject| Step { setting, subject };
        let steps = [vec![step(0, 0), step(1, 0)], vec![step(1, 2)]];
        let cells = cells(&subjects, "host", &[Ask::new(Task::DropPoint)], &steps);
        // host, its A/A and vxlan, then host and vxlan with settings.
        assert_eq!(cells.len(), 3 + 2 + 1);
        for cell in cells.iter().filter(|cell| cell.setting.is_some()) {
            let found = &cells[cell.baseline];
            // The last subject was built for its setting.
            let of = if cell.subject == 2 { 1 } else { cell.subject };
            assert_eq!((found.subject, found.setting), (of, None));
            assert_eq!(cell.role, Role::Measured);
        }
        assert_eq!(cells.iter().filter(|cell| cell.subject == 2).count(), 1);
    }

    #[test]
    fn a_trial_compares_each_ask_with_itself() {
        let asks = [Workload::TcpRr, Workload::UdpStream].map(|w| Ask::new(Task::Steady(w)));
        let cells = trial_cells(&asks);
        assert_eq!(cells.len(), 4);
        for (at, cell) in cells.iter().enumerate() {
            let found = &cells[cell.baseline];
            assert_eq!((found.role, found.ask), (Role::Baseline, cell.ask));
            assert_eq!(cell.ask, asks[at / 2]);
            assert_eq!(cell.setting.is_some(), cell.baseline != at);
        }
    }

    #[test]
    fn placement_never_invents_a_cpu() {
        assert_eq!(PlacementPolicy::Split.place(&[0, 1]).server_cpus, [1]);
        assert_eq!(PlacementPolicy::Split.place(&[3]).client_cpus, [3]);
        assert_eq!(PlacementPolicy::Split.place(&[3]).server_cpus, [3]);
        assert_eq!(PlacementPolicy::Split.place(&[0, 1, 2, 3]).client_cpus, [0, 1]);
        assert!(PlacementPolicy::None.place(&[0, 1]).client_cpus.is_empty());
    }
}
