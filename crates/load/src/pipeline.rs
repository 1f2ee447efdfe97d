//! Client of request/response workloads that do not wait for an answer before the next request:
//! on a schedule (open loop), or with several requests in flight (closed loop).
//!
//! **Open loop.** Requests are due at fixed times ([`Schedule`]), whatever happened to earlier
//! ones. Latency counts from the *due* time, not from the send. If a path or server stalls for 20
//! ms, the latency of every request due meanwhile shows it. Timing from the send, or sending only
//! after the answer, would show the stall in one request (coordinated omission). The lateness of
//! sends is reported separately, as [`Pacing`](results::Pacing).
//!
//! **Counting.** Requests due (closed loop: sent) in the measured interval count, whenever their
//! answers arrive. After the interval, traffic goes on until they have arrived. A request that is
//! unanswered [`LINGER`] after the interval is recorded with its waiting time so far.
//!
//! **Waiting.** The thread sleeps in `ppoll` until the next answer, or shortly before the next
//! request is due. Waking up takes tens of µs, which would count as the path's latency. Therefore
//! the thread spends the last [`SPIN`] before a request is due reading the socket without
//! sleeping, if it has a CPU to itself.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use sys::errno::Errno;

use super::connection::Waiting;
use super::control::{Phase, TICK};
use super::flow::{Flow, FlowReport, latency_histogram};
use super::pace::late_histogram;
use super::requests::{LINGER, Requests};
use super::schedule::Schedule;
use super::window::Request;
use super::{EngineError, Load};

/// Time before a due request that is spent without sleeping, on a CPU of its own.
const SPIN: Duration = Duration::from_micros(50);
/// Timer slack of sleeps, ns.
const TIMER_SLACK_NS: u64 = 1_000;
/// Requests sent in a row before the socket is read. Bounds how late an answer is noticed while
/// the sender catches up.
const BURST: usize = 16;
/// Maximum number of records for requests that were never sent.
const MOST_UNSENT: u64 = 1_000_000;

/// A socket that carries several requests at once.
pub(super) trait Pipe {
    /// Descriptor to wait on.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Returns whether another request may be sent before an answer arrives.
    fn has_room(&self) -> bool;
    /// Sends a request; false if the socket accepts none now.
    fn send(&mut self, request: Request, report: &mut FlowReport) -> Result<bool, EngineError>;
    /// Sends the rest of the last request; false while something is left.
    fn flush(&mut self) -> Result<bool, EngineError>;
    /// Reads once; false if there was nothing.
    fn receive(
        &mut self,
        report: &mut FlowReport,
        answered: &mut dyn FnMut(Request),
    ) -> Result<bool, EngineError>;
    /// Returns requests that are neither answered nor lost, in order of due time.
    fn under_way(&self) -> impl Iterator<Item = &Request>;
    /// Removes and returns a lost request.
    fn lost(&mut self, now: Instant) -> Option<Request>;
    /// Returns the time at which the next request counts as lost.
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
    // Report also after an error: the server may end first and close the connection.
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
    // The default is unreachable: a phase after `Setup` has begun.
    let start = flow.control.traffic_since().unwrap_or_else(Instant::now);
    let mut schedule = flow
        .load
        .transactions_per_s
        .map(|rate| Schedule::new(start, rate, flow.index, flow.load.flows));
    let spin =
        if schedule.is_some() && flow.load.has_cpus_to_itself() { SPIN } else { Duration::ZERO };
    // Start of the current silence while requests are unanswered.
    let mut silence: Option<Waiting> = None;
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
            // Requests beyond the window are sent late, and their delay counts as latency.
            if !due || !pipe.has_room() {
                break;
            }
            // The socket's buffer is full; the request stays due.
            if !pipe.send(Request { intended, sent: now }, report)? {
                writable = false;
                break;
            }
            flow.tally().sent.add(1);
            silence.get_or_insert(Waiting::since(now));
            sent += 1;
            held = false;
            if let Some(schedule) = &mut schedule {
                schedule.advance();
            }
        }
        let full = due && writable && !pipe.has_room();
        // Count each request once, even if the loop passes several times.
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
                // A tick without an answer: check for silence, and for requests that are lost.
                check_silence(flow, &mut silence)?;
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
                silence = None;
                flow.tally().units.add(answers);
            }
            rounds += 1;
            // Bound the rounds: due requests must not wait for an endless row of answers.
            if !came || pipe.under_way().next().is_none() || rounds >= BURST {
                break;
            }
        }
        book.settle(flow, pipe, schedule.as_ref());
        check_silence(flow, &mut silence)?;
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// Waits until the socket is readable (with `write`: or writable), the time has come, or a tick
/// has passed. Returns whether to read.
fn wait(
    flow: &Flow<'_>,
    fd: BorrowedFd<'_>,
    until: Option<Instant>,
    spin: Duration,
    write: bool,
) -> Result<bool, EngineError> {
    let left = until.map_or(TICK, |until| until.saturating_duration_since(Instant::now()));
    if left <= spin {
        // Read without waiting: only reading shows whether an answer is there.
        return Ok(true);
    }
    let mut flags = PollFlags::POLLIN;
    flags.set(PollFlags::POLLOUT, write);
    let mut fds = [PollFd::new(fd, flags)];
    match ppoll(&mut fds, Some(TimeSpec::from_duration((left - spin).min(TICK))), None) {
        Ok(0) | Err(Errno::EINTR) => Ok(false),
        // Reading reports errors and hang-ups, too.
        Ok(_) => Ok(fds[0].revents().is_some_and(|got| got != PollFlags::POLLOUT)),
        Err(errno) => Err(flow.error(flow.stage(), "ppoll", errno)),
    }
}

/// Fails a flow that has received nothing for too long: it is broken, not slow.
fn check_silence(flow: &Flow<'_>, silence: &mut Option<Waiting>) -> Result<(), EngineError> {
    match silence {
        Some(silence) if !flow.control.is_done() => silence.check(flow),
        _ => Ok(()),
    }
}

/// Record of the requests of the measured interval.
struct Book {
    latency: Histogram<u64>,
    late: Histogram<u64>,
    requests: Requests,
    scheduled: bool,
    begun: Option<Instant>,
    ended: Option<Instant>,
    /// An answer has arrived since the interval ended.
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

    /// Returns whether a request with this due time counts.
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

    /// Finishes after the interval once all its requests are answered, lost or overdue.
    fn settle(&mut self, flow: &Flow<'_>, pipe: &impl Pipe, schedule: Option<&Schedule>) {
        let Some(ended) = self.ended.filter(|_| !self.settled) else { return };
        let unsent = schedule.map_or(0, |schedule| schedule.due_before(ended));
        let waits = pipe
            .under_way()
            .take_while(|request| request.intended < ended)
            .any(|request| self.counts(request.intended));
        if unsent == 0 && !waits {
            // If requests were lost or still wait, wait for an answer that proves that the path
            // still works.
            let heard = self.requests.lost == 0 && pipe.under_way().next().is_none();
            if heard || self.alive {
                self.finish(flow);
            }
            return;
        }
        let now = Instant::now();
        // Without an answer since the end, leave the verdict to `check_silence`.
        if self.alive && now.saturating_duration_since(ended) >= LINGER {
            for request in pipe.under_way() {
                // Requests outside the interval count for neither answers nor losses.
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
