//! `loopback`: client and server in one host, over its loopback device. No path between two
//! devices should be faster. Not in `--modes all`.

use std::net::Ipv4Addr;

use netstate::Hop;

use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Client and server in one host, over `lo`.
pub struct Loopback;

impl Mode for Loopback {
    fn label(&self) -> Label {
        Label::new("loopback", "a host's loopback device").not_in_all()
    }

    fn probe(&self, _machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        Ok(())
    }

    fn build(&self, _params: &Params) -> Result<Network> {
        let host = testbed::Host::new("a")?;
        host.netlink().set_up("lo")?;
        let mtu = host.netlink().link("lo")?.mtu;
        let hops = vec![Hop::tx("a", "lo")];
        Ok(Network::new(vec![host], 0, 0, Ipv4Addr::LOCALHOST, mtu, hops)
            .noting("no wire: the offload profile and the underlay's MTU do not apply"))
    }
}
