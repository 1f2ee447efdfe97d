//! Follows packets of real networks.
//!
//! Every test builds its own networks, and traces one client port, because other programs may use
//! the machine.

mod cases;
mod cuts;
mod delay;
mod drops;
mod expressions;
mod fragments;
mod healthy;
mod life;
mod modes;
pub mod seen;
pub mod traffic;
mod translated;

use std::time::Duration;

use lab::{Capabilities, Network, Params};
use test_support::need;
use testbed::{Offload, Privileges};

/// Time limit of a step that is quick on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

fn privileged() -> Result<Capabilities, String> {
    need::root()?;
    Ok(Capabilities::new(Privileges::Root).unwrap())
}

/// A mode of the lab for a test, if this machine can build it.
fn network(mode: &str, offload: Offload) -> Result<Network, String> {
    let machine = privileged()?;
    let mode = lab::find(mode).unwrap();
    let probed = mode.probe(&machine);
    probed.map_err(|unsupported| format!("{}: {}", mode.name(), unsupported.reason))?;
    Ok(mode.build(&Params::new(1500, offload)).unwrap())
}
