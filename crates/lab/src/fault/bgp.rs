//! Faults of the modes whose routes come by BGP.

use std::net::IpAddr;
use std::process::Command;

use netstate::route::{Match, Route};
use nix::sys::signal::Signal;
use testbed::{Process, Wire};

use super::program::{self, host};
use super::{Fault, wait_for};
use crate::bgp::{Daemon, REFLECTOR, REFLECTOR_ADDRESS};
use crate::network::PORT_DEVICE;
use crate::{Network, Result};

pub(crate) const BIRD: [Fault; 2] = [
    Fault {
        name: "session-ends",
        title: "birdc disables b's BGP session, and enables it once a has lost the tenant's route",
        seconds: 5,
        cause: |network| session(network, Daemon::Bird),
    },
    Fault {
        name: "daemon-killed",
        title: "bird in b is killed, and restarted once a has lost the session; graceful restart \
                keeps a's route",
        seconds: 5,
        cause: |network| killed(network, Daemon::Bird),
    },
];
pub(crate) const FRR: [Fault; 2] = [
    Fault {
        name: "session-ends",
        title: "vtysh shuts b's session down, and restores it once a has lost the tenant's route",
        seconds: 3,
        cause: |network| session(network, Daemon::Frr),
    },
    Fault {
        name: "daemon-killed",
        title: "bgpd in b is killed, and restarted once a has lost the tenant's route",
        seconds: 6,
        cause: |network| killed(network, Daemon::Frr),
    },
];
pub(crate) const BIRD_REFLECTED: [Fault; 3] = [BIRD[0], BIRD[1], MOVES];
pub(crate) const FRR_REFLECTED: [Fault; 3] = [FRR[0], FRR[1], MOVES];

/// The address moves with the tenant to the third host, which announces it although it belongs
/// to another host's block.
const MOVES: Fault = Fault {
    name: "tenant-moves",
    title: "the tenant's cable moves from b to the third host, which has a route to the tenant's \
            address",
    seconds: 1,
    cause: moved,
};
/// The tenant's end of the new cable. The old device keeps its name, without a carrier.
const NEW_NIC: &str = "eth1";

fn tenant(network: &Network) -> IpAddr {
    network.address.listen.ip()
}

/// Returns the route of `a` to the tenant.
fn route(network: &Network) -> Result<Option<Match>> {
    Ok(host(network, "a")?.netlink().matched(tenant(network))?)
}

/// Ends the session of `b` by its daemon's own command, and restores it.
fn session(network: &Network, daemon: Daemon) -> Result<Vec<Process>> {
    let found = route(network)?;
    let is_reflected = network.host(REFLECTOR).is_some();
    let peer = if is_reflected { REFLECTOR_ADDRESS } else { Wire::A };
    program::run(network, "b", &mut daemon.session(peer, false))?;
    wait_for("the removal of a's route", || Ok(route(network)?.is_none()))?;
    // Restore only after a has reacted, so that the outage is complete.
    program::run(network, "b", &mut daemon.session(peer, true))?;
    wait_for("a's route", || Ok(route(network)? == found))?;
    Ok(Vec::new())
}

/// Kills the daemon of `b` and restarts it.
fn killed(network: &Network, daemon: Daemon) -> Result<Vec<Process>> {
    let found = route(network)?;
    let victim = program::find(network, "b", daemon.program())?;
    let line = program::command_line(victim)?;
    program::signal(victim, Signal::SIGKILL)?;
    wait_for("the end of the session", || Ok(!has_session(network)?))?;
    if daemon.restarts_gracefully() {
        // The only evidence: the route still exists after the session ended.
        wait_for("the route that graceful restart keeps", || Ok(route(network)? == found))?;
    } else {
        wait_for("the removal of a's route", || Ok(route(network)?.is_none()))?;
    }
    let started = program::start(network, "b", &line)?;
    wait_for("a session", || has_session(network))?;
    wait_for("a's route", || Ok(route(network)? == found))?;
    Ok(vec![started])
}

/// Returns whether `a` has an established BGP session.
fn has_session(network: &Network) -> Result<bool> {
    let mut show = Command::new("ss");
    show.args(["-Htn", "state", "established", "( sport = :179 or dport = :179 )"]);
    Ok(!host(network, "a")?.run(&mut show)?.trim().is_empty())
}

fn moved(network: &Network) -> Result<Vec<Process>> {
    let (to, third) = (tenant(network), host(network, REFLECTOR)?);
    third.forward()?;
    third.connect(PORT_DEVICE, network.server(), NEW_NIC, network.tenant_mtu)?;
    host(network, "b")?.netlink().set_down(PORT_DEVICE)?;
    let route_there = Route { to, prefix: 32, via: None, link: PORT_DEVICE, onlink: false };
    third.netlink().add_route(&route_there)?;
    let there = Some(IpAddr::V4(REFLECTOR_ADDRESS));
    wait_for("the route to the third host", || {
        Ok(route(network)?.is_some_and(|route| route.prefix == 32 && route.via == there))
    })?;
    Ok(Vec::new())
}
