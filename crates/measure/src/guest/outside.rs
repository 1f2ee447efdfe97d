//! The guests as this machine sees them: told what to run, waited for within limits.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use load::{EngineError, Load, LoadTold, Measured, Watch, Within};
use results::GuestSample;

use super::channel::{Channel, ChannelError};
use super::message::{FromGuest, Ran, Run, Seen, ToGuest};
use crate::observed::Observed;

/// How long a guest may take to listen. In software emulation it takes a second or two.
const SERVE_LIMIT: Duration = Duration::from_secs(60);
/// What a load may take beside warming up, measuring and waiting for its path: connecting
/// to the other guest, draining, reading counters, all in software emulation.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// How long a guest may take to end a load.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// A guest that has started, and this machine's end of its control channel.
#[derive(Debug)]
pub struct GuestEnd {
    /// Name, as hops and figures have it.
    pub name: String,
    /// Connected to the guest's port; nothing was sent on it.
    pub stream: UnixStream,
}

#[derive(Debug)]
struct Guest {
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    channel: Channel,
    /// Why nothing more is asked of it.
    lost: Option<String>,
}

/// Two guests that run loads over the path between them.
#[derive(Debug)]
pub struct Guests {
    client: Guest,
    server: Guest,
    /// Control connection of the server, as the client reaches it.
    target: SocketAddr,
    token: String,
    seen: Mutex<Option<[Seen; 2]>>,
}

impl Guest {
    fn new(end: GuestEnd) -> Result<Guest, EngineError> {
        let GuestEnd { name, stream } = end;
        match Channel::new(stream) {
            Ok(channel) => Ok(Guest { name, state: Mutex::new(State { channel, lost: None }) }),
            Err(error) => Err(EngineError::Guest { guest: name, message: error.to_string() }),
        }
    }

    fn failed(&self, message: impl Into<String>) -> EngineError {
        EngineError::Guest { guest: self.name.clone(), message: message.into() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel broke: what comes next on it would be of another load.
    fn lose(&self, state: &mut State, error: &ChannelError) -> EngineError {
        let reason = match error {
            ChannelError::Closed => "QEMU has ended, or the guest has".to_owned(),
            error => error.to_string(),
        };
        state.lost = Some(reason.clone());
        self.failed(reason)
    }

    /// An error where nothing more is asked of it.
    fn check(&self, state: &mut State) -> Result<(), EngineError> {
        if state.lost.is_none() && state.channel.is_closed() {
            return Err(self.lose(state, &ChannelError::Closed));
        }
        state.lost.as_ref().map_or(Ok(()), |reason| Err(self.failed(reason.clone())))
    }
}

impl Guests {
    /// Has the server's guest listen at `listen`, and for flows at the next port. The client
    /// reaches it at `target`.
    ///
    /// # Errors
    /// [`EngineError::Guest`], with what the guest says or what was seen of it.
    pub fn open(
        client: GuestEnd,
        server: GuestEnd,
        listen: SocketAddr,
        data_port: u16,
        target: SocketAddr,
    ) -> Result<Guests, EngineError> {
        let (client, server) = (Guest::new(client)?, Guest::new(server)?);
        let token: [u128; 2] = [rand::random(), rand::random()];
        let token = token.map(|half| format!("{half:032x}")).concat();
        {
            let mut state = server.lock();
            let asked = ToGuest::Serve { listen, data_port, token: token.clone() };
            let answer = state
                .channel
                .send(&asked)
                .and_then(|()| state.channel.receive(Instant::now() + SERVE_LIMIT, &|| true));
            match answer {
                Ok(FromGuest::Serving) => {}
                Ok(FromGuest::Failed(reason)) => return Err(server.failed(reason)),
                Ok(other) => return Err(server.failed(format!("answers out of turn: {other:?}"))),
                Err(error) => return Err(server.lose(&mut state, &error)),
            }
        }
        Ok(Guests { client, server, target, token, seen: Mutex::new(None) })
    }

    /// Names of the client's and the server's guest.
    pub fn names(&self) -> [&str; 2] {
        [&self.client.name, &self.server.name]
    }

    /// What happened in the two guests in the load that has just run, once.
    fn take_seen(&self) -> Option<[Seen; 2]> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Until the load has run.
    fn follow(
        &self,
        state: &mut State,
        deadline: Instant,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Box<Ran>, EngineError> {
        let go_on = || !stop.load(Ordering::Relaxed);
        loop {
            match state.channel.receive(deadline, &go_on) {
                Ok(FromGuest::Begin) => watch.begin(),
                Ok(FromGuest::End) => watch.end(),
                Ok(FromGuest::Ran(ran)) => return Ok(ran),
                Ok(FromGuest::Failed(reason)) => return Err(self.client.failed(reason)),
                Ok(FromGuest::Serving) => {
                    let error = ChannelError::Form("serving, out of turn".to_owned());
                    return Err(self.client.lose(state, &error));
                }
                Err(ChannelError::Ended) => {
                    self.end(state);
                    return Err(EngineError::Stopped);
                }
                Err(error) => return Err(self.client.lose(state, &error)),
            }
            if let Err(error) = state.channel.send(&ToGuest::Go) {
                return Err(self.client.lose(state, &error));
            }
        }
    }

    /// Has the guest end its load, so that its next answer is of the next.
    fn end(&self, state: &mut State) {
        let until = Instant::now() + STOP_LIMIT;
        let mut told = state.channel.send(&ToGuest::Stop);
        while told.is_ok() {
            told = match state.channel.receive(until, &|| true) {
                // Without reading any counter: the load is thrown away.
                Ok(FromGuest::Begin | FromGuest::End) => state.channel.send(&ToGuest::Go),
                Ok(_) => return,
                Err(error) => Err(error),
            };
        }
        if let Err(error) = told {
            self.client.lose(state, &error);
        }
    }
}

impl Within for Guests {
    fn run(
        &self,
        load: &Load,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Measured, EngineError> {
        let load_told = LoadTold::of(load)?;
        self.server.check(&mut self.server.lock())?;
        let mut state = self.client.lock();
        self.client.check(&mut state)?;
        let run = Run { load: load_told, server: self.target, token: self.token.clone() };
        let deadline =
            Instant::now() + load.warmup + load.duration + load.setup_limit * 3 + LOAD_GRACE;
        if let Err(error) = state.channel.send(&ToGuest::Run(Box::new(run))) {
            return Err(self.client.lose(&mut state, &error));
        }
        let Ran { measured, client, server } = *self.follow(&mut state, deadline, watch, stop)?;
        let measured = measured.measured().map_err(|reason| self.client.failed(reason))?;
        if measured.workload != load.workload {
            let reason = format!("ran {} in place of {}", measured.workload, load.workload);
            return Err(self.client.failed(reason));
        }
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some([client, server]);
        Ok(measured)
    }
}

/// Puts what the guests counted beside what was counted here; their CPU time.
pub(crate) fn join(guests: &Guests, observed: &mut Observed) -> Vec<GuestSample> {
    let Some(seen) = guests.take_seen() else { return Vec::new() };
    let named = guests.names().into_iter().zip(seen);
    let joined = named.map(|(name, Seen { device, observed: there })| {
        observed.devices.insert(name.to_owned(), [(device, there.device)].into());
        let mut namespace = there.namespace;
        name.clone_into(&mut namespace.label);
        observed.namespaces.push(namespace);
        observed.drops.extend(there.drops.into_iter().map(|dropped| (name.to_owned(), dropped)));
        GuestSample {
            name: name.to_owned(),
            cpu: there.machine.cpu,
            seconds: there.machine.seconds,
        }
    });
    joined.collect()
}
