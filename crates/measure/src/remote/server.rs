//! The server: listens, lets in who knows the token, gives each a [`Session`].

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::netns::NetNs;

use super::channel::{self, Channel, Side, TICK};
use super::event::Event;
use super::gate::{Admitted, Gate, Outcome};
use super::message::{Reply, emit};
use super::session::Session;
use super::shared::Shared;
use super::{Limits, Token};
use crate::sampler::SamplerError;
use results::{CpuClock, Privileges};

/// Connections accepted before those in their handshake are listened to again: one that
/// answers at once is heard before a flood has made it the oldest.
const ACCEPTED_AT_ONCE: usize = 8;
/// Enough for a session's thread: what is large is on the heap.
const STACK_BYTES: usize = 512 * 1024;

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
    shared: Arc<Shared>,
    loads_programs: bool,
}

/// A server that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Others could reach it and there is no token.
    #[error(
        "{0} can be reached from other machines: a token is needed (--token FILE), \
         or an address of the loopback device"
    )]
    TokenNeeded(IpAddr),
    /// No room for the data port.
    #[error("port {0}: control and data need two ports, 1 to 65535, and two different ones")]
    Ports(u16),
    /// It cannot listen, or its namespace not be read.
    #[error(transparent)]
    System(#[from] sys::Error),
    /// The machine cannot be sampled.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
}

impl Server {
    /// Listens on `bind` for control connections; flows come to `data_port` of
    /// the address that the client has connected to.
    ///
    /// # Errors
    /// [`ServerError`]: without a token on any other address than loopback; an
    /// address or port that cannot be had.
    pub fn bind(
        bind: SocketAddr,
        data_port: u16,
        token: Option<Token>,
        limits: Limits,
        privileges: Privileges,
        stop: Arc<AtomicBool>,
    ) -> Result<Server, ServerError> {
        if token.is_none() && !bind.ip().to_canonical().is_loopback() {
            return Err(ServerError::TokenNeeded(bind.ip()));
        }
        if data_port == 0 || data_port == bind.port() {
            return Err(ServerError::Ports(data_port));
        }
        let listener = sys::tcp::listen(bind, &channel::OPTIONS)?;
        let local = listener
            .local_addr()
            .map_err(|e| sys::Error::io("getsockname", format!("TCP {bind}"), &e))?;
        let shared = Shared {
            token,
            limits,
            data_port,
            netns: Arc::new(NetNs::current()?),
            samplers: Mutex::new(Weak::new()),
            privileges,
            busy: AtomicBool::new(false),
            stop,
            sessions: AtomicU32::new(0),
            refusals: Mutex::default(),
        };
        // What the machine does not allow is said now, not to the first client.
        let samplers = shared.samplers()?;
        let loads_programs =
            samplers.drops.is_some() || samplers.machine.clock() == CpuClock::Exact;
        drop(samplers);
        Ok(Server { listener, local, shared: Arc::new(shared), loads_programs })
    }

    /// Whether sessions will load BPF programs: those of the exact CPU clock, or those that
    /// tell why packets were dropped. Where the kernel refused both just now, they do not.
    pub fn loads_programs(&self) -> bool {
        self.loads_programs
    }

    /// Address and port of the control socket.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Serves until its stop flag is set, then ends every session. `tell` is
    /// called from the sessions' threads.
    ///
    /// # Errors
    /// When it cannot listen any more.
    pub fn run(&self, tell: Arc<dyn Fn(Event) + Send + Sync>) -> Result<(), ServerError> {
        let failed = |operation, error: &std::io::Error| {
            sys::Error::io(operation, format!("TCP {}", self.local), error)
        };
        self.listener.set_nonblocking(true).map_err(|e| failed("fcntl", &e))?;
        let shared = &self.shared;
        let mut threads: Vec<std::thread::JoinHandle<()>> = Vec::new();
        let mut gate = Gate::default();
        let mut outcomes = Vec::new();
        let outcome = loop {
            if shared.stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            fds.extend(gate.polled());
            let tick = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, tick) {
                Ok(_) | Err(Errno::EINTR) => {}
                // No memory; it comes back.
                Err(_) => std::thread::sleep(TICK),
            }
            outcomes.extend(gate.listen(shared.token.as_ref(), Instant::now()));
            if let Err(error) = self.accept(&mut gate, &mut outcomes) {
                break Err(failed("accept", &error).into());
            }
            threads.retain(|thread| !thread.is_finished());
            for outcome in outcomes.drain(..) {
                match outcome {
                    Outcome::TurnedAway(from, why) => shared.turn_away(from, why, &*tell),
                    Outcome::Admitted(admitted) => {
                        let from = admitted.from;
                        let (shared, say) = (Arc::clone(shared), Arc::clone(&tell));
                        let thread = std::thread::Builder::new()
                            .name(format!("session {from}"))
                            .stack_size(STACK_BYTES)
                            .spawn(move || serve(&shared, *admitted, &*say));
                        match thread {
                            Ok(thread) => threads.push(thread),
                            Err(error) => {
                                self.shared.turn_away(from, format!("no thread: {error}"), &*tell);
                            }
                        }
                    }
                }
            }
            shared.sum_up(false, &*tell);
        };
        // Also when listening failed: sessions must not outlive the server.
        self.shared.stop.store(true, Ordering::Relaxed);
        sys::tcp::stop_listening(&self.listener);
        for thread in threads {
            // A panic has been printed.
            let _ = thread.join();
        }
        self.shared.sum_up(true, &*tell);
        outcome
    }

    /// Accepts some of those that wait.
    fn accept(&self, gate: &mut Gate, outcomes: &mut Vec<Outcome>) -> std::io::Result<()> {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let with_token = self.shared.token.is_some();
                    outcomes.extend(gate.greet(stream, from, with_token, Instant::now()));
                }
                Err(e) if channel::is_a_tick(&e) => break,
                Err(e) => match e.raw_os_error().map(Errno::from_raw) {
                    // Of the connection, not of the listener (accept(2)).
                    Some(Errno::ECONNABORTED | Errno::EPERM | Errno::EPROTO) => {}
                    // Who has not proved anything makes room first.
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        match gate.make_room() {
                            Some(outcome) => outcomes.push(outcome),
                            // Others hold what there is; it comes back.
                            None => std::thread::sleep(TICK),
                        }
                        break;
                    }
                    _ => return Err(e),
                },
            }
        }
        Ok(())
    }
}

/// One of the sessions that there may be.
struct Seat<'a>(&'a AtomicU32);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(shared: &Shared, admitted: Admitted, tell: &(dyn Fn(Event) + Send + Sync)) {
    let Admitted { stream, from, keys } = admitted;
    let proved =
        channel::prepare(&stream).and_then(|()| channel::write_all(&stream, &keys.server_proof()));
    if let Err(error) = proved {
        return shared.turn_away(from, error.to_string(), tell);
    }
    let mut channel = Channel::new(stream, Side::Server, keys.session());
    let taken = shared.sessions.fetch_add(1, Ordering::AcqRel);
    let _seat = Seat(&shared.sessions);
    let local = channel.stream().local_addr();
    let reason = match local {
        Err(error) => error.to_string(),
        Ok(_) if taken >= shared.limits.sessions => {
            format!("{taken} sessions are open, as many as the server allows")
        }
        Ok(local) => {
            // A v4 client of a v6 socket is a v4 client to the flows.
            let mut plain = local;
            if local.ip().to_canonical() != local.ip() {
                plain.set_ip(local.ip().to_canonical());
            }
            tell(Event::Opened(from));
            let why = Session::new(shared, channel, from, plain).serve();
            return tell(Event::Closed(from, why));
        }
    };
    // Whether it arrives does not matter: the connection ends anyway.
    let _ = channel.send(&emit(&Reply::Refused(reason.clone())));
    shared.turn_away(from, reason, tell);
}
