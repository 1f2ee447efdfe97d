//! `tap-netmap`, `tap-netmap-naive`: the two-TAP bridge test of 2009. A host
//! reaches its own second address through two TAP devices and a program that
//! exchanges the network parts of the addresses: 192.168.64.64 connects to
//! 192.168.64.32 and reaches 192.168.32.32. With super-packets, and with none, as
//! then. Measured when they are asked for by name.

use std::net::Ipv4Addr;

use datapath::tapbridge::netmap::{Address, Netmap};
use datapath::tapbridge::{Bridge, Engine, EngineChoice, Port, PortOptions};
use netstate::Hop;
use sys::tap::Offload;
use testbed::Host;

use super::tapbridge::failed;
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// The mode, with super-packets or without.
pub struct TapNetmap {
    name: &'static str,
    path: &'static str,
    offload: Offload,
}

/// Super-packets cross uncut.
pub const UNCUT: TapNetmap = TapNetmap {
    name: "tap-netmap",
    path: "host's TAP - super-packets through user space, networks exchanged - its other TAP",
    offload: Offload::ALL,
};
/// Whole packets with finished checksums, one a system call.
pub const NAIVE: TapNetmap = TapNetmap {
    name: "tap-netmap-naive",
    path: "host's TAP - packet by packet through user space, networks exchanged - its other TAP",
    offload: Offload::NONE,
};

const LEFT: &str = "tap0";
const RIGHT: &str = "tap1";
const LEFT_ADDRESS: Address = Address { ip: Ipv4Addr::new(192, 168, 64, 64), prefix: 24 };
const RIGHT_ADDRESS: Address = Address { ip: Ipv4Addr::new(192, 168, 32, 32), prefix: 24 };
/// The right address as the left network sees it.
const TARGET: Ipv4Addr = Ipv4Addr::new(192, 168, 64, 32);

impl Mode for TapNetmap {
    fn name(&self) -> &'static str {
        self.name
    }

    fn path(&self) -> &'static str {
        self.path
    }

    fn in_all(&self) -> bool {
        false
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.tun()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let host = Host::new("a")?;
        let open = |name: &str, address: Address| {
            let options = PortOptions { offload: self.offload, ..PortOptions::named(name) };
            let port = Port::open(&options, host.netns())?;
            host.netlink().set_mtu(name, params.mtu)?;
            host.address(name, address.ip, address.prefix)?;
            Result::Ok(port)
        };
        let (left, right) = (open(LEFT, LEFT_ADDRESS)?, open(RIGHT, RIGHT_ADDRESS)?);
        let uncut = left.offload();
        let netmap = Netmap::new(LEFT_ADDRESS, RIGHT_ADDRESS).map_err(|error| {
            sys::Error::new("netmap", error.to_string(), sys::errno::Errno::EINVAL)
        })?;
        let running = Bridge::new(left, right, Some(netmap))
            .and_then(|bridge| bridge.engine(EngineChoice::Only(Engine::Epoll))?.start())
            .map_err(failed)?;
        let hops = vec![Hop::tx("a", LEFT), Hop::rx("a", RIGHT)];
        Ok(Network::new(vec![host], 0, 0, RIGHT_ADDRESS.ip, params.mtu, hops)
            .published_at(TARGET)
            .keeping(Box::new(running))
            .noting(format!(
                "crosses no wire: the offload profile does not apply; uncut: {uncut}; its thread is not pinned"
            )))
    }
}
