//! `host`: host NIC to host NIC over the wire, the baseline of all ratios.

use netstate::Hop;
use testbed::{NIC, Wire};

use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// The baseline: client and server in the hosts themselves.
pub struct Host;

impl Mode for Host {
    fn label(&self) -> Label {
        Label::new("host", "host NIC - wire - host NIC")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = params.wire().hosts()?;
        let hops = vec![Hop::tx("a", NIC), Hop::rx("b", NIC)];
        Ok(Network::new(vec![a, b], 0, 1, Wire::B, params.mtu, hops))
    }
}
