//! `tap-netmap`, `tap-netmap-uring`, `tap-netmap-bpf`, `tap-netmap-naive`: the two-TAP bridge
//! test of 2009. A host reaches its own second address through two TAP devices and a program
//! that swaps the network prefixes of the addresses: 192.168.64.64 connects to 192.168.64.32
//! and reaches 192.168.32.32. Each engine with GSO packets; the naive variant without. Not in
//! `--modes all`.

use std::net::Ipv4Addr;

use datapath::tapbridge::netmap::{Address, Netmap};
use datapath::tapbridge::{Bridge, Engine, Port, PortOptions};
use netstate::Hop;
use sys::tap::Offload;
use testbed::Host;

use super::tapbridge::{UNPINNED, dropped, start};
use super::tapbridge_bpf::redirected;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// The mode, by engine, with or without GSO packets.
pub struct TapNetmap {
    name: &'static str,
    path: &'static str,
    engine: Engine,
    offload: Offload,
}

/// GSO packets stay whole.
pub const UNCUT: TapNetmap = TapNetmap {
    name: "tap-netmap",
    path: "host's TAP - GSO packets through user space, prefixes swapped - its other TAP",
    engine: Engine::Epoll,
    offload: Offload::ALL,
};
/// Reads frames in batches (io_uring).
pub const URING: TapNetmap = TapNetmap { name: "tap-netmap-uring", engine: Engine::Uring, ..UNCUT };
/// The kernel redirects packets and rewrites addresses.
pub const BPF: TapNetmap = TapNetmap {
    name: "tap-netmap-bpf",
    path: "host's TAP - redirect in the kernel, prefixes swapped - its other TAP",
    engine: Engine::Bpf,
    offload: Offload::ALL,
};
/// MTU-sized packets with complete checksums, one per system call.
pub const NAIVE: TapNetmap = TapNetmap {
    name: "tap-netmap-naive",
    path: "host's TAP - packet by packet through user space, prefixes swapped - its other TAP",
    engine: Engine::Epoll,
    offload: Offload::NONE,
};

const LEFT: &str = "tap0";
const RIGHT: &str = "tap1";
const LEFT_ADDRESS: Address = Address { ip: Ipv4Addr::new(192, 168, 64, 64), prefix: 24 };
const RIGHT_ADDRESS: Address = Address { ip: Ipv4Addr::new(192, 168, 32, 32), prefix: 24 };
/// The right address as seen from the left network.
const TARGET: Ipv4Addr = Ipv4Addr::new(192, 168, 64, 32);

impl Mode for TapNetmap {
    fn label(&self) -> Label {
        Label::new(self.name, self.path).not_in_all()
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
            "no wire: the offload profile does not apply; engine {}, offloads: {uncut}",
            self.engine
        );
        // Packets redirected in the kernel never reach user space: the bridge counts them itself.
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
