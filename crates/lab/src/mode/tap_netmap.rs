//! `tap-netmap`, `tap-netmap-uring`, `tap-netmap-bpf`, `tap-netmap-naive`: the two-TAP
//! bridge test of 2009. A host reaches its own second address through two TAP devices
//! and a program that exchanges the network parts of the addresses: 192.168.64.64
//! connects to 192.168.64.32 and reaches 192.168.32.32. With GSO packets by each
//! engine, and with none, as then. Measured when they are asked for by name.

use std::net::Ipv4Addr;

use datapath::tapbridge::netmap::{Address, Netmap};
use datapath::tapbridge::{Bridge, Engine, Port, PortOptions};
use netstate::Hop;
use sys::tap::Offload;
use testbed::Host;

use super::tapbridge::{UNPINNED, dropped, start};
use super::tapbridge_bpf::redirected;
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// The mode, by engine, with GSO packets or without.
pub struct TapNetmap {
    name: &'static str,
    path: &'static str,
    engine: Engine,
    offload: Offload,
}

/// GSO packets cross uncut.
pub const UNCUT: TapNetmap = TapNetmap {
    name: "tap-netmap",
    path: "host's TAP - GSO packets through user space, networks exchanged - its other TAP",
    engine: Engine::Epoll,
    offload: Offload::ALL,
};
/// Frames read by batches.
pub const URING: TapNetmap = TapNetmap { name: "tap-netmap-uring", engine: Engine::Uring, ..UNCUT };
/// Redirected, and the addresses written, in the kernel.
pub const BPF: TapNetmap = TapNetmap {
    name: "tap-netmap-bpf",
    path: "host's TAP - redirected in the kernel, networks exchanged - its other TAP",
    engine: Engine::Bpf,
    offload: Offload::ALL,
};
/// Whole packets with finished checksums, one a system call.
pub const NAIVE: TapNetmap = TapNetmap {
    name: "tap-netmap-naive",
    path: "host's TAP - packet by packet through user space, networks exchanged - its other TAP",
    engine: Engine::Epoll,
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
        machine.engine(self.engine)
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
            testbed::Error::NotStarted { part: "netmap".to_owned(), reason: error.to_string() }
        })?;
        let running = start(Bridge::new(left, right, Some(netmap)), self.engine)?;
        let mut note = format!(
            "crosses no wire: the offload profile does not apply; engine {}, uncut: {uncut}",
            self.engine
        );
        let hops = if self.engine == Engine::Bpf {
            redirected("a", [LEFT, RIGHT], &running).into()
        } else {
            note = format!("{note}; {UNPINNED}");
            vec![Hop::tx("a", LEFT).before("tapbridge", dropped(&running)), Hop::rx("a", RIGHT)]
        };
        Ok(Network::new(vec![host], 0, 0, RIGHT_ADDRESS.ip, params.mtu, hops)
            .published_at(TARGET)
            .keeping(Box::new(running))
            .noting(note))
    }
}
