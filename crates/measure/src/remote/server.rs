//! The server: authenticates clients and gives each a [`Session`].

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

use channel::message::emit;
use channel::{Serves, Service, Tell, Token};
use sys::netns::NetNs;

use probe::answering::{Answerer, ServerSettings};

use super::Limits;
use super::message::Reply;
use super::session::Session;
use super::shared::Shared;
use super::turns::Turns;
use crate::sampler::SamplerError;
use results::{CpuClock, Privileges};

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listening: channel::Server,
    shared: Arc<Shared>,
    loads_programs: bool,
}

/// Reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It cannot listen, or may not without a token.
    #[error(transparent)]
    Channel(#[from] channel::ServerError),
    /// The data port is invalid.
    #[error("port {0}: control and data need two different ports, 1 to 65535")]
    Ports(u16),
    /// Its namespace cannot be read.
    #[error(transparent)]
    System(#[from] sys::Error),
    /// The machine cannot be sampled.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
}

impl Server {
    /// Listens on `bind` for control connections. Flows arrive at `data_port` of the address that
    /// the client connected to. A client's probe may switch `settings`.
    ///
    /// # Errors
    /// [`ServerError`]: an address other than loopback without a token; an address or port that
    /// cannot be bound.
    pub fn bind(
        bind: SocketAddr,
        data_port: u16,
        token: Option<Token>,
        limits: Limits,
        privileges: Privileges,
        settings: Option<Arc<dyn ServerSettings>>,
        stop: Arc<AtomicBool>,
    ) -> Result<Server, ServerError> {
        // Clients connect to a fixed data port beside the control port.
        if data_port == 0 || data_port == bind.port() {
            return Err(ServerError::Ports(data_port));
        }
        let (most, stops) = (limits.sessions, Arc::clone(&stop));
        let listening = channel::Server::bind(bind, Service::Measure, token, most, stops)?;
        // Opened now: the process is about to give up the right.
        let mut answerer = Answerer::open();
        if let Some(settings) = settings {
            answerer = answerer.allowing(settings);
        }
        let shared = Shared {
            limits,
            data_port,
            netns: Arc::new(NetNs::current()?),
            samplers: Mutex::new(Weak::new()),
            privileges,
            answerer,
            turns: Turns::default(),
            stop,
        };
        // Open the samplers once now, to fail at start rather than at the first client.
        let samplers = shared.samplers()?;
        let loads_programs =
            samplers.drops.is_some() || samplers.machine.clock() == CpuClock::Exact;
        drop(samplers);
        Ok(Server { listening, shared: Arc::new(shared), loads_programs })
    }

    /// Whether sessions will load BPF programs, for the exact CPU clock or for drop reasons. They
    /// do not if the kernel has just refused both.
    pub fn loads_programs(&self) -> bool {
        self.loads_programs
    }

    /// Address and port of the control socket.
    pub fn local(&self) -> SocketAddr {
        self.listening.local()
    }

    /// Serves until the stop flag is set, then ends every session. `tell` is called from the
    /// sessions' threads.
    ///
    /// # Errors
    /// If the server can no longer listen.
    pub fn run(&self, tell: Arc<Tell>) -> Result<(), ServerError> {
        let serves: Arc<dyn Serves> = Arc::new(Loads(Arc::clone(&self.shared)));
        Ok(self.listening.run(&serves, &tell)?)
    }
}

/// Serves loads in sessions.
struct Loads(Arc<Shared>);

impl Serves for Loads {
    fn serve(&self, session: channel::Session) -> String {
        let channel::Session { channel, client, local } = session;
        Session::new(&self.0, channel, client, local).serve()
    }

    fn refusal(&self, reason: String) -> Vec<u8> {
        emit(&Reply::Refused(reason))
    }
}
