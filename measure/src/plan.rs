//! What a run is to do: which cells, in how many blocks, when to stop.

use std::time::Duration;

use crate::engine::Workload;
use crate::results::{Placement, Role};
use crate::sampler::Limits;

/// Where the load engine's threads run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// Clients on the first half of the CPUs, servers on the second.
    Split,
    /// Both on the first CPU.
    Same,
    /// Wherever the scheduler puts them.
    None,
}

impl PlacementPolicy {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PlacementPolicy::Split => "split",
            PlacementPolicy::Same => "same",
            PlacementPolicy::None => "none",
        }
    }

    /// The CPUs, of those this process may use.
    pub fn place(self, usable: &[usize]) -> Placement {
        let (client, server) = match self {
            PlacementPolicy::Split if usable.len() > 1 => usable.split_at(usable.len() / 2),
            // One CPU cannot be split.
            PlacementPolicy::Split | PlacementPolicy::Same => {
                let first = &usable[..usable.len().min(1)];
                (first, first)
            }
            PlacementPolicy::None => (&[][..], &[][..]),
        };
        Placement {
            policy: self.name().to_owned(),
            client_cpus: client.to_vec(),
            server_cpus: server.to_vec(),
        }
    }
}

/// One cell of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedCell {
    /// Index of its subject.
    pub subject: usize,
    /// Baseline, A/A or measured.
    pub role: Role,
    /// Workload.
    pub workload: Workload,
    /// Message size, bytes.
    pub message_bytes: u32,
    /// Index of the baseline cell that its ratios are taken to.
    pub baseline: usize,
}

/// When a run stops.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stopping {
    /// Coverage of every interval, 0..1.
    pub level: f64,
    /// Blocks, where there is no goal.
    pub blocks: u32,
    /// Stop when every ratio's relative half-width is at most this.
    pub half_width: Option<f64>,
    /// Blocks at most, under a goal.
    pub max_blocks: u32,
}

/// What a run is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Seed of the block order.
    pub seed: u64,
    /// The cells of every block.
    pub cells: Vec<PlannedCell>,
    /// When to stop.
    pub stopping: Stopping,
    /// Parallel flows.
    pub flows: u32,
    /// UDP GSO for `udp_stream`.
    pub gso: bool,
    /// Measured interval of a sample.
    pub duration: Duration,
    /// Discarded before it.
    pub warmup: Duration,
    /// Where threads run.
    pub placement: Placement,
    /// Disturbance past which a sample is void.
    pub limits: Limits,
    /// Share of all CPUs busy before the run, 0..1.
    pub idle_load: f64,
    /// How long a path may take to carry the first exchange, or stand still.
    pub setup_limit: Duration,
}

/// Every combination of subject, workload and size, with a baseline and an A/A
/// cell for each offload profile, MTU, workload and size.
///
/// `subjects` are (mode, offload, mtu); cells whose baseline subject is missing
/// are left out.
pub fn cells(
    subjects: &[(&str, &str, u32)],
    baseline: &str,
    loads: &[(Workload, u32)],
) -> Vec<PlannedCell> {
    let mut cells = Vec::new();
    for (reference, (_, offload, mtu)) in
        subjects.iter().enumerate().filter(|(_, (mode, _, _))| *mode == baseline)
    {
        for &(workload, message_bytes) in loads {
            let at = cells.len();
            let cell = |subject, role| PlannedCell {
                subject,
                role,
                workload,
                message_bytes,
                baseline: at,
            };
            cells.push(cell(reference, Role::Baseline));
            cells.push(cell(reference, Role::Aa));
            for (subject, other) in subjects.iter().enumerate() {
                if subject != reference && (other.1, other.2) == (*offload, *mtu) {
                    cells.push(cell(subject, Role::Measured));
                }
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_its_own_baseline_and_floor() {
        let subjects = [("host", "full", 1500), ("host", "none", 1500), ("vxlan", "none", 1500)];
        let loads = [(Workload::TcpRr, 1), (Workload::UdpStream, 64)];
        let cells = cells(&subjects, "host", &loads);
        assert_eq!(cells.len(), 2 * 2 + 2 * 3);
        for cell in &cells {
            let baseline = &cells[cell.baseline];
            assert_eq!(baseline.role, Role::Baseline);
            assert_eq!(subjects[baseline.subject].1, subjects[cell.subject].1);
            assert_eq!(
                (baseline.workload, baseline.message_bytes),
                (cell.workload, cell.message_bytes)
            );
        }
        assert_eq!(cells.iter().filter(|cell| cell.role == Role::Aa).count(), 4);
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
