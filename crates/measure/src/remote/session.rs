//! The server's side of a session: answers requests until the client closes, is silent for too
//! long, or violates the protocol.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel::message::{emit, parse};
use channel::{Channel, ChannelError, RateLimit};
use netstate::Netlink;
use probe::answering::Answering;
use probe::message::Ask;

use super::message::{CountedAt, Description, LoadAsked, MOST_TUNNELS, Observed, Reply, Request};
use super::place;
use super::shared::{Samplers, Shared};
use super::turns::Turn;
use crate::giving_way;
use crate::path_netns::PathNetns;
use crate::probes::{Probes, Reading};
use crate::sampler::{HostCounters, MachineSnapshot, link_speed};
use load::{End, Endpoint, EngineError};
use results::Machine;

/// Time limit of silence, after which the client has forgotten its session. Longer than a
/// sample of the same client's other path.
const SILENCE: Duration = Duration::from_secs(2 * 3600);
/// The same while the session has the sockets for probes, of which there is one set.
const PROBE_SILENCE: Duration = Duration::from_secs(30);
/// The same while settings of this machine are off for its search. Longer than a client sends one
/// batch.
const SWITCHED_SILENCE: Duration = Duration::from_secs(15);
/// Time limit of a session.
const SESSION_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Time for a load beyond warm-up and measurement: waiting for the other end at begin and end,
/// and draining.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// Maximum set-up limit of a load.
const SETUP_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time to observe an idle machine.
const IDLE_LIMIT: Duration = Duration::from_secs(2);
/// Rate limit, requests per second. A client sends about one per millisecond during a load.
const REQUESTS_PER_S: u32 = 5000;

/// Time that a request to start a load waits for its turn. Shorter than the client's time limit of
/// an answer.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// Name of this end, also in the client's results ([`super::Remote::HOST`]).
pub(super) const HOST: &str = "server";

/// A session after the handshake.
pub(super) struct Session<'a> {
    shared: &'a Shared,
    channel: Channel,
    client: SocketAddr,
    /// Local address that the client connected to. The flows' server listens there.
    local: SocketAddr,
    path: Option<Path>,
    load: Option<Running<'a>>,
    probe: Option<Answering<'a>>,
    /// Times that the client switched settings of this machine off.
    switches: u32,
    pace: RateLimit,
}

/// Samplers of this end.
struct Path {
    samplers: Arc<Samplers>,
    device: String,
    probes: Probes,
    before: Option<(Reading, MachineSnapshot)>,
    /// Opened at the first [`Request::HostLoad`].
    counters: Option<HostCounters>,
}

/// A running load, the only one of the server.
struct Running<'a> {
    endpoint: Endpoint,
    until: Instant,
    /// Whether counters are read at low priority.
    gives_way: bool,
    _turn: Turn<'a>,
}

impl<'a> Session<'a> {
    pub fn new(
        shared: &'a Shared,
        channel: Channel,
        client: SocketAddr,
        local: SocketAddr,
    ) -> Session<'a> {
        Session {
            shared,
            channel,
            client,
            local,
            path: None,
            load: None,
            probe: None,
            switches: 0,
            pace: RateLimit::new(REQUESTS_PER_S),
        }
    }

    /// Answers requests until the session ends, and returns the reason.
    pub fn serve(mut self) -> String {
        let reason = self.requests();
        match self.switches {
            0 => reason,
            count => format!(
                "{reason}; its probe switched settings of this machine off, {count} times (see \
                 overlane undo --list)"
            ),
        }
    }

    fn requests(&mut self) -> String {
        let begun = Instant::now();
        loop {
            let now = Instant::now();
            let load_until = self.load.as_ref().map(|load| load.until);
            let probes = self.probe.as_ref().is_some_and(Answering::is_open);
            let switched = self.probe.as_ref().is_some_and(Answering::is_switched);
            let until = limit(now, load_until, probes, switched).min(begun + SESSION_LIMIT);
            let stop = &self.shared.stop;
            let alive = || !stop.load(Ordering::Relaxed);
            let payload = match self.channel.receive(until.saturating_duration_since(now), &alive) {
                Ok(payload) => payload,
                // End the session: other clients cannot start a load while this one occupies the
                // server.
                Err(ChannelError::Silent(_)) if self.load.is_some() => {
                    return "its load exceeded the time limit".to_owned();
                }
                // Settings that it has switched are restored, and other clients can probe again; the
                // session goes on.
                Err(ChannelError::Silent(_)) if probes => {
                    self.probe = None;
                    continue;
                }
                Err(error) => return error.to_string(),
            };
            self.pace.keep();
            let (reply, last) = match parse::<Request>(&payload) {
                Ok(request) => (self.answer(request).unwrap_or_else(Reply::Refused), None),
                // The tag was valid, so this is a defect of an authenticated client.
                Err(error) => {
                    let reason = format!("invalid request: {error}");
                    (Reply::Refused(reason.clone()), Some(reason))
                }
            };
            if let Err(error) = self.channel.send(&emit(&reply)) {
                return error.to_string();
            }
            if let Some(reason) = last {
                return reason;
            }
        }
    }

    fn answer(&mut self, request: Request) -> Result<Reply, String> {
        if let Some(error) = self.load.as_ref().and_then(|load| load.endpoint.failure()) {
            // Discard the failed load, so that the next one may begin.
            self.load = None;
            return Err(error.to_string());
        }
        match request {
            Request::Ping => Ok(Reply::Done),
            Request::Describe => self.describe(),
            Request::Tunnels => self.tunnels(),
            Request::Idle { millis } => {
                let watch = Duration::from_millis(millis.into()).min(IDLE_LIMIT);
                let path = self.path.as_ref().ok_or("idle before describe")?;
                // Another client's load is not the background of this one.
                let is_quiet = || !self.shared.turns.is_taken();
                let idle = path.samplers.machine.idle_load(watch, is_quiet);
                idle.map(Reply::Idle).map_err(|e| e.to_string())
            }
            Request::HostLoad => self.host_load(),
            Request::Start(asked) => self.start(asked),
            Request::WaitsFor => Ok(Reply::WaitsFor(self.endpoint()?.waits_for())),
            Request::TurnTo(phase) => {
                self.endpoint()?.turn_to(phase);
                Ok(Reply::Done)
            }
            Request::Count => Ok(Reply::Counted(CountedAt::of(&self.endpoint()?.counted()))),
            Request::Begin => self.begin(),
            Request::End => self.end(),
            Request::Finish => {
                let load = self.load.take().ok_or_else(no_load)?;
                load.endpoint.finish_serving().map(Reply::Finished).map_err(|e| e.to_string())
            }
            Request::Probe(ask) => self.probe(ask),
        }
    }

    fn probe(&mut self, ask: Ask) -> Result<Reply, String> {
        let (shared, client, local) = (self.shared, self.client.ip(), self.local.ip());
        let probe =
            self.probe.get_or_insert_with(|| Answering::new(&shared.answerer, client, local));
        self.switches += u32::from(matches!(ask, Ask::SwitchOff(_)));
        // The kernel's state is read in the server's namespace, which sessions never leave.
        probe.answer(ask).map(|answer| Reply::Probe(Box::new(answer)))
    }

    fn endpoint(&self) -> Result<&Endpoint, String> {
        self.load.as_ref().map(|load| &load.endpoint).ok_or_else(no_load)
    }

    fn describe(&mut self) -> Result<Reply, String> {
        let shared = self.shared;
        let device = place::device_to(&shared.netns, self.client.ip(), HOST)?;
        let here = PathNetns { name: HOST.to_owned(), netns: Arc::clone(&shared.netns) };
        let samplers = shared.samplers().map_err(|e| e.to_string())?;
        let mut probes = Probes::open(&[here]).map_err(|e| e.to_string())?;
        if let Some(drops) = &samplers.drops {
            probes = probes.with_drops(Arc::clone(drops)).map_err(|e| e.to_string())?;
        }
        let machine = samplers.machine.record(shared.privileges, 0.0);
        let (before, counters) = (None, None);
        self.path =
            Some(Path { samplers, device: device.device.clone(), probes, before, counters });
        Ok(Reply::Described(Box::new(Description {
            overlane: env!("CARGO_PKG_VERSION").to_owned(),
            // Clients of older versions refuse a field that they do not know.
            machine: Machine { cpu_of_load: false, ..machine.map_err(|e| e.to_string())? },
            boot: place::boot()?,
            process: place::process()?,
            netns: shared.netns.inode(),
            cpus: sys::affinity::of_this_thread().map_err(|e| e.to_string())?,
            device,
            limits: shared.limits,
        })))
    }

    fn tunnels(&self) -> Result<Reply, String> {
        let links = Netlink::open_in(&self.shared.netns).and_then(|netlink| netlink.links());
        let mut links = links.map_err(|e| e.to_string())?;
        links.retain(|link| link.vxlan.is_some());
        links.truncate(MOST_TUNNELS);
        Ok(Reply::Tunnels(links))
    }

    fn host_load(&mut self) -> Result<Reply, String> {
        let path = self.path.as_mut().ok_or("host load before describe")?;
        let (device, counters) =
            (&path.device, path.counters.get_or_insert_with(HostCounters::open));
        // Clients ask for this to give this machine's own traffic priority.
        let (load, link_bits_per_s) =
            giving_way::read(true, || Ok((counters.host_load(), link_speed(device))))?;
        Ok(Reply::HostLoad { load, link_bits_per_s })
    }

    fn start(&mut self, asked: LoadAsked) -> Result<Reply, String> {
        // An abandoned load makes room for the next one.
        self.load = None;
        let load = asked.load()?;
        load.validate_at(End::Server).map_err(|e| e.to_string())?;
        self.shared.limits.check(&load)?;
        // A longer limit would keep the server from other clients.
        if load.setup_limit > SETUP_LIMIT {
            return Err(format!("set-up limit of {:?}: at most {SETUP_LIMIT:?}", load.setup_limit));
        }
        // Two loads at a time would disturb each other.
        let Some(turn) = self.shared.turns.take(TURN_LIMIT, &self.shared.stop) else {
            return Ok(Reply::Busy);
        };
        let token = rand::random();
        let mut listen = self.local;
        listen.set_port(self.shared.data_port);
        let endpoint =
            Endpoint::server(&load, &self.shared.netns, listen, token, Some(self.client.ip()))
                .map_err(|e: EngineError| e.to_string())?;
        let length = load.warmup + load.duration + load.setup_limit * 2 + LOAD_GRACE;
        let (until, gives_way) = (Instant::now() + length, !load.rest.is_zero());
        self.load = Some(Running { endpoint, until, gives_way, _turn: turn });
        Ok(Reply::Started { port: self.shared.data_port, token })
    }

    fn gives_way(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.gives_way)
    }

    fn begin(&mut self) -> Result<Reply, String> {
        let gives_way = self.gives_way();
        let path = self.path.as_mut().ok_or("begin before describe")?;
        let (probes, machine) = (&path.probes, &path.samplers.machine);
        path.before = Some(giving_way::read(gives_way, || {
            let reading = probes.begin().map_err(|e| e.to_string())?;
            Ok((reading, machine.begin().map_err(|e| e.to_string())?))
        })?);
        Ok(Reply::Done)
    }

    fn end(&mut self) -> Result<Reply, String> {
        let gives_way = self.gives_way();
        let path = self.path.as_mut().ok_or("end before describe")?;
        let before = path.before.take().ok_or("end before begin")?;
        let (probes, machine) = (&path.probes, &path.samplers.machine);
        let (machine, after) = giving_way::read(gives_way, || {
            let machine = machine.end().map_err(|e| e.to_string())?;
            Ok((machine, probes.end().map_err(|e| e.to_string())?))
        })?;
        let observed = path.probes.difference(&before.0, &after);
        // A missing device has counted nothing, so the client's proof of the path fails and names
        // it.
        let device = observed.device(HOST, &path.device).copied().unwrap_or_default();
        let namespace = observed.namespaces.into_iter().next().unwrap_or_default();
        Ok(Reply::Observed(Box::new(Observed {
            machine: path.samplers.machine.difference(&before.1, &machine),
            namespace,
            device,
            drops: observed.drops.into_iter().map(|(_, dropped)| dropped).collect(),
        })))
    }
}

/// Returns the time at which a session without a request from its client gives up what it holds.
fn limit(now: Instant, load_until: Option<Instant>, probes: bool, switched: bool) -> Instant {
    let silence = match (switched, probes) {
        (true, _) => SWITCHED_SILENCE,
        (false, true) => PROBE_SILENCE,
        (false, false) => SILENCE,
    };
    let until = now + silence;
    // A load does not keep settings switched.
    load_until.map_or(until, |load| if switched { load.min(until) } else { load })
}

fn no_load() -> String {
    "no load is running".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_client_keeps_neither_the_load_nor_sockets_nor_settings() {
        let now = Instant::now();
        assert_eq!(limit(now, None, false, false), now + SILENCE);
        assert_eq!(limit(now, None, true, false), now + PROBE_SILENCE);
        assert_eq!(limit(now, None, true, true), now + SWITCHED_SILENCE);
        let until = now + Duration::from_secs(3);
        assert_eq!(limit(now, Some(until), true, false), until);
        assert_eq!(limit(now, Some(until), true, true), until);
        let late = now + SILENCE;
        assert_eq!(limit(now, Some(late), true, true), now + SWITCHED_SILENCE);
    }
}
