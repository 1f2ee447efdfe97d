//! What is said on a guest's control channel. JSON, one value a frame; anything unknown is
//! refused.

use std::net::SocketAddr;

use load::{LoadTold, MeasuredTold};
use serde::{Deserialize, Serialize};

use crate::remote::message::Observed;

/// What a guest is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ToGuest {
    /// Serve loads to the other guest; it says [`FromGuest::Serving`].
    Serve {
        /// Address and port of the control connection.
        listen: SocketAddr,
        /// Port of the flows.
        data_port: u16,
        /// Secret of the two guests.
        token: String,
    },
    /// Run a load against the other guest.
    Run(Box<Run>),
    /// The counters of this machine have been read.
    Go,
    /// End the load that is running.
    Stop,
}

/// A load that a guest is to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The load.
    pub load: LoadTold,
    /// Control connection of the guest that serves.
    pub server: SocketAddr,
    /// Secret of the two guests.
    pub token: String,
}

/// What a guest says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FromGuest {
    /// To [`ToGuest::Serve`].
    Serving,
    /// The measured interval begins: it waits for [`ToGuest::Go`].
    Begin,
    /// The measured interval has ended: it waits for [`ToGuest::Go`].
    End,
    /// To [`ToGuest::Run`].
    Ran(Box<Ran>),
    /// Not done, and why.
    Failed(String),
}

/// What a load came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    /// As the client's guest measured it.
    pub measured: MeasuredTold,
    /// The client's guest over the measured interval.
    pub client: Seen,
    /// The server's.
    pub server: Seen,
}

/// What happened in a guest in a measured interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Name of the device that its traffic takes.
    pub device: String,
    /// Its counters.
    pub observed: Observed,
}
