//! The server's end of a load as the thread that coordinates both ends sees it:
//! a [`Endpoint`] in this process, or a proxy of one on another machine.
//! [`Within`]: both ends of a load elsewhere.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sys::netns::NetNs;

use super::control::Phase;
use super::counted::{Counted, ServerReport};
use super::endpoint::Endpoint;
use super::{Ends, EngineError, Load, Measured, Watch};

/// The server's end of a load that is under way. Dropping it ends the load
/// there.
pub trait Server: fmt::Debug {
    /// The first flow that has not proved its path yet.
    ///
    /// # Errors
    /// When the server cannot be asked.
    fn waits_for(&mut self) -> Result<Option<u32>, EngineError>;

    /// Turns the threads to a phase; they have been told when this returns.
    ///
    /// # Errors
    /// When the server cannot be told.
    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError>;

    /// Every flow's counters now.
    ///
    /// # Errors
    /// When the server cannot be asked.
    fn counts(&mut self) -> Result<Counted, EngineError>;

    /// The first failure of a flow, once, as far as it is known here without
    /// asking over a network.
    fn failure(&mut self) -> Option<EngineError>;

    /// Ends the threads; what each leaves, by flow.
    ///
    /// # Errors
    /// [`EngineError::Panicked`], or when the server cannot be asked.
    fn finish(self: Box<Self>) -> Result<BTreeMap<u32, ServerReport>, EngineError>;

    /// How long asking takes, about; zero in this process.
    fn round_trip(&self) -> Duration;
}

/// A server on another machine that can be asked to serve loads.
pub trait Away: fmt::Debug {
    /// Has the load's server started there; the client's flows are to connect
    /// to the address returned, with the token returned in their hellos.
    ///
    /// # Errors
    /// When the server refuses, or cannot be asked.
    fn start(&self, load: &Load) -> Result<(Box<dyn Server + '_>, SocketAddr, u64), EngineError>;
}

/// Both ends of a path in machines of their own, which run loads by themselves.
pub trait Within: fmt::Debug {
    /// Runs a load there, as [`run`](super::run) does here.
    ///
    /// # Errors
    /// As of [`run`](super::run), and when a machine cannot be asked.
    fn run(
        &self,
        load: &Load,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Measured, EngineError>;
}

/// Where the two endpoints of a load run.
#[derive(Debug, Clone, Copy)]
pub enum Between<'a> {
    /// Both in this process, each in its namespace.
    Here(Ends<'a>),
    /// The client in this process, the server on another machine.
    Away {
        /// Namespace of the client's threads.
        client: &'a NetNs,
        /// Who serves at the other end.
        server: &'a dyn Away,
    },
    /// Neither in this process.
    Within(&'a dyn Within),
}

impl<'a> From<&Ends<'a>> for Between<'a> {
    fn from(ends: &Ends<'a>) -> Self {
        Between::Here(*ends)
    }
}

impl<'a> From<&Between<'a>> for Between<'a> {
    fn from(between: &Between<'a>) -> Self {
        *between
    }
}

impl Server for Endpoint {
    fn waits_for(&mut self) -> Result<Option<u32>, EngineError> {
        Ok(Endpoint::waits_for(self))
    }

    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError> {
        Endpoint::turn_to(self, phase);
        Ok(())
    }

    fn counts(&mut self) -> Result<Counted, EngineError> {
        Ok(Endpoint::counted(self))
    }

    fn failure(&mut self) -> Option<EngineError> {
        Endpoint::failure(self)
    }

    fn finish(self: Box<Self>) -> Result<BTreeMap<u32, ServerReport>, EngineError> {
        Endpoint::finish_serving(*self)
    }

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}
