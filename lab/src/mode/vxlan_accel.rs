//! `vxlan+accel`: the testbed of `vxlan`, with `overlane accel`'s fast path in
//! both hosts: packets pass bridge and VXLAN device by.

use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};

use accel::reason::Reason;
use accel::{Accel, Status, Wanted};
use netstate::{Counters, Hop, Meter, Metered, Side, Way};
use sys::errno::Errno;
use testbed::{Host, NIC};

use super::bridge::{PORT_DEVICE, Tenants};
use super::vxlan::{DEVICE, TENANT_B, tunnelled};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// The mode.
pub struct VxlanAccel;

impl Mode for VxlanAccel {
    fn name(&self) -> &'static str {
        "vxlan+accel"
    }

    fn path(&self) -> &'static str {
        "tenant - veth - eBPF past bridge and kernel VXLAN device - wire"
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        machine.fast_path()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        accelerated(tunnelled(params, mtu)?, TENANT_B, mtu)
    }
}

/// The network of these tenants, with the fast path in both hosts.
pub(super) fn accelerated(tenants: Tenants, server: Ipv4Addr, mtu: u32) -> Result<Network> {
    let (from_a, from_b) = (start(&tenants.a)?, start(&tenants.b)?);
    let hops = vec![
        // What the fast path delivers to a tenant is handed to its end of the
        // pair directly.
        Hop::rx("a", PORT_DEVICE).bypassed(Way::Reverse),
        Hop::stage("a", "accel", Side::Tx, meter(&from_a, carried)),
        Hop::tx("a", DEVICE).bypassed_but_for(Way::Both, meter(&from_a, shortcut)),
        Hop::tx("a", NIC),
        Hop::rx("b", NIC),
        Hop::stage("b", "accel", Side::Rx, meter(&from_b, carried)),
        Hop::rx("b", DEVICE).bypassed_but_for(Way::Both, meter(&from_b, shortcut)),
        Hop::tx("b", PORT_DEVICE).bypassed(Way::Forward),
    ];
    Ok(tenants
        .network_between(server, mtu, hops)
        .keeping(Box::new(from_a))
        .keeping(Box::new(from_b))
        .noting(
            "super-packets whose outer checksums the VXLAN device is to send pass the bridge by, not the device (excused in its hop); the threads that mirror the kernel's state are not pinned",
        ))
}

/// The fast path of a host, which must take the device.
fn start(host: &Host) -> Result<Arc<Accel>> {
    let failed = |problem: String| {
        sys::Error::new(
            "accelerate",
            format!("{DEVICE} in {}: {problem}", host.name()),
            Errno::EOPNOTSUPP,
        )
    };
    let accel =
        Accel::start(host.netns(), Wanted::All).map_err(|error| failed(error.to_string()))?;
    let status = accel.status();
    let refused = status.devices.iter().find_map(|device| device.refused.clone());
    match refused.or(status.problem) {
        Some(reason) => Err(failed(reason).into()),
        None => Ok(Arc::new(accel)),
    }
}

/// Asks a fast path for its counters, without keeping it.
fn meter(accel: &Arc<Accel>, read: fn(&Status) -> Metered) -> Meter {
    let accel: Weak<Accel> = Arc::downgrade(accel);
    Meter::new(move || accel.upgrade().map_or_else(Metered::default, |accel| read(&accel.status())))
}

/// Packets it forwarded, and those it left to the kernel by reason.
fn carried(status: &Status) -> Metered {
    let mut metered = Metered::default();
    let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = &mut metered.carried;
    for reason in Reason::ALL {
        let Some(counted) = status.packets.get(reason.word()) else { continue };
        let (packets, bytes) = match reason {
            Reason::EgressHit | Reason::EgressShortcut => (&mut *tx_packets, &mut *tx_bytes),
            Reason::IngressHit => (&mut *rx_packets, &mut *rx_bytes),
            _ => {
                metered.left.insert(reason.meaning().to_owned(), counted.packets);
                continue;
            }
        };
        *packets += counted.packets;
        *bytes += counted.bytes;
    }
    metered
}

/// Packets it handed to the VXLAN device itself.
fn shortcut(status: &Status) -> Metered {
    let counted = status.packets.get(Reason::EgressShortcut.word());
    let carried = counted.map_or_else(Counters::default, |counted| Counters {
        tx_packets: counted.packets,
        tx_bytes: counted.bytes,
        ..Counters::default()
    });
    Metered { carried, ..Metered::default() }
}
