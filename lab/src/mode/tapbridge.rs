//! `tapbridge`: tenants on TAP devices, joined by `overlane tapbridge`'s engine:
//! super-packets cross user space uncut. `tap` is the same without that.

use std::net::Ipv4Addr;
use std::sync::Arc;

use datapath::tapbridge::{Bridge, EngineChoice, Port, PortOptions, Running, Side};
use netstate::Hop;
use sys::errno::Errno;
use testbed::Host;

use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// The mode.
pub struct TapBridge;

const DEVICE: &str = "tap0";
const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);

impl Mode for TapBridge {
    fn name(&self) -> &'static str {
        "tapbridge"
    }

    fn path(&self) -> &'static str {
        "tenant's TAP - super-packets through user space - tenant's TAP"
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.tun()
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
        let running = Bridge::new(left, right, None)
            .and_then(|bridge| bridge.engine(EngineChoice::Auto)?.start())
            .map_err(failed)?;
        let engine = running.engine();
        let running = Arc::new(running);
        let counted = Arc::downgrade(&running);
        let dropped = move || {
            let dropped = |bridge: Arc<Running>| {
                let from = |side| bridge.counters(side).dropped();
                from(Side::Left) + from(Side::Right)
            };
            counted.upgrade().map_or(0, dropped)
        };
        let hops = vec![
            Hop::tx("tenant-a", DEVICE).before("tapbridge", dropped),
            Hop::rx("tenant-b", DEVICE),
        ];
        Ok(Network::new(vec![tenant_a, tenant_b], 0, 1, TENANT_B, params.mtu, hops)
            .keeping(Box::new(running))
            .noting(format!(
                "crosses no wire: the offload profile does not apply; engine {engine}, uncut: {uncut}; its thread is not pinned"
            )))
    }
}

/// A bridge or an endpoint that did not start, as what it is for the testbed: a
/// failed request to the kernel.
pub(super) fn failed(error: datapath::Error) -> testbed::Error {
    match error {
        datapath::Error::Sys(error) => error.into(),
        other => sys::Error::new("start", other.to_string(), Errno::EOPNOTSUPP).into(),
    }
}
