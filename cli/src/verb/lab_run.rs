//! `overlane lab run`: builds the modes, measures them, prints and writes the
//! results.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use lab::{Capabilities, Mode, Network, Params, modes};
use measure::engine::{MAX_FLOWS, Workload};
use measure::plan::{self, Ask, Engine, PlacementPolicy, Stopping, Task};
use measure::results::{
    Cell, ConfidenceGoal, DeviceRecord, ModeRecord, Placement as Placed, Plan as PlanRecord,
    Results, Role, SCHEMA, Status, TestbedRecord,
};
use measure::run::Ended;
use measure::sampler::{Limits, Machine};
use measure::subject::{Place, Subject};
use testbed::{NIC, Offload, Privileges};

use crate::args::{Format, Placement, Run, Steering};
use crate::exit::{Exit, usage};
use crate::output::{Destination, print_results};
use crate::progress::Progress;
use crate::{interrupt, sizes};

/// Smallest MTU that IPv4 hosts must take (RFC 791); leaves room for a tunnel.
const SMALLEST_MTU: u32 = 576;
/// Largest that veth takes.
const LARGEST_MTU: u32 = 65535;
/// How long the machine is watched doing nothing before a run.
const IDLE_WATCH: Duration = Duration::from_millis(500);
/// How long a path may stand still before it counts as broken.
const SETUP_LIMIT: Duration = Duration::from_secs(5);

/// The arguments, checked.
struct Request {
    modes: Vec<&'static dyn Mode>,
    baseline: &'static dyn Mode,
    asks: Vec<Ask>,
    tasks: Vec<Task>,
    sizes: Vec<u32>,
    offloads: Vec<Offload>,
    mtus: Vec<u32>,
    stopping: Stopping,
    duration: Duration,
    warmup: Duration,
    placement: Placed,
    steering: Steering,
    seed: u64,
    limits: Limits,
    destination: Option<Destination>,
}

/// A built mode and what it was built with.
struct Built {
    mode: &'static dyn Mode,
    params: Params,
    network: Network,
}

/// Runs the verb.
pub fn run(arguments: &Run) -> anyhow::Result<Exit> {
    let mut request = Request::check(arguments)?;
    // Before anything that starts a thread: a user namespace can be entered by
    // a process with one thread only.
    let privileges = testbed::acquire()
        .context("this machine lets ordinary users make no user namespaces: run as root")?;
    let stop = interrupt::flag()?;
    let started = SystemTime::now();
    let mut progress = Progress::new("looking at the machine");
    let capabilities = Capabilities::new(privileges)?;
    let machine = Machine::open(true)?;
    let idle_load = machine.idle_load(IDLE_WATCH)?;

    let mut cannot_steer = None;
    if request.steering == Steering::Rss && arguments.steering.is_none() {
        // Not asked for: where it cannot be had, the run goes on and says so.
        let tried = testbed::Host::new("steering").and_then(|host| host.steer("lo", &[]));
        if let Err(error) = tried {
            request.steering = Steering::None;
            cannot_steer = Some(format!(
                "the wire's NICs do not steer flows ({error}): TCP flows are reordered on it"
            ));
        }
    }
    let mut records = Vec::new();
    let mut built = Vec::new();
    for mode in &request.modes {
        // The baseline comes first, and without it there is nothing to write.
        if !built.is_empty() && stop.load(Ordering::Relaxed) {
            records.push(failed(*mode, "the run was interrupted before it was built"));
            continue;
        }
        let record = build(*mode, &request, &capabilities, &progress, &mut built);
        records.push(record);
    }
    if !built.iter().any(|built| built.mode.name() == request.baseline.name()) {
        progress.finish();
        let why = records
            .iter()
            .find(|record| record.mode == request.baseline.name())
            .and_then(|record| record.reason.clone())
            .unwrap_or_default();
        anyhow::bail!("baseline {} cannot be built: {why}", request.baseline.name());
    }

    let subjects: Vec<Subject> = built.iter().map(subject).collect();
    let keys: Vec<(&str, &str, u32)> =
        subjects.iter().map(|s| (s.mode.as_str(), s.offload.as_str(), s.mtu)).collect();
    let plan = measure::plan::Plan {
        seed: request.seed,
        cells: plan::cells(&keys, request.baseline.name(), &request.asks),
        stopping: request.stopping,
        settings: Vec::new(),
        duration: request.duration,
        warmup: request.warmup,
        placement: request.placement.clone(),
        limits: request.limits,
        idle_load,
        setup_limit: SETUP_LIMIT,
    };
    let testbeds = built.iter().map(testbed_record).collect::<anyhow::Result<Vec<_>>>()?;
    let sample = request.duration + request.warmup + Duration::from_millis(100);
    let blocks = request
        .stopping
        .half_width
        .map_or(request.stopping.blocks, |_| request.stopping.max_blocks);
    progress.measure(sample * plan.cells.len() as u32 * blocks);
    let outcome = measure::run::run(&plan, &subjects, &machine, &mut progress, &stop);
    progress.finish();
    let outcome = outcome?;

    let mut warnings = warnings(privileges, &records, &plan, idle_load);
    warnings.extend(cannot_steer);
    let mut cells = outcome.cells;
    cells.extend(unsupported_cells(&request, &records));
    for built in &mut built {
        if let Err(error) = built.network.check() {
            ended_early(built, &error, &mut records, &mut cells);
        }
    }
    let results = Results {
        schema: SCHEMA.to_owned(),
        overlane: env!("CARGO_PKG_VERSION").to_owned(),
        complete: outcome.ended != Ended::Interrupted,
        ended_by: outcome.ended.name().to_owned(),
        started: humantime::format_rfc3339_seconds(started).to_string(),
        finished: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        machine: machine.record(privileges.name(), idle_load)?,
        peer: None,
        plan: PlanRecord {
            name: None,
            seed: request.seed,
            baseline: request.baseline.name().to_owned(),
            modes: request.modes.iter().map(|mode| mode.name().to_owned()).collect(),
            offload: request.offloads.iter().map(ToString::to_string).collect(),
            mtu: request.mtus.clone(),
            workloads: request.tasks.iter().map(ToString::to_string).collect(),
            sizes: request.sizes.clone(),
            flows: vec![arguments.flows],
            outstanding: vec![1],
            load_percent: Vec::new(),
            socket_buffers: Vec::new(),
            engines: vec![Engine::Overlane.to_string()],
            vary: Vec::new(),
            gso: arguments.gso,
            placement: plan.placement.clone(),
            steering: match request.steering {
                Steering::None => "none".to_owned(),
                Steering::Rss => "rss".to_owned(),
            },
            blocks: request.stopping.blocks,
            max_blocks: request.stopping.max_blocks,
            blocks_done: outcome.blocks_done,
            duration_s: request.duration.as_secs_f64(),
            warmup_s: request.warmup.as_secs_f64(),
            confidence: ConfidenceGoal {
                level: request.stopping.level,
                half_width: request.stopping.half_width,
                looks: outcome.looks,
            },
        },
        modes: records,
        testbeds,
        cells,
        timeline: None,
        warnings,
    };
    // Testbeds first: a reader that goes away must not keep them standing.
    drop(built);
    let written = match &request.destination {
        Some(destination) => destination.write(&(serde_json::to_string_pretty(&results)? + "\n")),
        None => Ok(()),
    };
    // Shown even when the disk is full: measuring took time.
    print_results(&results, if arguments.json { Format::Json } else { arguments.format })?;
    written?;
    Ok(match outcome.ended {
        Ended::Interrupted => Exit::Interrupted,
        _ if results.cells.iter().any(|cell| cell.status == Status::Failed)
            || results.modes.iter().any(|mode| mode.status == Status::Failed) =>
        {
            Exit::Partly
        }
        _ => Exit::Done,
    })
}

impl Request {
    fn check(arguments: &Run) -> anyhow::Result<Request> {
        let all: Vec<&str> = modes().iter().map(|mode| mode.name()).collect();
        let find = |argument, name: &str| {
            lab::find(name).ok_or_else(|| {
                usage(argument, format!("unknown mode {name:?}; known: {}", all.join(", ")))
            })
        };
        let baseline = find("--baseline", &arguments.baseline)?;
        let mut chosen: Vec<&'static dyn Mode> = if arguments.modes == "all" {
            modes().to_vec()
        } else {
            list("--modes", &arguments.modes, |name| find("--modes", name))?
        };
        // The baseline is part of every run, named or not.
        chosen.retain(|mode| mode.name() != baseline.name());
        chosen.insert(0, baseline);
        let tasks = list("--workloads", &arguments.workloads, |name| {
            Task::from_str(name).map_err(|error| usage("--workloads", error))
        })?;
        let sizes = arguments
            .sizes
            .as_deref()
            .map(sizes::parse)
            .transpose()
            .map_err(|error| usage("--sizes", error))?
            .unwrap_or_default();
        let offloads = list("--offload", &arguments.offload, |name| {
            Offload::from_str(name).map_err(|error| usage("--offload", error))
        })?;
        let mtus = list("--mtu", &arguments.mtu, check_mtu)?;
        if !(1..=MAX_FLOWS).contains(&arguments.flows) {
            return Err(usage("--flows", format!("{} is not 1 to {MAX_FLOWS}", arguments.flows)));
        }
        if arguments.steering == Some(Steering::Rss) && arguments.placement == Placement::None {
            return Err(usage("--steering", "rss needs threads with CPUs: not --placement none"));
        }
        if arguments.gso && !tasks.contains(&Task::Steady(Workload::UdpStream)) {
            return Err(usage(
                "--gso",
                "goes with the workload udp_stream, which is not asked for",
            ));
        }
        let (blocks, duration, warmup) =
            if arguments.quick { (9, 0.15, 0.05) } else { (20, 0.5, 0.1) };
        let duration = seconds("--duration", arguments.duration.unwrap_or(duration), 0.01)?;
        let warmup = seconds("--warmup", arguments.warmup.unwrap_or(warmup), 0.0)?;
        let asks = tasks
            .iter()
            .flat_map(|&task| {
                let own = [task.workload().default_message_bytes()];
                let sizes = if sizes.is_empty() { &own[..] } else { &sizes[..] };
                let gso = arguments.gso && task == Task::Steady(Workload::UdpStream);
                let ask = |&message_bytes| Ask {
                    message_bytes,
                    flows: arguments.flows,
                    gso,
                    ..Ask::new(task)
                };
                sizes.iter().map(ask).collect::<Vec<_>>()
            })
            .collect();
        Ok(Request {
            modes: chosen,
            baseline,
            asks,
            tasks,
            sizes,
            offloads,
            mtus,
            stopping: stopping(arguments, blocks)?,
            duration,
            warmup,
            placement: match arguments.placement {
                Placement::Split => PlacementPolicy::Split,
                Placement::Same => PlacementPolicy::Same,
                Placement::None => PlacementPolicy::None,
            }
            .place(&sys::affinity::of_this_thread()?),
            steering: match (arguments.steering, arguments.placement) {
                (Some(steering), _) => steering,
                (None, Placement::None) => Steering::None,
                (None, _) => Steering::Rss,
            },
            seed: arguments.seed.unwrap_or_else(fresh_seed),
            limits: limits(arguments.disturbance)?,
            destination: arguments.out.as_deref().map(Destination::check).transpose()?,
        })
    }
}

/// A comma-separated list without repetitions, at least one long.
fn list<T>(
    argument: &str,
    text: &str,
    parse: impl Fn(&str) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let mut seen: Vec<&str> = Vec::new();
    for word in text.split(',').map(str::trim) {
        if seen.contains(&word) {
            return Err(usage(argument, format!("{word:?} is named twice")));
        }
        seen.push(word);
    }
    seen.into_iter().map(parse).collect()
}

pub(super) fn check_mtu(text: &str) -> anyhow::Result<u32> {
    text.parse().ok().filter(|mtu| (SMALLEST_MTU..=LARGEST_MTU).contains(mtu)).ok_or_else(|| {
        usage("--mtu", format!("{text:?}: allowed are {SMALLEST_MTU} to {LARGEST_MTU} bytes"))
    })
}

fn seconds(argument: &str, value: f64, least: f64) -> anyhow::Result<Duration> {
    const MOST: f64 = 3600.0;
    if value >= least && value <= MOST {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(usage(argument, format!("{value}: allowed are {least} to {MOST} seconds")))
    }
}

fn stopping(arguments: &Run, default_blocks: u32) -> anyhow::Result<Stopping> {
    const ARGUMENT: &str = "--confidence";
    let mut stopping = Stopping {
        level: 0.95,
        blocks: arguments.blocks.unwrap_or(default_blocks),
        half_width: None,
        max_blocks: arguments.max_blocks,
    };
    if !(1..=10_000).contains(&stopping.blocks) {
        return Err(usage("--blocks", format!("{}: allowed are 1 to 10000", stopping.blocks)));
    }
    if !(2..=10_000).contains(&stopping.max_blocks) {
        return Err(usage(
            "--max-blocks",
            format!("{}: allowed are 2 to 10000", stopping.max_blocks),
        ));
    }
    let Some(text) = &arguments.confidence else { return Ok(stopping) };
    let (level, goal) = match text.split_once(',') {
        Some((level, goal)) => (level, Some(goal)),
        None => (text.as_str(), None),
    };
    let percent = |text: &str, low: f64, high: f64| {
        text.trim().parse::<f64>().ok().filter(|p| *p >= low && *p <= high).ok_or_else(|| {
            usage(
                ARGUMENT,
                format!("{text:?}: LEVEL is 50 to 99.9, PERCENT 0.1 to 100, as in 95,5"),
            )
        })
    };
    stopping.level = percent(level, 50.0, 99.9)? / 100.0;
    stopping.half_width =
        goal.map(|goal| Ok::<_, anyhow::Error>(percent(goal, 0.1, 100.0)? / 100.0)).transpose()?;
    Ok(stopping)
}

/// What other programs may take before a sample is void; the limits on steal
/// and throttling move in step, and 100% lifts all of them.
fn limits(percent: f64) -> anyhow::Result<Limits> {
    if !(percent > 0.0 && percent <= 100.0) {
        return Err(usage("--disturbance", format!("{percent}: allowed are more than 0 to 100")));
    }
    if percent >= 100.0 {
        // None, not 100%: over a short sample the clocks of what was measured
        // and of all CPUs are read apart, and a share can come out above one.
        let lifted = f64::INFINITY;
        return Ok(Limits { other_share: lifted, steal_share: lifted, throttled_share: lifted });
    }
    let share = percent / 100.0;
    let in_step = |default: f64| default * share / Limits::DEFAULT.other_share;
    Ok(Limits {
        other_share: share,
        steal_share: in_step(Limits::DEFAULT.steal_share),
        throttled_share: in_step(Limits::DEFAULT.throttled_share),
    })
}

/// A seed that differs between runs; it is printed and kept in the results.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Short enough to be typed again.
    (now.as_nanos() as u64 ^ u64::from(std::process::id()) << 20) % 1_000_000_000
}

/// Builds a mode with every offload profile and MTU; its entry in the results.
fn build(
    mode: &'static dyn Mode,
    request: &Request,
    capabilities: &Capabilities,
    progress: &Progress,
    built: &mut Vec<Built>,
) -> ModeRecord {
    let mut record = ModeRecord { status: Status::Ok, reason: None, ..failed(mode, "") };
    progress.prepare(format!("building {}", mode.name()));
    if let Err(unsupported) = mode.probe(capabilities) {
        record.status = Status::Unsupported;
        record.reason = Some(unsupported.reason);
        record.remedy = Some(unsupported.remedy);
        return record;
    }
    let before = built.len();
    for &mtu in &request.mtus {
        for &offload in &request.offloads {
            let params = Params { mtu, offload };
            let network = mode.build(&params).and_then(|network| {
                steer(&network, request)?;
                Ok(network)
            });
            match network {
                Ok(network) => {
                    for note in &network.notes {
                        if !record.notes.contains(note) {
                            record.notes.push(note.clone());
                        }
                    }
                    built.push(Built { mode, params, network });
                }
                Err(error) => {
                    record.status = Status::Failed;
                    record.reason = Some(format!("offload {offload}, MTU {mtu}: {error}"));
                    // A mode is measured with every profile or with none.
                    built.truncate(before);
                    return record;
                }
            }
        }
    }
    record
}

/// Steers what the wire's NICs receive to the CPUs of their host's threads.
fn steer(network: &Network, request: &Request) -> lab::Result<()> {
    if request.steering == Steering::None {
        return Ok(());
    }
    let Placed { client_cpus, server_cpus, .. } = &request.placement;
    for (name, cpus) in [("a", client_cpus), ("b", server_cpus)] {
        // Modes that cross no wire have no NIC to steer.
        if let Some(host) = network.host(name).filter(|host| host.netlink().link(NIC).is_ok()) {
            host.steer(NIC, cpus)?;
        }
    }
    Ok(())
}

/// The entry of a mode that was not measured.
fn failed(mode: &dyn Mode, reason: &str) -> ModeRecord {
    ModeRecord {
        mode: mode.name().to_owned(),
        path: mode.path().to_owned(),
        status: Status::Failed,
        reason: Some(reason.to_owned()),
        remedy: None,
        notes: Vec::new(),
    }
}

/// A program of the mode ended during the run: whatever was measured, the mode
/// did not work to the end, and that is why its cells failed.
fn ended_early(built: &Built, error: &lab::Error, records: &mut [ModeRecord], cells: &mut [Cell]) {
    let mode = built.mode.name();
    for record in records.iter_mut().filter(|record| record.mode == mode) {
        record.status = Status::Failed;
        record.reason = Some(format!("ended during the run: {error}"));
    }
    for cell in cells.iter_mut().filter(|cell| {
        (cell.mode.as_str(), cell.offload.as_str(), cell.mtu)
            == (mode, built.params.offload.name(), built.params.mtu)
    }) {
        if let Some(reason) = &mut cell.reason {
            *reason = format!("{error}; {reason}");
        }
    }
}

fn subject(built: &Built) -> Subject {
    let hosts = built.network.hosts();
    let at = |host: &Arc<testbed::Host>| {
        hosts.iter().position(|other| Arc::ptr_eq(other, host)).unwrap_or_default()
    };
    Subject {
        mode: built.mode.name().to_owned(),
        offload: built.params.offload.name().to_owned(),
        mtu: built.params.mtu,
        client: at(built.network.client()),
        server: at(built.network.server()),
        target: built.network.address.target,
        listen: built.network.address.listen,
        hops: built.network.hops.clone(),
        places: hosts
            .iter()
            .map(|host| Place { name: host.name().to_owned(), netns: host.netns().clone() })
            .collect(),
    }
}

/// What the devices of a built mode really have switched on.
fn testbed_record(built: &Built) -> anyhow::Result<TestbedRecord> {
    let mut devices = Vec::new();
    for hop in &built.network.hops {
        if hop.kind != netstate::HopKind::Device {
            continue;
        }
        let Some(host) = built.network.host(&hop.host) else { continue };
        devices.push(DeviceRecord {
            host: hop.host.clone(),
            device: hop.device.clone(),
            mtu: host.netlink().link(&hop.device)?.mtu,
            features: host
                .features(&hop.device)?
                .into_iter()
                .map(|(name, feature)| (name, feature.active))
                .collect(),
        });
    }
    Ok(TestbedRecord {
        mode: built.mode.name().to_owned(),
        offload: built.params.offload.name().to_owned(),
        mtu: built.params.mtu,
        tenant_mtu: built.network.tenant_mtu,
        devices,
    })
}

/// Cells of the modes that could not be built, so that a reader of the cells
/// alone sees that they were asked for.
fn unsupported_cells(request: &Request, records: &[ModeRecord]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for record in records.iter().filter(|record| record.status != Status::Ok) {
        for &mtu in &request.mtus {
            for offload in &request.offloads {
                for ask in &request.asks {
                    let workload = ask.task.workload();
                    cells.push(Cell {
                        mode: record.mode.clone(),
                        role: Role::Measured,
                        offload: offload.to_string(),
                        mtu,
                        workload: ask.task.to_string(),
                        message_bytes: ask.message_bytes,
                        flows: ask.flows,
                        outstanding: ask.outstanding,
                        offered: None,
                        socket_buffer_bytes: ask.socket_buffer_bytes,
                        setting: None,
                        gso: ask.gso,
                        engine: ask.engine.to_string(),
                        unit: workload.unit().to_owned(),
                        status: record.status,
                        reason: record.reason.clone(),
                        samples: Vec::new(),
                        median: None,
                        ratio: None,
                        service_demand: None,
                        latency_us: None,
                        histogram: Vec::new(),
                        drop_point: None,
                        pace: None,
                        tool: None,
                        loss: None,
                        hops: Vec::new(),
                        trend: None,
                    });
                }
            }
        }
    }
    cells
}

fn warnings(
    privileges: Privileges,
    records: &[ModeRecord],
    plan: &measure::plan::Plan,
    idle_load: f64,
) -> Vec<String> {
    let mut warnings = Vec::new();
    // What the kernel lacks, root would not have either.
    let for_root = |record: &&ModeRecord| {
        record.remedy.as_ref().is_some_and(|remedy| remedy.starts_with("run as root"))
    };
    let left_out: Vec<&str> = records
        .iter()
        .filter(|record| record.status == Status::Unsupported)
        .filter(for_root)
        .map(|record| record.mode.as_str())
        .collect();
    if privileges == Privileges::UserNamespace {
        let modes = if left_out.is_empty() { "no mode".to_owned() } else { left_out.join(", ") };
        warnings.push(format!(
            "run by an ordinary user, in a user namespace: left out are the exact CPU clock (BPF) and {modes}"
        ));
    }
    if plan.placement.policy == "split" && plan.placement.client_cpus == plan.placement.server_cpus
    {
        warnings.push("one CPU only: client and server share it".to_owned());
    }
    if idle_load > plan.limits.other_share {
        warnings.push(format!(
            "{:.0}% of all CPUs were busy before the run: something else is running",
            idle_load * 100.0
        ));
    }
    warnings
}
