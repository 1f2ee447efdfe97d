//! Runs both endpoints of a load and measures between them. The client's endpoint is in this
//! process; the server's is a [`Server`], here or elsewhere.
//!
//! Over a network, a request to the server takes time, so no figure mixes two clocks: server
//! counters are divided by the server's time, client counters by the client's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use results::workload::Pattern;
use results::{Direction, EcnCounts, TcpState, Unit};

use super::control::{FlowCount, Phase};
use super::endpoint::{Endpoint, Segments};
use super::reassembly::Room;
use super::requests::Requests;
use super::{
    Arrivals, BesideMeasured, Between, Counted, Datagrams, End, EngineError, FlowMeasured,
    LatencyNs, Load, Measured, Server, Stage, Watch, Workload, marks, pace, reassembly,
};

/// Interval at which waits check their condition.
const LOOK: Duration = Duration::from_millis(1);
/// Interval of checks for failures and the stop flag during the measured interval. Long, since
/// checks take CPU time from the load.
const SELDOM: Duration = Duration::from_millis(20);
/// Datagrams count as lost when none has arrived for this time,
const QUIET: Duration = Duration::from_millis(50);
/// and every receiver has found its queue empty this many times meanwhile.
const LOOKS: u64 = 10;
/// Time limit for draining, in case something keeps sending.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
/// Length of a step, for the rate over time within an interval,
const STEP: Duration = Duration::from_secs(1);
/// and the shortest interval that has steps.
const LONG: Duration = Duration::from_secs(3);
/// Added to the flows' own time limits, which should expire first.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a load and measures it: sets up both endpoints, proves the path, warms up, measures for
/// [`Load::duration`], and proves that the path still works.
///
/// # Errors
/// [`EngineError`]: an invalid argument before anything is started; a broken path within
/// [`Load::setup_limit`], with observations; `Stopped` within about 0.1 s of `stop` becoming
/// true.
pub fn run<'a>(
    load: &Load,
    between: impl Into<Between<'a>>,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<Measured, EngineError> {
    let between = between.into();
    let mut waited = false;
    let (client, server): (Endpoint, Box<dyn Server>) = match &between {
        Between::Here(ends) => {
            load.validate()?;
            ends.validate()?;
            waited = reassembly::await_room(load, ends, stop)?;
            let token = rand::random();
            let server = Endpoint::server(load, ends.server, ends.listen, token, None)?;
            (Endpoint::client(load, ends.client, ends.target, token)?, Box::new(server))
        }
        Between::Away { client, server } => {
            load.validate_at(End::Client)?;
            let (server, target, token) = server.start(load)?;
            (Endpoint::client(load, client, target, token)?, server)
        }
        Between::Within(machines) => return machines.run(load, watch, stop),
    };
    let round_trip = server.round_trip();
    let progress = Progress::new(load);
    let mut run = Run { load, client, server, round_trip, stop, progress };
    let taken = run.measure(watch);
    // Stop both before waiting for either. A failure of the load takes precedence over a
    // failure to stop the server.
    run.client.turn_to(Phase::Done);
    let turned = run.server.turn_to(Phase::Done);
    let room = Room { waited, full: reassembly::is_full(load, &between) };
    let taken = taken.map_err(|error| room.explain(error))?;
    turned?;
    let mut measured = run.finish(taken)?;
    measured.notes.extend(room.notes());
    Ok(measured)
}

struct Run<'a> {
    load: &'a Load,
    client: Endpoint,
    server: Box<dyn Server + 'a>,
    /// Approximate duration of a request to the server.
    round_trip: Duration,
    stop: &'a AtomicBool,
    progress: Progress,
}

/// Progress of flows that wait for their peer without a time limit.
struct Progress {
    /// Transactions of each flow, and the time of the last change.
    flows: Vec<Option<(u64, Instant)>>,
    limit: Duration,
}

impl Progress {
    fn new(load: &Load) -> Progress {
        let flows = if load.waits_without_limit() { load.flows as usize } else { 0 };
        Progress { flows: vec![None; flows], limit: load.setup_limit }
    }

    /// Returns the first flow without progress for too long, and for how long, if no other flow
    /// makes progress either.
    fn stalled(&mut self, client: &Endpoint) -> Option<(u32, Duration)> {
        // A load without flows cannot stall.
        if self.flows.is_empty() {
            return None;
        }
        let now = Instant::now();
        let mut stalled = None;
        let mut moving = false;
        for (i, (seen, count)) in self.flows.iter_mut().zip(client.counts()).enumerate() {
            match seen {
                Some((units, since)) if *units == count.units => {
                    let waited = now - *since;
                    if waited >= self.limit {
                        stalled.get_or_insert((flow_number(i), waited));
                    } else {
                        moving = true;
                    }
                }
                _ => {
                    *seen = Some((count.units, now));
                    moving = true;
                }
            }
        }
        // A starved flow is a result.
        stalled.filter(|_| !moving)
    }
}

/// Counters of both endpoints at one moment.
#[derive(Clone)]
struct Counts {
    client: Counted,
    server: Counted,
    segments: Segments,
    /// State of the client's connections.
    tcp: Option<TcpState>,
}

impl Counts {
    /// Returns an upper bound of the payload sent and not received, bytes. Adds one message per
    /// flow, which the kernel may have accepted in part.
    fn under_way(&self, load: &Load) -> u64 {
        let (from, to) = match load.workload.direction() {
            Direction::Forward => (&self.client, &self.server),
            Direction::Reverse => (&self.server, &self.client),
        };
        let message_bytes = u64::from(load.message_bytes);
        let flows = from.flows.iter().zip(&to.flows).take(load.flows as usize);
        flows.map(|(from, to)| ((from.sent + 1) * message_bytes).saturating_sub(to.bytes)).sum()
    }

    /// Returns the time since an earlier reading, by the clock of the counting end.
    fn since(&self, earlier: &Counts, workload: Workload) -> Duration {
        match workload.is_counted_by_client() {
            true => self.client.at.saturating_sub(earlier.client.at),
            false => self.server.at.saturating_sub(earlier.server.at),
        }
    }
}

impl Counts {
    /// Returns the requests sent and not answered, including all lost ones.
    fn unanswered(&self, load: &Load) -> u64 {
        let own = self.client.flows.iter().take(load.flows as usize);
        own.map(|c| c.sent.saturating_sub(c.units)).sum()
    }
}

/// Readings around the measured interval.
struct Taken {
    /// Before the first datagram (`udp_stream`), otherwise equal to `begin`.
    before: Counts,
    begin: Counts,
    end: Counts,
    /// After all datagrams have arrived or count as lost (`udp_stream`).
    drained: Option<Counts>,
    /// Rates by step.
    steps: Vec<f64>,
}

impl Run<'_> {
    fn measure(&mut self, watch: &mut dyn Watch) -> Result<Taken, EngineError> {
        self.wait(Stage::Hello, |run| match run.client.waits_for() {
            Some(flow) => Ok(Some(flow)),
            None => run.server.waits_for(),
        })?;
        match self.load.workload {
            Workload::UdpStream => self.datagrams(watch),
            _ => self.continuous(watch),
        }
    }

    /// Measures workloads that continue over both ends of the interval.
    fn continuous(&mut self, watch: &mut dyn Watch) -> Result<Taken, EngineError> {
        self.turn_to(Phase::Warmup)?;
        self.sleep(self.load.warmup)?;
        watch.begin();
        // The client last: it times transactions in this phase, and counts from its start.
        self.server.turn_to(Phase::Measure)?;
        let server = self.server.counts()?;
        self.client.turn_to(Phase::Measure);
        let begin = Counts {
            client: self.client.counted(),
            server,
            segments: self.client.segments(),
            tcp: None,
        };
        let steps = self.interval()?;
        let server = self.server.counts()?;
        let client = self.client.counted();
        self.client.turn_to(Phase::Closing);
        let segments = self.client.segments();
        let tcp = self.client.tcp_state();
        let end = Counts { client, server, segments, tcp };
        self.server.turn_to(Phase::Closing)?;
        watch.end();
        if self.load.is_pipelined() {
            // Wait until every request of the interval is answered or lost.
            self.wait(Stage::Closing, |run| Ok(run.client.not_yet_at(Phase::Closing)))?;
            return Ok(Taken { before: begin.clone(), begin, end, drained: None, steps });
        }
        // Detect a path that broke during the interval: it must still make progress. One flow is
        // enough, because a starved flow is a result. The flow's own limit expires first, with the
        // better reason.
        self.wait(Stage::Closing, |run| {
            let (now, then) = match run.load.workload.is_counted_by_client() {
                true => (run.client.counts(), &end.client.flows),
                false => (run.server.counts()?.flows, &end.server.flows),
            };
            // Compare received units: sending alone proves nothing.
            let moves = |now: &FlowCount, then: &FlowCount| {
                (now.units, now.bytes) != (then.units, then.bytes)
            };
            let mut own = now.iter().zip(then).take(run.load.flows as usize);
            Ok((!own.any(|(now, then)| moves(now, then))).then_some(0))
        })?;
        Ok(Taken { before: begin.clone(), begin, end, drained: None, steps })
    }

    /// Measures `udp_stream`: nothing is in flight at either end of the interval.
    fn datagrams(&mut self, watch: &mut dyn Watch) -> Result<Taken, EngineError> {
        if !self.load.warmup.is_zero() {
            self.turn_to(Phase::Warmup)?;
            self.sleep(self.load.warmup)?;
        }
        self.turn_to(Phase::Settle)?;
        self.drain(Phase::Settle)?;
        watch.begin();
        let before = self.counts()?;
        self.turn_to(Phase::Measure)?;
        // Over a network, do not count the time until the client has been started and the first
        // datagram has arrived.
        let begin = if self.round_trip.is_zero() {
            before.clone()
        } else {
            self.sleep(self.round_trip)?;
            self.counts()?
        };
        let steps = self.interval()?;
        let end = self.counts()?;
        self.turn_to(Phase::Drain)?;
        self.drain(Phase::Drain)?;
        let drained = self.counts()?;
        watch.end();
        self.turn_to(Phase::Closing)?;
        self.wait(Stage::Closing, |run| Ok(run.client.not_yet_at(Phase::Closing)))?;
        Ok(Taken { before, begin, end, drained: Some(drained), steps })
    }

    /// Moves both ends to a phase. The server first: it must count before the client sends.
    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.server.turn_to(phase)?;
        self.client.turn_to(phase);
        Ok(())
    }

    /// Reads both ends. The server first, so that received never exceeds sent.
    fn counts(&mut self) -> Result<Counts, EngineError> {
        Ok(Counts {
            server: self.server.counts()?,
            client: self.client.counted(),
            segments: self.client.segments(),
            tcp: None,
        })
    }

    /// Waits until the client has stopped sending, and its datagrams have arrived or nothing has
    /// arrived for a while.
    fn drain(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.wait(Stage::Traffic, |run| Ok(run.client.not_yet_at(phase)))?;
        // Counters of the server are half a round trip old, and the last datagram takes the other
        // half.
        let quiet = QUIET + self.round_trip;
        let sent: u64 = self.client.counts().iter().map(|c| c.sent).sum();
        let received = |flows: &[FlowCount]| flows.iter().map(|c| c.units).sum::<u64>();
        let begun = Instant::now();
        let mut last = (begun, self.server.counts()?.flows);
        loop {
            self.check()?;
            let flows = self.server.counts()?.flows;
            let now = Instant::now();
            // A receiver that had no CPU meanwhile has not checked its queue.
            let looked =
                flows.iter().zip(&last.1).all(|(now, then)| now.emptied >= then.emptied + LOOKS);
            let still = looked && now - last.0 >= quiet;
            // Everything has arrived, or nothing more does: the rest is lost.
            if received(&flows) >= sent || still || now - begun >= DRAIN_LIMIT {
                return Ok(());
            }
            if received(&flows) != received(&last.1) {
                last = (now, flows);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn check(&mut self) -> Result<(), EngineError> {
        // Ctrl-C ends the load between two steps, so that both ends are stopped in order.
        if self.stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        match self.client.failure().or_else(|| self.server.failure()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits until `behind` returns no flow.
    fn wait(
        &mut self,
        stage: Stage,
        mut behind: impl FnMut(&mut Self) -> Result<Option<u32>, EngineError>,
    ) -> Result<(), EngineError> {
        let mut since = (Instant::now(), None);
        loop {
            self.check()?;
            let Some(flow) = behind(self)? else { return Ok(()) };
            // Flows of a busy machine take their turns, so the limit is for one of them.
            if since.1 != Some(flow) {
                since = (Instant::now(), Some(flow));
            }
            let waited = since.0.elapsed();
            // The server's own limit has passed: it hangs, or the path is broken.
            if waited >= self.load.setup_limit + GRACE {
                return Err(EngineError::Stalled { flow, end: End::Server, waited, stage });
            }
            std::thread::sleep(LOOK);
        }
    }

    fn sleep(&mut self, duration: Duration) -> Result<(), EngineError> {
        self.sleep_until(Instant::now() + duration)
    }

    /// Sleeps during the measured interval. Returns the rate of each step of a long interval, in
    /// the unit of [`Measured::rate`]; empty if the counting end is on another machine, since a
    /// request would share the path with the load.
    fn interval(&mut self) -> Result<Vec<f64>, EngineError> {
        let until = Instant::now() + self.load.duration;
        let is_here = self.round_trip.is_zero() || self.load.workload.is_counted_by_client();
        let mut rates = Vec::new();
        if self.load.duration < LONG || !is_here {
            self.sleep_until(until)?;
            return Ok(rates);
        }
        let (mut at, mut before) = (Instant::now(), self.carried()?);
        while until.saturating_duration_since(at) >= STEP {
            self.sleep_until(at + STEP)?;
            let (now, carried) = (Instant::now(), self.carried()?);
            rates.push((carried - before) as f64 / (now - at).as_secs_f64());
            (at, before) = (now, carried);
        }
        self.sleep_until(until)?;
        Ok(rates)
    }

    /// Returns the units that the load's own flows have carried so far; of a byte stream, bits.
    fn carried(&mut self) -> Result<u64, EngineError> {
        let counts = match self.load.workload.is_counted_by_client() {
            true => self.client.counts(),
            false => self.server.counts()?.flows,
        };
        let of = |count: &FlowCount| match self.load.workload.is_byte_stream() {
            true => count.bytes * 8,
            false => count.units,
        };
        Ok(counts.iter().take(self.load.flows as usize).map(of).sum())
    }

    fn sleep_until(&mut self, until: Instant) -> Result<(), EngineError> {
        loop {
            self.check()?;
            // A flow without progress for the set-up limit is broken: a rate over it would be
            // wrong.
            if let Some((flow, waited)) = self.progress.stalled(&self.client) {
                let stage = Stage::Traffic;
                return Err(EngineError::Stalled { flow, end: End::Client, waited, stage });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(SELDOM));
        }
    }

    fn finish(self, taken: Taken) -> Result<Measured, EngineError> {
        let Run { load, client, server, .. } = self;
        let client = client.finish()?;
        let server = server.finish()?;
        let Taken { before, begin, end, drained, steps } = &taken;

        let mut flows = Vec::new();
        for index in 0..load.flows {
            let i = index as usize;
            let difference = |end: &Counts| Difference::of(begin, end, i);
            let mut flow = difference(end).shared_out(load);
            flow.client_cpus = client.get(&index).map(|r| r.cpus.clone()).unwrap_or_default();
            flow.server_cpus = server.get(&index).map(|r| r.cpus.clone()).unwrap_or_default();
            flows.push(flow);
        }
        let requests = Requests::of(client.values().filter_map(|report| report.requests.as_ref()));
        let datagrams = match load.workload {
            // Count the requests of the interval by their outcome, whenever it came.
            Workload::UdpRr if load.is_pipelined() => Some(Datagrams {
                intended: None,
                sent: requests.answered + requests.lost,
                received: requests.answered,
            }),
            Workload::UdpStream | Workload::UdpRr => {
                let last = drained.as_ref().unwrap_or(end);
                Some((0..flows.len()).map(|i| Difference::of(before, last, i)).fold(
                    Datagrams::default(),
                    |sum, d| {
                        let (sent, received) = match load.workload {
                            // A pair may count as sent before the interval and as answered
                            // right after its start.
                            Workload::UdpRr => (d.client_sent.max(d.client_units), d.client_units),
                            _ => (d.client_sent, d.server_units),
                        };
                        Datagrams {
                            intended: None,
                            sent: sum.sent + sent,
                            received: sum.received + received,
                        }
                    },
                ))
            }
            _ => None,
        };
        let kept = || client.values().filter_map(|r| Some((r, r.kept.as_ref()?)));
        let units = client.values().next().map_or(1, |r| r.units_per_message);
        let pace = pace::together(kept().map(|(_, kept)| kept), units as f64);
        let intended = kept().map(|(r, kept)| kept.intended * r.units_per_message).sum();
        let datagrams =
            datagrams.map(|datagrams| Datagrams { intended: pace.map(|_| intended), ..datagrams });
        let mut notes: Vec<String> = Vec::new();
        if let Some(Datagrams { sent: sent @ 1.., received: 0, .. }) = datagrams {
            // Unanswered requests are no load. For a flood, no arrival is a valid result of
            // the path.
            if load.workload != Workload::UdpStream {
                return Err(EngineError::AllLost { sent, message_bytes: load.message_bytes });
            }
            notes.push(reassembly::NOTHING_ARRIVED.to_owned());
        }

        let mut socket_errors = std::collections::BTreeMap::new();
        let mut latency: Option<Histogram<u64>> = None;
        let of_client = client.values().map(|r| (&r.socket_errors, &r.notes));
        let of_server = server.values().map(|r| (&r.socket_errors, &r.notes));
        for (errors, said) in of_client.chain(of_server) {
            for (what, count) in errors {
                let sum: &mut u64 = socket_errors.entry(what.clone()).or_insert(0);
                *sum = sum.saturating_add(*count);
            }
            for note in said {
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
        }
        for one in client.values().filter_map(|report| report.latency.as_ref()) {
            let sum = latency.get_or_insert_with(super::flow::latency_histogram);
            sum.add(one).expect("histograms of one shape");
        }
        notes.extend(requests.notes(load));
        // Retransmitted segments are counted for the client's connections. tcp_crr's no longer
        // exist, and with a sending server the client sends no data.
        let client_sends = load.workload.is_tcp()
            && load.workload.pattern() != Pattern::Connections
            && load.workload.direction() == Direction::Forward;
        // Marks of the load's own flows. The flows beside it follow.
        let ecn = match load.workload {
            Workload::UdpStream | Workload::UdpRr | Workload::TcpMaerts => {
                EcnCounts::together(server.range(..load.flows).filter_map(|(_, r)| r.ecn))
            }
            Workload::TcpCrr => EcnCounts::together(client.values().filter_map(|r| r.ecn)),
            Workload::TcpStream | Workload::TcpRr => begin
                .segments
                .ecn
                .zip(end.segments.ecn)
                .map(|(begin, end)| marks::between(begin, end)),
        };
        let seconds = end.since(begin, load.workload).as_secs_f64();
        let sum = |of: fn(&FlowMeasured) -> u64| flows.iter().map(of).sum();
        let pace = pace.or_else(|| requests.pace(load, sum(|f| f.sent_units) as f64 / seconds));
        Ok(Measured {
            workload: load.workload,
            seconds,
            payload_bytes: sum(|f| f.payload_bytes),
            under_way_bytes: match load.workload {
                workload if workload.is_byte_stream() => begin.under_way(load),
                _ if load.is_pipelined() => begin.unanswered(load) * u64::from(load.message_bytes),
                _ => 0,
            },
            messages_merge: load.is_pipelined() && load.workload.is_tcp(),
            units: sum(|f| f.units),
            sent_units: sum(|f| f.sent_units),
            datagrams,
            arrivals: Arrivals::together(server.values().filter_map(|report| report.arrivals)),
            latency: latency.as_ref().and_then(LatencyNs::of),
            histogram: latency,
            pace,
            tcp_retransmits: client_sends
                .then(|| end.segments.retransmitted.saturating_sub(begin.segments.retransmitted)),
            ecn,
            // A receiver's TCP state shows nothing about the path.
            tcp: end.tcp.clone().filter(|_| {
                load.workload.direction() == Direction::Forward
                    && load.workload.pattern() != Pattern::Connections
            }),
            socket_errors,
            flows,
            beside: beside(load, begin, end),
            steps: steps.clone(),
            notes,
        })
    }
}

/// Returns the traffic of the flows beside the load.
fn beside(load: &Load, begin: &Counts, end: &Counts) -> Vec<BesideMeasured> {
    let flows = load.loads_beside().into_iter().zip(load.flows as usize..);
    let measured = flows.map(|(load, flow)| {
        let one = |counts: &Counts| {
            let only =
                |counted: &Counted| Counted { at: counted.at, flows: vec![counted.flows[flow]] };
            Counts { client: only(&counts.client), server: only(&counts.server), ..counts.clone() }
        };
        BesideMeasured {
            workload: load.workload,
            payload_bytes: Difference::of(begin, end, flow).shared_out(&load).payload_bytes,
            under_way_bytes: one(begin).under_way(&load),
            seconds: end.since(begin, load.workload).as_secs_f64(),
        }
    });
    measured.collect()
}

/// Returns a flow's number from its position.
fn flow_number(place: usize) -> u32 {
    // At most MAX_FLOWS, so it fits.
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// Difference of one flow's counters between two moments.
struct Difference {
    client_sent: u64,
    client_units: u64,
    client_bytes: u64,
    server_sent: u64,
    server_units: u64,
    server_bytes: u64,
}

impl Difference {
    fn of(begin: &Counts, end: &Counts, flow: usize) -> Difference {
        let (c0, c1) = (&begin.client.flows[flow], &end.client.flows[flow]);
        let (s0, s1) = (&begin.server.flows[flow], &end.server.flows[flow]);
        Difference {
            client_sent: c1.sent.saturating_sub(c0.sent),
            client_units: c1.units.saturating_sub(c0.units),
            client_bytes: c1.bytes.saturating_sub(c0.bytes),
            server_sent: s1.sent.saturating_sub(s0.sent),
            server_units: s1.units.saturating_sub(s0.units),
            server_bytes: s1.bytes.saturating_sub(s0.bytes),
        }
    }

    fn shared_out(&self, load: &Load) -> FlowMeasured {
        let size = u64::from(load.message_bytes);
        let (sent_units, received_bytes) = match load.workload.direction() {
            Direction::Forward => (self.client_sent, self.server_bytes),
            Direction::Reverse => (self.server_sent, self.client_bytes),
        };
        let (units, payload_bytes) = match load.workload.unit() {
            Unit::Bits => (received_bytes / size, received_bytes),
            Unit::Datagrams => (self.server_units, received_bytes),
            _ => (self.client_units, self.client_units * size),
        };
        FlowMeasured { units, sent_units, payload_bytes, ..FlowMeasured::default() }
    }
}
