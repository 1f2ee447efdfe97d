//! Paths to a machine that runs `measure serve`: as subjects of a run, and as records in the
//! results.

use std::sync::Arc;

use load::ask::Engine;
use measure::path_netns::PathNetns;
use measure::path_under_test::{PathUnderTest, ServerEnd};
use measure::plan::PlacementPolicy;
use measure::remote::Remote;
use measure::sampler::Limits;
use netstate::{Hop, Netlink};
use results::{ModeRecord, Placement as Placed, Privileges, Profile, Status, TestbedRecord};
use sys::netns::NetNs;

use crate::assembly::Paths;
use crate::request::{Asked, RunOptions};
use crate::survey;
use crate::usage::usage;

/// Offloads of a real NIC stay unchanged; the testbed records list them.
const OFFLOAD: Profile = Profile::AsFound;
pub struct Path {
    pub name: String,
    /// The server at the remote end.
    pub remote: Arc<Remote>,
}

impl Path {
    /// Returns the smaller MTU of both endpoints, in bytes.
    pub fn mtu(&self) -> u32 {
        self.remote.devices().map(|device| device.mtu).into_iter().min().unwrap_or(0)
    }

    /// Returns the path under test from this namespace. `mtu` is the MTU key of its cells.
    pub fn subject(&self, here: &Arc<NetNs>, mtu: u32) -> PathUnderTest {
        let [client, server] = self.remote.devices();
        PathUnderTest {
            // Only lab modes need an extra warm-up for datagrams.
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
            damage: None,
        }
    }
}

/// Builds the records of the paths, the baseline first. `vary` are the varied settings.
pub fn record(paths: &[Path], vary: Vec<String>) -> Paths {
    // All cells share the MTU of the baseline.
    let mtu = paths[0].mtu();
    Paths {
        plan: None,
        baseline: paths[0].name.clone(),
        modes: paths.iter().map(mode_record).collect(),
        testbeds: paths.iter().map(|path| testbed_record(path, mtu)).collect(),
        offload: vec![OFFLOAD],
        mtu: vec![mtu],
        steering: results::Steering::None,
        vary,
        ipv6: paths.last().is_some_and(|path| path.remote.address().is_ipv6()),
        peer: paths.last().map(|path| path.remote.machine()),
    }
}

/// Returns the privileges of this process, for the results. These runs never enter a user
/// namespace, because they measure the machine's own path.
pub fn privileges() -> Privileges {
    if nix::unistd::geteuid().is_root() { Privileges::Root } else { Privileges::User }
}

/// Checks that only the built-in engine is requested: other engines have no server at the remote
/// end.
///
/// # Errors
/// A usage error that names the engine.
pub fn check_engines(asked: &Asked) -> anyhow::Result<()> {
    match asked.asks.iter().find(|ask| ask.engine != Engine::Overlane) {
        None => Ok(()),
        Some(tool) => {
            let problem = format!("{} is only supported by overlane lab run", tool.engine);
            Err(usage("--engine", problem))
        }
    }
}

/// Checks every load against the server's limits, before the measurement starts.
///
/// # Errors
/// A usage error that names the server and the limit.
pub fn check_limits(asked: &Asked, run_options: &RunOptions, paths: &[Path]) -> anyhow::Result<()> {
    for path in paths {
        for ask in &asked.asks {
            let load = load::Load {
                flows: ask.flows,
                beside: ask.beside,
                socket_buffer_bytes: ask.socket_buffer_bytes,
                duration: run_options.duration,
                warmup: run_options.warmup,
                ..load::Load::new(ask.task.workload())
            };
            if let Err(refused) = path.remote.limits().check(&load) {
                return Err(usage(&path.remote.address().to_string(), refused));
            }
        }
    }
    Ok(())
}

/// Returns whether a server runs on this machine.
pub fn on_one_machine(paths: &[Path]) -> bool {
    paths.iter().any(|path| path.remote.is_same_machine())
}

/// Returns the CPUs for the threads. Two machines share no CPU, so each end uses all of its own.
pub fn placement(policy: PlacementPolicy, paths: &[Path]) -> anyhow::Result<Placed> {
    let here = sys::affinity::of_this_thread()?;
    // Use only CPUs that the servers of all paths can use.
    let at_every = |cpu: &usize| paths.iter().all(|path| path.remote.cpus().contains(cpu));
    let there: Vec<usize> =
        paths[0].remote.cpus().iter().copied().filter(|cpu| at_every(cpu)).collect();
    let placed = policy.place(&here);
    // Without pinning, no CPU list is needed.
    if policy == PlacementPolicy::None {
        return Ok(placed);
    }
    let first = |cpus: &[usize]| cpus[..cpus.len().min(1)].to_vec();
    let same_machine = on_one_machine(paths);
    let usable = |cpu: &usize| there.contains(cpu);
    Ok(match policy {
        // Both ends on one machine: split its CPUs as in the lab, if the server may use its share.
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
        "measured to {}; control connection: round trip {:.0} us",
        path.remote.address().ip(),
        path.remote.round_trip().as_secs_f64() * 1e6
    )];
    // A different version may measure differently, so note it.
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
        qdiscs: qdisc(path).into_iter().collect(),
        guests: Vec::new(),
        probe: None,
    }
}

/// Returns the queueing discipline of the client's device. The server does not report its own.
fn qdisc(path: &Path) -> Option<(String, String)> {
    let [client, _] = path.remote.devices();
    let netlink = Netlink::open_in(&NetNs::current().ok()?);
    let qdisc = netlink.ok()?.link(&client.device).ok()?.qdisc?;
    Some((format!("{}/{}", client.host, client.device), qdisc))
}

/// Returns notes about the server's machine, for before the first block. Empty if it is this one.
pub fn first_lines(paths: &[Path], run_options: &RunOptions) -> Vec<String> {
    // If the server runs here, the survey of this machine already covers it.
    let elsewhere = paths.last().filter(|_| !on_one_machine(paths));
    let packets_per_s = elsewhere.map_or(0.0, |path| path.remote.packets_per_s());
    let traffic = survey::traffic(packets_per_s, "the server's machine", run_options);
    busy_server(paths).into_iter().chain(traffic).collect()
}

/// Warns if other programs use the server's machine. This machine has its own survey.
fn busy_server(paths: &[Path]) -> Option<String> {
    let load = paths.last()?.remote.idle_load();
    (!on_one_machine(paths) && load > Limits::DEFAULT.other_share).then(|| {
        format!(
            "{}: {:.0}% of all CPUs were busy before the run: other programs are running",
            Remote::HOST,
            load * 100.0
        )
    })
}

/// Returns warnings about these paths, for the results.
pub fn warnings(paths: &[Path]) -> Vec<String> {
    let mut warnings = Vec::new();
    let same = on_one_machine(paths);
    if same {
        warnings.push(
            "both endpoints run on one machine: its CPU time is counted once, for both".to_owned(),
        );
    }
    if let [baseline, path] = paths
        && !baseline.remote.shares_machine_with(&path.remote)
    {
        warnings.push(format!(
            "{} and {} lead to different machines: their ratio also compares the machines",
            baseline.name, path.name
        ));
    }
    warnings.extend(busy_server(paths));
    warnings
}
