//! Tenants on TAP devices, VXLAN by the engine of `overlane vtep` in each host. GSO packets
//! cross user space whole, and leave whole where the kernel accepts them.
//!
//! - `vtep`: defaults of `overlane vtep`.
//! - `vtep6`: over an IPv6 underlay.
//! - `vtep-cut`: GSO packets are always segmented, by UDP GSO.
//! - `vtep-uring`: the TAPs are read in batches.
//! - `vtep-poll`: threads poll before they sleep.
//! - `vtep-2q`: the TAPs have two queues, with a thread each.
//!
//! `--modes all` measures `vtep` only.

use std::net::IpAddr;
use std::sync::Arc;

use datapath::tapbridge::{Engine as TapEngine, Port, PortOptions};
use datapath::vtep::{Config, Endpoint, Engine, HandOver, NetworkConfig, Running};
use netstate::Hop;
use testbed::{Host, NIC};

use super::tapbridge::{UNPINNED, failed};
use super::vxlan::{TENANT_A, TENANT_B, UDP_PORT, Underlay, VNI};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// The mode, by hand-over of GSO packets, engine and number of queues.
pub struct Vtep {
    name: &'static str,
    path: &'static str,
    underlay: Underlay,
    hand_over: HandOver,
    engine: Engine,
    busy_poll: u32,
    queues: usize,
}

/// Defaults of `overlane vtep`.
pub const AUTO: Vtep = Vtep {
    name: "vtep",
    path: "tenant's TAP - VXLAN in user space, GSO packets - wire",
    underlay: Underlay::V4,
    hand_over: HandOver::Auto,
    engine: Engine::Epoll,
    busy_poll: 0,
    queues: 1,
};
/// Over an IPv6 underlay.
pub const V6: Vtep = Vtep {
    name: "vtep6",
    path: "tenant's TAP - VXLAN in user space, GSO packets - wire, IPv6 underlay",
    underlay: Underlay::V6,
    ..AUTO
};
/// GSO packets are segmented in user space.
pub const CUT: Vtep = Vtep {
    name: "vtep-cut",
    path: "tenant's TAP - VXLAN in user space, GSO packets segmented there - wire",
    hand_over: HandOver::UdpSegment,
    ..AUTO
};
/// Reads the TAPs in batches.
pub const URING: Vtep = Vtep { name: "vtep-uring", engine: Engine::Uring, ..AUTO };
/// Threads busy-poll for longer than one round trip before they sleep.
pub const POLL: Vtep = Vtep { name: "vtep-poll", busy_poll: 200, ..AUTO };
/// Two threads in each host.
pub const TWO_QUEUES: Vtep = Vtep {
    name: "vtep-2q",
    path: "tenant's TAP with two queues - VXLAN in user space, GSO packets - wire",
    queues: 2,
    ..AUTO
};

const DEVICE: &str = "tap0";

impl Mode for Vtep {
    fn label(&self) -> Label {
        Label::new(self.name, self.path).in_all_if(self.name == AUTO.name)
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.engine(match self.engine {
            Engine::Epoll => TapEngine::Epoll,
            Engine::Uring => TapEngine::Uring,
        })?;
        self.underlay.probe(machine)?;
        machine.links(&["veth"])
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let (a, b) = (Host::new("a")?, Host::new("b")?);
        let [at_a, at_b] = self.underlay.join(&params.wire(), &a, &b)?;
        let (tenant_a, tenant_b) = (Host::new("tenant-a")?, Host::new("tenant-b")?);
        let from_a = endpoint(&a, &tenant_a, [at_a, at_b], DEVICE, self)?;
        let from_b = endpoint(&b, &tenant_b, [at_b, at_a], DEVICE, self)?;
        tenant_a.address(DEVICE, TENANT_A, 24)?;
        tenant_b.address(DEVICE, TENANT_B, 24)?;
        // The endpoint derives it from the underlay's MTU.
        let tenant_mtu = tenant_a.netlink().link(DEVICE)?.mtu;
        let way = from_a.way();
        let (from_a, from_b) = (Arc::new(from_a), Arc::new(from_b));
        let hops = vec![
            Hop::tx("tenant-a", DEVICE).before("vtep", dropped(&from_a)),
            Hop::tx("a", NIC),
            Hop::rx("b", NIC).before("vtep", dropped(&from_b)),
            Hop::rx("tenant-b", DEVICE),
        ];
        let note = format!(
            "engine {}, busy poll {} µs, queues: {}; hand-over {way}",
            self.engine, self.busy_poll, self.queues
        );
        Ok(Network::new(vec![a, b, tenant_a, tenant_b], 2, 3, TENANT_B, tenant_mtu, hops)
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(note)
            .noting(UNPINNED))
    }
}

/// Returns a counter of the packets that an endpoint dropped. It does not keep it alive.
pub(super) fn dropped(running: &Arc<Running>) -> impl Fn() -> u64 + Send + Sync + use<> {
    let counted = Arc::downgrade(running);
    move || {
        // The endpoint is gone with its network, and so are its counters.
        let Some(running) = counted.upgrade() else { return 0 };
        let report = running.report();
        let networks = report.networks.iter().map(|n| n.out.dropped() + n.back.dropped());
        networks.sum::<u64>() + report.unassigned.dropped()
    }
}

/// Starts an endpoint in `host`. Its TAP device is in `tenant` and up.
pub(super) fn endpoint(
    host: &Host,
    tenant: &Host,
    [local, remote]: [IpAddr; 2],
    device: &str,
    mode: &Vtep,
) -> Result<Running> {
    let network = NetworkConfig { remotes: vec![remote], ..NetworkConfig::new(VNI, device) };
    let config = Config {
        port: UDP_PORT,
        hand_over: mode.hand_over,
        engine: mode.engine,
        busy_poll: mode.busy_poll,
        queues: mode.queues,
        networks: vec![network],
        ..Config::new(local)
    };
    let endpoint = Endpoint::open(&config, host.netns()).map_err(failed)?;
    let options = PortOptions {
        offload: Endpoint::OFFLOAD,
        queues: mode.queues,
        ..PortOptions::named(device)
    };
    let port = Port::open(&options, tenant.netns())?;
    tenant.netlink().set_mtu(device, endpoint.mtu(0))?;
    tenant.netlink().set_up(device)?;
    endpoint.attach(vec![port]).and_then(|ready| ready.start()).map_err(failed)
}
