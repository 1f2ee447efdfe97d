//! Faults of a router in two hosts. VRRP decides which host has its addresses.

use std::net::IpAddr;

use nix::sys::signal::Signal;
use testbed::{NIC, Process};

use super::program::{self, host, signal};
use super::{Fault, wait_for};
use crate::neutron::Net;
use crate::{Network, Result};

pub(crate) const ALL: [Fault; 2] = [
    Fault {
        name: "link-down",
        title: "the link of the first router's host goes down; the second takes over its addresses",
        seconds: 8,
        cause: |network| {
            host(network, "network-1")?.netlink().set_down(NIC)?;
            taken_over(network)
        },
    },
    Fault {
        name: "daemon-killed",
        title: "keepalived of the first router is killed; the second has the addresses, too",
        seconds: 8,
        cause: |network| {
            kill_keepalived(network)?;
            taken_over(network)
        },
    },
];

/// Waits until the second router has the router's addresses.
fn taken_over(network: &Network) -> Result<Vec<Process>> {
    let second = host(network, "qrouter-2")?;
    wait_for("the second router's addresses", || {
        let own = second.netlink().addresses()?;
        let has = |net: Net| own.iter().any(|own| own.address == IpAddr::V4(net.router()));
        Ok(has(Net::One) && has(Net::Two))
    })?;
    Ok(Vec::new())
}

/// Kills keepalived and its VRRP child. The parent is stopped first, or it would restart the
/// child.
fn kill_keepalived(network: &Network) -> Result<()> {
    let parent = program::find(network, "qrouter-1", "keepalived")?;
    signal(parent, Signal::SIGSTOP)?;
    for child in program::children(parent)? {
        signal(child, Signal::SIGKILL)?;
    }
    signal(parent, Signal::SIGKILL)
}
