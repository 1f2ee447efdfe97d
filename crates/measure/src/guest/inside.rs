//! Inside a guest: serves loads to the other guest, or runs them, on request.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use load::{Between, Load, MeasuredRecord, Watch};
use results::{PathProbe, Privileges};
use sys::netns::NetNs;

use super::channel::{self, ChannelError};
use super::message::{FromGuest, Ran, Run, Seen, ToGuest};
use crate::confirmed_probe::of_server;
use crate::path_netns::PathNetns;
use crate::probes::{Probes, Reading};
use crate::remote::message::Observed;
use crate::remote::{Limits, Remote, Server, Token, device_to};
use crate::sampler::{Machine, MachineSnapshot};

/// Reason why a guest ends early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The control channel cannot be read or written.
    #[error("{0}")]
    Channel(String),
    /// Its own namespace cannot be opened, or a thread cannot be created.
    #[error(transparent)]
    System(#[from] sys::Error),
}

/// Executes requests from `port` until its other end is closed.
pub fn serve(port: File, name: &str) -> Result<(), ServeError> {
    let again = |e: std::io::Error| sys::Error::io("dup", "control port", &e);
    let mut incoming = port.try_clone().map_err(again)?;
    let outgoing = Mutex::new(port);
    let stop = Arc::new(AtomicBool::new(false));
    let (to, orders) = channel();
    let stopping = Arc::clone(&stop);
    let reader = std::thread::Builder::new().name("orders".into()).spawn(move || {
        loop {
            match channel::read(&mut incoming) {
                Ok(ToGuest::Stop) => stopping.store(true, Ordering::Relaxed),
                Ok(order) => {
                    // Reset the flag here, so that a Stop right after it is not lost.
                    if matches!(order, ToGuest::Run(_) | ToGuest::Probe { .. }) {
                        stopping.store(false, Ordering::Relaxed);
                    }
                    if to.send(order).is_err() {
                        return Ok(());
                    }
                }
                // The host is gone, or has ended the measurement: the guest powers off.
                Err(ChannelError::Closed) => {
                    stopping.store(true, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => {
                    stopping.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    });
    let reader = reader.map_err(|e| sys::Error::io("clone", "thread of orders", &e))?;
    let netns = Arc::new(NetNs::current()?);
    let mut guest = Inside { name, netns, outgoing, orders, stop, remote: None };
    // The reader owns the sender, so this ends with the reader.
    while let Ok(order) = guest.orders.recv() {
        let answer = match order {
            ToGuest::Serve { listen, data_port, token } => {
                listen_at(listen, data_port, &token).map(|()| FromGuest::Serving)
            }
            ToGuest::Run(run) => guest.run(*run).map(|ran| FromGuest::Ran(Box::new(ran))),
            ToGuest::Probe { server, token } => {
                guest.probe(server, &token).map(|probed| FromGuest::Probed(Box::new(probed)))
            }
            // Belongs to a load that has failed meanwhile.
            ToGuest::Go | ToGuest::Stop => continue,
        };
        guest.say(&answer.unwrap_or_else(FromGuest::Failed)).map_err(ServeError::Channel)?;
    }
    match reader.join() {
        Ok(Err(error)) => Err(ServeError::Channel(error.to_string())),
        // A panic has already been printed.
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

/// Starts a server that runs until the guest ends.
fn listen_at(listen: SocketAddr, data_port: u16, token: &str) -> Result<(), String> {
    let token = Token::of(token).ok_or("the token is too short")?;
    let stop = Arc::new(AtomicBool::new(false));
    let (token, limits) = (Some(token), Limits::MOST);
    let server = Server::bind(listen, data_port, token, limits, Privileges::Root, None, stop)
        .map_err(|error| error.to_string())?;
    let serving = move || {
        if let Err(error) = server.run(Arc::new(|_| ())) {
            tracing::error!(%error, "the server has ended");
        }
    };
    let thread = std::thread::Builder::new().name("server".into()).spawn(serving);
    thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
}

struct Inside<'a> {
    name: &'a str,
    netns: Arc<NetNs>,
    outgoing: Mutex<File>,
    orders: Receiver<ToGuest>,
    stop: Arc<AtomicBool>,
    /// The other guest, since the first load.
    remote: Option<Remote>,
}

impl Inside<'_> {
    fn say(&self, message: &FromGuest) -> Result<(), String> {
        let mut port = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        channel::write(&mut *port, message).map_err(|error| error.to_string())
    }

    fn run(&mut self, run: Run) -> Result<Ran, String> {
        let Run { load, server, token } = run;
        let load = load.load()?;
        if load.ecn {
            // The lab's guests run for one test, so the value need not be restored.
            std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1")
                .map_err(|error| format!("net.ipv4.tcp_ecn: {error}"))?;
        }
        if self.remote.as_ref().is_none_or(|remote| remote.address() != server) {
            let token = Token::of(&token).ok_or("the token is too short")?;
            let stop = Arc::clone(&self.stop);
            let remote = Remote::connect(server, Some(token), &self.netns, stop);
            self.remote = Some(remote.map_err(|error| error.to_string())?);
        }
        let remote = self.remote.as_ref().ok_or("no server")?;
        self.measure(remote, &load)
    }

    /// Probes the path to the other guest's server.
    fn probe(&self, server: SocketAddr, token: &str) -> Result<PathProbe, String> {
        let token = Token::of(token).ok_or("the token is too short")?;
        of_server(server, Some(&token), &self.stop)
    }

    fn measure(&self, remote: &Remote, load: &Load) -> Result<Ran, String> {
        let place = PathNetns { name: self.name.to_owned(), netns: Arc::clone(&self.netns) };
        let device = device_to(&self.netns, remote.address().ip(), self.name)?.device;
        let probes = Probes::open(&[place]).map_err(|error| error.to_string())?;
        // No exact clock: the host's clock counts the guests' CPU time.
        let machine = Machine::open(false).map_err(|error| error.to_string())?;
        let (probes, machine) = (&probes, &machine);
        let mut probe = IntervalProbe {
            guest: self,
            remote,
            probes,
            machine,
            before: None,
            seen: None,
            error: None,
        };
        let between = Between::Away { client: &self.netns, server: remote };
        let measured = load::run(load, between, &mut probe, &self.stop);
        let measured = measured.map_err(|error| error.to_string())?;
        let IntervalProbe { seen, error, .. } = probe;
        let (client, server) =
            seen.ok_or_else(|| error.unwrap_or_else(|| "the engine skipped the interval".into()))?;
        let [_, far] = remote.devices();
        Ok(Ran {
            measured: MeasuredRecord::of(&measured),
            client: Seen { device, observed: client },
            server: Seen { device: far.device.clone(), observed: server },
        })
    }
}

/// Reads the guests' counters around the interval, and notifies the host.
struct IntervalProbe<'a> {
    guest: &'a Inside<'a>,
    remote: &'a Remote,
    probes: &'a Probes,
    machine: &'a Machine,
    before: Option<(Reading, MachineSnapshot)>,
    /// Differences of the client's and the server's guest.
    seen: Option<(Observed, Observed)>,
    error: Option<String>,
}

impl IntervalProbe<'_> {
    /// Makes the host read its counters, and waits for it.
    fn tell(&self, message: &FromGuest) -> Result<(), String> {
        self.guest.say(message)?;
        match self.guest.orders.recv() {
            Ok(ToGuest::Go) => Ok(()),
            // Another order within an interval would make its counters wrong.
            Ok(_) => Err("expected Go, got another message".to_owned()),
            Err(_) => Err("its control channel is closed".to_owned()),
        }
    }

    fn begun(&mut self) -> Result<(), String> {
        // The remote end is read first here and last at the end.
        self.remote.begin().map_err(|error| error.to_string())?;
        let reading = self.probes.begin().map_err(|error| error.to_string())?;
        self.before = Some((reading, self.machine.begin().map_err(|error| error.to_string())?));
        self.tell(&FromGuest::Begin)
    }

    fn ended(&mut self) -> Result<(), String> {
        self.tell(&FromGuest::End)?;
        let machine = self.machine.end().map_err(|error| error.to_string())?;
        let after = self.probes.end().map_err(|error| error.to_string())?;
        let server = self.remote.end().map_err(|error| error.to_string())?;
        let before = self.before.take().ok_or("the interval has not begun")?;
        let observed = self.probes.difference(&before.0, &after);
        let [near, _] = self.remote.devices();
        let device = observed.device(self.guest.name, &near.device).copied().unwrap_or_default();
        let client = Observed {
            machine: self.machine.difference(&before.1, &machine),
            device,
            namespace: observed.namespaces.into_iter().next().unwrap_or_default(),
            drops: Vec::new(),
        };
        self.seen = Some((client, server));
        Ok(())
    }
}

impl Watch for IntervalProbe<'_> {
    fn begin(&mut self) {
        if let Err(error) = self.begun() {
            self.error.get_or_insert(error);
        }
    }

    fn end(&mut self) {
        if let Err(error) = self.ended() {
            self.error.get_or_insert(error);
        }
    }
}
