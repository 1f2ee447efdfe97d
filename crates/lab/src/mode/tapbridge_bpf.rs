//! `tapbridge-bpf`: tenants on macvlan devices, each on one of two TAPs of one host. The bpf
//! engine of `overlane tapbridge` redirects between the TAPs in the kernel.
//!
//! tc redirects within one network namespace only, so the TAPs cannot be in the tenants'
//! namespaces as they are with `tapbridge`. Not in `--modes all`.

use std::sync::Arc;

use datapath::tapbridge::{Bridge, Engine, Port, PortOptions, Running, Side};
use netstate::link::Macvlan;
use netstate::{Counters, Hop, Meter, Metered, Side as Direction, TrafficDirection};
use testbed::{Host, mac};

use super::bridge::{TENANT_A, TENANT_B, TENANT_NIC};
use super::tapbridge::{dropped, start};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Two TAPs of one host, joined by a BPF redirect in the kernel.
pub struct TapBridgeBpf;

const LEFT: &str = "tap0";
const RIGHT: &str = "tap1";

impl Mode for TapBridgeBpf {
    fn label(&self) -> Label {
        Label::new(
            "tapbridge-bpf",
            "tenant's macvlan - TAP - redirect in the kernel - TAP - tenant's macvlan",
        )
        .not_in_all()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["macvlan"])?;
        machine.engine(Engine::Bpf)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let a = Host::new("a")?;
        let (tenant_a, tenant_b) = (Host::new("tenant-a")?, Host::new("tenant-b")?);
        let open = |name: &str, tenant: &Host, address| {
            let port = Port::open(&PortOptions::named(name), a.netns())?;
            a.netlink().set_mtu(name, params.mtu)?;
            a.netlink().set_up(name)?;
            let own = mac(tenant.name(), TENANT_NIC);
            a.netlink().add_macvlan(TENANT_NIC, name, Macvlan::Bridge, own, tenant.netns())?;
            tenant.address(TENANT_NIC, address, 24)?;
            Result::Ok(port)
        };
        let left = open(LEFT, &tenant_a, TENANT_A)?;
        let right = open(RIGHT, &tenant_b, TENANT_B)?;
        let uncut = left.offload();
        let running = start(Bridge::new(left, right, None), Engine::Bpf)?;
        let mut hops = vec![Hop::tx("tenant-a", TENANT_NIC)];
        hops.extend(redirected("a", [LEFT, RIGHT], &running));
        hops.push(Hop::rx("tenant-b", TENANT_NIC));
        Ok(Network::new(vec![a, tenant_a, tenant_b], 1, 2, TENANT_B, params.mtu, hops)
            .keeping(Box::new(running))
            .noting(format!(
                "no wire: the offload profile does not apply; engine {}, offloads: {uncut}; a macvlan at either end that tapbridge does not have",
                Engine::Bpf
            )))
    }
}

/// Returns the hops of two TAPs in `host` between which the kernel redirects. The bridge counts
/// redirected packets; the TAPs count packets that enter user space, which should be none.
pub(super) fn redirected(host: &str, [left, right]: [&str; 2], running: &Arc<Running>) -> [Hop; 3] {
    [
        Hop::tx(host, left).before("tapbridge", dropped(running)).bypassed(TrafficDirection::Both),
        Hop::stage(host, "tapbridge", Direction::Tx, meter(running)),
        Hop::rx(host, right).bypassed(TrafficDirection::Both),
    ]
}

/// Returns a meter of the packets that a bridge moved. Tx is left to right.
fn meter(running: &Arc<Running>) -> Meter {
    let counted = Arc::downgrade(running);
    Meter::new(move || {
        // The bridge is gone with its network, and so are its counters.
        let Some(running) = counted.upgrade() else { return Metered::default() };
        let (there, back) = (running.counters(Side::Left), running.counters(Side::Right));
        let carried = Counters {
            tx_packets: there.forwarded,
            tx_bytes: there.forwarded_bytes,
            rx_packets: back.forwarded,
            rx_bytes: back.forwarded_bytes,
            ..Counters::default()
        };
        Metered { carried, ..Metered::default() }
    })
}
