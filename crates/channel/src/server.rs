//! The server: listens, authenticates clients, gives each a session.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};

use crate::connection::{self, Channel, QUIET_TICK, TICK};
use crate::event::Event;
use crate::gate::{Admission, Admitted, Gate};
use crate::refusals::Refusals;
use crate::service::Service;
use crate::token::Token;

/// Connections accepted before those in their handshake are read again. A client that answers at
/// once is then read before a flood makes it the oldest.
const ACCEPTED_AT_ONCE: usize = 8;
/// Stack of a session's thread. Large buffers are on the heap.
const STACK_BYTES: usize = 512 * 1024;

/// Callback for events, called from the sessions' threads.
pub type Tell = dyn Fn(Event) + Send + Sync;

/// An authenticated client.
#[derive(Debug)]
pub struct Session {
    /// Connection with its requests.
    pub channel: Channel,
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Local address that it connected to.
    pub local: SocketAddr,
}

#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
    shared: Arc<Shared>,
}

/// State shared by the sessions.
#[derive(Debug)]
struct Shared {
    service: Service,
    token: Option<Token>,
    most: u32,
    stop: Arc<AtomicBool>,
    sessions: AtomicU32,
    refusals: Mutex<Refusals>,
}

/// Reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is reachable from other machines and there is no token.
    #[error(
        "{0} can be reached from other machines: a token is required (--token FILE), \
         or an address of the loopback device"
    )]
    TokenNeeded(IpAddr),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] sys::Error),
}

/// Implementation of a service.
pub trait Serves: Send + Sync {
    /// Serves a session until it ends, and returns the reason.
    fn serve(&self, session: Session) -> String;
    /// Encodes the message that refuses a session.
    fn refusal(&self, reason: String) -> Vec<u8>;
}

impl Server {
    /// Listens on `bind`, for at most `most` sessions at a time.
    ///
    /// # Errors
    /// [`ServerError`]: an address other than loopback without a token; an address or port that
    /// cannot be bound.
    pub fn bind(
        bind: SocketAddr,
        service: Service,
        token: Option<Token>,
        most: u32,
        stop: Arc<AtomicBool>,
    ) -> Result<Server, ServerError> {
        // Without a token anybody who reaches the port could use the server.
        if token.is_none() && !bind.ip().to_canonical().is_loopback() {
            return Err(ServerError::TokenNeeded(bind.ip()));
        }
        let listener = sys::tcp::listen(bind, &connection::OPTIONS)?;
        let local = listener
            .local_addr()
            .map_err(|e| sys::Error::io("getsockname", format!("TCP {bind}"), &e))?;
        let shared = Shared {
            service,
            token,
            most,
            stop,
            sessions: AtomicU32::new(0),
            refusals: Mutex::default(),
        };
        Ok(Server { listener, local, shared: Arc::new(shared) })
    }

    /// Returns the descriptor of the listening socket.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Address and port of the listening socket.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the stop flag is set, then ends every session.
    ///
    /// # Errors
    /// If the server can no longer listen.
    pub fn run(&self, serves: &Arc<dyn Serves>, tell: &Arc<Tell>) -> Result<(), ServerError> {
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
            // Check more often while a handshake has a time limit.
            let tick = if gate.is_empty() { QUIET_TICK } else { TICK };
            match poll(&mut fds, sys::wait::at_most(tick)) {
                Ok(_) | Err(Errno::EINTR) => {}
                // Out of memory: retry, since the shortage is usually short.
                Err(_) => std::thread::sleep(TICK),
            }
            outcomes.extend(gate.listen(shared.token.as_ref(), Instant::now()));
            if let Err(error) = self.accept(&mut gate, &mut outcomes) {
                break Err(failed("accept", &error).into());
            }
            threads.retain(|thread| !thread.is_finished());
            for outcome in outcomes.drain(..) {
                match outcome {
                    Admission::TurnedAway(from, why) => shared.turn_away(from, why, &**tell),
                    Admission::Admitted(admitted) => {
                        let from = admitted.from;
                        let (shared, say) = (Arc::clone(shared), Arc::clone(tell));
                        let serves = Arc::clone(serves);
                        let thread = std::thread::Builder::new()
                            .name(format!("session {from}"))
                            .stack_size(STACK_BYTES)
                            .spawn(move || serve(&shared, *admitted, &*serves, &*say));
                        match thread {
                            Ok(thread) => threads.push(thread),
                            Err(error) => {
                                self.shared.turn_away(
                                    from,
                                    format!("cannot start a thread: {error}"),
                                    &**tell,
                                );
                            }
                        }
                    }
                }
            }
            shared.sum_up(false, &**tell);
        };
        // Also after an error: sessions must not outlive the server.
        self.shared.stop.store(true, Ordering::Relaxed);
        sys::tcp::stop_listening(&self.listener);
        for thread in threads {
            // A panic has already been printed.
            let _ = thread.join();
        }
        self.shared.sum_up(true, &**tell);
        outcome
    }

    /// Accepts some of the waiting connections.
    fn accept(&self, gate: &mut Gate, outcomes: &mut Vec<Admission>) -> std::io::Result<()> {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok((stream, from)) => {
                    let hello = (self.shared.service, self.shared.token.is_some());
                    outcomes.extend(gate.greet(stream, from, hello, Instant::now()));
                }
                Err(e) if connection::is_a_tick(&e) => break,
                Err(e) => match e.raw_os_error().map(Errno::from_raw) {
                    // Error of the connection, not of the listener (accept(2)).
                    Some(Errno::ECONNABORTED | Errno::EPERM | Errno::EPROTO) => {}
                    // Out of resources: first close an unauthenticated connection.
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        match gate.make_room() {
                            Some(outcome) => outcomes.push(outcome),
                            // Sessions or other programs hold the resources: retry later.
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

impl Shared {
    /// Reports a connection that was turned away, unless the limit of reports is reached.
    fn turn_away(&self, from: SocketAddr, why: String, tell: &Tell) {
        let is_reported = {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.note(from, Instant::now())
        };
        if is_reported {
            tell(Event::TurnedAway(from, why));
        }
    }

    /// Reports the sum of connections that were not reported one by one.
    fn sum_up(&self, ends: bool, tell: &Tell) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = refusals.sum(Instant::now(), ends);
        drop(refusals);
        sum.into_iter().for_each(tell);
    }
}

/// A place among the server's sessions; released on drop.
struct Seat<'a>(&'a AtomicU32);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(shared: &Shared, admitted: Admitted, serves: &dyn Serves, tell: &Tell) {
    let Admitted { stream, from, second, cipher } = admitted;
    let proved =
        connection::prepare(&stream).and_then(|()| connection::write_all(&stream, &second));
    if let Err(error) = proved {
        return shared.turn_away(from, error.to_string(), tell);
    }
    let mut channel = Channel::new(stream, cipher);
    let taken = shared.sessions.fetch_add(1, Ordering::AcqRel);
    let _seat = Seat(&shared.sessions);
    let local = channel.stream().local_addr();
    let reason = match local {
        Err(error) => error.to_string(),
        Ok(_) if taken >= shared.most => {
            format!("{taken} sessions are open, the server's limit")
        }
        Ok(local) => {
            // An IPv4 client of an IPv6 socket uses IPv4 for its flows.
            let mut plain = local;
            if local.ip().to_canonical() != local.ip() {
                plain.set_ip(local.ip().to_canonical());
            }
            tell(Event::Opened(from));
            let why = serves.serve(Session { channel, client: from, local: plain });
            return tell(Event::Closed(from, why));
        }
    };
    // Best effort: the connection ends anyway.
    let _ = channel.send(&serves.refusal(reason.clone()));
    shared.turn_away(from, reason, tell);
}
