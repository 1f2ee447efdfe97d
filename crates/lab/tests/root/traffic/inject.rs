//! Faults of modes, and what they cost.

use std::time::Duration;

use lab::fault::Befallen;
use lab::{Mode, Network};

/// What comes back does so within seconds, where a timer of the protocol goes before; a busy
/// machine takes longer.
pub const RECOVERY: Duration = Duration::from_secs(120);

/// Has a fault of a mode inject a network, and prints what it cost.
pub fn inject(mode: &dyn Mode, network: &Network, name: &str) -> Befallen {
    let fault = mode.faults().iter().find(|own| own.name == name).unwrap();
    let injected = fault.inject(network).unwrap_or_else(|e| panic!("{} {name}: {e}", mode.name()));
    let cost = injected.cost;
    println!("{}, {name}: {} lost, {cost:?}", mode.name(), cost.lost());
    injected
}
