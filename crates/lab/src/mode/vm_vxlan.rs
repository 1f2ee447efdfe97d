//! `vm-vxlan`, `vm-vxlan+accel`: guests on a bridge with a kernel VXLAN device as uplink, as
//! OpenStack's linuxbridge agent builds it; the second with `overlane accel`'s fast path in
//! both hosts.

use netstate::Hop;

use super::vm_bridge::{hosts, pair, tap_hops};
use super::vxlan::{DEVICE, Underlay, join_tunnels, tunnel_hops};
use super::vxlan_accel::{MIRRORS, SHORTCUTS, hops, start};
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
        // There is no other end of a TAP device to hand packets to: the device carries all.
        let at_tap = |hop: Hop| match hop.device == TAP {
            true => Hop { bypass: None, ..hop },
            false => hop,
        };
        let middle = middle.into_iter().map(at_tap).collect();
        let [from_a, from_b] = both;
        Ok(guests
            .network(vec![a, b], mtu, middle, None)?
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(SHORTCUTS)
            .noting(MIRRORS))
    }
}
