//! Runs both halves of a load in this process and takes the measure between
//! them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::control::{FlowCount, Phase};
use super::half::Half;
use super::{
    Datagrams, End, Ends, EngineError, FlowMeasured, LatencyNs, Load, Measured, Stage, Watch,
    Workload,
};

/// How often waiting looks at what it waits for.
const LOOK: Duration = Duration::from_millis(1);
/// How often the measured interval looks for failures and the stop flag: seldom,
/// as it takes CPU time from what is measured.
const SELDOM: Duration = Duration::from_millis(20);
/// Datagrams are lost when none has arrived for this long …
const QUIET: Duration = Duration::from_millis(50);
/// … and draining ends at the latest after this: something goes on sending.
const DRAIN_LIMIT: Duration = Duration::from_secs(3);
/// The flows' own time limits come first; this only bounds what they miss.
const GRACE: Duration = Duration::from_secs(2);

/// Runs a load and measures it: sets up both halves, proves the path, warms up,
/// measures for [`Load::duration`], proves that the path is still alive.
///
/// # Errors
/// [`EngineError`]: a wrong argument before anything is started; a broken path
/// within [`Load::setup_limit`], with what was seen of it; `Stopped` within
/// about 0.1 s of `stop` becoming true.
pub fn run(
    load: &Load,
    ends: &Ends<'_>,
    watch: &mut dyn Watch,
    stop: &AtomicBool,
) -> Result<Measured, EngineError> {
    load.validate()?;
    ends.validate()?;
    let token = rand::random();
    let server = Half::server(load, ends.server, ends.listen, token)?;
    let client = Half::client(load, ends.client, ends.target, token)?;
    let run = Run { load, client, server, stop };
    let taken = run.measure(watch);
    // Both are told before either is waited for.
    run.turn_to(Phase::Done);
    run.finish(taken?)
}

struct Run<'a> {
    load: &'a Load,
    client: Half,
    server: Half,
    stop: &'a AtomicBool,
}

/// The counters of both halves at one moment.
struct Counts {
    at: Instant,
    client: Vec<FlowCount>,
    server: Vec<FlowCount>,
    retransmitted: u64,
}

impl Counts {
    /// Payload sent and not received, bytes: one message more a flow than was
    /// counted as sent, which the kernel may have taken in part.
    fn under_way(&self, message_bytes: u64) -> u64 {
        let flows = self.client.iter().zip(&self.server);
        flows.map(|(c, s)| ((c.sent + 1) * message_bytes).saturating_sub(s.bytes)).sum()
    }
}

/// The measured interval, and what came after it was drained.
struct Taken {
    begin: Counts,
    end: Counts,
    drained: Option<Counts>,
}

impl Run<'_> {
    fn measure(&self, watch: &mut dyn Watch) -> Result<Taken, EngineError> {
        self.wait(Stage::Hello, || self.client.waits_for().or_else(|| self.server.waits_for()))?;
        match self.load.workload {
            Workload::UdpStream => self.datagrams(watch),
            _ => self.continuous(watch),
        }
    }

    /// Workloads that go on over both ends of the interval.
    fn continuous(&self, watch: &mut dyn Watch) -> Result<Taken, EngineError> {
        self.turn_to(Phase::Warmup);
        self.sleep(self.load.warmup)?;
        watch.begin();
        self.turn_to(Phase::Measure);
        let begin = self.counts();
        self.sleep_until(begin.at + self.load.duration)?;
        let end = self.counts();
        self.turn_to(Phase::Closing);
        watch.end();
        // A path that died in the interval is not a slow one: every flow must
        // still get on. Its own limit speaks first, with the better reason.
        self.wait(Stage::Closing, || {
            let (now, then) = match self.load.workload {
                Workload::TcpStream => (self.server.counts(), &end.server),
                _ => (self.client.counts(), &end.client),
            };
            // What was received: sending alone is no sign of life.
            let still = now
                .iter()
                .zip(then)
                .position(|(now, then)| (now.units, now.bytes) == (then.units, then.bytes));
            still.map(flow_number)
        })?;
        Ok(Taken { begin, end, drained: None })
    }

    /// `udp_stream`: nothing is under way at either end of the interval.
    fn datagrams(&self, watch: &mut dyn Watch) -> Result<Taken, EngineError> {
        if !self.load.warmup.is_zero() {
            self.turn_to(Phase::Warmup);
            self.sleep(self.load.warmup)?;
        }
        self.turn_to(Phase::Settle);
        self.drain(Phase::Settle)?;
        watch.begin();
        let begin = self.counts();
        self.turn_to(Phase::Measure);
        self.sleep_until(begin.at + self.load.duration)?;
        let end = self.counts();
        self.turn_to(Phase::Drain);
        self.drain(Phase::Drain)?;
        let drained = self.counts();
        watch.end();
        self.turn_to(Phase::Closing);
        self.wait(Stage::Closing, || self.client.not_yet_at(Phase::Closing))?;
        Ok(Taken { begin, end, drained: Some(drained) })
    }

    /// The server first: it must count before the client sends.
    fn turn_to(&self, phase: Phase) {
        self.server.turn_to(phase);
        self.client.turn_to(phase);
    }

    fn counts(&self) -> Counts {
        Counts {
            at: Instant::now(),
            server: self.server.counts(),
            client: self.client.counts(),
            retransmitted: self.client.retransmitted_segments(),
        }
    }

    /// Waits until the client has stopped sending, and until what it has sent
    /// has arrived or nothing has for a while.
    fn drain(&self, phase: Phase) -> Result<(), EngineError> {
        self.wait(Stage::Traffic, || self.client.not_yet_at(phase))?;
        let sent: u64 = self.client.counts().iter().map(|c| c.sent).sum();
        let begun = Instant::now();
        let mut last = (begun, 0);
        loop {
            self.check()?;
            let received = self.server.counts().iter().map(|c| c.units).sum();
            let now = Instant::now();
            if received != last.1 {
                last = (now, received);
            }
            if received >= sent || now - last.0 >= QUIET || now - begun >= DRAIN_LIMIT {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn check(&self) -> Result<(), EngineError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(EngineError::Stopped);
        }
        match self.client.failure().or_else(|| self.server.failure()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Waits until `behind` names no flow any more.
    fn wait(
        &self,
        stage: Stage,
        mut behind: impl FnMut() -> Option<u32>,
    ) -> Result<(), EngineError> {
        let begun = Instant::now();
        loop {
            self.check()?;
            let Some(flow) = behind() else { return Ok(()) };
            let waited = begun.elapsed();
            if waited >= self.load.setup_limit + GRACE {
                return Err(EngineError::Stalled { flow, end: End::Server, waited, stage });
            }
            std::thread::sleep(LOOK);
        }
    }

    fn sleep(&self, duration: Duration) -> Result<(), EngineError> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, until: Instant) -> Result<(), EngineError> {
        loop {
            self.check()?;
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
        let Taken { begin, end, drained } = &taken;

        let mut flows = Vec::new();
        for index in 0..load.flows {
            let i = index as usize;
            let difference = |end: &Counts| Difference::of(begin, end, i);
            let mut flow = difference(end).shared_out(load);
            flow.client_cpus = client.get(&index).map(|r| r.cpus.clone()).unwrap_or_default();
            flow.server_cpus = server.get(&index).map(|r| r.cpus.clone()).unwrap_or_default();
            flows.push(flow);
        }
        let datagrams = match load.workload {
            Workload::UdpStream | Workload::UdpRr => {
                let last = drained.as_ref().unwrap_or(end);
                Some((0..flows.len()).map(|i| Difference::of(begin, last, i)).fold(
                    Datagrams::default(),
                    |sum, d| Datagrams {
                        sent: sum.sent + d.client_sent,
                        received: sum.received
                            + if load.workload == Workload::UdpRr {
                                d.client_units
                            } else {
                                d.server_units
                            },
                    },
                ))
            }
            _ => None,
        };
        if let Some(Datagrams { sent: sent @ 1.., received: 0 }) = datagrams {
            return Err(EngineError::AllLost { sent, message_bytes: load.message_bytes });
        }

        let mut socket_errors = std::collections::BTreeMap::new();
        let mut notes: Vec<String> = Vec::new();
        let mut latency: Option<Histogram<u64>> = None;
        for report in client.values().chain(server.values()) {
            for (what, count) in &report.socket_errors {
                *socket_errors.entry(what.clone()).or_insert(0) += count;
            }
            for note in report.notes.iter().filter(|n| !notes.contains(n)).collect::<Vec<_>>() {
                notes.push(note.clone());
            }
            if let Some(one) = &report.latency {
                let sum = latency.get_or_insert_with(super::flow::latency_histogram);
                sum.add(one).expect("histograms of one shape");
            }
        }
        let sum = |of: fn(&FlowMeasured) -> u64| flows.iter().map(of).sum();
        Ok(Measured {
            workload: load.workload,
            seconds: (end.at - begin.at).as_secs_f64(),
            payload_bytes: sum(|f| f.payload_bytes),
            under_way_bytes: match load.workload {
                Workload::TcpStream => begin.under_way(u64::from(load.message_bytes)),
                _ => 0,
            },
            messages_merge: false,
            units: sum(|f| f.units),
            sent_units: sum(|f| f.sent_units),
            datagrams,
            latency: latency.as_ref().and_then(LatencyNs::of),
            histogram: latency,
            pace: None,
            tcp_retransmits: matches!(load.workload, Workload::TcpStream | Workload::TcpRr)
                .then(|| end.retransmitted.saturating_sub(begin.retransmitted)),
            socket_errors,
            flows,
            notes,
        })
    }
}

/// A flow's number by its place.
fn flow_number(place: usize) -> u32 {
    // At most MAX_FLOWS.
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// What one flow did between two moments.
struct Difference {
    client_sent: u64,
    client_units: u64,
    server_units: u64,
    server_bytes: u64,
}

impl Difference {
    fn of(begin: &Counts, end: &Counts, flow: usize) -> Difference {
        let (c0, c1) = (&begin.client[flow], &end.client[flow]);
        let (s0, s1) = (&begin.server[flow], &end.server[flow]);
        Difference {
            client_sent: c1.sent - c0.sent,
            client_units: c1.units - c0.units,
            server_units: s1.units - s0.units,
            server_bytes: s1.bytes - s0.bytes,
        }
    }

    fn shared_out(&self, load: &Load) -> FlowMeasured {
        let size = u64::from(load.message_bytes);
        let (units, payload_bytes) = match load.workload {
            Workload::TcpStream => (self.server_bytes / size, self.server_bytes),
            Workload::UdpStream => (self.server_units, self.server_bytes),
            _ => (self.client_units, self.client_units * size),
        };
        FlowMeasured {
            units,
            sent_units: self.client_sent,
            payload_bytes,
            ..FlowMeasured::default()
        }
    }
}
