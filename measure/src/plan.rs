//! What a run is to do: which cells, in how many blocks, when to stop.

use std::time::Duration;

use std::fmt;
use std::str::FromStr;

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

/// What is sought of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// What a workload comes to.
    Steady(Workload),
    /// The highest rates of `udp_stream` at which loss stays within its goals.
    DropPoint,
}

impl Task {
    /// Every task, in the order of the documentation.
    pub const ALL: [Task; 6] = [
        Task::Steady(Workload::TcpStream),
        Task::Steady(Workload::TcpRr),
        Task::Steady(Workload::TcpCrr),
        Task::Steady(Workload::UdpStream),
        Task::Steady(Workload::UdpRr),
        Task::DropPoint,
    ];

    /// Its name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Task::Steady(workload) => workload.name(),
            Task::DropPoint => "drop_point",
        }
    }

    /// The workload that is run, once or in trials.
    pub fn workload(self) -> Workload {
        match self {
            Task::Steady(workload) => workload,
            Task::DropPoint => Workload::UdpStream,
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Task {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Task::ALL.into_iter().find(|task| task.name() == name).ok_or_else(|| UnknownName {
            what: "workload",
            known: Task::ALL.map(Task::name).join(", "),
            got: name.to_owned(),
        })
    }
}

/// A name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {got:?}; known: {known}")]
pub struct UnknownName {
    /// What was to be named.
    pub what: &'static str,
    /// What is known.
    pub known: String,
    /// What was given.
    pub got: String,
}

/// What makes the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The built-in load engine.
    Overlane,
    /// Another program.
    Tool(Tool),
}

/// Load generators of others that can be driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tool {
    /// <https://software.es.net/iperf/>
    Iperf3,
    /// <https://hewlettpackard.github.io/netperf/>
    Netperf,
    /// <https://github.com/linux-rdma/qperf>
    Qperf,
    /// <https://github.com/Mellanox/sockperf>
    Sockperf,
    /// <https://www.nuttcp.net>
    Nuttcp,
}

impl Engine {
    /// Every engine, the built-in one first.
    pub const ALL: [Engine; 6] = [
        Engine::Overlane,
        Engine::Tool(Tool::Iperf3),
        Engine::Tool(Tool::Netperf),
        Engine::Tool(Tool::Qperf),
        Engine::Tool(Tool::Sockperf),
        Engine::Tool(Tool::Nuttcp),
    ];

    /// Its name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Overlane => "overlane",
            Engine::Tool(Tool::Iperf3) => "iperf3",
            Engine::Tool(Tool::Netperf) => "netperf",
            Engine::Tool(Tool::Qperf) => "qperf",
            Engine::Tool(Tool::Sockperf) => "sockperf",
            Engine::Tool(Tool::Nuttcp) => "nuttcp",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Engine {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Engine::ALL.into_iter().find(|engine| engine.name() == name).ok_or_else(|| UnknownName {
            what: "engine",
            known: Engine::ALL.map(Engine::name).join(", "),
            got: name.to_owned(),
        })
    }
}

/// What is asked of a path: everything of a cell but the path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ask {
    /// What is sought.
    pub task: Task,
    /// Message size, bytes.
    pub message_bytes: u32,
    /// Parallel flows.
    pub flows: u32,
    /// Requests that each flow keeps under way (rr).
    pub outstanding: u32,
    /// UDP GSO (`udp_stream`).
    pub gso: bool,
    /// Open loop (rr): percent of the path's own maximum, 0 to 100, 0 for one
    /// request at a time; `None`: closed loop.
    pub load_percent: Option<f64>,
    /// Socket buffers of both ends, bytes.
    pub socket_buffer_bytes: Option<u32>,
    /// What makes the traffic.
    pub engine: Engine,
}

impl Ask {
    /// One flow of the built-in engine, closed loop, one request under way, the
    /// workload's own message size.
    pub fn new(task: Task) -> Ask {
        Ask {
            task,
            message_bytes: task.workload().default_message_bytes(),
            flows: 1,
            outstanding: 1,
            gso: false,
            load_percent: None,
            socket_buffer_bytes: None,
            engine: Engine::Overlane,
        }
    }

    /// Unit of the cell's figures: at a load the rate is given, and latency is
    /// what is sought; else the workload's.
    pub fn unit(&self) -> &'static str {
        if self.load_percent.is_some() { "us" } else { self.task.workload().unit() }
    }
}

/// One cell of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlannedCell {
    /// Index of its subject.
    pub subject: usize,
    /// Baseline, A/A or measured.
    pub role: Role,
    /// What is asked of it.
    pub ask: Ask,
    /// Index in [`Plan::settings`] of what is varied; `None`: as found.
    pub setting: Option<usize>,
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
    /// Settings varied, one a step (`sysctl:net.core.netdev_budget=1000`).
    pub settings: Vec<String>,
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
    /// A cell whose path was not proved in its first so many samples is not tried
    /// again: its path is broken, and each try may cost the set-up limit.
    pub hopeless_after: usize,
}

/// [`Plan::hopeless_after`], where nothing is to be learned from more.
pub const HOPELESS_AFTER: usize = 2;

/// Every combination of subject and ask, with a baseline and an A/A cell for
/// each offload profile, MTU and ask. Under each of the `settings` every mode is
/// measured once more, its ratio to the same mode as found: what the setting
/// brings.
///
/// `subjects` are (mode, offload, mtu); cells whose baseline subject is missing
/// are left out. `settings` has, for each subject, those it takes.
pub fn cells(
    subjects: &[(&str, &str, u32)],
    baseline: &str,
    asks: &[Ask],
    settings: &[Vec<usize>],
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
                if subject != reference && (other.1, other.2) == (*offload, *mtu) {
                    cells.push(cell(subject, Role::Measured));
                }
            }
            for found in at..cells.len() {
                if cells[found].role != Role::Aa {
                    let as_found = cells[found];
                    let taken = settings.get(as_found.subject).into_iter().flatten();
                    cells.extend(taken.map(|&setting| PlannedCell {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let cells = cells(&subjects, "host", &[Ask::new(Task::DropPoint)], &[vec![0, 1], vec![1]]);
        // host, its A/A and vxlan, then the settings of host and of vxlan.
        assert_eq!(cells.len(), 3 + 2 + 1);
        for cell in cells.iter().filter(|cell| cell.setting.is_some()) {
            let found = &cells[cell.baseline];
            assert_eq!((found.subject, found.setting), (cell.subject, None));
            assert_eq!(cell.role, Role::Measured);
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
