//! The guests as this machine sees them: receives their messages within time limits.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use load::{EngineError, Load, LoadRecord, Measured, Watch, Within};
use results::{GuestSample, PathProbe};

use super::channel::{Channel, ChannelError};
use super::message::{FromGuest, Ran, Run, Seen, ToGuest};
use crate::observed::Observed;

/// Time limit for a guest to listen. It takes a second or two in software emulation.
const SERVE_LIMIT: Duration = Duration::from_secs(60);
/// Time for a load beyond warm-up, measurement and path set-up: connecting to the other guest,
/// draining, reading counters, all in software emulation.
const LOAD_GRACE: Duration = Duration::from_secs(30);
/// Time limit for a probe, which is repeated if it finds damage, in software emulation.
const PROBE_LIMIT: Duration = Duration::from_secs(120);
/// Most findings of a probe, and most reasons why packets were not tested.
const MOST_TEXTS: usize = 32;
/// Longest of these texts, bytes.
const MOST_TEXT: usize = 1024;
/// Time limit for a guest to end a load.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// A running guest, and this machine's end of its control channel.
#[derive(Debug)]
pub struct GuestEnd {
    /// Name in hops and figures.
    pub name: String,
    /// Connected to the guest's port; nothing was sent yet.
    pub stream: UnixStream,
}

#[derive(Debug)]
struct Guest {
    name: String,
    state: Mutex<ChannelState>,
}

#[derive(Debug)]
struct ChannelState {
    channel: Channel,
    /// Reason why it is no longer used.
    lost: Option<String>,
}

/// Two guests that run loads over the path between them.
#[derive(Debug)]
pub struct Guests {
    client: Guest,
    server: Guest,
    /// Control address of the server, as the client reaches it.
    target: SocketAddr,
    token: String,
    seen: Mutex<Option<[Seen; 2]>>,
}

impl Guest {
    fn new(end: GuestEnd) -> Result<Guest, EngineError> {
        let GuestEnd { name, stream } = end;
        match Channel::new(stream) {
            Ok(channel) => {
                Ok(Guest { name, state: Mutex::new(ChannelState { channel, lost: None }) })
            }
            Err(error) => Err(EngineError::Guest { guest: name, message: error.to_string() }),
        }
    }

    fn failed(&self, message: impl Into<String>) -> EngineError {
        EngineError::Guest { guest: self.name.clone(), message: message.into() }
    }

    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the guest as lost: later messages on the broken channel could belong to another load.
    fn lose(&self, state: &mut ChannelState, error: &ChannelError) -> EngineError {
        let reason = match error {
            // QEMU closes the port when it ends.
            ChannelError::Closed => "QEMU or the guest has ended".to_owned(),
            error => error.to_string(),
        };
        state.lost = Some(reason.clone());
        self.failed(reason)
    }

    /// Fails if the guest is lost.
    fn check(&self, state: &mut ChannelState) -> Result<(), EngineError> {
        // A guest that has ended is not waited for.
        if state.lost.is_none() && state.channel.is_closed() {
            return Err(self.lose(state, &ChannelError::Closed));
        }
        state.lost.as_ref().map_or(Ok(()), |reason| Err(self.failed(reason.clone())))
    }
}

impl Guests {
    /// Makes the server's guest listen at `listen`, and for flows at the data port. The client
    /// reaches it at `target`.
    ///
    /// # Errors
    /// [`EngineError::Guest`], with the guest's message or the observation.
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
                Ok(other) => return Err(server.failed(format!("unexpected reply: {other:?}"))),
                Err(error) => return Err(server.lose(&mut state, &error)),
            }
        }
        Ok(Guests { client, server, target, token, seen: Mutex::new(None) })
    }

    /// Names of the client's and the server's guest.
    pub fn names(&self) -> [&str; 2] {
        [&self.client.name, &self.server.name]
    }

    /// Makes the client's guest probe the path to the other one.
    ///
    /// # Errors
    /// [`EngineError::Guest`], with the guest's message or the observation;
    /// [`EngineError::Stopped`].
    pub fn probe(&self, stop: &AtomicBool) -> Result<PathProbe, EngineError> {
        // Fail early: without the server the probe would wait for its time limit.
        self.server.check(&mut self.server.lock())?;
        let mut state = self.client.lock();
        self.client.check(&mut state)?;
        let asked = ToGuest::Probe { server: self.target, token: self.token.clone() };
        if let Err(error) = state.channel.send(&asked) {
            return Err(self.client.lose(&mut state, &error));
        }
        let go_on = || !stop.load(Ordering::Relaxed);
        match state.channel.receive(Instant::now() + PROBE_LIMIT, &go_on) {
            Ok(FromGuest::Probed(probed)) => Ok(bounded(*probed)),
            Ok(FromGuest::Failed(reason)) => Err(self.client.failed(reason)),
            Ok(_) => {
                let error = ChannelError::Form("unexpected reply to a probe".to_owned());
                Err(self.client.lose(&mut state, &error))
            }
            Err(ChannelError::Ended) => {
                self.end(&mut state);
                Err(EngineError::Stopped)
            }
            Err(error) => Err(self.client.lose(&mut state, &error)),
        }
    }

    /// Takes the counter differences of the two guests for the last load.
    fn take_seen(&self) -> Option<[Seen; 2]> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Follows a load until it has run.
    fn follow(
        &self,
        state: &mut ChannelState,
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
                Ok(FromGuest::Serving | FromGuest::Probed(_)) => {
                    // Not a reply to Run: the guest is out of step.
                    let error = ChannelError::Form("unexpected reply to a load".to_owned());
                    return Err(self.client.lose(state, &error));
                }
                // End the load in the guest, too, before the next request.
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

    /// Makes the guest end its load, so that its next reply belongs to the next load.
    fn end(&self, state: &mut ChannelState) {
        let until = Instant::now() + STOP_LIMIT;
        let mut stopped = state.channel.send(&ToGuest::Stop);
        while stopped.is_ok() {
            stopped = match state.channel.receive(until, &|| true) {
                // Read no counters: the load is discarded.
                Ok(FromGuest::Begin | FromGuest::End) => state.channel.send(&ToGuest::Go),
                Ok(_) => return,
                Err(error) => Err(error),
            };
        }
        // The guest does not react to Stop: do not use it again.
        if let Err(error) = stopped {
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
        let load_record = LoadRecord::of(load)?;
        // Fail early: without the server the load would wait for its time limit.
        self.server.check(&mut self.server.lock())?;
        let mut state = self.client.lock();
        self.client.check(&mut state)?;
        let run = Run { load: load_record, server: self.target, token: self.token.clone() };
        let deadline =
            Instant::now() + load.warmup + load.duration + load.setup_limit * 3 + LOAD_GRACE;
        if let Err(error) = state.channel.send(&ToGuest::Run(Box::new(run))) {
            return Err(self.client.lose(&mut state, &error));
        }
        let Ran { measured, client, server } = *self.follow(&mut state, deadline, watch, stop)?;
        let measured = measured.measured().map_err(|reason| self.client.failed(reason))?;
        // The guest is not trusted: check that it ran the requested load.
        if measured.workload != load.workload {
            let reason = format!("it ran {} instead of {}", measured.workload, load.workload);
            return Err(self.client.failed(reason));
        }
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some([client, server]);
        Ok(measured)
    }
}

/// Limits what a guest, which is not trusted, says about its probe.
fn bounded(mut probed: PathProbe) -> PathProbe {
    probed.seconds = probed.seconds.max(0.0);
    for texts in [&mut probed.damage, &mut probed.untested] {
        texts.truncate(MOST_TEXTS);
        for text in texts {
            let end = (0..=MOST_TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text.truncate(end);
        }
    }
    probed
}

/// Adds the guests' counters to those of this machine, and returns the guests' CPU time.
pub(crate) fn join(guests: &Guests, observed: &mut Observed) -> Vec<GuestSample> {
    // No load has run since the last call.
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
