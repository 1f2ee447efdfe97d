//! `vm-vxlan`, `vm-vxlan+accel`: guests on a bridge with a kernel VXLAN device as uplink, as
//! OpenStack's linuxbridge agent builds it; the second with `overlane accel`'s fast path in
//! both hosts.

use std::sync::Arc;

use accel::{Accel, Reason, Status};
use netstate::{Bypass, Hop, HopKind, Metered};

use super::vm_bridge::{hosts, pair, tap_hops};
use super::vxlan::{DEVICE, Underlay, join_tunnels, tunnel_hops};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, carried, hops, meter, shortcut, start};
use crate::guest::{self, TAP};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// Guests on bridges with a kernel VXLAN device.
pub struct VmVxlan {
    accelerated: bool,
}

/// The kernel's own way.
pub const PLAIN: VmVxlan = VmVxlan { accelerated: false };
/// With the fast path.
pub const ACCEL: VmVxlan = VmVxlan { accelerated: true };

impl Mode for VmVxlan {
    fn name(&self) -> &'static str {
        if self.accelerated { "vm-vxlan+accel" } else { "vm-vxlan" }
    }

    fn path(&self) -> &'static str {
        if self.accelerated {
            "guest's virtio-net - TAP - eBPF past bridge and kernel VXLAN device - wire (TCG: ratios between modes only)"
        } else {
            "guest's virtio-net - TAP - bridge - kernel VXLAN device - wire (TCG: ratios between modes only)"
        }
    }

    fn in_guests(&self) -> bool {
        true
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        if self.accelerated {
            machine.fast_path()?;
        }
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        params.wire().address(&a, &b)?;
        let mtu = Underlay::V4.tenant_mtu(params);
        let guests = pair([&a, &b], mtu, params.guest)?;
        let ends = [testbed::Wire::A.into(), testbed::Wire::B.into()];
        join_tunnels([&a, &b], ends, mtu, TAP)?;
        if !self.accelerated {
            return guests.network(vec![a, b], mtu, tap_hops(tunnel_hops()), None);
        }
        // Bridges learn the guests, and the mirror follows, from the connection by which one
        // gets to know the other: it takes half a second, before anything is measured.
        let both = [start(&a)?, start(&b)?];
        let middle = hops(DEVICE, &both, [("a", TAP), ("b", TAP)]);
        let middle = middle.into_iter().map(|hop| to_machine(hop, &both)).collect();
        let [from_a, from_b] = both;
        Ok(guests
            .network(vec![a, b], mtu, middle, None)?
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(SHORTCUTS)
            .noting(LEFT)
            .noting(MIRRORS))
    }
}

/// What a reader of the figures has to know.
const LEFT: &str = "GSO packets off the tunnel are the kernel's: no connection of the host is their end (counted in hop accel, excused in the VXLAN device's)";

/// A hop of the fast path whose tenant is a machine: the fast path takes GSO packets off the
/// tunnel where a connection of the tenant's namespace is their end, and leaves others.
fn to_machine(hop: Hop, both: &[Arc<Accel>; 2]) -> Hop {
    let accel = &both[usize::from(hop.host == "b")];
    // There is no other end of a TAP device to hand packets to: the device carries all.
    if hop.device == TAP {
        return Hop { bypass: None, ..hop };
    }
    if hop.kind == HopKind::Stage {
        return Hop {
            meter: Some(meter(accel, |status| with_gso(status, carried(status)))),
            ..hop
        };
    }
    let excused = || meter(accel, |status| with_gso(status, shortcut(status)));
    let bypass = hop.bypass.map(|bypass| Bypass { excused: Some(excused()), ..bypass });
    Hop { bypass, ..hop }
}

/// With the GSO packets off the tunnel that it left.
fn with_gso(status: &Status, mut metered: Metered) -> Metered {
    if let Some(gso) = status.packets.get(Reason::DecapGso.word()) {
        metered.carried.rx_packets += gso.packets;
        metered.carried.rx_bytes += gso.bytes;
    }
    metered
}
