//! Routes by BGP: whose they are, what becomes of traffic when a session dies or a tenant
//! moves, and that nothing of the daemons stays behind.

#[path = "traffic/daemons.rs"]
mod daemons;
#[path = "traffic/loss.rs"]
mod loss;
mod traffic;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::time::Instant;

use daemons::{Restarted, inode, left_on_the_machine, start};
use lab::{Capabilities, Mode, Network, Params, modes};
use loss::{lossy, wait_for};
use netstate::route::{Match, Route};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::standing::{Standing, is_meant, stands};
use test_support::{need, require};
use testbed::{Offload, Privileges};
use traffic::{LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

const PARAMS: Params = Params::new(1500, Offload::Full);
const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 2);
const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 2);
const HOST_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HOST_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const REFLECTOR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
/// `RTPROT_STATIC`, `RTPROT_BIRD`, `RTPROT_BGP` (`linux/rtnetlink.h`).
const STATIC: u8 = 4;
const BIRD: u8 = 12;
const BGP: u8 = 186;

fn mode(name: &str) -> Result<&'static dyn Mode, String> {
    need::root()?;
    let mode = lab::find(name).unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("{name}: {}", unsupported.reason))?;
    Ok(mode)
}

fn variants() -> Vec<&'static str> {
    let names = modes().iter().map(|mode| mode.name());
    names.filter(|name| name.starts_with("bgp")).collect()
}

/// The route that a host takes to an address.
fn route(network: &Network, host: &str, to: Ipv4Addr) -> Option<Match> {
    network.host(host).unwrap().netlink().matched(to.into()).unwrap()
}

fn by(prefix: u8, via: Ipv4Addr, protocol: u8) -> Option<Match> {
    Some(Match { prefix, via: Some(IpAddr::V4(via)), protocol })
}

fn protocol(name: &str) -> u8 {
    if name.contains("frr") { BGP } else { BIRD }
}

#[test]
fn routes_are_the_daemon_s_and_carry_traffic() {
    assert_eq!(variants().len(), 8);
    for name in variants() {
        let begun = Instant::now();
        let mut network = require!(mode(name)).build(&PARAMS).unwrap();
        println!("{name}: built in {:.1?}", begun.elapsed());
        let prefix = if name.ends_with("tenants") { 32 } else { 26 };
        for (host, other, via) in [("a", TENANT_B, HOST_B), ("b", TENANT_A, HOST_A)] {
            let whole = if prefix == 32 { 64 } else { 1 };
            for address in (0..whole).map(|at| Ipv4Addr::from_bits(other.to_bits() - 2 + at)) {
                let found = route(&network, host, address);
                assert_eq!(found, by(prefix, via, protocol(name)), "{name} {host} {address}");
            }
            // The other has no tenant of that address.
            assert_eq!(route(&network, host, Ipv4Addr::new(10, 1, 3, 2)), None);
        }
        let daemons = if name.contains("frr") { 2 } else { 1 };
        let hosts = if name.contains("-rr") { 3 } else { 2 };
        assert_eq!(network.programs().count(), daemons * hosts, "{name}");
        echo(&network, &[1, 1400]);
        stream_both_ways(&network);
        segmented_datagrams_arrive(&network);
        network.check().unwrap();
        // No packet of a tenant's goes by the reflector.
        if let Some(reflector) = network.host("reflector") {
            for device in ["nic0", "nic1"] {
                let counters = reflector.netlink().link(device).unwrap().counters;
                assert!(counters.rx_bytes < 100_000, "{name} {device}: {counters:?}");
            }
        }
    }
    let network = lab::find("routed").unwrap().build(&PARAMS).unwrap();
    assert_eq!(route(&network, "a", TENANT_B), by(32, HOST_B, STATIC));
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Ends the session of `b` with its peer by the daemon's own words, or brings it back.
fn session(network: &Network, name: &str, peer: Ipv4Addr, up: bool) {
    let told = if name.contains("frr") {
        let mut told = words("vtysh --vty_socket /run/frr");
        let neighbor = format!("{}neighbor {peer} shutdown", if up { "no " } else { "" });
        for line in ["configure terminal", "router bgp 64512", &neighbor] {
            told.extend(["-c".to_owned(), line.to_owned()]);
        }
        told
    } else {
        words(&format!("birdc -s /run/bird.ctl {} peer0", if up { "enable" } else { "disable" }))
    };
    let output = start(network, "b", &told).wait_with_output().unwrap();
    assert!(output.status.success(), "{told:?}: {output:?}");
}

#[test]
fn a_session_that_dies_takes_the_routes_and_brings_them_back() {
    for name in variants() {
        let network = require!(mode(name)).build(&PARAMS).unwrap();
        let found = route(&network, "a", TENANT_B);
        let peer = if network.host("reflector").is_some() { REFLECTOR } else { HOST_A };
        lossy(&network, &format!("{name}: session down and up"), || {
            session(&network, name, peer, false);
            wait_for("the end of a's route", || route(&network, "a", TENANT_B).is_none());
            session(&network, name, peer, true);
            wait_for("a's route", || route(&network, "a", TENANT_B) == found);
        });
    }
}

/// Whether a host has a connection of a BGP session.
fn has_session(network: &Network, host: &str) -> bool {
    let mut show = Command::new("ss");
    show.args(["-Htn", "state", "established", "( sport = :179 or dport = :179 )"]);
    !network.host(host).unwrap().run(&mut show).unwrap().trim().is_empty()
}

/// Process ID of the program that speaks BGP in a host, and its command line.
fn speaker(network: &Network, host: &str) -> (u32, Vec<String>) {
    let host = network.host(host).unwrap().netns().inode();
    let mut pids = network.programs().map(testbed::Process::pid);
    let is_meant = |pid: &u32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net")).unwrap();
        ["bird", "bgpd"].contains(&comm.trim()) && inode(&namespace) == host
    };
    let pid = pids.find(is_meant).unwrap();
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    (pid, line.trim_end_matches('\0').split('\0').map(str::to_owned).collect())
}

/// calico's BIRD keeps the routes of one that is killed (graceful restart); FRR's default is
/// to withdraw them.
#[test]
fn a_killed_daemon_is_named_and_its_routes_come_back_with_the_next() {
    for name in ["bgp", "bgp-frr"] {
        let mut network = require!(mode(name)).build(&PARAMS).unwrap();
        network.check().unwrap();
        let found = route(&network, "a", TENANT_B);
        let (pid, line) = speaker(&network, "b");
        let mut restarted = None;
        lossy(&network, &format!("{name}: daemon killed and started again"), || {
            kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
            wait_for("the end of the session", || !has_session(&network, "a"));
            if name == "bgp" {
                assert_eq!(route(&network, "a", TENANT_B), found);
            } else {
                wait_for("the end of a's route", || route(&network, "a", TENANT_B).is_none());
            }
            restarted = Some(Restarted(start(&network, "b", &line)));
            wait_for("a session", || has_session(&network, "a"));
            wait_for("a's route", || route(&network, "a", TENANT_B) == found);
            wait_for("b's route", || {
                route(&network, "b", TENANT_A) == by(26, HOST_A, protocol(name))
            });
        });
        let error = network.check().unwrap_err().to_string();
        assert!(error.contains(" in b") && error.contains("signal: 9"), "{error}");
        drop(network);
        drop(restarted);
    }
}

/// The address goes with the tenant to the third host, which announces it as one of another
/// host's block.
#[test]
fn the_route_of_a_tenant_that_moves_follows_it() {
    for name in ["bgp-rr", "bgp-frr-rr"] {
        let network = require!(mode(name)).build(&PARAMS).unwrap();
        let to = network.host("reflector").unwrap();
        to.forward().unwrap();
        to.connect("veth0", network.server(), "eth1", 1500).unwrap();
        let carried = |host: &str| {
            network.host(host).unwrap().netlink().link("veth0").unwrap().counters.tx_packets
        };
        let before = carried("reflector");
        lossy(&network, &format!("{name}: tenant moved"), || {
            network.host("b").unwrap().netlink().set_down("veth0").unwrap();
            let (there, link) = (IpAddr::V4(TENANT_B), "veth0");
            let moved = Route { to: there, prefix: 32, via: None, link, onlink: false };
            to.netlink().add_route(&moved).unwrap();
            wait_for("the route to the third host", || {
                route(&network, "a", TENANT_B) == by(32, REFLECTOR, protocol(name))
            });
        });
        // `lossy` waits for 50 before the move, and for 50 after it.
        println!("{name}: {} by b, {} by the third host", carried("b"), carried("reflector"));
        assert!(carried("b") >= 50 && carried("reflector") - before >= 50, "{name}");
    }
}

/// The command lines of all processes with a thread in one of the namespaces.
fn processes_in(namespaces: &BTreeSet<u64>) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let namespace = std::fs::metadata(entry.path().join("ns/net"));
        if namespace.is_ok_and(|namespace| namespaces.contains(&inode(&namespace))) {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.push(line.replace('\0', " "));
        }
    }
    found
}

/// The test that another process runs, to be killed in it.
const STANDING: &str = "nothing_is_left_after_its_end_or_a_kill";
/// What it is to build.
const VARIANT: &str = "OVERLANE_TEST_VARIANT";

/// In a process of its own.
fn stands_until_killed() {
    let network = mode(&std::env::var(VARIANT).unwrap()).unwrap().build(&PARAMS).unwrap();
    let namespaces = network.hosts().iter().map(|host| host.netns().inode().to_string());
    let namespaces: Vec<_> = namespaces.collect();
    let _ = stands(&namespaces.join(" ")).next();
    drop(network);
}

#[test]
fn nothing_is_left_after_its_end_or_a_kill() {
    if is_meant() {
        return stands_until_killed();
    }
    for name in ["bgp-rr", "bgp-frr-rr"] {
        require!(mode(name));
        for killed in [false, true] {
            let before = left_on_the_machine();
            let mut standing = Standing::start(STANDING, &[(VARIANT, name)]).unwrap();
            let said = standing.said().split(' ').map(|inode| inode.parse().unwrap());
            let namespaces: BTreeSet<u64> = said.collect();
            let daemons = if name.contains("frr") { 6 } else { 3 };
            assert_eq!(processes_in(&namespaces).len(), daemons, "{name}");
            assert_eq!(left_on_the_machine(), before, "{name} stands");
            if killed { standing.kill() } else { standing.end() }.unwrap();
            testbed::poll("the end of the daemons", LIMIT, || {
                let left = processes_in(&namespaces);
                Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
            })
            .unwrap();
            assert_eq!(left_on_the_machine(), before, "{name}");
        }
    }
}
