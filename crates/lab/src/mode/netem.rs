//! `netem`: bare hosts on a wire with latency: netem delays each packet that a NIC sends.
//!
//! It shows the cost of distance alone, when a TCP window or a closed loop waits for replies.

use std::time::Duration;

use netstate::Hop;
use testbed::{NIC, Wire};

use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Bare hosts far from each other. Not in `--modes all`.
pub struct Netem;

/// Delay of each packet, in each direction.
const DELAY: Duration = Duration::from_millis(1);
/// Queue limit, packets: 1 ms at 20 million packets per second. A smaller limit would drop
/// packets, and the mode would measure loss.
const LIMIT: u32 = 20_000;

impl Mode for Netem {
    fn label(&self) -> Label {
        // Netem is no network design, only a reference.
        Label::new("netem", "host NIC - netem: 1 ms - wire - netem: 1 ms - host NIC").not_in_all()
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
