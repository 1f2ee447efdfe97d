//! `vm-vxlan`, `vm-vxlan+accel`: guests on a bridge with a kernel VXLAN device as uplink, as
//! OpenStack's linuxbridge agent builds it. The second has `overlane accel`'s fast path in both
//! hosts.

use std::sync::Arc;

use accel::{Accel, Reason, Status};
use netstate::{Bypass, Hop, HopKind, Metered};

use super::vm_bridge::{hosts, pair, tap_hops};
use super::vxlan::{DEVICE, Underlay, join_tunnels, tunnel_hops};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, carried, hops, meter, shortcut, start};
use crate::guest::{self, TAP};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests on bridges with a kernel VXLAN device.
pub struct VmVxlan {
    accelerated: bool,
}

/// Without the fast path.
pub const PLAIN: VmVxlan = VmVxlan { accelerated: false };
/// With the fast path.
pub const ACCEL: VmVxlan = VmVxlan { accelerated: true };

impl Mode for VmVxlan {
    fn label(&self) -> Label {
        let label = if self.accelerated {
            Label::new(
                "vm-vxlan+accel",
                "guest's virtio-net - TAP - eBPF bypassing bridge and kernel VXLAN device - wire (TCG: compare vm modes only)",
            )
        } else {
            Label::new(
                "vm-vxlan",
                "guest's virtio-net - TAP - bridge - kernel VXLAN device - wire (TCG: compare vm modes only)",
            )
        };
        label.in_guests()
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
        // The bridges learn the guests from their first connection, and the mirror follows. That
        // takes half a second and is over before measuring starts.
        let both = [start(&a)?, start(&b)?];
        let middle = hops(DEVICE, &both, [("a", TAP), ("b", TAP)]);
        let middle = middle.into_iter().map(|hop| to_machine(hop, &both)).collect();
        let [from_a, from_b] = both;
        Ok(guests
            .network(vec![a, b], mtu, middle, None)?
            // The fast path stops when it is dropped.
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(SHORTCUTS)
            .noting(LEFT)
            .noting(MIRRORS))
    }
}

/// Note printed with the figures.
const LEFT: &str = "the kernel handles GSO packets from the tunnel, since no connection of the host ends them (counted in hop accel, excused in the VXLAN device's)";

/// Adapts a fast-path hop whose tenant is a virtual machine. The fast path decapsulates a GSO
/// packet only if a connection in the tenant's namespace ends it, and leaves others to the
/// kernel.
fn to_machine(hop: Hop, both: &[Arc<Accel>; 2]) -> Hop {
    let accel = &both[usize::from(hop.host == "b")];
    // A TAP device has no peer to hand packets to, so it carries all of them.
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

/// Adds the GSO packets from the tunnel that the fast path left to the kernel.
fn with_gso(status: &Status, mut metered: Metered) -> Metered {
    if let Some(gso) = status.packets.get(Reason::DecapGso.word()) {
        metered.carried.rx_packets += gso.packets;
        metered.carried.rx_bytes += gso.bytes;
    }
    metered
}
