//! `vm-bridge`: guests on a bridge that joins their TAP device and the NIC, a flat underlay as
//! with libvirt's bridged networks.

use netstate::Hop;
use testbed::{Host, NIC};

use super::bridge::{BRIDGE, TENANT_A, TENANT_B};
use crate::guest::{self, Guest, GuestOptions, Nic, Pair, TAP};
use crate::{Capabilities, Label, Mode, Network, Params, Result, Unsupported};

/// Guests on bridges with the NICs as ports.
pub struct VmBridge;

impl Mode for VmBridge {
    fn label(&self) -> Label {
        Label::new("vm-bridge", "guest's virtio-net - TAP - bridge with the NIC as port - wire (TCG: compare vm modes only)").in_guests()
    }

    fn probe(&self, machine: &Capabilities) -> std::result::Result<(), Unsupported> {
        machine.links(&["veth", "bridge"])?;
        machine.tun()?;
        guest::supported(machine)
    }

    fn build(&self, params: &Params) -> Result<Network> {
        let [a, b] = hosts(params)?;
        let guests = pair([&a, &b], params.mtu, params.guest)?;
        for host in [&a, &b] {
            host.bridge(BRIDGE, params.mtu, &[NIC, TAP])?;
        }
        guests.network(vec![a, b], params.mtu, tap_hops(super::bridge::wire_hops()), None)
    }
}

/// Creates hosts `a` and `b` and joins them. The NICs have no addresses.
pub(super) fn hosts(params: &Params) -> Result<[Host; 2]> {
    let (a, b) = (Host::new("a")?, Host::new("b")?);
    params.wire().join(&a, &b)?;
    Ok([a, b])
}

/// Starts a guest in each host, on TAP devices and one network. The devices are up.
pub(super) fn pair(hosts: [&Host; 2], mtu: u32, options: GuestOptions) -> Result<Pair> {
    guest_pair(hosts, mtu, options, false)
}

/// Like [`pair`]. With `finished`, guests send no GSO packets and complete checksums.
pub(super) fn guest_pair(
    hosts: [&Host; 2],
    mtu: u32,
    options: GuestOptions,
    finished: bool,
) -> Result<Pair> {
    let [a, b] = hosts;
    let nic = Nic::Tap { finished };
    let guest =
        |name, host, address| Guest { name, host, address, prefix: 24, mtu, nic: nic.clone() };
    let guests = [guest("tenant-a", a, TENANT_A), guest("tenant-b", b, TENANT_B)];
    let pair = Pair::start(guests, options)?;
    for host in hosts {
        // QEMU creates the TAP device with the default MTU.
        host.netlink().set_mtu(TAP, mtu)?;
        host.netlink().set_up(TAP)?;
    }
    Ok(pair)
}

/// Returns the hops from one guest's TAP device to the other's; `middle` lies between.
pub(super) fn tap_hops(middle: Vec<Hop>) -> Vec<Hop> {
    // A TAP device receives the packets that its guest sends.
    let mut hops = vec![Hop::rx("a", TAP)];
    hops.extend(middle);
    hops.push(Hop::tx("b", TAP));
    hops
}
