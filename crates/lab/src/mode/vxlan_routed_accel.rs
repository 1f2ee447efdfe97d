//! `vxlan-routed+accel`: the testbed of `vxlan-routed`, with `overlane accel`'s fast path in
//! both hosts. Packets bypass the bridge, IP forwarding and the VXLAN device.

use super::vxlan_accel::accelerated;
use super::vxlan_routed::{SERVER, routed};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// `vxlan-routed` with the fast path in both hosts.
pub struct VxlanRoutedAccel;

impl Mode for VxlanRoutedAccel {
    fn label(&self) -> Label {
        Label::new(
            "vxlan-routed+accel",
            "tenant - veth - eBPF bypassing bridge, route and VXLAN device - wire",
        )
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge", "vxlan"])?;
        machine.fast_path()
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let mtu = params.mtu - VXLAN_OVERHEAD;
        accelerated(routed(params, mtu)?, SERVER, mtu)
    }
}
