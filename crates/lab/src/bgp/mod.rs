//! BGP daemons in test hosts: BIRD, or FRR's `zebra` and `bgpd`. This module handles routes to
//! tenants, [`evpn`] the entries of VXLAN devices.
//!
//! Each host's daemons have their own process tree with a private `/run` and `/tmp` for
//! configuration, sockets and PID files. These vanish with the processes, and the routes vanish
//! with the host's namespace.

mod bird;
pub(crate) mod evpn;
mod frr;

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Duration;

use netstate::route::Match;
use testbed::{Host, Process, Processes};

use crate::guest_files::Besides;
use crate::unsupported::{Supported, find_program};
use crate::{Capabilities, Result};

/// Prefix length of a host's block, bits: calico's default (`blockSize`).
pub(crate) const BLOCK_PREFIX: u8 = 26;
/// AS number of all hosts (sessions are internal), calico's default (`asNumber`).
const AS: u32 = 64512;
/// The third host, if it is a route reflector.
pub(crate) const REFLECTOR: &str = "reflector";
pub(crate) const REFLECTOR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
/// Range of all blocks. Nothing else may be announced.
const POOL: &str = "10.1.0.0/16";
/// calico's default for route reflectors in its documentation (`routeReflectorClusterID`).
const CLUSTER_ID: Ipv4Addr = Ipv4Addr::new(244, 0, 0, 1);
/// `PATH` of the daemons.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Time limit for daemons to start and for routes to appear. Refused sessions are retried within
/// 10 s.
const LIMIT: Duration = Duration::from_secs(60);

/// BGP implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    Bird,
    Frr,
}

/// Routes that a host announces for its tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announce {
    /// One route to the block of their addresses.
    Block,
    /// One route per address.
    Tenants,
}

/// BGP configuration of a host.
#[derive(Debug, Clone)]
pub(crate) struct Speaker {
    /// The host's address for sessions, also the next hop to its tenants.
    pub(crate) address: Ipv4Addr,
    /// Address block of its tenants, a /26; `None` for a route reflector.
    pub(crate) block: Option<Ipv4Addr>,
    pub(crate) announce: Announce,
    pub(crate) peers: Vec<Ipv4Addr>,
    /// IPIP device to the tenants of its peers. BIRD only.
    pub(crate) tunnel: Option<&'static str>,
}

impl Speaker {
    /// Returns the networks that it announces, with prefix lengths.
    pub(crate) fn announced(&self) -> Vec<(Ipv4Addr, u8)> {
        let block = self.block.into_iter();
        match self.announce {
            Announce::Block => block.map(|block| (block, BLOCK_PREFIX)).collect(),
            Announce::Tenants => block.flat_map(addresses).map(|address| (address, 32)).collect(),
        }
    }

    /// Returns whether it is a route reflector.
    fn reflects(&self) -> bool {
        self.block.is_none()
    }
}

/// Returns every address of a block.
pub(crate) fn addresses(block: Ipv4Addr) -> impl Iterator<Item = Ipv4Addr> {
    (0..1 << (32 - BLOCK_PREFIX)).map(move |at| Ipv4Addr::from_bits(block.to_bits() + at))
}

impl Daemon {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Daemon::Bird => "BIRD",
            Daemon::Frr => "FRR",
        }
    }

    /// Name of the program that holds the sessions.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Daemon::Bird => "bird",
            Daemon::Frr => "bgpd",
        }
    }

    /// Returns whether peers keep the routes of a killed daemon, by graceful restart (RFC 4724).
    /// calico enables it, FRR's defaults do not.
    pub(crate) const fn restarts_gracefully(self) -> bool {
        matches!(self, Daemon::Bird)
    }

    /// Returns the command that enables or ends a host's session with its first peer, `peer`.
    pub(crate) fn session(self, peer: Ipv4Addr, up: bool) -> Command {
        match self {
            Daemon::Bird => bird::session(up),
            Daemon::Frr => frr::session(peer, up),
        }
    }

    /// Protocol number of its routes in the kernel (`RTPROT_BIRD`, `RTPROT_BGP` of
    /// `linux/rtnetlink.h`).
    const fn protocol(self) -> u8 {
        match self {
            Daemon::Bird => 12,
            Daemon::Frr => 186,
        }
    }

    /// Checks whether it is installed and this process may run it.
    pub(crate) fn installed(self, machine: &Capabilities) -> Supported {
        match self {
            Daemon::Bird => machine.program("bird", "bird2").map(drop),
            Daemon::Frr => frr::installed(machine),
        }
    }

    /// Returns its programs, and the files that they need besides their configuration, if
    /// installed.
    pub(crate) fn files(self) -> Besides {
        match self {
            Daemon::Bird => {
                Besides { programs: find_program("bird").into_iter().collect(), files: Vec::new() }
            }
            Daemon::Frr => frr::files(),
        }
    }

    /// Starts it in a host. Returns the programs in the order in which they must stop.
    ///
    /// # Errors
    /// The program that failed, with its output.
    pub(crate) fn start(
        self,
        tree: &Processes,
        host: &Host,
        speaker: &Speaker,
    ) -> Result<Vec<Process>> {
        match self {
            Daemon::Bird => bird::start(tree, host, speaker),
            Daemon::Frr => frr::start(tree, host, speaker),
        }
    }

    /// Waits until `host` routes to all networks that `peer` announces by its daemon's routes, with
    /// that peer as next hop.
    ///
    /// # Errors
    /// The missing route, with the output of the programs of all hosts.
    pub(crate) fn learns(
        self,
        host: &Host,
        programs: &mut [&mut Process],
        peer: &Speaker,
    ) -> Result<()> {
        let what = format!("{}'s routes to {} in {}", self.name(), peer.address, host.name());
        let mut missing = peer.announced();
        testbed::poll(&what, LIMIT, || {
            // Fail at once if a daemon has ended.
            programs.iter_mut().try_for_each(|program| program.check())?;
            // Routes that have appeared are not checked again: there can be 64 of them.
            while let Some(&(network, prefix)) = missing.last() {
                let via = Some(IpAddr::V4(peer.address));
                let wanted = Match { prefix, via, protocol: self.protocol() };
                let found = host.netlink().matched(IpAddr::V4(network))?;
                if found != Some(wanted) {
                    let said: Vec<_> =
                        programs.iter().map(|program| program.last_lines()).collect();
                    let said = said.concat();
                    return Ok(Err(format!("{network}/{prefix} has {found:?}\n{said}")));
                }
                missing.pop();
            }
            Ok(Ok(()))
        })
    }
}

/// Returns a command with a cleared environment.
pub(crate) fn command(path: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(path);
    command.env_clear().env("PATH", PATH);
    command
}

/// Writes a file inside the mount namespace of `tree`.
fn write(tree: &Processes, host: &Host, path: &str, text: &str) -> Result<()> {
    let written = tree.inside(host, || std::fs::write(path, text))?;
    Ok(written.map_err(|error| sys::Error::io("write", path, &error))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of speaker.
    pub(super) fn speakers() -> Vec<Speaker> {
        let node = |announce, peer| Speaker {
            address: Ipv4Addr::new(10, 0, 0, 1),
            block: Some(Ipv4Addr::new(10, 1, 1, 0)),
            announce,
            peers: vec![Ipv4Addr::new(10, 0, 0, peer)],
            tunnel: None,
        };
        let reflector = Speaker {
            address: Ipv4Addr::new(10, 0, 0, 3),
            block: None,
            peers: vec![Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)],
            ..node(Announce::Block, 1)
        };
        vec![
            node(Announce::Block, 2),
            node(Announce::Tenants, 2),
            node(Announce::Block, 3),
            reflector,
            Speaker { tunnel: Some("tunl0"), ..node(Announce::Block, 2) },
        ]
    }

    #[test]
    fn a_block_is_announced_as_one_or_by_its_addresses() {
        let announced: Vec<_> = speakers().iter().map(Speaker::announced).collect();
        let block = Ipv4Addr::new(10, 1, 1, 0);
        assert_eq!(announced[0], [(block, 26)]);
        assert_eq!(announced[1].len(), 64);
        assert_eq!(announced[1][63], (Ipv4Addr::new(10, 1, 1, 63), 32));
        assert!(announced[3].is_empty());
    }
}
