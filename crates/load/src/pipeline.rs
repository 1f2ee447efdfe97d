//! The client of request/response workloads that do not wait for an answer before the next
//! request. Requests are on a schedule (open loop), or several are under way (closed loop).
//!
//! **Open loop.** Requests are due at fixed times ([`Schedule`]), whatever became of those
//! before. Each is timed from when it was *due*, not from when it was sent. A path or
//! server that stands still for 20 ms thus shows in the latency of every request that was
//! due meanwhile. Timing from the send, or sending only after the answer, would show it in
//! one request (coordinated omission). How late requests were sent is reported beside, as
//! [`Pace`](results::Pace).
//!
//! **What counts.** Requests due (closed loop: sent) in the measured interval count,
//! whenever their answers come. After the interval traffic goes on until they have come.
//! A request without an answer [`LINGER`] after the interval is recorded with the time that
//! it has waited so far.
//!
//! **Waiting.** The thread sleeps in `ppoll`, which ends at the next answer or right before
//! the next request is due. Waking up takes a machine tens of µs, which would be taken for
//! the path's latency. The last [`SPIN`] before a request is due are therefore spent
//! reading the socket without sleeping, where the thread has a CPU to itself.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use sys::errno::Errno;

use super::control::{Phase, TICK};
use super::flow::{Flow, FlowReport, latency_histogram};
use super::pace::late_histogram;
use super::requests::{LINGER, Requests};
use super::schedule::Schedule;
use super::window::Request;
use super::{EngineError, Load};

/// Not slept before a request is due, where the thread has a CPU to itself.
const SPIN: Duration = Duration::from_micros(50);
/// How late the kernel may end a sleep, ns.
const TIMER_SLACK_NS: u64 = 1_000;
/// Requests sent in a row before answers are looked for: what bounds how late
/// an answer is noticed while the sender catches up.
const BURST: usize = 16;
/// Most records made of requests that were never sent.
const MOST_UNSENT: u64 = 1_000_000;

/// A socket that carries several requests at once.
pub(super) trait Pipe {
    /// What to wait on.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Whether another request may be sent before an answer comes.
    fn has_room(&self) -> bool;
    /// Sends a request; false when the socket takes none now.
    fn send(&mut self, request: Request, report: &mut FlowReport) -> Result<bool, EngineError>;
    /// Sends what the socket has not taken of the last request; false while
    /// something is left.
    fn flush(&mut self) -> Result<bool, EngineError>;
    /// Reads once; false when there was nothing.
    fn receive(
        &mut self,
        report: &mut FlowReport,
        answered: &mut dyn FnMut(Request),
    ) -> Result<bool, EngineError>;
    /// Requests neither answered nor lost, in the order they were due.
    fn under_way(&self) -> impl Iterator<Item = &Request>;
    /// Takes out a request that is lost.
    fn lost(&mut self, now: Instant) -> Option<Request>;
    /// When the next will be lost, if nothing comes.
    fn deadline(&self) -> Option<Instant>;
}

/// Sends and receives until the load is done.
pub(super) fn drive(
    flow: &Flow<'_>,
    pipe: &mut impl Pipe,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    sys::affinity::set_timer_slack(TIMER_SLACK_NS)?;
    let mut book = Book::new(flow);
    // Kept also when the other end, told to end first, closes in our face.
    let outcome = send_and_receive(flow, pipe, &mut book, report);
    book.report(report);
    outcome
}

fn send_and_receive(
    flow: &Flow<'_>,
    pipe: &mut impl Pipe,
    book: &mut Book,
    report: &mut FlowReport,
) -> Result<(), EngineError> {
    flow.control.wait_past(Phase::Setup);
    // Not reached without a time: the phase after `Setup` has begun.
    let start = flow.control.traffic_since().unwrap_or_else(Instant::now);
    let mut schedule = flow
        .load
        .transactions_per_s
        .map(|rate| Schedule::new(start, rate, flow.index, flow.load.flows));
    let spin =
        if schedule.is_some() && flow.load.has_cpus_to_itself() { SPIN } else { Duration::ZERO };
    // Since when nothing has been heard although something was asked.
    let mut silent_since: Option<Instant> = None;
    let mut held = false;
    loop {
        let now = Instant::now();
        let phase = flow.control.phase();
        if phase == Phase::Done {
            return Ok(());
        }
        book.turn(flow, phase);
        while let Some(request) = pipe.lost(now) {
            book.lost(request);
        }
        // Sending.
        let mut writable = pipe.flush()?;
        let mut sent = 0;
        let mut due = true;
        while writable && sent < BURST {
            let now = Instant::now();
            let intended = schedule.as_ref().map_or(now, Schedule::next);
            due = intended <= now;
            if !due || !pipe.has_room() {
                break;
            }
            if !pipe.send(Request { intended, sent: now }, report)? {
                writable = false;
                break;
            }
            flow.tally().sent.add(1);
            silent_since.get_or_insert(now);
            sent += 1;
            held = false;
            if let Some(schedule) = &mut schedule {
                schedule.advance();
            }
        }
        let full = due && writable && !pipe.has_room();
        // Once for each request, however often the loop comes by meanwhile.
        if full && schedule.is_some() && !held {
            held = true;
            book.held_back(schedule.as_ref().map_or(now, Schedule::next));
        }
        // Receiving.
        if sent < BURST {
            let until = match &schedule {
                Some(schedule) if !full && writable => Some(schedule.next()),
                _ => None,
            };
            let until = earliest(until, pipe.deadline());
            if !wait(flow, pipe.fd(), until, spin, !writable)? {
                check_silence(flow, silent_since)?;
                book.settle(flow, pipe, schedule.as_ref());
                continue;
            }
        }
        let mut rounds = 0;
        loop {
            let mut answers = 0;
            let mut arrived = None;
            let came = pipe.receive(report, &mut |request| {
                answers += 1;
                book.answered(request, *arrived.get_or_insert_with(Instant::now));
            })?;
            if answers > 0 {
                silent_since = None;
                flow.tally().units.add(answers);
            }
            rounds += 1;
            // Requests that become due must not wait for an endless row of answers.
            if !came || pipe.under_way().next().is_none() || rounds >= BURST {
                break;
            }
        }
        book.settle(flow, pipe, schedule.as_ref());
        check_silence(flow, silent_since)?;
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// Waits until there is something to read (or, if `write`, room to write), or
/// the time has come, or a tick has passed; true when it is worth reading.
fn wait(
    flow: &Flow<'_>,
    fd: BorrowedFd<'_>,
    until: Option<Instant>,
    spin: Duration,
    write: bool,
) -> Result<bool, EngineError> {
    let left = until.map_or(TICK, |until| until.saturating_duration_since(Instant::now()));
    if left <= spin {
        // Reading is what tells whether there is something.
        return Ok(true);
    }
    let mut flags = PollFlags::POLLIN;
    flags.set(PollFlags::POLLOUT, write);
    let mut fds = [PollFd::new(fd, flags)];
    match ppoll(&mut fds, Some(TimeSpec::from_duration((left - spin).min(TICK))), None) {
        Ok(0) | Err(Errno::EINTR) => Ok(false),
        // Errors and hang-ups are read, too.
        Ok(_) => Ok(fds[0].revents().is_some_and(|got| got != PollFlags::POLLOUT)),
        Err(errno) => Err(flow.error(flow.stage(), "ppoll", errno)),
    }
}

/// A flow that has heard nothing for too long is not a slow one.
fn check_silence(flow: &Flow<'_>, since: Option<Instant>) -> Result<(), EngineError> {
    let Some(since) = since else { return Ok(()) };
    let waited = since.elapsed();
    if waited < flow.load.setup_limit || flow.control.is_done() {
        return Ok(());
    }
    Err(EngineError::Stalled { flow: flow.index, end: flow.end, waited, stage: flow.stage() })
}

/// Keeps what belongs to the measured interval.
struct Book {
    latency: Histogram<u64>,
    late: Histogram<u64>,
    requests: Requests,
    scheduled: bool,
    begun: Option<Instant>,
    ended: Option<Instant>,
    /// An answer has come since the interval ended.
    alive: bool,
    settled: bool,
}

impl Book {
    fn new(flow: &Flow<'_>) -> Book {
        Book {
            latency: latency_histogram(),
            late: late_histogram(),
            requests: Requests::default(),
            scheduled: flow.load.transactions_per_s.is_some(),
            begun: None,
            ended: None,
            alive: false,
            settled: false,
        }
    }

    fn turn(&mut self, flow: &Flow<'_>, phase: Phase) {
        if self.begun.is_none() && phase >= Phase::Measure {
            self.begun = flow.control.turned_at(Phase::Measure);
        }
        if self.ended.is_none() && phase >= Phase::Closing {
            self.ended = flow.control.turned_at(Phase::Closing);
        }
    }

    /// Whether a request counts that was due then.
    fn counts(&self, intended: Instant) -> bool {
        !self.settled
            && self.begun.is_some_and(|begun| intended >= begun)
            && self.ended.is_none_or(|ended| intended < ended)
    }

    fn answered(&mut self, request: Request, arrived: Instant) {
        self.alive |= self.ended.is_some();
        if self.counts(request.intended) {
            self.requests.answered += 1;
            self.latency.saturating_record(nanos_since(request.intended, arrived));
            if self.scheduled {
                self.late.saturating_record(nanos_since(request.intended, request.sent));
            }
        }
    }

    fn lost(&mut self, request: Request) {
        self.requests.lost += u64::from(self.counts(request.intended));
    }

    fn held_back(&mut self, intended: Instant) {
        self.requests.held_back += u64::from(self.counts(intended));
    }

    /// After the interval: whether all its requests have met their fate.
    fn settle(&mut self, flow: &Flow<'_>, pipe: &impl Pipe, schedule: Option<&Schedule>) {
        let Some(ended) = self.ended.filter(|_| !self.settled) else { return };
        let unsent = schedule.map_or(0, |schedule| schedule.due_before(ended));
        let waits = pipe
            .under_way()
            .take_while(|request| request.intended < ended)
            .any(|request| self.counts(request.intended));
        if unsent == 0 && !waits {
            // Requests lost or still waiting say nothing about whether the path
            // still lives.
            let heard = self.requests.lost == 0 && pipe.under_way().next().is_none();
            if heard || self.alive {
                self.finish(flow);
            }
            return;
        }
        let now = Instant::now();
        // A path that has been silent since is not settled here: `check_silence` ends the load.
        if self.alive && now.saturating_duration_since(ended) >= LINGER {
            for request in pipe.under_way() {
                if !self.counts(request.intended) {
                    continue;
                }
                self.latency.saturating_record(nanos_since(request.intended, now));
                self.late.saturating_record(nanos_since(request.intended, request.sent));
                self.requests.unfinished += 1;
            }
            if let Some(schedule) = schedule {
                let step = unsent.div_ceil(MOST_UNSENT).max(1);
                for ahead in (0..unsent).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
                    let waited = nanos_since(schedule.time_ahead(ahead), now);
                    let count = step.min(unsent - ahead);
                    self.latency.saturating_record_n(waited, count);
                    self.late.saturating_record_n(waited, count);
                }
                self.requests.unfinished += unsent;
            }
            self.finish(flow);
        }
    }

    fn finish(&mut self, flow: &Flow<'_>) {
        self.settled = true;
        flow.tally().reach(Phase::Closing);
    }

    fn report(self, report: &mut FlowReport) {
        report.latency = Some(self.latency);
        let late = self.scheduled.then_some(self.late);
        report.requests = Some(Requests { late, ..self.requests });
    }
}

fn nanos_since(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

impl Load {
    /// Whether requests are sent without waiting for each answer.
    pub(super) fn is_pipelined(&self) -> bool {
        self.outstanding > 1 || self.transactions_per_s.is_some()
    }

    /// Whether no two threads of the load share a CPU.
    fn has_cpus_to_itself(&self) -> bool {
        let flows = self.flows as usize;
        let own = |cpus: &[usize]| {
            let mut sorted = cpus.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.len() == cpus.len() && flows <= cpus.len()
        };
        own(&self.client_cpus)
            && !self.client_cpus.is_empty()
            && !self.server_cpus.is_empty()
            && self.client_cpus.iter().take(flows).all(|cpu| !self.server_cpus.contains(cpu))
    }
}
