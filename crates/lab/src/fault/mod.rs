//! Faults: injected into a built network while traffic flows, with the cost for the traffic.
//!
//! Each mode lists its faults ([`crate::Mode::faults`]). A fault changes the network for good,
//! so each trial needs a fresh network. Nothing here rates the cost: a daemon whose end costs no
//! datagram is a result, too.

pub(crate) mod bgp;
pub(crate) mod evpn;
mod program;
mod traffic;
pub(crate) mod vrrp;

use std::time::Duration;

use testbed::Process;

pub use traffic::{Cost, INTERVAL, during};

use crate::{Network, Result};

/// Time limit for recovery. Sessions recover within seconds unless a protocol timer must expire
/// first.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Name in the results, such as `session-ends`.
    pub name: &'static str,
    /// Description, a sentence without its full stop.
    pub title: &'static str,
    /// Approximate time until traffic flows again, seconds.
    pub seconds: u32,
    /// Causes the fault, waits until the network has reacted, and returns the programs started.
    cause: fn(&Network) -> Result<Vec<Process>>,
}

/// Outcome of an injected fault.
#[derive(Debug)]
pub struct InjectedFault {
    pub cost: Cost,
    /// Replacements of killed programs. They stop when this is dropped.
    _started: Vec<Process>,
}

impl Fault {
    /// Injects the fault once, while datagrams flow from client to server.
    ///
    /// # Errors
    /// The step that failed, or traffic that did not recover within two minutes.
    pub fn inject(&self, network: &Network) -> Result<InjectedFault> {
        let (cost, started) = during(network, || (self.cause)(network))?;
        Ok(InjectedFault { cost, _started: started })
    }
}

/// Waits until a condition of the network holds.
fn wait_for(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    testbed::poll(what, LIMIT, || Ok(if ready()? { Ok(()) } else { Err(String::new()) }))
}
