//! Paths to another machine, on which `measure serve` runs: as subjects of a run,
//! and as the results have them.

use std::sync::Arc;

use load::ask::Engine;
use measure::path_netns::PathNetns;
use measure::path_under_test::{PathUnderTest, ServerEnd};
use measure::plan::PlacementPolicy;
use measure::remote::Remote;
use measure::sampler::Limits;
use netstate::Hop;
use results::{ModeRecord, Placement as Placed, Profile, Status, TestbedRecord};
use sys::netns::NetNs;

use crate::args::{Placement, Steering};
use crate::assembly::Paths;
use crate::exit::usage;
use crate::measure_options::{Asked, Manner};
use crate::survey;

/// Offloads of a real NIC are as they are; each testbed's entry lists them.
const OFFLOAD: Profile = Profile::AsFound;
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
    pub fn subject(&self, here: &Arc<NetNs>, mtu: u32) -> PathUnderTest {
        let [client, server] = self.remote.devices();
        PathUnderTest {
            datagram_warmup: std::time::Duration::ZERO,
            mode: self.name.clone(),
            offload: OFFLOAD,
            mtu,
            client: 0,
            server: ServerEnd::Away(Arc::clone(&self.remote)),
            hops: vec![
                Hop::tx(Remote::CLIENT, &client.device),
                Hop::rx(Remote::HOST, &server.device),
            ],
            places: vec![PathNetns { name: Remote::CLIENT.to_owned(), netns: Arc::clone(here) }],
        }
    }
}

/// Paths as the results have them, the baseline first. `vary` is what was varied.
pub fn record(paths: &[Path], vary: Vec<String>) -> Paths {
    let mtu = paths[0].mtu();
    Paths {
        plan: None,
        baseline: paths[0].name.clone(),
        modes: paths.iter().map(mode_record).collect(),
        testbeds: paths.iter().map(|path| testbed_record(path, mtu)).collect(),
        offload: vec![OFFLOAD],
        mtu: vec![mtu],
        steering: Steering::None,
        vary,
        peer: paths.last().map(|path| path.remote.machine()),
    }
}

/// Checks that the built-in engine alone is asked for: no other has a server at the far
/// end.
///
/// # Errors
/// Usage, naming the engine.
pub fn check_engines(asked: &Asked) -> anyhow::Result<()> {
    match asked.asks.iter().find(|ask| ask.engine != Engine::Overlane) {
        None => Ok(()),
        Some(tool) => {
            let problem = format!("{} is driven in the lab only (overlane lab run)", tool.engine);
            Err(usage("--engine", problem))
        }
    }
}

/// Checks every load against the server's limits, before anything is measured.
///
/// # Errors
/// Usage, naming the server and the limit.
pub fn check_limits(asked: &Asked, manner: &Manner, paths: &[Path]) -> anyhow::Result<()> {
    for path in paths {
        for ask in &asked.asks {
            let load = load::Load {
                flows: ask.flows,
                socket_buffer_bytes: ask.socket_buffer_bytes,
                duration: manner.duration,
                warmup: manner.warmup,
                ..load::Load::new(ask.task.workload())
            };
            if let Err(refused) = path.remote.limits().check(&load) {
                return Err(usage(&path.remote.address().to_string(), refused));
            }
        }
    }
    Ok(())
}

/// Whether a server runs on this machine, too.
pub fn on_one_machine(paths: &[Path]) -> bool {
    paths.iter().any(|path| path.remote.is_same_machine())
}

/// Where threads run: two machines share no CPU, so each end has all of its own.
///
/// # Errors
/// When this thread's CPUs cannot be read.
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
    let same_machine = on_one_machine(paths);
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
        alternatives: Vec::new(),
    }
}

fn testbed_record(path: &Path, mtu: u32) -> TestbedRecord {
    let devices = path.remote.devices();
    TestbedRecord {
        mode: path.name.clone(),
        offload: OFFLOAD,
        mtu,
        tenant_mtu: devices.map(|device| device.mtu).into_iter().min().unwrap_or(mtu),
        setting: None,
        devices: devices.into_iter().cloned().collect(),
        guests: Vec::new(),
    }
}

/// What is said of the server's machine before the first block. Nothing where it is this one.
pub fn first_lines(paths: &[Path], manner: &Manner) -> Vec<String> {
    let elsewhere = paths.last().filter(|_| !on_one_machine(paths));
    let packets_per_s = elsewhere.map_or(0.0, |path| path.remote.packets_per_s());
    let traffic = survey::traffic(packets_per_s, "the server's machine", manner);
    busy_server(paths).into_iter().chain(traffic).collect()
}

/// That other programs use the server's machine; this one is looked at more closely.
fn busy_server(paths: &[Path]) -> Option<String> {
    let load = paths.last()?.remote.idle_load();
    (!on_one_machine(paths) && load > Limits::DEFAULT.other_share).then(|| {
        format!(
            "{}: {:.0}% of all CPUs were busy before the run: something else is running",
            Remote::HOST,
            load * 100.0
        )
    })
}

/// What a reader of the results should know of these paths.
pub fn warnings(paths: &[Path]) -> Vec<String> {
    let mut warnings = Vec::new();
    let same = on_one_machine(paths);
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
    warnings.extend(busy_server(paths));
    warnings
}
