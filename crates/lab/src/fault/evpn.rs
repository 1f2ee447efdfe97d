//! Faults of the modes whose VXLAN devices are filled by BGP.

use std::net::IpAddr;

use nix::sys::signal::Signal;
use testbed::{Process, Wire, mac};

use super::program::{self, host};
use super::{Fault, wait_for};
use crate::bgp::{Daemon, evpn};
use crate::network::{BRIDGE, PORT_DEVICE, TENANT_NIC, VXLAN_DEVICE};
use crate::{Network, Result};

pub(crate) const PAIR: [Fault; 1] = [KILLED];
pub(crate) const SPINE: [Fault; 2] = [KILLED, MOVES];

/// Without `bgpd` the other host withdraws its entries, and the tunnel floods to no VTEP.
const KILLED: Fault = Fault {
    name: "daemon-killed",
    title: "bgpd in b is killed, and restarted once a has lost the entry of the tenant",
    seconds: 3,
    cause: killed,
};
/// Like a migrated machine: the same MAC and IP address appear in another host and announce
/// themselves.
const MOVES: Fault = Fault {
    name: "mac-moves",
    title: "the tenant's cable moves from b to c, and the tenant announces itself to its gateway",
    seconds: 1,
    cause: moved,
};

/// Returns the remote VTEP of the tenant by zebra's entry on the VXLAN device of `a`.
fn vtep(network: &Network) -> Result<Option<IpAddr>> {
    let a = host(network, "a")?;
    let device = a.netlink().link(VXLAN_DEVICE)?.index;
    let of = mac(network.server().name(), TENANT_NIC);
    let entries = a.netlink().controlled_fdb()?;
    let mut own = entries.into_iter();
    // The bridge has an entry for the same address, too: take the VXLAN device's.
    let own = own.find(|entry| (entry.link, entry.bridge, entry.mac) == (device, None, of));
    Ok(own.and_then(|entry| entry.address))
}

fn killed(network: &Network) -> Result<Vec<Process>> {
    let victim = program::find(network, "b", Daemon::Frr.program())?;
    let line = program::command_line(victim)?;
    program::signal(victim, Signal::SIGKILL)?;
    wait_for("the removal of a's entry", || Ok(vtep(network)?.is_none()))?;
    let started = program::start(network, "b", &line)?;
    wait_for("a's entry", || Ok(vtep(network)? == Some(Wire::B.into())))?;
    Ok(vec![started])
}

fn moved(network: &Network) -> Result<Vec<Process>> {
    let (name, number) = evpn::C;
    let (b, c) = (host(network, "b")?, host(network, name)?);
    b.netlink().set_netns(PORT_DEVICE, c.netns())?;
    // Moving the device has detached it from b's bridge.
    c.netlink().set_master(PORT_DEVICE, BRIDGE)?;
    c.netlink().set_up(PORT_DEVICE)?;
    evpn::greet(network.server(), network.address.listen.ip(), evpn::gateway(number))?;
    let there = Some(IpAddr::V4(evpn::vtep(number)));
    wait_for("zebra's entry of c", || Ok(vtep(network)? == there))?;
    Ok(Vec::new())
}
