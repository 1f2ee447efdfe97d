//! `vm-tapbridge`: guests on bridges that `overlane tapbridge` joins. The engine has a TAP
//! device on each bridge, beside the guest's.

use datapath::tapbridge::{Bridge, Engine, Port, PortOptions};
use netstate::Hop;
use testbed::Host;

use super::bridge::BRIDGE;
use super::tapbridge::{UNPINNED, dropped, start};
use super::vm_bridge::{pair, tap_hops};
use crate::guest::{self, TAP};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests joined in user space.
pub struct VmTapBridge;

/// The engine's TAP device in each host.
const PORT: &str = "tap1";

impl Mode for VmTapBridge {
    fn label(&self) -> Label {
        Label::new("vm-tapbridge", "guest's virtio-net - TAP - bridge - GSO packets through user space (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.engine(Engine::Epoll)?;
        machine.links(&["bridge"])?;
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let (a, b) = (Host::new("a")?, Host::new("b")?);
        let guests = pair([&a, &b], params.mtu, params.guest)?;
        let port = |host: &Host| {
            let port = Port::open(&PortOptions::named(PORT), host.netns())?;
            host.netlink().set_mtu(PORT, params.mtu)?;
            host.netlink().set_up(PORT)?;
            host.bridge(BRIDGE, params.mtu, &[PORT, TAP])?;
            Result::Ok(port)
        };
        let (left, right) = (port(&a)?, port(&b)?);
        let uncut = left.offload();
        let running = start(Bridge::new(left, right, None), Engine::Epoll)?;
        let middle =
            vec![Hop::tx("a", PORT).before("tapbridge", dropped(&running)), Hop::rx("b", PORT)];
        Ok(guests
            .network(vec![a, b], params.mtu, tap_hops(middle), None)?
            .keeping(Box::new(running))
            .noting(format!(
                "no wire: the offload profile does not apply; engine {}, offloads: {uncut}",
                Engine::Epoll
            ))
            .noting(UNPINNED))
    }
}
