//! `overlane measure run`: a path to another machine, measured, and set against
//! a second path to it.

use std::sync::Arc;
use std::time::SystemTime;

use measure::plan::{self, Engine, PlacementPolicy};
use measure::remote::{Remote, RemoteError};
use measure::results::{
    ModeRecord, Placement as Placed, Plan as PlanRecord, Results, SCHEMA, Status, TestbedRecord,
};
use measure::run::Ended;
use measure::sampler::Machine;
use measure::subject::{Place, ServerEnd, Subject};
use netstate::Hop;
use sys::netns::NetNs;

use crate::args::{MeasureRun, Placement};
use crate::exit::{Exit, usage};
use crate::load::{self, Asked, IDLE_WATCH, Manner};
use crate::output::{Destination, deliver};
use crate::progress::Progress;
use crate::remote::{Target, privileges, token};
use crate::{interrupt, watching};

/// Offloads of a real NIC are as they are; each testbed's entry lists them.
const OFFLOAD: &str = "as-found";
/// Longest label of a path.
const LONGEST_NAME: usize = 32;

/// A path that is measured.
struct Path {
    name: String,
    remote: Arc<Remote>,
}

/// Runs the verb.
pub fn run(arguments: &MeasureRun) -> anyhow::Result<Exit> {
    let asked = Asked::check(&arguments.asking)?;
    if let Some(tool) = asked.asks.iter().find(|ask| ask.engine != Engine::Overlane) {
        let problem = format!("{} is driven in the lab only (overlane lab run)", tool.engine);
        return Err(usage("--engine", problem));
    }
    let mut manner = Manner::check(&arguments.measuring)?;
    let destination = arguments.output.out.as_deref().map(Destination::check).transpose()?;
    let token = token(arguments.token.as_deref())?;
    let mut targets = vec![(&arguments.name, "ADDR", &arguments.address)];
    if let Some(baseline) = &arguments.baseline {
        if arguments.name == arguments.baseline_name {
            return Err(usage("--name", "two paths need two names (--baseline-name)"));
        }
        targets.insert(0, (&arguments.baseline_name, "--baseline", baseline));
    }
    let mut addresses = Vec::new();
    for (name, argument, text) in &targets {
        check_name(name)?;
        addresses.push(Target::parse(argument, text)?.resolve(argument)?);
    }
    if let [baseline, path] = addresses[..]
        && baseline.is_ipv4() != path.is_ipv4()
    {
        let problem = format!(
            "{} and {} are of two families, whose headers differ by 20 bytes: compare paths of one",
            baseline.ip(),
            path.ip()
        );
        return Err(usage("--baseline", problem));
    }

    let stop = interrupt::flag()?;
    let started = SystemTime::now();
    let mut progress = Progress::new("looking at both machines");
    let here = Arc::new(NetNs::current()?);
    let mut paths = Vec::new();
    for ((name, ..), address) in targets.iter().zip(&addresses) {
        progress.prepare(format!("connecting to {address}"));
        let remote = match Remote::connect(*address, token.clone(), &here, Arc::clone(&stop)) {
            Ok(remote) => Arc::new(remote),
            Err(RemoteError::Stopped) => return Ok(Exit::Interrupted),
            Err(error) => return Err(error.into()),
        };
        paths.push(Path { name: (*name).clone(), remote });
    }
    check_limits(&asked, &manner, &paths)?;
    let mut machine = Machine::open(true)?;
    for pid in paths.iter().filter_map(|path| path.remote.process_here()) {
        machine.add_own_process(pid);
    }
    let idle_load = machine.idle_load(IDLE_WATCH)?;
    manner.placement = placement(arguments.measuring.placement, &paths)?;

    // One key for all cells: the baseline's, whose device is the underlay's.
    let mtu = paths[0].remote.devices().map(|device| device.mtu).into_iter().min().unwrap_or(0);
    let subjects: Vec<Subject> = paths.iter().map(|path| subject(path, &here, mtu)).collect();
    let keys: Vec<(&str, &str, u32)> =
        subjects.iter().map(|s| (s.mode.as_str(), s.offload.as_str(), s.mtu)).collect();
    let unset = vec![Vec::new(); subjects.len()];
    let cells = plan::cells(&keys, &paths[0].name, &asked.asks, &unset);
    let plan = manner.plan(cells, Vec::new(), idle_load);
    let hosts = vec![&[][..]; subjects.len()];
    let (outcome, timeline) =
        watching::run(&mut progress, &plan, &subjects, &machine, &[], hosts, &stop)?;

    let record = load::record(&asked, &manner, &outcome);
    let mut warnings = warnings(&paths, &plan, idle_load);
    warnings.extend(outcome.notes);
    if outcome.ended == Ended::Failed {
        warnings.push("the server was gone before the last block: what there was is here".into());
    }
    let results = Results {
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
    };
    // Sessions first: a reader that goes away must not keep them open.
    drop((paths, subjects));
    deliver(&results, outcome.ended, &arguments.output, destination.as_ref())
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if (1..=LONGEST_NAME).contains(&name.len()) && !name.chars().any(char::is_control) {
        return Ok(());
    }
    Err(usage("--name", format!("{name:?}: wanted 1 to {LONGEST_NAME} printable bytes")))
}

/// What a server would refuse is said before anything is measured.
fn check_limits(asked: &Asked, manner: &Manner, paths: &[Path]) -> anyhow::Result<()> {
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
fn placement(asked: Placement, paths: &[Path]) -> anyhow::Result<Placed> {
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

fn subject(path: &Path, here: &Arc<NetNs>, mtu: u32) -> Subject {
    let [client, server] = path.remote.devices();
    Subject {
        mode: path.name.clone(),
        offload: OFFLOAD.to_owned(),
        mtu,
        client: 0,
        server: ServerEnd::Away(Arc::clone(&path.remote)),
        hops: vec![Hop::tx(Remote::CLIENT, &client.device), Hop::rx(Remote::HOST, &server.device)],
        places: vec![Place { name: Remote::CLIENT.to_owned(), netns: Arc::clone(here) }],
    }
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

fn warnings(paths: &[Path], plan: &plan::Plan, idle_load: f64) -> Vec<String> {
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
