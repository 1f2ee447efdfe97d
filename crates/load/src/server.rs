//! The server's end of a load as the coordinating thread sees it: an [`Endpoint`] in this
//! process, or a proxy for one on another machine. [`Within`]: both ends are elsewhere.

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

/// The server's end of a running load. Dropping it ends the load there.
pub trait Server: fmt::Debug {
    /// Returns the first flow that has not proved its path yet.
    fn waits_for(&mut self) -> Result<Option<u32>, EngineError>;

    /// Moves the threads to a phase. On return they have been notified.
    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError>;

    /// Returns every flow's counters.
    fn counts(&mut self) -> Result<Counted, EngineError>;

    /// Takes the first failure of a flow that is known here without a request over the network.
    fn failure(&mut self) -> Option<EngineError>;

    /// Ends the threads and returns their reports by flow.
    ///
    /// # Errors
    /// [`EngineError::Panicked`], or if the server cannot be reached.
    fn finish(self: Box<Self>) -> Result<BTreeMap<u32, ServerReport>, EngineError>;

    /// Approximate duration of a request; zero in this process.
    fn round_trip(&self) -> Duration;
}

/// A server on another machine that serves loads on request.
pub trait Away: fmt::Debug {
    /// Starts the load's server there. Returns the address that the client's flows connect to, and
    /// the token for their hellos.
    fn start(&self, load: &Load) -> Result<(Box<dyn Server + '_>, SocketAddr, u64), EngineError>;
}

/// Both ends of a path, in machines that run loads by themselves.
pub trait Within: fmt::Debug {
    /// Runs a load there, like [`run`](super::run) does here.
    ///
    /// # Errors
    /// As [`run`](super::run), or if a machine cannot be reached.
    fn run(
        &self,
        load: &Load,
        watch: &mut dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Measured, EngineError>;
}

/// Locations of the two endpoints of a load.
#[derive(Debug, Clone, Copy)]
pub enum Between<'a> {
    /// Both in this process, each in its namespace.
    Here(Ends<'a>),
    /// The client in this process, the server on another machine.
    Away {
        /// Namespace of the client's threads.
        client: &'a NetNs,
        /// The server at the other end.
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
