//! Paths to another machine, on which `measure serve` runs: as subjects of a run,
//! and as the results have them.

use std::sync::Arc;
use std::time::SystemTime;

use measure::plan::{Engine, PlacementPolicy, Plan};
use measure::remote::Remote;
use measure::results::{
    ModeRecord, Placement as Placed, Plan as PlanRecord, Results, SCHEMA, Status, TestbedRecord,
    Timeline,
};
use measure::run::{Ended, Outcome};
use measure::sampler::Machine;
use measure::subject::{Place, ServerEnd, Subject};
use netstate::Hop;
use sys::netns::NetNs;

use crate::args::Placement;
use crate::exit::usage;
use crate::load::{self, Asked, Manner};
use crate::remote::privileges;

/// Offloads of a real NIC are as they are; each testbed's entry lists them.
const OFFLOAD: &str = "as-found";
/// A path that is measured.
pub struct Path {
    /// What it is called.
    pub name: String,
    /// The server at its other end.
    pub remote: Arc<Remote>,
}

impl Path {
    /// The smaller MTU of its ends, bytes.
    pub fn mtu(&self) -> u32 {
        self.remote.devices().map(|device| device.mtu).into_iter().min().unwrap_or(0)
    }

    /// What is measured, from this namespace; `mtu` is that of its cells.
    pub fn subject(&self, here: &Arc<NetNs>, mtu: u32) -> Subject {
        let [client, server] = self.remote.devices();
        Subject {
            mode: self.name.clone(),
            offload: OFFLOAD.to_owned(),
            mtu,
            client: 0,
            server: ServerEnd::Away(Arc::clone(&self.remote)),
            hops: vec![
                Hop::tx(Remote::CLIENT, &client.device),
                Hop::rx(Remote::HOST, &server.device),
            ],
            places: vec![Place { name: Remote::CLIENT.to_owned(), netns: Arc::clone(here) }],
        }
    }
}

/// A run over paths, the baseline first, for its results.
pub struct Run<'a> {
    /// What was asked.
    pub asked: &'a Asked,
    /// How it was measured.
    pub manner: &'a Manner,
    /// When it began.
    pub started: SystemTime,
    /// Its paths.
    pub paths: &'a [Path],
    /// Share of all CPUs busy before it, 0..1.
    pub idle_load: f64,
}

impl Run<'_> {
    /// The results of what it came to.
    ///
    /// # Errors
    /// When the machine cannot be described.
    pub fn results(
        &self,
        outcome: Outcome,
        timeline: Option<Timeline>,
        machine: &Machine,
        mut warnings: Vec<String>,
    ) -> anyhow::Result<Results> {
        let Run { asked, manner, started, paths, idle_load } = *self;
        let record = load::record(asked, manner, &outcome);
        let mtu = paths[0].mtu();
        warnings.extend(outcome.notes);
        Ok(Results {
            schema: SCHEMA.to_owned(),
            overlane: env!("CARGO_PKG_VERSION").to_owned(),
            complete: !matches!(outcome.ended, Ended::Interrupted | Ended::Failed),
            ended_by: outcome.ended.name().to_owned(),
            started: humantime::format_rfc3339_seconds(started).to_string(),
            finished: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: machine.record(privileges(), idle_load)?,
            peer: paths.last().map(|path| path.remote.machine()),
            plan: PlanRecord {
                baseline: paths[0].name.clone(),
                modes: paths.iter().map(|path| path.name.clone()).collect(),
                offload: vec![OFFLOAD.to_owned()],
                mtu: vec![mtu],
                ..record
            },
            modes: paths.iter().map(mode_record).collect(),
            testbeds: paths.iter().map(|path| testbed_record(path, mtu)).collect(),
            cells: outcome.cells,
            timeline,
            warnings,
        })
    }
}

/// Only the built-in engine has a server there.
pub fn check_engines(asked: &Asked) -> anyhow::Result<()> {
    match asked.asks.iter().find(|ask| ask.engine != Engine::Overlane) {
        None => Ok(()),
        Some(tool) => {
            let problem = format!("{} is driven in the lab only (overlane lab run)", tool.engine);
            Err(usage("--engine", problem))
        }
    }
}

/// What a server would refuse is said before anything is measured.
pub fn check_limits(asked: &Asked, manner: &Manner, paths: &[Path]) -> anyhow::Result<()> {
    for path in paths {
        for ask in &asked.asks {
            let load = measure::engine::Load {
                flows: ask.flows,
                socket_buffer_bytes: ask.socket_buffer_bytes,
                duration: manner.duration,
                warmup: manner.warmup,
                ..measure::engine::Load::new(ask.task.workload())
            };
            if let Err(refused) = path.remote.limits().check(&load) {
                return Err(usage(&path.remote.address().to_string(), refused));
            }
        }
    }
    Ok(())
}

/// Two machines share no CPU: each end has all of its own.
pub fn placement(asked: Placement, paths: &[Path]) -> anyhow::Result<Placed> {
    let policy = PlacementPolicy::from(asked);
    let here = sys::affinity::of_this_thread()?;
    let at_every = |cpu: &usize| paths.iter().all(|path| path.remote.cpus().contains(cpu));
    let there: Vec<usize> =
        paths[0].remote.cpus().iter().copied().filter(|cpu| at_every(cpu)).collect();
    let placed = policy.place(&here);
    if policy == PlacementPolicy::None {
        return Ok(placed);
    }
    let first = |cpus: &[usize]| cpus[..cpus.len().min(1)].to_vec();
    let same_machine = paths.iter().any(|path| path.remote.is_same_machine());
    let usable = |cpu: &usize| there.contains(cpu);
    Ok(match policy {
        // Both ends on one machine: as in the lab, where both may run there.
        _ if same_machine && placed.server_cpus.iter().all(usable) => placed,
        PlacementPolicy::Same => {
            Placed { client_cpus: first(&here), server_cpus: first(&there), ..placed }
        }
        _ => Placed { client_cpus: here, server_cpus: there, ..placed },
    })
}

fn mode_record(path: &Path) -> ModeRecord {
    let [client, server] = path.remote.devices();
    let version = path.remote.overlane();
    let mut notes = vec![format!(
        "control connection: round trip {:.0} us",
        path.remote.round_trip().as_secs_f64() * 1e6
    )];
    if version != env!("CARGO_PKG_VERSION") {
        notes.push(format!("the server is overlane {version}"));
    }
    ModeRecord {
        mode: path.name.clone(),
        path: format!("{} → {} at {}", client.device, server.device, path.remote.address()),
        status: Status::Ok,
        reason: None,
        remedy: None,
        notes,
    }
}

fn testbed_record(path: &Path, mtu: u32) -> TestbedRecord {
    let devices = path.remote.devices();
    TestbedRecord {
        mode: path.name.clone(),
        offload: OFFLOAD.to_owned(),
        mtu,
        tenant_mtu: devices.map(|device| device.mtu).into_iter().min().unwrap_or(mtu),
        devices: devices.into_iter().cloned().collect(),
    }
}

pub fn warnings(paths: &[Path], plan: &Plan, idle_load: f64) -> Vec<String> {
    let mut warnings = Vec::new();
    let same = paths.iter().any(|path| path.remote.is_same_machine());
    if same {
        warnings.push(
            "both ends run on one machine: its CPU time is counted once, for both".to_owned(),
        );
    }
    if let [baseline, path] = paths
        && !baseline.remote.shares_machine_with(&path.remote)
    {
        warnings.push(format!(
            "{} and {} lead to two different machines: their ratio compares machines, too",
            baseline.name, path.name
        ));
    }
    let busy = |who: &str, load: f64| {
        (load > plan.limits.other_share).then(|| {
            format!(
                "{who}: {:.0}% of all CPUs were busy before the run: something else is running",
                load * 100.0
            )
        })
    };
    warnings.extend(busy(Remote::CLIENT, idle_load));
    if !same {
        warnings.extend(paths.last().and_then(|p| busy(Remote::HOST, p.remote.idle_load())));
    }
    warnings
}
