//! The server: listens, lets in who knows the token, gives each a [`Session`].

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sys::netns::NetNs;

use super::channel::{self, Channel, ChannelError, Side, TICK};
use super::handshake::{HELLO_BYTES, Hello, HelloError, MAC_BYTES, Said};
use super::message::{Reply, emit};
use super::session::Session;
use super::{Limits, Token};
use crate::sampler::{Drops, Machine, SamplerError};

/// A handshake takes two round trips.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Who does not know the token does not get to ask often.
const WRONG_TOKEN_WAIT: Duration = Duration::from_millis(250);
/// Connections in their handshake, over all …
const NEWCOMERS: usize = 32;
/// … and of one address, so that one cannot keep out all others.
const NEWCOMERS_OF_ONE: usize = 8;
/// Enough for a session's thread: what is large is on the heap.
const STACK_BYTES: usize = 512 * 1024;

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
    shared: Arc<Shared>,
}

/// What sessions share.
#[derive(Debug)]
pub(super) struct Shared {
    pub token: Option<Token>,
    pub limits: Limits,
    pub data_port: u16,
    pub netns: Arc<NetNs>,
    /// Open while a session uses them: a server that only waits costs nothing.
    samplers: Mutex<Weak<Samplers>>,
    pub privileges: String,
    /// A load is running.
    pub busy: AtomicBool,
    pub stop: Arc<AtomicBool>,
    sessions: AtomicU32,
    newcomers: Mutex<Vec<IpAddr>>,
}

/// What reads this machine.
#[derive(Debug)]
pub(super) struct Samplers {
    pub machine: Machine,
    /// Not where BPF is not allowed.
    pub drops: Option<Arc<Drops>>,
}

impl Shared {
    /// The samplers, opened by the first session that wants them.
    pub fn samplers(&self) -> Result<Arc<Samplers>, SamplerError> {
        let mut slot = self.samplers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = slot.upgrade() {
            return Ok(open);
        }
        let machine = Machine::open(true)?;
        let opened = Arc::new(Samplers { machine, drops: Drops::open().ok().map(Arc::new) });
        *slot = Arc::downgrade(&opened);
        Ok(opened)
    }
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

/// Something worth a line in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client proved to know the token.
    Opened(SocketAddr),
    /// A client's session is over, and why.
    Closed(SocketAddr, String),
    /// A connection that came to nothing, and why.
    TurnedAway(SocketAddr, String),
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
        privileges: &str,
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
            privileges: privileges.to_owned(),
            busy: AtomicBool::new(false),
            stop,
            sessions: AtomicU32::new(0),
            newcomers: Mutex::new(Vec::new()),
        };
        // What the machine does not allow is said now, not to the first client.
        drop(shared.samplers()?);
        Ok(Server { listener, local, shared: Arc::new(shared) })
    }

    /// Where it listens.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Serves until its stop flag is set, then ends every session. `tell` is
    /// called from the sessions' threads.
    ///
    /// # Errors
    /// When it cannot listen any more.
    pub fn run(&self, tell: Arc<dyn Fn(Event) + Send + Sync>) -> Result<(), ServerError> {
        let mut threads = Vec::new();
        let outcome = loop {
            if self.shared.stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            threads.retain(|thread: &std::thread::JoinHandle<()>| !thread.is_finished());
            let (stream, from) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if channel::is_a_tick(&e) => continue,
                Err(e) => match e.raw_os_error().map(Errno::from_raw) {
                    // Of the connection, not of the listener (accept(2)).
                    Some(Errno::ECONNABORTED | Errno::EPERM | Errno::EPROTO) => continue,
                    // Others hold what there is; it comes back.
                    Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                        std::thread::sleep(TICK);
                        continue;
                    }
                    _ => {
                        let object = format!("TCP {}", self.local);
                        break Err(sys::Error::io("accept", object, &e).into());
                    }
                },
            };
            let Some(newcomer) = Newcomer::admit(&self.shared, from.ip()) else {
                tell(Event::TurnedAway(from, "too many connections in their handshake".into()));
                continue;
            };
            let shared = Arc::clone(&self.shared);
            let say = Arc::clone(&tell);
            let thread = std::thread::Builder::new()
                .name(format!("session {from}"))
                .stack_size(STACK_BYTES)
                .spawn(move || serve(&shared, newcomer, stream, from, &*say));
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => tell(Event::TurnedAway(from, format!("no thread: {error}"))),
            }
        };
        // Also when listening failed: sessions must not outlive the server.
        self.shared.stop.store(true, Ordering::Relaxed);
        sys::tcp::stop_listening(&self.listener);
        for thread in threads {
            // A panic has been printed.
            let _ = thread.join();
        }
        outcome
    }
}

/// A connection that has not proved anything yet.
struct Newcomer {
    shared: Arc<Shared>,
    from: IpAddr,
}

impl Newcomer {
    fn admit(shared: &Arc<Shared>, from: IpAddr) -> Option<Newcomer> {
        let mut newcomers = shared.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = newcomers.iter().filter(|other| **other == from).count();
        if newcomers.len() >= NEWCOMERS || of_one >= NEWCOMERS_OF_ONE {
            return None;
        }
        newcomers.push(from);
        Some(Newcomer { shared: Arc::clone(shared), from })
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let mut newcomers = self.shared.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = newcomers.iter().position(|other| *other == self.from) {
            newcomers.swap_remove(at);
        }
    }
}

/// One of the sessions that there may be.
struct Seat<'a>(&'a AtomicU32);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(
    shared: &Shared,
    newcomer: Newcomer,
    stream: TcpStream,
    from: SocketAddr,
    tell: &(dyn Fn(Event) + Send + Sync),
) {
    let mut channel = match shake_hands(shared, stream) {
        Ok(channel) => channel,
        Err(reason) => return tell(Event::TurnedAway(from, reason)),
    };
    drop(newcomer);
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
    tell(Event::TurnedAway(from, reason));
}

/// The server's side of the handshake.
fn shake_hands(shared: &Shared, stream: TcpStream) -> Result<Channel, String> {
    let said = |error: ChannelError| error.to_string();
    channel::prepare(&stream).map_err(said)?;
    let server = Hello::fresh(shared.token.is_some());
    channel::write_all(&stream, &server.emit()).map_err(said)?;
    let deadline = Instant::now() + HANDSHAKE_LIMIT;
    let alive = || !shared.stop.load(Ordering::Relaxed);
    let mut hello = [0; HELLO_BYTES];
    channel::read_exact(&stream, &mut hello, deadline, &alive).map_err(said)?;
    let client = Hello::parse(&hello).map_err(|error: HelloError| error.to_string())?;
    if client.with_token != shared.token.is_some() {
        // The client knows from our hello.
        return Err(match client.with_token {
            true => "it has a token, and this server has none".to_owned(),
            false => "it has no token".to_owned(),
        });
    }
    let mut proof = [0; MAC_BYTES];
    channel::read_exact(&stream, &mut proof, deadline, &alive).map_err(said)?;
    let keys = Said { server, client }.keys(shared.token.as_ref());
    if !keys.is_client_proof(&proof) {
        std::thread::sleep(WRONG_TOKEN_WAIT);
        return Err("it does not know the token".to_owned());
    }
    channel::write_all(&stream, &keys.server_proof()).map_err(said)?;
    Ok(Channel::new(stream, Side::Server, keys.session()))
}
