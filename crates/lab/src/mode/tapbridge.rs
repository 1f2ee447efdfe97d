//! `tapbridge`, `tapbridge-uring`, `tapbridge-poll`: tenants on TAP devices, joined by an
//! engine of `overlane tapbridge`. GSO packets stay whole in user space.
//!
//! `tap` is the naive loop over the same devices. `tapbridge-bpf` redirects in the kernel.
//! `--modes all` measures `tapbridge` only.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use datapath::tapbridge::{Bridge, Engine, EngineChoice, Port, PortOptions, Running, Side};
use netstate::Hop;
use testbed::Host;

use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// The mode, by engine.
pub struct TapBridge {
    name: &'static str,
    engine: Engine,
    busy_poll: Duration,
}

/// The default of `overlane tapbridge` between two namespaces.
pub const EPOLL: TapBridge =
    TapBridge { name: "tapbridge", engine: Engine::Epoll, busy_poll: Duration::ZERO };
/// Reads frames in batches (io_uring).
pub const URING: TapBridge = TapBridge { name: "tapbridge-uring", engine: Engine::Uring, ..EPOLL };
/// Threads busy-poll for longer than one round trip before they sleep.
pub const POLL: TapBridge =
    TapBridge { name: "tapbridge-poll", busy_poll: Duration::from_micros(200), ..EPOLL };

const DEVICE: &str = "tap0";
const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);

/// Note printed with the figures of every program that forwards in user space.
pub(super) const UNPINNED: &str = "user-space forwarding threads are not pinned to CPUs";

impl Mode for TapBridge {
    fn label(&self) -> Label {
        Label::new(self.name, "tenant's TAP - GSO packets through user space - tenant's TAP")
            .in_all_if(self.name == EPOLL.name)
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.engine(self.engine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let (tenant_a, tenant_b) = (Host::new("tenant-a")?, Host::new("tenant-b")?);
        let open = |tenant: &Host, address| {
            let port = Port::open(&PortOptions::named(DEVICE), tenant.netns())?;
            tenant.netlink().set_mtu(DEVICE, params.mtu)?;
            tenant.address(DEVICE, address, 24)?;
            Result::Ok(port)
        };
        let (left, right) = (open(&tenant_a, TENANT_A)?, open(&tenant_b, TENANT_B)?);
        let uncut = left.offload();
        let running = start(
            Bridge::new(left, right, None).map(|bridge| bridge.polling(self.busy_poll)),
            self.engine,
        )?;
        let hops = vec![
            Hop::tx("tenant-a", DEVICE).before("tapbridge", dropped(&running)),
            Hop::rx("tenant-b", DEVICE),
        ];
        Ok(Network::new(vec![tenant_a, tenant_b], 0, 1, TENANT_B, params.mtu, hops)
            .keeping(Box::new(running))
            .noting(format!(
                "no wire: the offload profile does not apply; engine {}, busy poll {} µs, \
                 offloads: {uncut}",
                self.engine,
                self.busy_poll.as_micros()
            ))
            .noting(UNPINNED))
    }
}

/// Starts a bridge with this engine. There is no fallback to another engine.
pub(super) fn start(bridge: datapath::Result<Bridge>, engine: Engine) -> Result<Arc<Running>> {
    let running = bridge.and_then(|bridge| bridge.engine(EngineChoice::Only(engine))?.start());
    Ok(Arc::new(running.map_err(failed)?))
}

/// Returns a counter of the frames that a bridge dropped. It does not keep the bridge alive.
pub(super) fn dropped(running: &Arc<Running>) -> impl Fn() -> u64 + Send + Sync + use<> {
    let counted = Arc::downgrade(running);
    move || {
        // The bridge is gone with its network, and so are its counters.
        let Some(running) = counted.upgrade() else { return 0 };
        Side::BOTH.into_iter().map(|from| running.counters(from).dropped()).sum()
    }
}

/// Converts the error of a bridge or endpoint that did not start.
pub(super) fn failed(error: datapath::Error) -> testbed::Error {
    match error {
        datapath::Error::Sys(error) => error.into(),
        other => testbed::Error::NotStarted {
            part: "start the bridge or endpoint".to_owned(),
            reason: other.to_string(),
        },
    }
}
