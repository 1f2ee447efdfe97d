//! The server's end of a load as the thread that coordinates both ends sees it:
//! a [`Half`] in this process, or a proxy of one on another machine.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sys::netns::NetNs;

use super::control::{FlowCount, Phase};
use super::flow::FlowReport;
use super::half::Half;
use super::{Ends, EngineError, Load};

/// Every flow's counters at one end, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// When, by a clock of that end that runs from some moment of its own:
    /// two readings of one end can be compared, those of two ends cannot.
    pub at: Duration,
    /// The counters, by flow.
    pub flows: Vec<FlowCount>,
}

/// What a flow's thread at the server leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// CPUs its thread was allowed to run on.
    pub cpus: Vec<usize>,
    /// Answers of the kernel that did not end the load, by errno and call.
    pub socket_errors: BTreeMap<String, u64>,
    /// Things a reader must know before believing a figure.
    pub notes: Vec<String>,
}

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

/// Where the two halves of a load run.
#[derive(Debug, Clone, Copy)]
pub enum Between<'a> {
    /// Both in this process, each in its namespace.
    Here(Ends<'a>),
    /// The client in this process, the server on another machine.
    Away {
        /// Namespace of the client's threads.
        client: &'a NetNs,
        /// The server.
        server: &'a dyn Away,
    },
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

impl From<FlowReport> for ServerReport {
    fn from(report: FlowReport) -> Self {
        ServerReport { cpus: report.cpus, socket_errors: report.socket_errors, notes: report.notes }
    }
}

impl Server for Half {
    fn waits_for(&mut self) -> Result<Option<u32>, EngineError> {
        Ok(Half::waits_for(self))
    }

    fn turn_to(&mut self, phase: Phase) -> Result<(), EngineError> {
        Half::turn_to(self, phase);
        Ok(())
    }

    fn counts(&mut self) -> Result<Counted, EngineError> {
        Ok(Half::counted(self))
    }

    fn failure(&mut self) -> Option<EngineError> {
        Half::failure(self)
    }

    fn finish(self: Box<Self>) -> Result<BTreeMap<u32, ServerReport>, EngineError> {
        Half::finish_serving(*self)
    }

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}
