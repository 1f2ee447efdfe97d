//! `vm-vtep`: guests on a bridge whose uplink is the TAP device of `overlane vtep`: VXLAN in
//! user space in each host.

use std::sync::Arc;

use netstate::Hop;
use testbed::{Host, NIC, Wire};

use super::bridge::BRIDGE;
use super::tapbridge::UNPINNED;
use super::vm_bridge::{hosts, pair, tap_hops};
use super::vtep::{AUTO, dropped, endpoint};
use crate::guest::{self, TAP};
use crate::network::VXLAN_OVERHEAD;
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests behind user-space tunnel endpoints.
pub struct VmVtep;

/// The endpoint's TAP device in each host.
const PORT: &str = "tap1";

impl Mode for VmVtep {
    fn label(&self) -> Label {
        Label::new("vm-vtep", "guest's virtio-net - TAP - bridge - VXLAN in user space, GSO packets - wire (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        AUTO.probe(machine)?;
        machine.links(&["bridge"])?;
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        params.wire().address(&a, &b)?;
        let mtu = params.mtu - VXLAN_OVERHEAD;
        let guests = pair([&a, &b], mtu, params.guest)?;
        let endpoint = |host: &Host, local, remote| {
            let running = endpoint(host, host, [local, remote], PORT, &AUTO)?;
            host.bridge(BRIDGE, mtu, &[PORT, TAP])?;
            Result::Ok(Arc::new(running))
        };
        let from_a = endpoint(&a, Wire::A.into(), Wire::B.into())?;
        let from_b = endpoint(&b, Wire::B.into(), Wire::A.into())?;
        let note = format!("{UNPINNED}; hand-over {}", from_a.way());
        let middle = vec![
            Hop::tx("a", PORT).before("vtep", dropped(&from_a)),
            Hop::tx("a", NIC),
            Hop::rx("b", NIC).before("vtep", dropped(&from_b)),
            Hop::rx("b", PORT),
        ];
        Ok(guests
            .network(vec![a, b], mtu, tap_hops(middle), None)?
            .keeping(Box::new(from_a))
            .keeping(Box::new(from_b))
            .noting(note))
    }
}
