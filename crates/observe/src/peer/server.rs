//! The server's side: reports this host's counts to authenticated clients.
//!
//! The counts come from this process, or from another one ([`super::front`]).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use channel::message::{emit, parse};
use channel::{RateLimit, ServerError, Serves, Service, Session, Tell, Token};

use super::message::{Asked, FlowRecord, MOST_FLOWS, Reply, Request, Sample};
use super::now;
use crate::flows::Flows;

/// Maximum number of concurrent sessions.
const SESSIONS: u32 = 8;
/// A client that is silent for this long is disconnected.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum number of requests per second: a client sends two per interval, and a few more at the
/// start.
const REQUESTS_PER_S: u32 = 100;

#[derive(Debug)]
pub struct PeerServer {
    listening: channel::Server,
    is_guarded: bool,
    stop: Arc<AtomicBool>,
}

impl PeerServer {
    /// Binds the address.
    ///
    /// # Errors
    /// If there is no token and the address is not loopback, or the address or port is not
    /// available.
    pub fn bind(
        address: SocketAddr,
        token: Option<Token>,
        stop: Arc<AtomicBool>,
    ) -> Result<PeerServer, ServerError> {
        let (stops, is_guarded) = (Arc::clone(&stop), token.is_some());
        let listening = channel::Server::bind(address, Service::Watch, token, SESSIONS, stops)?;
        Ok(PeerServer { listening, is_guarded, stop })
    }

    /// Returns whether clients must know a token.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// Returns the flag that ends [`PeerServer::run`].
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Returns the local address and port.
    pub fn local(&self) -> SocketAddr {
        self.listening.local()
    }

    /// Serves the counts of these flows until its stop flag is set.
    pub fn run(&self, flows: Arc<Flows>, tell: &Arc<Tell>) -> Result<(), ServerError> {
        self.run_from(flows, tell)
    }

    /// Returns the descriptor of the listening socket.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listening.as_fd()
    }

    pub(super) fn run_from(
        &self,
        source: Arc<impl Source + 'static>,
        tell: &Arc<Tell>,
    ) -> Result<(), ServerError> {
        let serves: Arc<dyn Serves> = Arc::new(Counts { source, stop: Arc::clone(&self.stop) });
        self.listening.run(&serves, tell)
    }
}

/// Source of counts.
pub(super) trait Source: Send + Sync {
    /// Returns the counts of flows for a request that arrived at this time.
    fn sample(&self, asked: &Asked, received_ns: i64) -> Result<Sample, String>;
}

/// State shared by the sessions.
struct Counts<S> {
    source: Arc<S>,
    stop: Arc<AtomicBool>,
}

impl<S: Source> Serves for Counts<S> {
    fn serve(&self, mut session: Session) -> String {
        let alive = || !self.stop.load(Ordering::Relaxed);
        let (mut pace, mut wanted) = (RateLimit::new(REQUESTS_PER_S), None);
        loop {
            let payload = match session.channel.receive(SILENCE, &alive) {
                Ok(payload) => payload,
                // The client has disconnected or is silent: end the session.
                Err(error) => return error.to_string(),
            };
            // Taken before the rate limit delays the request: it is the time of arrival.
            let received = now();
            pace.keep();
            let (reply, last) = match parse::<Request>(&payload) {
                Ok(request) => {
                    let answer = self.answer(request, &mut wanted, received);
                    (answer.unwrap_or_else(Reply::Refused), None)
                }
                // The authentication tag was correct, so this is a defect of a client of this
                // project.
                Err(error) => {
                    let reason = format!("request not understood: {error}");
                    (Reply::Refused(reason.clone()), Some(reason))
                }
            };
            if let Err(error) = session.channel.send(&emit(&reply)) {
                return error.to_string();
            }
            if let Some(reason) = last {
                return reason;
            }
        }
    }

    fn refusal(&self, reason: String) -> Vec<u8> {
        emit(&Reply::Refused(reason))
    }
}

impl<S: Source> Counts<S> {
    fn answer(
        &self,
        request: Request,
        wanted: &mut Option<Asked>,
        received_ns: i64,
    ) -> Result<Reply, String> {
        match request {
            Request::Ask(asked) => {
                asked.patterns()?;
                *wanted = Some(asked);
                Ok(Reply::Asked)
            }
            Request::Sample => {
                let asked = wanted.as_ref().ok_or("sample before ask")?;
                let sample = self.source.sample(asked, received_ns)?;
                Ok(Reply::Sampled(Box::new(Sample { answered_ns: now(), ..sample })))
            }
        }
    }
}

impl Source for Flows {
    fn sample(&self, asked: &Asked, received_ns: i64) -> Result<Sample, String> {
        let patterns = asked.patterns()?;
        let reading = self.read(&|flow| flow.is_of(&patterns, asked.vni));
        let reading = reading.map_err(|error| error.to_string())?;
        let mut flows: Vec<FlowRecord> = reading
            .flows
            .into_iter()
            .map(|(flow, count)| FlowRecord { hops: self.hops(&flow), flow, count })
            .collect();
        // Ties are in the order of their addresses, because the sort is stable.
        flows.sort_by_key(|flow| {
            let count = &flow.count;
            std::cmp::Reverse(count.left.packets.saturating_add(count.came.packets))
        });
        // The busiest flows are sent; the number of others is reported.
        let others = flows.len().saturating_sub(MOST_FLOWS) as u64;
        flows.truncate(MOST_FLOWS);
        Ok(Sample {
            received_ns,
            answered_ns: now(),
            flows,
            others,
            uncounted: reading.uncounted,
            epoch: reading.epoch,
        })
    }
}
