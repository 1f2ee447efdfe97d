//! The measured path between two ends, with the counters that prove it. This module does not
//! know who built it. The client's end is a namespace of this machine; the server's is another
//! one, or a server on another machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use netstate::Hop;

use crate::guest::Guests;
use crate::path_netns::PathNetns;
use crate::plan::Plan;
use crate::remote::Remote;
use load::ask::Ask;
use load::{Between, Ends, Load, Workload};
use results::Profile;

/// A path to be measured.
#[derive(Debug, Clone)]
pub struct PathUnderTest {
    /// Name of the network mode.
    pub mode: String,
    /// Offload profile of the wire; `as-found` for real NICs.
    pub offload: Profile,
    /// Underlay MTU, bytes.
    pub mtu: u32,
    /// Index of the client's namespace in `places`.
    pub client: usize,
    /// Location of the server's half of the load, and how the client reaches it.
    pub server: ServerEnd,
    /// The path from client to server.
    pub hops: Vec<Hop>,
    /// Every namespace of the path on this machine.
    pub places: Vec<PathNetns>,
    /// Minimum time to send datagrams before they count, until devices on the path have chosen
    /// their route.
    pub datagram_warmup: Duration,
    /// Damage to packets that a probe has found ([`crate::path_probe`]): the path is not measured.
    pub damage: Option<String>,
}

/// Location of the server's half of a load.
#[derive(Debug, Clone)]
pub enum ServerEnd {
    /// In a namespace of this machine, by threads of this process.
    Here {
        /// Index of its namespace in [`PathUnderTest::places`].
        place: usize,
        /// Address that the client connects to.
        target: SocketAddr,
        /// Address that the server binds.
        listen: SocketAddr,
    },
    /// In another process, usually on another machine.
    Away(Arc<Remote>),
    /// Both halves in virtual machines. The client's place is the host of its guest.
    Guests(Arc<Guests>),
}

impl PathUnderTest {
    /// Returns the closed-loop load of a request over this path.
    pub fn load(&self, plan: &Plan, ask: &Ask) -> Load {
        let load = plan.load(ask);
        Load { warmup: load.warmup.max(self.least_warmup(load.workload)), ..load }
    }

    /// Returns the minimum warm-up of a workload on this path.
    pub fn least_warmup(&self, workload: Workload) -> Duration {
        if workload.is_tcp() { Duration::ZERO } else { self.datagram_warmup }
    }

    /// Returns the locations of the two endpoints of a load.
    pub fn between(&self) -> Between<'_> {
        let client = &*self.places[self.client].netns;
        match &self.server {
            &ServerEnd::Here { place, target, listen } => {
                let server = &*self.places[place].netns;
                Between::Here(Ends { client, server, target, listen })
            }
            ServerEnd::Away(server) => Between::Away { client, server: &**server },
            ServerEnd::Guests(guests) => Between::Within(&**guests),
        }
    }

    /// Returns the server if it is another process.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.server {
            ServerEnd::Here { .. } | ServerEnd::Guests(_) => None,
            ServerEnd::Away(remote) => Some(remote),
        }
    }

    /// Returns the virtual machines if both ends are in some.
    pub fn guests(&self) -> Option<&Guests> {
        match &self.server {
            ServerEnd::Here { .. } | ServerEnd::Away(_) => None,
            ServerEnd::Guests(guests) => Some(guests),
        }
    }

    /// Returns the names of the two ends in places and hops.
    pub fn ends(&self) -> [&str; 2] {
        let client = self.places[self.client].name.as_str();
        match &self.server {
            &ServerEnd::Here { place, .. } => [client, self.places[place].name.as_str()],
            ServerEnd::Away(_) => [client, Remote::HOST],
            ServerEnd::Guests(guests) => guests.names(),
        }
    }
}
