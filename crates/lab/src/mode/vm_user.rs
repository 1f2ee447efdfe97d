//! `vm-user`: guests behind QEMU's user-space network stack (libslirp), which QEMU uses if no
//! `-netdev` is given. It needs no TAP device and no privileges. The server's ports are
//! published at its host's address.

use std::net::Ipv4Addr;

use testbed::{Host, Wire};

use super::bridge::wire_hops;
use crate::guest::{self, CONTROL_PORT, Guest, GuestOptions, Nic, Pair};
use crate::{Capabilities, Label, Mode, Network, PORT, Params, Result, Unsupported};

/// Guests behind libslirp.
pub struct VmUser;

/// Address of both guests. Each guest has a private network.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

impl Mode for VmUser {
    fn label(&self) -> Label {
        Label::new("vm-user", "guest's virtio-net - QEMU's user-space stack, ports published - wire (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth"])?;
        guest::supported(machine)
    }

    fn takes(&self, options: &GuestOptions) -> std::result::Result<(), Unsupported> {
        guest::takes(options, guest::Behind::Stack)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = params.wire().hosts()?;
        let published = vec![(Wire::B, CONTROL_PORT), (Wire::B, PORT)];
        let pair = [
            guest("tenant-a", &a, params.mtu, Vec::new()),
            guest("tenant-b", &b, params.mtu, published),
        ];
        let guests = Pair::start(pair, params.guest)?;
        guests.network(vec![a, b], params.mtu, wire_hops(), Some(Wire::B))
    }
}

fn guest<'a>(
    name: &'static str,
    host: &'a Host,
    mtu: u32,
    published: Vec<(Ipv4Addr, u16)>,
) -> Guest<'a> {
    let nic = Nic::User { gateway: GATEWAY, published };
    Guest { name, host, address: ADDRESS, prefix: 24, mtu, nic }
}
