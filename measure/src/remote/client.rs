//! The client's side: a server on another machine, its loads, its counters.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sys::netns::NetNs;
use sys::tcp::Connecting;

use super::channel::{self, Channel, ChannelError, Side, TICK};
use super::handshake::{HELLO_BYTES, Hello, HelloError, MAC_BYTES, Said};
use super::message::{Description, LoadAsked, Observed, Reply, Request, emit, parse_reply};
use super::{Limits, Token, place, session};
use crate::engine::{Away, Counted, EngineError, Load, Phase, Server, ServerReport};
use crate::results::{self, DeviceRecord};

/// How long connecting and the handshake may take, each.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long an answer may take: the server reads counters, at the most, or
/// watches an idle machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How long a server that is gone is waited for, a sample …
const RETURN_LIMIT: Duration = Duration::from_secs(3);
/// … and how often it is looked for meanwhile.
const RETURN_LOOK: Duration = Duration::from_millis(250);
/// Samples in a row without a server, after which it is given up.
const GIVEN_UP_AFTER: u32 = 3;
/// How often the control connection is looked at while a load runs.
const LOOK: Duration = Duration::from_millis(100);
/// Round trips of which the shortest is taken.
const PINGS: usize = 5;
/// How long the server's machine is watched doing nothing, ms.
const IDLE_WATCH_MS: u32 = 500;

/// A server on another machine, and the session with it.
#[derive(Debug)]
pub struct Remote {
    address: SocketAddr,
    token: Option<Token>,
    stop: Arc<AtomicBool>,
    /// `None` after it broke, until the next load.
    channel: Mutex<Option<Channel>>,
    /// Loads in a row that could not be started for want of a server.
    gone: AtomicU32,
    description: Description,
    idle_load: f64,
    round_trip: Duration,
    /// The client's device on the way there.
    device: DeviceRecord,
    same_machine: bool,
    same_netns: bool,
}

/// A server that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It cannot be connected to.
    #[error("{server}: {operation}: {}{hint}", .errno.desc())]
    Connect {
        /// Its address.
        server: SocketAddr,
        /// System call.
        operation: &'static str,
        /// The kernel's answer.
        errno: Errno,
        /// What that usually means.
        hint: &'static str,
    },
    /// Nothing came back.
    #[error("{server}: no answer within {CONNECT_LIMIT:.0?} (wrong address, or a filter?)")]
    NoAnswer {
        /// Its address.
        server: SocketAddr,
    },
    /// The other end of the connection is something else, or of another version.
    #[error("{server}: {error}")]
    Hello {
        /// Its address.
        server: SocketAddr,
        /// What is wrong with what it said.
        error: HelloError,
    },
    /// It wants a token and none was given.
    #[error("{server}: this server wants a token (--token FILE)")]
    TokenNeeded {
        /// Its address.
        server: SocketAddr,
    },
    /// A token was given, and it has none to compare it with.
    #[error(
        "{server}: this server has no token, so it cannot prove to be the one meant: leave out --token"
    )]
    NoToken {
        /// Its address.
        server: SocketAddr,
    },
    /// The two tokens differ.
    #[error("{server}: the server's token is another")]
    WrongToken {
        /// Its address.
        server: SocketAddr,
    },
    /// It said no, or something that it should not.
    #[error("{server}: {reason}")]
    Refused {
        /// Its address.
        server: SocketAddr,
        /// What it said.
        reason: String,
    },
    /// Something of this end cannot be read.
    #[error("this end of the path to {server}: {reason}")]
    Here {
        /// Its address.
        server: SocketAddr,
        /// What.
        reason: String,
    },
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
}

impl Remote {
    /// The client's end in hops and figures.
    pub const CLIENT: &'static str = "client";
    /// The server's.
    pub const HOST: &'static str = session::HOST;

    /// Connects, from `client`'s namespace, and gets to know the server: takes
    /// somewhat more than half a second.
    ///
    /// # Errors
    /// [`RemoteError`], with what was tried and what came back.
    pub fn connect(
        address: SocketAddr,
        token: Option<Token>,
        client: &NetNs,
        stop: Arc<AtomicBool>,
    ) -> Result<Remote, RemoteError> {
        let mut channel = open(address, token.as_ref(), &stop)?;
        let refused = |reason: String| RemoteError::Refused { server: address, reason };
        let mut ask = |request: &Request| match converse(&mut channel, request, &stop) {
            Ok(Reply::Refused(reason)) => Err(refused(reason)),
            Ok(reply) => Ok(reply),
            Err(ChannelError::Ended) => Err(RemoteError::Stopped),
            Err(error) => Err(refused(error.to_string())),
        };
        let Reply::Described(description) = ask(&Request::Describe)? else {
            return Err(refused(out_of_turn()));
        };
        let Reply::Idle(idle_load) = ask(&Request::Idle { millis: IDLE_WATCH_MS })? else {
            return Err(refused(out_of_turn()));
        };
        let mut round_trip = Duration::MAX;
        for _ in 0..PINGS {
            let begun = Instant::now();
            ask(&Request::Ping)?;
            round_trip = round_trip.min(begun.elapsed());
        }
        let here = |reason: String| RemoteError::Here { server: address, reason };
        let device = place::device_to(client, address.ip(), Remote::CLIENT).map_err(here)?;
        let same_machine = place::boot().map_err(here)? == description.boot;
        Ok(Remote {
            address,
            token,
            stop,
            channel: Mutex::new(Some(channel)),
            gone: AtomicU32::new(0),
            idle_load,
            round_trip,
            device,
            same_machine,
            same_netns: same_machine && description.netns == client.inode(),
            description: *description,
        })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Version of overlane there.
    pub fn overlane(&self) -> &str {
        &self.description.overlane
    }

    /// Its machine, for the results.
    pub fn machine(&self) -> results::Machine {
        results::Machine { idle_load: self.idle_load, ..self.description.machine.clone() }
    }

    /// Whether both ends run on one kernel: CPU time is then counted once.
    pub fn is_same_machine(&self) -> bool {
        self.same_machine
    }

    /// Whether two servers are on one machine.
    pub fn shares_machine_with(&self, other: &Remote) -> bool {
        self.description.boot == other.description.boot
    }

    /// The server's process in this one's `/proc`, where it is there: its CPU
    /// time is the measurement's.
    pub fn process_here(&self) -> Option<u32> {
        let (pid, namespace) = self.description.process;
        let ours = place::process().ok()?;
        (self.same_machine && ours.1 == namespace).then_some(pid)
    }

    /// Share of all its CPUs busy before the run, 0..1.
    pub fn idle_load(&self) -> f64 {
        self.idle_load
    }

    /// CPUs that its threads may run on.
    pub fn cpus(&self) -> &[usize] {
        &self.description.cpus
    }

    /// What it allows.
    pub fn limits(&self) -> &Limits {
        &self.description.limits
    }

    /// The shortest of some round trips of the control connection.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// The devices on the path: the client's on the way there, the server's on
    /// the way back.
    pub fn devices(&self) -> [&DeviceRecord; 2] {
        [&self.device, &self.description.device]
    }

    /// Whether the server has been gone for so long that it is not waited for
    /// any more.
    pub fn is_given_up(&self) -> bool {
        self.gone.load(Ordering::Relaxed) >= GIVEN_UP_AFTER
    }

    /// Has the server read its counters: the measured interval begins.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn begin(&self) -> Result<(), EngineError> {
        self.done(&Request::Begin)
    }

    /// What happened there since [`begin`](Remote::begin).
    ///
    /// # Errors
    /// When it does not say.
    pub(crate) fn end(&self) -> Result<Observed, EngineError> {
        match self.ask(&Request::End)? {
            Reply::Observed(observed) => Ok(*observed),
            _ => Err(self.refused(out_of_turn())),
        }
    }

    /// Whether both ends share their namespace's counters, too.
    pub(crate) fn is_same_netns(&self) -> bool {
        self.same_netns
    }

    fn refused(&self, message: String) -> EngineError {
        EngineError::Server { server: self.address, message }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request and its answer. A connection that failed is closed, so that
    /// the next load makes a new one.
    fn ask(&self, request: &Request) -> Result<Reply, EngineError> {
        let mut slot = self.lock();
        let Some(channel) = slot.as_mut() else {
            let reason = "the control connection is closed".to_owned();
            return Err(EngineError::Gone { server: self.address, reason });
        };
        match converse(channel, request, &self.stop) {
            Ok(Reply::Refused(message)) => Err(self.refused(message)),
            Ok(reply) => Ok(reply),
            Err(error) => {
                *slot = None;
                Err(match error {
                    ChannelError::Ended => EngineError::Stopped,
                    _ => EngineError::Gone { server: self.address, reason: error.to_string() },
                })
            }
        }
    }

    fn done(&self, request: &Request) -> Result<(), EngineError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(self.refused(out_of_turn())),
        }
    }

    /// Makes sure of a session: a server that went away may be back.
    fn reconnect(&self) -> Result<(), EngineError> {
        {
            let mut slot = self.lock();
            if slot.as_ref().is_some_and(|channel| channel.is_gone().is_none()) {
                return Ok(());
            }
            *slot = None;
        }
        let begun = Instant::now();
        loop {
            let failed = match self.resume() {
                Ok(channel) => {
                    *self.lock() = Some(channel);
                    self.gone.store(0, Ordering::Relaxed);
                    return Ok(());
                }
                Err(RemoteError::Stopped) => return Err(EngineError::Stopped),
                Err(error) => error,
            };
            if begun.elapsed() >= RETURN_LIMIT {
                self.gone.fetch_add(1, Ordering::Relaxed);
                let reason = failed.to_string();
                return Err(EngineError::Gone { server: self.address, reason });
            }
            std::thread::sleep(RETURN_LOOK);
        }
    }

    /// A new session with the same server, its samplers opened.
    fn resume(&self) -> Result<Channel, RemoteError> {
        let mut channel = open(self.address, self.token.as_ref(), &self.stop)?;
        let reason = match converse(&mut channel, &Request::Describe, &self.stop) {
            Ok(Reply::Described(now)) => {
                let then = &self.description;
                if (&now.boot, now.netns, &now.device.device)
                    == (&then.boot, then.netns, &then.device.device)
                {
                    return Ok(channel);
                }
                "another machine, namespace or device than before answers there".to_owned()
            }
            Ok(Reply::Refused(reason)) => reason,
            Ok(_) => out_of_turn(),
            Err(ChannelError::Ended) => return Err(RemoteError::Stopped),
            Err(error) => error.to_string(),
        };
        Err(RemoteError::Refused { server: self.address, reason })
    }
}

impl Away for Remote {
    fn start(&self, load: &Load) -> Result<(Box<dyn Server + '_>, SocketAddr, u64), EngineError> {
        if let Some(stall) = load.server_stall {
            return Err(EngineError::Invalid {
                argument: "server_stall",
                allowed: "a server in this process".to_owned(),
                got: format!("{stall:?}"),
            });
        }
        self.reconnect()?;
        match self.ask(&Request::Start(LoadAsked::of(load)))? {
            Reply::Started { port, token } if port != 0 => {
                let mut target = self.address;
                target.set_port(port);
                let served = Served {
                    remote: self,
                    flows: load.flows as usize,
                    looked: Instant::now(),
                    finished: false,
                };
                Ok((Box::new(served), target, token))
            }
            _ => Err(self.refused(out_of_turn())),
        }
    }
}

/// The server's half of a load, there.
#[derive(Debug)]
struct Served<'a> {
    remote: &'a Remote,
    flows: usize,
    looked: Instant,
    finished: bool,
}

impl Server for Served<'_> {
    fn waits_for(&mut self) -> Result<Option<u32>, EngineError> {
        match self.remote.ask(&Request::WaitsFor)? {
            Reply::WaitsFor(flow) => Ok(flow),
            _ => Err(self.remote.refused(out_of_turn())),
        }
    }

    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError> {
        self.remote.done(&Request::TurnTo(phase.into()))
    }

    fn counts(&mut self) -> Result<Counted, EngineError> {
        match self.remote.ask(&Request::Count)? {
            Reply::Counted(counted) if counted.flows.len() == self.flows => Ok(counted.counted()),
            _ => Err(self.remote.refused(out_of_turn())),
        }
    }

    fn failure(&mut self) -> Option<EngineError> {
        // Without a message: during the measured interval nothing but the
        // traffic is on the path.
        if self.looked.elapsed() < LOOK {
            return None;
        }
        self.looked = Instant::now();
        let server = self.remote.address;
        let mut slot = self.remote.lock();
        let reason = match slot.as_ref() {
            Some(channel) => channel.is_gone()?,
            None => "the control connection is closed".to_owned(),
        };
        *slot = None;
        Some(EngineError::Gone { server, reason })
    }

    fn finish(mut self: Box<Self>) -> Result<BTreeMap<u32, ServerReport>, EngineError> {
        self.finished = true;
        match self.remote.ask(&Request::Finish)? {
            Reply::Finished(reports) => {
                Ok(reports.into_iter().map(|(flow, report)| (flow, report.into())).collect())
            }
            _ => Err(self.remote.refused(out_of_turn())),
        }
    }

    fn round_trip(&self) -> Duration {
        self.remote.round_trip
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // A server that is gone, or has ended the load by itself, says so in
            // vain: the load's own error is known.
            let _ = self.remote.ask(&Request::Finish);
        }
    }
}

fn out_of_turn() -> String {
    "it answered something else than what was asked".to_owned()
}

fn converse(
    channel: &mut Channel,
    request: &Request,
    stop: &AtomicBool,
) -> Result<Reply, ChannelError> {
    channel.send(&emit(request))?;
    let payload = channel.receive(ANSWER_LIMIT, &|| !stop.load(Ordering::Relaxed))?;
    parse_reply(&payload).map_err(|error| ChannelError::Io {
        operation: "read its answer",
        error: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}

/// Connects, and shakes hands.
fn open(
    server: SocketAddr,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<Channel, RemoteError> {
    let failed = |(operation, errno)| RemoteError::Connect {
        server,
        operation,
        errno,
        hint: match errno {
            Errno::ECONNREFUSED => " (is `overlane measure serve` running there, on this port?)",
            Errno::ENETUNREACH | Errno::EHOSTUNREACH => " (no route: is the address right?)",
            Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL => {
                " (this machine has no address of that family)"
            }
            _ => "",
        },
    };
    let begun = Instant::now();
    let mut connecting = Connecting::start(&server, &channel::OPTIONS).map_err(failed)?;
    while !connecting.wait(TICK).map_err(failed)? {
        if stop.load(Ordering::Relaxed) {
            return Err(RemoteError::Stopped);
        }
        if begun.elapsed() >= CONNECT_LIMIT {
            return Err(RemoteError::NoAnswer { server });
        }
    }
    let Some(stream) = connecting.into_stream() else {
        return Err(RemoteError::NoAnswer { server });
    };

    let deadline = Instant::now() + CONNECT_LIMIT;
    let alive = || !stop.load(Ordering::Relaxed);
    let broken = |error: ChannelError| match error {
        ChannelError::Ended => RemoteError::Stopped,
        ChannelError::Slow => RemoteError::Refused {
            server,
            reason: format!("it said nothing within {CONNECT_LIMIT:.0?}: no overlane measure"),
        },
        error => RemoteError::Refused { server, reason: format!("{error} during the handshake") },
    };
    channel::prepare(&stream).map_err(broken)?;
    let mut hello = [0; HELLO_BYTES];
    channel::read_exact(&stream, &mut hello, deadline, &alive).map_err(broken)?;
    let said = Hello::parse(&hello);
    // It is told our version in any case, so that both ends can name both.
    let client = Hello::fresh(token.is_some());
    let told = channel::write_all(&stream, &client.emit());
    let theirs = said.map_err(|error| RemoteError::Hello { server, error })?;
    told.map_err(broken)?;
    match (theirs.with_token, token.is_some()) {
        (true, false) => return Err(RemoteError::TokenNeeded { server }),
        (false, true) => return Err(RemoteError::NoToken { server }),
        _ => {}
    }
    let keys = Said { server: theirs, client }.keys(token);
    channel::write_all(&stream, &keys.client_proof()).map_err(broken)?;
    let mut proof = [0; MAC_BYTES];
    match channel::read_exact(&stream, &mut proof, deadline, &alive) {
        // What a server does that does not like ours.
        Err(ChannelError::Closed) => return Err(RemoteError::WrongToken { server }),
        other => other.map_err(broken)?,
    }
    if !keys.is_server_proof(&proof) {
        return Err(RemoteError::WrongToken { server });
    }
    Ok(Channel::new(stream, Side::Client, keys.session()))
}
