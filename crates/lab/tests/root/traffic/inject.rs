//! Injects faults of modes, and measures their cost.

use std::time::Duration;

use lab::fault::InjectedFault;
use lab::{Mode, Network};

/// Recovery takes seconds where a timer of the protocol must expire, and longer on a busy machine.
pub const RECOVERY: Duration = Duration::from_secs(120);

/// Injects a fault of a mode into a network, and prints its cost.
pub fn inject(mode: &dyn Mode, network: &Network, name: &str) -> InjectedFault {
    let fault = mode.faults().iter().find(|own| own.name == name).unwrap();
    let injected = fault.inject(network).unwrap_or_else(|e| panic!("{} {name}: {e}", mode.name()));
    let cost = injected.cost;
    println!("{}, {name}: {} lost, {cost:?}", mode.name(), cost.lost());
    injected
}
