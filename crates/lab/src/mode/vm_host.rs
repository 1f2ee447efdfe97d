//! `vm-host`: guests whose TAP device and NIC are joined by tc redirects, with no bridge, route
//! or tunnel. It is the baseline of the other `vm-` modes.

use std::process::Command;

use testbed::{Host, NIC};

use super::bridge::wire_hops;
use super::vm_bridge::{hosts, pair, tap_hops};
use crate::guest::{self, TAP};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests on the bare wire.
pub struct VmHost;

impl Mode for VmHost {
    fn label(&self) -> Label {
        Label::new(
            "vm-host",
            "guest's virtio-net - TAP - tc redirect to the NIC - wire (TCG: compare vm modes only)",
        )
        .in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        machine.program("tc", "iproute2")?;
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        let guests = pair([&a, &b], params.mtu, params.guest)?;
        for host in [&a, &b] {
            // Safe: the NIC has no address of the host, so all its frames are the guest's.
            redirect(host, TAP, NIC)?;
            redirect(host, NIC, TAP)?;
        }
        guests.network(vec![a, b], params.mtu, tap_hops(wire_hops()), None)
    }
}

/// Redirects every packet that a device receives to the egress of another device.
fn redirect(host: &Host, from: &str, to: &str) -> Result<()> {
    let tc = |words: &str| host.run(Command::new("tc").args(words.split(' '))).map(drop);
    tc(&format!("qdisc add dev {from} clsact"))?;
    tc(&format!(
        "filter add dev {from} ingress protocol all u32 match u32 0 0 \
         action mirred egress redirect dev {to}"
    ))
}
