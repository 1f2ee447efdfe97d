//! Faults: what befalls a built network while traffic flows, and what that costs the traffic.
//!
//! A mode names its faults ([`crate::Mode::faults`]). A fault leaves the network as it is after
//! it, so that each trial has a network of its own. Nothing here says what is bad: a daemon
//! whose end costs no datagram is a result, too.

pub(crate) mod bgp;
pub(crate) mod evpn;
mod program;
mod traffic;
pub(crate) mod vrrp;

use std::time::Duration;

use testbed::Process;

pub use traffic::{Cost, INTERVAL, during};

use crate::{Network, Result};

/// How long something may take to come back. Sessions do within seconds, where a timer of the
/// protocol goes before.
const LIMIT: Duration = Duration::from_secs(120);

/// Something that can befall a mode.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Name, as results have it: `session-ends`.
    pub name: &'static str,
    /// What happens, as a sentence without its full stop.
    pub title: &'static str,
    /// About how long it takes until traffic flows again, seconds.
    pub seconds: u32,
    /// Does it, and waits until the network has answered. Returns the programs that it started.
    cause: fn(&Network) -> Result<Vec<Process>>,
}

/// What a fault left behind.
#[derive(Debug)]
pub struct Befallen {
    /// What it cost the traffic.
    pub cost: Cost,
    /// Programs in the place of those that were killed: they end with this.
    _started: Vec<Process>,
}

impl Fault {
    /// Has it befall a network, once, while datagrams flow from client to server.
    ///
    /// # Errors
    /// What could not be done, or did not come back within two minutes.
    pub fn befall(&self, network: &Network) -> Result<Befallen> {
        let (cost, started) = during(network, || (self.cause)(network))?;
        Ok(Befallen { cost, _started: started })
    }
}

/// Waits until something of a network is so.
fn wait_for(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    testbed::poll(what, LIMIT, || Ok(if ready()? { Ok(()) } else { Err(String::new()) }))
}
