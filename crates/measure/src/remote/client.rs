//! The client's side: a server on another machine, its loads and counters.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sys::netns::NetNs;

use channel::{Channel, ChannelError, RemoteError, Service, Token, open};

use super::conversation::{converse, out_of_turn};
use super::message::{Description, Observed, Reply, Request};
use super::{Limits, place, session};
use crate::sampler::{HostLoad, Rates};
use load::EngineError;
use results::{self, DeviceRecord};

/// Time per sample to wait for a lost server,
const RETURN_LIMIT: Duration = Duration::from_secs(3);
/// and the interval between attempts.
const RETURN_LOOK: Duration = Duration::from_millis(250);
/// Samples in a row without a server, after which it is given up.
const GIVEN_UP_AFTER: u32 = 3;
/// Number of round trips; the shortest counts.
const PINGS: usize = 5;
/// Time for which the server's idle machine is observed, ms.
const IDLE_WATCH_MS: u32 = 500;

/// A server on another machine, and the session with it.
#[derive(Debug)]
pub struct Remote {
    address: SocketAddr,
    token: Option<Token>,
    stop: Arc<AtomicBool>,
    /// `None` after a failure, until the next load.
    channel: Mutex<Option<Channel>>,
    /// Loads in a row that could not start because the server was gone.
    gone: AtomicU32,
    description: Description,
    idle_load: f64,
    packets_per_s: f64,
    round_trip: Duration,
    /// Client's device on the route to the server.
    device: DeviceRecord,
    same_machine: bool,
    same_netns: bool,
}

impl Remote {
    /// Name of the client's end in hops and figures.
    pub const CLIENT: &'static str = "client";
    /// Name of the server's end in hops and figures.
    pub const HOST: &'static str = session::HOST;

    /// Connects from `client`'s namespace and requests the server's description. Takes a little
    /// more than half a second.
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
        // The server is of the same protocol version, so another reply is a defect.
        let Reply::Described(description) = ask(&Request::Describe)? else {
            return Err(refused(out_of_turn()));
        };
        let load_of = |reply: Reply| match reply {
            Reply::HostLoad { load, .. } => Ok((Instant::now(), load)),
            _ => Err(refused(out_of_turn())),
        };
        // Two readings around the idle time give the machine's packet rate.
        let (since, before) = load_of(ask(&Request::HostLoad)?)?;
        // The server is of the same protocol version, so another reply is a defect.
        let Reply::Idle(idle_load) = ask(&Request::Idle { millis: IDLE_WATCH_MS })? else {
            return Err(refused(out_of_turn()));
        };
        let (until, after) = load_of(ask(&Request::HostLoad)?)?;
        let watched_s = until.duration_since(since).as_secs_f64();
        let packets_per_s = Rates::between(&before, &after, watched_s).packets;
        let mut round_trip = Duration::MAX;
        // The shortest round trip is the least disturbed.
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

    /// Address of the server's control socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Version of overlane on the server.
    pub fn overlane(&self) -> &str {
        &self.description.overlane
    }

    pub fn machine(&self) -> results::Machine {
        results::Machine {
            idle_load: self.idle_load,
            cpu_of_load: true,
            ..self.description.machine.clone()
        }
    }

    /// Whether both ends run on one kernel. CPU time then counts once.
    pub fn is_same_machine(&self) -> bool {
        self.same_machine
    }

    /// Whether both servers are on one machine.
    pub fn shares_machine_with(&self, other: &Remote) -> bool {
        self.description.boot == other.description.boot
    }

    /// Returns the PID of the server's process if it is visible in this `/proc`. Its CPU time
    /// belongs to the measurement.
    pub fn process_here(&self) -> Option<u32> {
        let (pid, namespace) = self.description.process;
        // Without `/proc` this is unknown, and the server counts as other load.
        let ours = place::process().ok()?;
        (self.same_machine && ours.1 == namespace).then_some(pid)
    }

    /// Share of all its CPUs busy before the run, 0..1.
    pub fn idle_load(&self) -> f64 {
        self.idle_load
    }

    /// Packets per second through its machine's network stack before the run.
    pub fn packets_per_s(&self) -> f64 {
        self.packets_per_s
    }

    /// CPUs available to its threads.
    pub fn cpus(&self) -> &[usize] {
        &self.description.cpus
    }

    /// Limits of the server for loads.
    pub fn limits(&self) -> &Limits {
        &self.description.limits
    }

    /// Shortest of several round trips of the control connection.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Devices on the path: the client's to the server, and the server's on the way back.
    pub fn devices(&self) -> [&DeviceRecord; 2] {
        [&self.device, &self.description.device]
    }

    /// Whether the server has been gone for `GIVEN_UP_AFTER` samples, so that the run gives up.
    pub fn is_given_up(&self) -> bool {
        self.gone.load(Ordering::Relaxed) >= GIVEN_UP_AFTER
    }

    /// Whether the control connection is open, as far as this end knows.
    pub fn is_connected(&self) -> bool {
        self.lock().as_ref().is_some_and(|channel| channel.is_gone().is_none())
    }

    /// Boot ID of its kernel, which identifies the machine.
    pub(crate) fn boot(&self) -> &str {
        &self.description.boot
    }

    /// Returns the counters of its machine's own traffic, and its device's speed, bits/s, if known.
    pub(crate) fn host_load(&self) -> Result<(HostLoad, Option<f64>), EngineError> {
        match self.ask(&Request::HostLoad)? {
            Reply::HostLoad { load, link_bits_per_s } => Ok((load, link_bits_per_s)),
            _ => Err(self.refused(out_of_turn())),
        }
    }

    /// Makes the server read its counters at the start of the measured interval.
    pub(crate) fn begin(&self) -> Result<(), EngineError> {
        self.done(&Request::Begin)
    }

    /// Returns the server's counter differences since [`begin`](Remote::begin).
    pub(crate) fn end(&self) -> Result<Observed, EngineError> {
        match self.ask(&Request::End)? {
            Reply::Observed(observed) => Ok(*observed),
            _ => Err(self.refused(out_of_turn())),
        }
    }

    /// Whether both ends share a network namespace, and thus its counters.
    pub(crate) fn is_same_netns(&self) -> bool {
        self.same_netns
    }

    pub(super) fn refused(&self, message: String) -> EngineError {
        EngineError::Server { server: self.address, message }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and returns the reply. A failed connection is closed, so that the next load
    /// opens a new one.
    pub(super) fn ask(&self, request: &Request) -> Result<Reply, EngineError> {
        let mut slot = self.lock();
        // An earlier error closed the connection; `reconnect` opens another one.
        let Some(channel) = slot.as_mut() else {
            let reason = "the control connection is closed".to_owned();
            return Err(EngineError::Gone { server: self.address, reason });
        };
        match converse(channel, request, &self.stop) {
            Ok(Reply::Refused(message)) => Err(self.refused(message)),
            Ok(reply) => Ok(reply),
            Err(error) => {
                // Close it: a late reply would be taken for the next request's.
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
            // The server is of the same protocol version, so another reply is a defect.
            _ => Err(self.refused(out_of_turn())),
        }
    }

    /// Ensures a session: a lost server may be back.
    pub(super) fn reconnect(&self) -> Result<(), EngineError> {
        {
            let mut slot = self.lock();
            // The connection is alive.
            if slot.as_ref().is_some_and(|channel| channel.is_gone().is_none()) {
                return Ok(());
            }
            // The old session is broken: drop it before opening a new one.
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
            // Give this sample up; the next one tries again.
            if begun.elapsed() >= RETURN_LIMIT {
                self.gone.fetch_add(1, Ordering::Relaxed);
                let reason = failed.to_string();
                return Err(EngineError::Gone { server: self.address, reason });
            }
            std::thread::sleep(RETURN_LOOK);
        }
    }

    /// Opens a new session with the same server, including its samplers.
    fn resume(&self) -> Result<Channel, RemoteError> {
        let mut channel = open(self.address, Service::Measure, self.token.as_ref(), &self.stop)?;
        let reason = match converse(&mut channel, &Request::Describe, &self.stop) {
            Ok(Reply::Described(now)) => {
                let then = &self.description;
                // Figures of another machine or device must not mix with earlier ones.
                if (&now.boot, now.netns, &now.device.device)
                    == (&then.boot, then.netns, &then.device.device)
                {
                    return Ok(channel);
                }
                "another machine, namespace or device now answers at this address".to_owned()
            }
            Ok(Reply::Refused(reason)) => reason,
            Ok(_) => out_of_turn(),
            // Ctrl-C is no failure of the server.
            Err(ChannelError::Ended) => return Err(RemoteError::Stopped),
            Err(error) => error.to_string(),
        };
        Err(RemoteError::Refused { server: self.address, reason })
    }
}
