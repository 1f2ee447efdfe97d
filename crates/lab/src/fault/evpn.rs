//! Faults of the modes whose VXLAN devices BGP fills.

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

/// Without `bgpd` the other host withdraws what it announced; the tunnel then floods to nobody.
const KILLED: Fault = Fault {
    name: "daemon-killed",
    title: "bgpd in b is killed, and started again once a has no entry of the tenant",
    seconds: 3,
    cause: killed,
};
/// As a machine that is migrated: the same hardware and IP address come up there, and say so.
const MOVES: Fault = Fault {
    name: "mac-moves",
    title: "the tenant's cable goes from b to c, and the tenant tells its gateway there",
    seconds: 1,
    cause: moved,
};

/// The VTEP that the VXLAN device of `a` sends frames for the tenant to, by zebra's entry.
fn vtep(network: &Network) -> Result<Option<IpAddr>> {
    let a = host(network, "a")?;
    let device = a.netlink().link(VXLAN_DEVICE)?.index;
    let of = mac(network.server().name(), TENANT_NIC);
    let entries = a.netlink().controlled_fdb()?;
    let mut own = entries.into_iter();
    let own = own.find(|entry| (entry.link, entry.bridge, entry.mac) == (device, None, of));
    Ok(own.and_then(|entry| entry.address))
}

fn killed(network: &Network) -> Result<Vec<Process>> {
    let victim = program::find(network, "b", Daemon::Frr.program())?;
    let line = program::command_line(victim)?;
    program::signal(victim, Signal::SIGKILL)?;
    wait_for("the end of a's entry", || Ok(vtep(network)?.is_none()))?;
    let started = program::start(network, "b", &line)?;
    wait_for("a's entry", || Ok(vtep(network)? == Some(Wire::B.into())))?;
    Ok(vec![started])
}

fn moved(network: &Network) -> Result<Vec<Process>> {
    let (name, number) = evpn::C;
    let (b, c) = (host(network, "b")?, host(network, name)?);
    b.netlink().set_netns(PORT_DEVICE, c.netns())?;
    c.netlink().set_master(PORT_DEVICE, BRIDGE)?;
    c.netlink().set_up(PORT_DEVICE)?;
    evpn::greet(network.server(), network.address.listen.ip(), evpn::gateway(number))?;
    let there = Some(IpAddr::V4(evpn::vtep(number)));
    wait_for("zebra's entry of c", || Ok(vtep(network)? == there))?;
    Ok(Vec::new())
}
