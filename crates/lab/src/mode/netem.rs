//! `netem`: bare hosts on a wire that takes time: netem keeps each packet that a NIC sends.
//!
//! What a distance costs by itself: how much of a window of TCP or of a closed loop is waiting.

use std::time::Duration;

use netstate::Hop;
use testbed::{NIC, Wire};

use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// Bare hosts far from each other; by name only.
pub struct Netem;

/// How long each packet is kept, each way.
const DELAY: Duration = Duration::from_millis(1);
/// Packets that are kept at once: what comes in the time of the delay at 20 million a second.
/// With fewer it would be a queue that drops, and not a distance.
const LIMIT: u32 = 20_000;

impl Mode for Netem {
    fn name(&self) -> &'static str {
        "netem"
    }

    fn path(&self) -> &'static str {
        "host NIC - netem: 1 ms - wire - netem: 1 ms - host NIC"
    }

    /// It is no way of networking: what it costs says nothing of one.
    fn in_all(&self) -> bool {
        false
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        machine.netem()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let hosts = params.wire().hosts()?;
        for host in &hosts {
            host.netlink().delay(NIC, DELAY, LIMIT)?;
        }
        let hops = vec![Hop::tx("a", NIC), Hop::rx("b", NIC)];
        Ok(Network::new(hosts.into(), 0, 1, Wire::B, params.mtu, hops))
    }
}
