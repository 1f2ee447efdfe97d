//! The client's side: polls another host in its own thread.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use channel::message::{emit, parse};
use channel::{Channel, ChannelError, RemoteError, Service, Token, open};

use super::clock::{Clock, Exchange};
use super::compared::{Compared, Round};
use super::message::{Asked, Reply, Request, Sample};
use super::now;
use crate::filter::FlowPattern;
use crate::flows::{Flows, FlowsReading};
use crate::peer_seen::{ClockSeen, PeerSeen};

/// How long to wait for the start of an answer; the message itself has another limit.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Number of exchanges of time stamps before the first round.
const EXCHANGES: usize = 6;
/// How long a packet may take beyond two round trips, because queues and CPUs are busy.
const SETTLE: Duration = Duration::from_millis(20);
/// Longest time to wait for packets in flight.
const MOST_SETTLE: Duration = Duration::from_millis(500);
/// Pause before a host that does not answer is asked again: at first, and at most.
const AWAY: Duration = Duration::from_secs(1);
const MOST_AWAY: Duration = Duration::from_secs(30);
/// Interval at which waits check whether to go on.
const TICK: Duration = Duration::from_millis(50);

/// A connection to another host that is polled.
#[derive(Debug)]
pub struct Peer {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    known: Mutex<Known>,
    /// Signals the first round, and problems.
    news: Condvar,
}

#[derive(Debug)]
struct Known {
    address: String,
    problem: Option<String>,
    clock: Clock,
    compared: Compared,
    /// Times of the first round and of the last.
    rounds: Option<(Instant, Instant)>,
}

/// State of the polling thread.
struct Asking {
    address: SocketAddr,
    token: Option<Token>,
    asked: Asked,
    patterns: Vec<FlowPattern>,
    flows: Arc<Flows>,
    period: Duration,
    shared: Arc<Shared>,
}

/// Reasons for the end of a session.
#[derive(Debug, thiserror::Error)]
enum Over {
    #[error(transparent)]
    Connect(#[from] RemoteError),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Said(String),
    #[error("this host: {0}")]
    Here(String),
}

impl Peer {
    /// Starts to poll the host, and to compare its counts with those of this host, once in a
    /// `period`.
    ///
    /// # Errors
    /// If no thread can be started, or the flows cannot be asked for.
    pub fn start(
        address: SocketAddr,
        token: Option<Token>,
        asked: Asked,
        flows: Arc<Flows>,
        period: Duration,
    ) -> Result<Peer, String> {
        let known = Known {
            address: address.to_string(),
            problem: None,
            clock: Clock::default(),
            compared: Compared::default(),
            rounds: None,
        };
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            known: Mutex::new(known),
            news: Condvar::new(),
        });
        let patterns = asked.patterns()?;
        let asking =
            Asking { address, token, asked, patterns, flows, period, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("peer".to_owned());
        let thread = thread.spawn(move || asking.run()).map_err(|error| error.to_string())?;
        Ok(Peer { shared, thread: Some(thread) })
    }

    /// Waits for the first comparison or a problem, up to `limit`.
    pub fn begun(&self, limit: Duration, goes_on: &dyn Fn() -> bool) {
        let deadline = Instant::now() + limit;
        let mut known = self.shared.known();
        while known.rounds.is_none() && known.problem.is_none() && goes_on() {
            // The other host is slow: the interval is printed without it.
            if Instant::now() >= deadline {
                return;
            }
            let waited = self.shared.news.wait_timeout(known, TICK);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the current state, without waiting.
    pub fn seen(&self) -> PeerSeen {
        let known = self.shared.known();
        let clock = known.clock.at(now()).map(|offset| ClockSeen {
            ahead_ns: offset.ahead,
            error_ns: offset.error,
            round_trip_ns: offset.round_trip,
        });
        let seconds = |since: Instant| since.elapsed().as_secs_f64();
        PeerSeen {
            address: known.address.clone(),
            problem: known.problem.clone(),
            clock,
            compared_s: known
                .rounds
                .map_or(0.0, |(first, last)| last.saturating_duration_since(first).as_secs_f64()),
            age_s: known.rounds.map_or(0.0, |(_, last)| seconds(last)),
            flows: known.compared.seen(),
            other_flows: known.compared.others,
            uncounted: known.compared.uncounted,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asking {
    fn goes_on(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    fn pause(&self, length: Duration) {
        let until = Instant::now() + length;
        while self.goes_on() && Instant::now() < until {
            std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn run(self) {
        let mut away = AWAY;
        while self.goes_on() {
            let mut rounds = 0_u64;
            let Err(over) = self.session(&mut rounds);
            {
                let mut known = self.shared.known();
                // The server's text is untrusted: escape it, so that it cannot control a terminal.
                known.problem = Some(foreign::plain(&over.to_string()).into_owned());
                known.compared.begin_anew();
            }
            self.shared.news.notify_all();
            // Wait longer after each session without a complete round.
            away = if rounds > 0 { AWAY } else { (away * 2).min(MOST_AWAY) };
            self.pause(away);
        }
    }

    /// Polls until something fails.
    fn session(&self, rounds: &mut u64) -> Result<std::convert::Infallible, Over> {
        let stop = &self.shared.stop;
        let mut channel = open(self.address, Service::Watch, self.token.as_ref(), stop)?;
        match self.converse(&mut channel, &Request::Ask(self.asked.clone()))? {
            Reply::Asked => {}
            // The server is of the same protocol version, so another reply is a defect.
            _ => return Err(out_of_turn()),
        }
        // The host may run another program by now, with another clock.
        self.shared.known().clock = Clock::default();
        let mut round_trip = Duration::MAX;
        for _ in 0..EXCHANGES {
            round_trip = round_trip.min(self.sample(&mut channel)?.1);
        }
        loop {
            let begun = Instant::now();
            let here = self.count()?;
            let (there, took) = self.sample(&mut channel)?;
            // If a queue grows, this round trip is longer, too, so wait for the longer one.
            std::thread::sleep((SETTLE + 2 * round_trip.max(took)).min(MOST_SETTLE));
            let here_settled = self.count()?;
            let (there_settled, _) = self.sample(&mut channel)?;
            let here_last = self.count()?;
            {
                let mut known = self.shared.known();
                let round = Round { here, there, here_settled, there_settled, here_last };
                // An inconsistent round is skipped; the next one starts again.
                if known.compared.add(&round) {
                    let first = known.rounds.map_or(begun, |(first, _)| first);
                    known.rounds = Some((first, Instant::now()));
                    known.problem = None;
                    *rounds += 1;
                }
            }
            self.shared.news.notify_all();
            self.pause(self.period.saturating_sub(begun.elapsed()));
            if !self.goes_on() {
                return Err(RemoteError::Stopped.into());
            }
        }
    }

    fn count(&self) -> Result<FlowsReading, Over> {
        let reading = self.flows.read(&|flow| flow.is_of(&self.patterns, self.asked.vni));
        reading.map_err(|error| Over::Here(error.to_string()))
    }

    /// Reads the counts of the other host, and returns how long that took. Its time stamps go to
    /// the clock.
    fn sample(&self, channel: &mut Channel) -> Result<(Sample, Duration), Over> {
        let (asked, begun) = (now(), Instant::now());
        // The server is of the same protocol version, so another reply is a defect.
        let Reply::Sampled(sample) = self.converse(channel, &Request::Sample)? else {
            return Err(out_of_turn());
        };
        let (returned, took) = (now(), begun.elapsed());
        let sample = sample.checked().map_err(Over::Said)?;
        let (received, answered) = (sample.received_ns, sample.answered_ns);
        self.shared.known().clock.add(&Exchange { asked, received, answered, returned });
        Ok((sample, took))
    }

    fn converse(&self, channel: &mut Channel, request: &Request) -> Result<Reply, Over> {
        channel.send(&emit(request))?;
        let payload = channel.receive(ANSWER_LIMIT, &|| self.goes_on())?;
        match parse::<Reply>(&payload) {
            Ok(Reply::Refused(reason)) => Err(Over::Said(reason)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(Over::Said(format!("invalid answer: {error}"))),
        }
    }
}

/// The error for a reply of the wrong type.
fn out_of_turn() -> Over {
    Over::Said("it answered another request than the one sent".to_owned())
}
