//! `vm-host`: guests whose TAP devices are joined to the NIC by tc, packet by packet: no
//! bridge, no route, no tunnel. It is the baseline of the other modes of guests.

use std::process::Command;

use testbed::{Host, NIC};

use super::bridge::wire_hops;
use super::vm_bridge::{hosts, pair, tap_hops};
use crate::guest::{self, TAP};
use crate::{Capabilities, Mode, Network, Params, Result, Unsupported};

/// Guests beside the bare wire.
pub struct VmHost;

impl Mode for VmHost {
    fn name(&self) -> &'static str {
        "vm-host"
    }

    fn path(&self) -> &'static str {
        "guest's virtio-net - TAP - redirected to the NIC by tc - wire (TCG: ratios between modes only)"
    }

    fn in_guests(&self) -> bool {
        true
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
            // The NIC has no address, and the guest's frames are not for its own.
            redirect(host, TAP, NIC)?;
            redirect(host, NIC, TAP)?;
        }
        guests.network(vec![a, b], params.mtu, tap_hops(wire_hops()), None)
    }
}

/// Hands every packet that a device receives to another, to be sent.
fn redirect(host: &Host, from: &str, to: &str) -> Result<()> {
    let tc = |words: &str| host.run(Command::new("tc").args(words.split(' '))).map(drop);
    tc(&format!("qdisc add dev {from} clsact"))?;
    tc(&format!(
        "filter add dev {from} ingress protocol all u32 match u32 0 0 \
         action mirred egress redirect dev {to}"
    ))
}
