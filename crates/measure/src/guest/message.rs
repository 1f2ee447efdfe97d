//! Messages of a guest's control channel. JSON, one value per frame. Unknown fields are refused.

use std::net::SocketAddr;

use load::{LoadRecord, MeasuredRecord};
use results::PathProbe;
use serde::{Deserialize, Serialize};

use crate::remote::message::Observed;

/// Message to a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum ToGuest {
    /// Serve loads to the other guest. The reply is [`FromGuest::Serving`].
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
    /// Probe the path to the other guest. The reply is [`FromGuest::Probed`].
    Probe {
        /// Control address of the serving guest.
        server: SocketAddr,
        /// Secret of the two guests.
        token: String,
    },
    /// This machine has read its counters.
    Go,
    /// End the load that is running.
    Stop,
}

/// A load for a guest to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub load: LoadRecord,
    /// Control address of the serving guest.
    pub server: SocketAddr,
    /// Secret of the two guests.
    pub token: String,
}

/// Message from a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum FromGuest {
    /// Reply to [`ToGuest::Serve`].
    Serving,
    /// Start of the measured interval. The guest waits for [`ToGuest::Go`].
    Begin,
    /// End of the measured interval. The guest waits for [`ToGuest::Go`].
    End,
    /// Reply to [`ToGuest::Run`].
    Ran(Box<Ran>),
    /// Reply to [`ToGuest::Probe`].
    Probed(Box<PathProbe>),
    /// Failed, with the reason.
    Failed(String),
}

/// Result of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ran {
    /// Measurement by the client's guest.
    pub measured: MeasuredRecord,
    /// Counter differences of the client's guest over the measured interval.
    pub client: Seen,
    /// Counter differences of the server's guest.
    pub server: Seen,
}

/// Counter differences of a guest over a measured interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Name of the device on the path.
    pub device: String,
    /// Its counters.
    pub observed: Observed,
}
