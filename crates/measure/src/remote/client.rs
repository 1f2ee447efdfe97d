//! The client's side: a server on another machine, its loads, its counters.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sys::netns::NetNs;

use channel::{Channel, ChannelError, RemoteError, Service, Token, open};

use super::conversation::{converse, out_of_turn};
use super::message::{Description, Observed, Reply, Request};
use super::{Limits, place, session};
use crate::sampler::{Fare, Rates};
use load::EngineError;
use results::{self, DeviceRecord};

/// How long a server that is gone is waited for, a sample …
const RETURN_LIMIT: Duration = Duration::from_secs(3);
/// … and how often it is looked for meanwhile.
const RETURN_LOOK: Duration = Duration::from_millis(250);
/// Samples in a row without a server, after which it is given up.
const GIVEN_UP_AFTER: u32 = 3;
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
    packets_per_s: f64,
    round_trip: Duration,
    /// The client's device on the way there.
    device: DeviceRecord,
    same_machine: bool,
    same_netns: bool,
}

impl Remote {
    /// The client's end in hops and figures.
    pub const CLIENT: &'static str = "client";
    /// The server's end in hops and figures.
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
        let mut channel = open(address, Service::Measure, token.as_ref(), &stop)?;
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
        let fare = |reply: Reply| match reply {
            Reply::Fare { fare, .. } => Ok((Instant::now(), fare)),
            _ => Err(refused(out_of_turn())),
        };
        let (since, before) = fare(ask(&Request::Fare)?)?;
        let Reply::Idle(idle_load) = ask(&Request::Idle { millis: IDLE_WATCH_MS })? else {
            return Err(refused(out_of_turn()));
        };
        let (until, after) = fare(ask(&Request::Fare)?)?;
        let watched_s = until.duration_since(since).as_secs_f64();
        let packets_per_s = Rates::between(&before, &after, watched_s).packets;
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
            packets_per_s,
            round_trip,
            device,
            same_machine,
            same_netns: same_machine && description.netns == client.inode(),
            description: *description,
        })
    }

    /// Where the server listens.
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
        // Without `/proc` it cannot be told, and counts as other load.
        let ours = place::process().ok()?;
        (self.same_machine && ours.1 == namespace).then_some(pid)
    }

    /// Share of all its CPUs busy before the run, 0..1.
    pub fn idle_load(&self) -> f64 {
        self.idle_load
    }

    /// Packets a second that its machine took through the stack before the run.
    pub fn packets_per_s(&self) -> f64 {
        self.packets_per_s
    }

    /// CPUs that its threads may run on.
    pub fn cpus(&self) -> &[usize] {
        &self.description.cpus
    }

    /// Limits that the server puts on loads.
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

    /// Whether the control connection stands, as far as anybody knows.
    pub fn is_connected(&self) -> bool {
        self.lock().as_ref().is_some_and(|channel| channel.is_gone().is_none())
    }

    /// The boot of its kernel: one machine has one.
    pub(crate) fn boot(&self) -> &str {
        &self.description.boot
    }

    /// How its machine's own traffic fares, and the speed of its device, bits/s, where that says.
    ///
    /// # Errors
    /// When it does not say.
    pub(crate) fn fare(&self) -> Result<(Fare, Option<f64>), EngineError> {
        match self.ask(&Request::Fare)? {
            Reply::Fare { fare, link_bits_per_s } => Ok((fare, link_bits_per_s)),
            _ => Err(self.refused(out_of_turn())),
        }
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

    pub(super) fn refused(&self, message: String) -> EngineError {
        EngineError::Server { server: self.address, message }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request and its answer. A connection that failed is closed, so that
    /// the next load makes a new one.
    pub(super) fn ask(&self, request: &Request) -> Result<Reply, EngineError> {
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

    pub(super) fn done(&self, request: &Request) -> Result<(), EngineError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(self.refused(out_of_turn())),
        }
    }

    /// Makes sure of a session: a server that went away may be back.
    pub(super) fn reconnect(&self) -> Result<(), EngineError> {
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
        let mut channel = open(self.address, Service::Measure, self.token.as_ref(), &self.stop)?;
        let reason = match converse(&mut channel, &Request::Describe, &self.stop) {
            Ok(Reply::Described(now)) => {
                let then = &self.description;
                // Figures of another machine or device would be mixed with those before.
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
