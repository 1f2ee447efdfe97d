//! One sample: a load over a path, with all counters of that interval.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::calibrate::Offer;
use crate::drop_point::{self, Failed};
use crate::giving_way;
use crate::guest;
use crate::in_force::InForce;
use crate::observed::Observed;
use crate::path;
use crate::path_under_test::{PathUnderTest, ServerEnd};
use crate::plan::{Plan, PlannedCell};
use crate::probes::{Probes, Reading};
use crate::remote::message::Observed as Peer;
use crate::remote::{self, PeerSample, Remote};
use crate::sampler::{Attributed, Machine, MachineSample, MachineSnapshot, loss, service_demand};
use crate::void::void;
use load::ask::{Engine, Task};
use load::driver::{self, DriverError, Moved, ToolReport};
use load::{Between, EngineError, Load, MAX_OUTSTANDING, Measured, Watch};
use results::{Arrivals, BesideRates, HopRecord, Loss, Offered, RecordKind, Sample};

/// Share of a schedule that must be sent within the interval. Below it, the load was not the
/// requested one.
const SCHEDULE_KEPT: f64 = 0.95;

/// Reads every counter right before and right after the measured interval.
struct Counted<'a> {
    machine: &'a Machine,
    probes: &'a Probes,
    before: Option<(Reading, MachineSnapshot)>,
    after: Option<(Reading, MachineSnapshot)>,
    /// The server's end, if it is another process.
    remote: Option<&'a Remote>,
    peer: Option<Peer>,
    error: Option<String>,
    /// Whether counters are read at low priority.
    gives_way: bool,
}

impl Watch for Counted<'_> {
    fn begin(&mut self) {
        // The CPU clock is read last here and first at the end, so that reading counters is not
        // charged to the traffic.
        let read = || {
            // The remote end is read first here and last at the end: each end's CPU time is divided
            // by its own interval.
            self.remote.map_or(Ok(()), Remote::begin).map_err(|e| e.to_string())?;
            let reading = self.probes.begin().map_err(|e| e.to_string())?;
            Ok((reading, self.machine.begin().map_err(|e| e.to_string())?))
        };
        self.before =
            giving_way::read(self.gives_way, read).map_err(|error| self.error = Some(error)).ok();
    }

    fn end(&mut self) {
        let read = || {
            let cpu = self.machine.end().map_err(|e| e.to_string())?;
            let peer = self.remote.map(Remote::end).transpose().map_err(|e| e.to_string())?;
            Ok((self.probes.end().map_err(|e| e.to_string())?, cpu, peer))
        };
        match giving_way::read(self.gives_way, read) {
            Ok((reading, cpu, peer)) => {
                (self.after, self.peer) = (Some((reading, cpu)), peer);
            }
            Err(error) => self.error = Some(error),
        }
    }
}

/// Outcome of a sample.
pub(crate) enum Taken {
    /// A sample for the results, valid or void.
    Sample(Box<Sample>),
    /// The run was asked to stop.
    Stopped,
}

/// Notes and tool information of a cell's samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    /// Remarks that qualify the figures, without duplicates.
    pub notes: Vec<String>,
    /// Version and command line of the external tool.
    pub tool: Option<(String, String)>,
}

/// Takes one sample. If the path is broken or was not taken, or the machine was disturbed, the
/// sample is not valid and has the reason.
pub(crate) fn take(taker: &mut Taker<'_>, cell: &PlannedCell, offer: &Offer) -> Taken {
    let mut load = taker.subject.load(taker.plan, &cell.ask);
    match offer {
        Offer::Load(_) if cell.ask.rate_bits_per_s.is_some() => {
            load.datagrams_per_s = cell.ask.datagrams_per_s();
            load.numbered = true;
        }
        Offer::Load(Offered { per_s, .. }) if *per_s > 0.0 => {
            load.transactions_per_s = Some(*per_s);
            load.outstanding = MAX_OUTSTANDING;
        }
        // One request at a time: the figure is latency, which a rest does not change.
        Offer::Load(_) => load.rest = taker.rest,
        Offer::Closed => {}
        // Without the maximum, a percentage of it has no rate.
        Offer::Unknown { reason, .. } => return Taken::Sample(Box::new(void(reason.clone()))),
    }
    let taken = match cell.ask.task {
        Task::Steady(_) => taker.run(&load).map(|(measured, mut sample)| {
            if let Offer::Load(_) = offer {
                match cell.ask.rate_bits_per_s {
                    Some(_) => at_rate(&mut sample, &measured),
                    None => at_load(&mut sample, &measured),
                }
            }
            sample
        }),
        Task::DropPoint => {
            let limits = taker.in_force;
            let least = taker.subject.least_warmup(load.workload);
            drop_point::take(&load, least, |trial| {
                let (measured, sample) = taker.run(trial)?;
                Ok((measured, trial_within(&limits, sample)))
            })
        }
    };
    match taken {
        Ok(sample) => Taken::Sample(Box::new(sample)),
        Err(Failed::Broken(sample)) => Taken::Sample(sample),
        Err(Failed::Stopped) => Taken::Stopped,
    }
}

/// Invalidates a disturbed trial, so that the search repeats it.
fn trial_within(limits: &InForce, trial: Sample) -> Sample {
    match limits.passed(&trial) {
        Some(reason) if trial.valid => {
            Sample { valid: false, invalid_reason: Some(reason), ..trial }
        }
        _ => trial,
    }
}

/// Completes a sample at a given load. Its value is the median latency. It is invalid if the
/// schedule was not kept, since that is not the requested load.
fn at_load(sample: &mut Sample, measured: &Measured) {
    let median = sample.latency_us.map(|latency| latency.p50);
    sample.value = median.unwrap_or(0.0);
    let reason = match (&measured.pace, median) {
        (_, None) => "no request of the interval was answered".to_owned(),
        (Some(pace), _) if pace.sent_per_s < pace.intended_per_s * SCHEDULE_KEPT => format!(
            "the schedule was not kept: {:.0} of {:.0} requests/s were sent, {:.0} us late at the \
             median",
            pace.sent_per_s, pace.intended_per_s, pace.late_p50_us
        ),
        _ => return,
    };
    // Takes precedence over other reasons: if nothing was sent, there is no path to prove.
    sample.valid = false;
    sample.invalid_reason = Some(reason);
}

/// Invalidates a sample at a given rate if the generator did not reach it.
fn at_rate(sample: &mut Sample, measured: &Measured) {
    let Some(pace) = measured.pace else { return };
    if pace.sent_per_s < pace.intended_per_s * SCHEDULE_KEPT {
        sample.valid = false;
        sample.invalid_reason = Some(format!(
            "the rate was not reached: {:.0} of {:.0} datagrams/s were sent",
            pace.sent_per_s, pace.intended_per_s
        ));
    }
}

/// Context of the loads of a sample.
pub(crate) struct Taker<'a> {
    pub plan: &'a Plan,
    pub engine: Engine,
    pub subject: &'a PathUnderTest,
    pub probes: &'a Probes,
    pub machine: &'a Machine,
    pub said: &'a mut Said,
    /// Limits for trials of a search; the run judges samples.
    pub in_force: InForce,
    /// Rest between an answer and the next request, for requests sent one at a time.
    pub rest: Duration,
    pub stop: &'a AtomicBool,
}

impl Taker<'_> {
    /// Runs a load once.
    fn run(&mut self, load: &Load) -> Result<(Measured, Sample), Failed> {
        let Taker { subject, probes, machine, stop, .. } = *self;
        let broken = |reason: String| Failed::Broken(Box::new(void(reason)));
        let mut counted = Counted {
            machine,
            probes,
            before: None,
            after: None,
            remote: subject.remote(),
            peer: None,
            error: None,
            gives_way: !load.rest.is_zero(),
        };
        let taken = match self.engine {
            Engine::Overlane => load::run(load, subject.between(), &mut counted, stop)
                .map(|measured| (measured, None))
                .map_err(DriverError::from),
            Engine::Tool(tool) => match subject.between() {
                Between::Here(ends) => driver::run(tool, load, &ends, &mut counted, stop)
                    .map(|(measured, report)| (measured, Some(report))),
                // The tool's server would have to be started on the other machine.
                Between::Away { .. } => {
                    let tool = self.engine;
                    let reason = format!("{tool} cannot run on another machine");
                    return Err(broken(reason));
                }
                // The guest's file system has overlane and its libraries only.
                Between::Within(_) => {
                    let tool = self.engine;
                    return Err(broken(format!("{tool} cannot run in a guest")));
                }
            },
        };
        let (measured, tool) = match taken {
            Ok(taken) => taken,
            // Ctrl-C is no failure of the tool.
            Err(DriverError::Stopped | DriverError::Path(EngineError::Stopped)) => {
                return Err(Failed::Stopped);
            }
            Err(error) => return Err(broken(error.to_string())),
        };
        for note in &measured.notes {
            if !self.said.notes.contains(note) {
                self.said.notes.push(note.clone());
            }
        }
        // Without both readings the path cannot be proved.
        let (Some(before), Some(after)) = (counted.before, counted.after) else {
            let error = counted.error.unwrap_or_else(|| "the engine skipped the interval".into());
            return Err(broken(format!("counters could not be read: {error}")));
        };
        let mut observed = probes.difference(&before.0, &after.0);
        let mut cpu = machine.difference(&before.1, &after.1);
        let peer = subject
            .remote()
            .zip(counted.peer)
            .and_then(|(remote, peer)| remote.join(peer, &mut observed, &mut cpu));
        let guests =
            subject.guests().map_or_else(Vec::new, |guests| guest::join(guests, &mut observed));
        let moved = match &tool {
            Some(report) => report.moved,
            None => Moved { units: measured.units, payload_bytes: measured.payload_bytes },
        };
        let mut sample = filled(subject, &measured, &moved, &observed, &cpu, peer);
        sample.guests = guests;
        if let Some(ToolReport { version, command, figures, .. }) = tool {
            // Keep the first command line: later ones differ only in their ports.
            self.said.tool.get_or_insert((version, command));
            sample.tool_figures = figures;
        }
        Ok((measured, sample))
    }
}

fn filled(
    subject: &PathUnderTest,
    measured: &Measured,
    moved: &Moved,
    observed: &Observed,
    machine: &MachineSample,
    peer: Option<PeerSample>,
) -> Sample {
    let hops = path::hops(&subject.hops, observed, measured.workload);
    let proof = path::prove(&hops, measured).map_err(|error| error + &path::left(observed));
    let changed = hotplugged(machine).or_else(|| {
        let reason = hotplugged(&peer.as_ref()?.machine)?;
        Some(format!("{}: {reason}", Remote::HOST))
    });
    let invalid_reason = proof.as_ref().err().cloned().or(changed);
    let ends = subject.ends();
    let at_ends = || observed.namespaces.iter().filter(|n| ends.contains(&n.label.as_str()));
    let (service_demand, service_demand_reason) =
        match demand(subject, measured, moved, machine, peer.as_ref()) {
            Ok(demand) => (demand, None),
            Err(reason) => (None, Some(reason)),
        };
    let mut udp_errors = std::collections::BTreeMap::new();
    for namespace in at_ends() {
        for (name, count) in namespace.udp_errors() {
            *udp_errors.entry(name).or_insert(0) += count;
        }
    }
    Sample {
        value: measured.rate(),
        valid: invalid_reason.is_none(),
        invalid_reason,
        path_proved: proof.is_ok(),
        seconds: measured.seconds,
        bits_per_s: measured.bits_per_s(),
        units: measured.units,
        flow_shares: measured.flow_shares(),
        tcp: measured.tcp.clone(),
        arrivals: measured.arrivals.map(|arrivals| Arrivals {
            jitter_us: arrivals.jitter_ns as f64 / 1e3,
            reordered: arrivals.reordered,
            received: arrivals.received,
        }),
        ecn: measured.ecn,
        beside_rates: BesideRates::of(
            measured.beside.iter().map(|beside| (beside.workload, beside.bits_per_s())),
        ),
        rates_by_second: measured.steps.clone(),
        service_demand,
        service_demand_reason,
        cpu: machine.cpu,
        peer_cpu: peer.as_ref().map(|peer| peer.machine.cpu),
        disturbance: Some(machine.disturbance),
        peer_disturbance: peer.as_ref().map(|peer| peer.machine.disturbance),
        latency_us: measured.latency.as_ref().map(load::LatencyNs::micros),
        histogram: measured.histogram.as_ref().map(load::bins).unwrap_or_default(),
        pace: measured.pace,
        loss: attributed(measured, &hops, observed, machine),
        tcp_retransmits: at_ends().map(|n| n.tcp_retransmits()).sum(),
        softnet_dropped: machine.softnet_dropped,
        softnet_squeezed: machine.softnet_squeezed,
        udp_errors,
        conntrack_entries: observed.namespaces.iter().filter_map(|n| n.conntrack_entries).sum(),
        hops,
        ..Sample::default()
    }
}

/// Reason for no CPU time per transaction.
const SHARED: &str = "the bulk traffic beside the requests took CPU time, too";

/// Returns the CPU time of the load per unit of work.
///
/// # Errors
/// The reason why the load's part of the CPU time is unknown.
fn demand(
    subject: &PathUnderTest,
    measured: &Measured,
    moved: &Moved,
    machine: &MachineSample,
    peer: Option<&PeerSample>,
) -> Result<Option<f64>, String> {
    // The threads of both share CPUs, and softirqs cannot be assigned to one of them.
    if !measured.beside.is_empty() {
        return Err(SHARED.to_owned());
    }
    match (&subject.server, &machine.attributed) {
        (ServerEnd::Here { .. }, Attributed::Load(cpu)) => {
            Ok(service_demand(*cpu, measured.workload, moved.units, moved.payload_bytes))
        }
        (ServerEnd::Here { .. }, Attributed::Unknown(reason)) => Err(reason.clone()),
        // The load goes on while counters are read. The guests' CPU time is QEMU's, and thus
        // included in this machine's.
        (ServerEnd::Away(_) | ServerEnd::Guests(_), _) => {
            remote::service_demand(machine, peer, &remote::Work::of(measured))
        }
    }
}

/// Returns a reason if CPUs went online or offline: CPU time over changing CPUs is no figure.
fn hotplugged(machine: &MachineSample) -> Option<String> {
    let cpus: Vec<String> = machine.cpus_changed.iter().map(ToString::to_string).collect();
    (!cpus.is_empty())
        .then(|| format!("CPU {} went online or offline during the sample", cpus.join(", ")))
}

fn attributed(
    measured: &Measured,
    hops: &[HopRecord],
    observed: &Observed,
    machine: &MachineSample,
) -> Option<Loss> {
    let datagrams = measured.datagrams?;
    // A device occurs as a hop only once; drops of both directions count.
    let mut devices: Vec<(String, u64)> = Vec::new();
    let way = measured.workload.direction();
    let of_device =
        |hop: &&HopRecord| matches!(hop.kind, RecordKind::Device | RecordKind::Bypassed);
    for hop in hops.iter().filter(|hop| hop.direction == way).filter(of_device) {
        devices.push((format!("{}/{}", hop.host, hop.device), hop.drops));
    }
    let carries = |hop: &&HopRecord| hop.direction == way && hop.kind != RecordKind::Bypassed;
    let first = hops.iter().find(carries);
    let per_skb = first.map_or(1.0, |hop| {
        if hop.packets > 0 { datagrams.sent as f64 / hop.packets as f64 } else { 1.0 }
    });
    let last = hops.iter().rfind(carries);
    let per_receive = last.map_or(1.0, |hop| {
        if hop.packets > 0 { datagrams.received as f64 / hop.packets as f64 } else { 1.0 }
    });
    // Counters of packets of any kind would blame a path for segments of the bulk traffic, which are
    // not lost for good.
    let alone = measured.beside.is_empty();
    if !alone {
        devices.clear();
    }
    // The receiver's end first; places that are not hops come last.
    let mut drops = if alone { observed.drops.clone() } else { Vec::new() };
    drops.sort_by_cached_key(|(place, _)| {
        let at = hops.iter().rposition(|hop| hop.host == *place);
        (at.map_or(usize::MAX, |at| hops.len() - at), place.clone())
    });
    Some(loss::attribute(&loss::Evidence {
        sent: datagrams.sent,
        received: datagrams.received,
        datagrams_per_skb: per_skb.max(1.0),
        datagrams_per_receive: per_receive.max(1.0),
        namespaces: &observed.namespaces,
        softnet_dropped: if alone { machine.softnet_dropped } else { 0 },
        devices: &devices,
        drops: &drops,
        programs: &observed.programs,
    }))
}
