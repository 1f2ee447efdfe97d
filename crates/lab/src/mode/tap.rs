//! `tap`: tenants on TAP devices. A plain loop forwards with one read and one write per packet,
//! the naive reference in user space.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::copy_loop::CopyLoop;
use netstate::Hop;
use sys::tap::{Tap as Device, TapOptions};
use testbed::Host;

use super::tapbridge::UNPINNED;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Two TAP devices, one read and write per packet, no offload.
pub struct Tap;

const DEVICE: &str = "tap0";
const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 12);

impl Mode for Tap {
    fn label(&self) -> Label {
        Label::new("tap", "tenant's TAP - read/write loop in user space - tenant's TAP")
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.tun()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let (tenant_a, tenant_b) = (Host::new("tenant-a")?, Host::new("tenant-b")?);
        let open = |tenant: &Host, address| {
            let tap = tenant.netns().run(|| Device::open(&TapOptions::named(DEVICE)))??;
            tenant.netlink().set_mtu(DEVICE, params.mtu)?;
            tenant.address(DEVICE, address, 24)?;
            Result::Ok(tap)
        };
        let (left, right) = (open(&tenant_a, TENANT_A)?, open(&tenant_b, TENANT_B)?);
        let copying = Arc::new(CopyLoop::start(left, right)?);
        let counted = Arc::downgrade(&copying);
        let refused = move || {
            // The loop is gone with its network, and so are its counters.
            counted.upgrade().map_or(0, |loop_| loop_.drops().refused.load(Ordering::Relaxed))
        };
        let hops = vec![
            Hop::tx("tenant-a", DEVICE).before("copy loop", refused),
            Hop::rx("tenant-b", DEVICE),
        ];
        Ok(Network::new(vec![tenant_a, tenant_b], 0, 1, TENANT_B, params.mtu, hops)
            .keeping(Box::new(copying))
            .noting("no wire: the offload profile does not apply")
            .noting(UNPINNED))
    }
}
