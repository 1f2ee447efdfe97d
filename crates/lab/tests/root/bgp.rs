//! Routes by BGP: their origin, traffic when a session ends or a tenant moves, and the clean-up of
//! the daemons.

use crate::modes::mode;
use crate::traffic;
use crate::traffic::daemons;
use crate::traffic::inject;
use crate::traffic::processes;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use daemons::left_on_the_machine;
use inject::{RECOVERY, inject};
use lab::{Network, Params, modes};
use netstate::route::Match;
use processes::processes_in;
use test_support::require;
use test_support::standing::{Standing, is_meant, stands};
use testbed::Offload;
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

/// Every variant except the one with a tunnel, which most machines can build in a guest only
/// (cli/tests/at_guest.rs).
fn variants() -> Vec<&'static str> {
    let names = modes().iter().map(|mode| mode.name());
    names.filter(|name| name.starts_with("bgp") && *name != "bgp-ipip").collect()
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
            // The other host has no tenant with that address.
            assert_eq!(route(&network, host, Ipv4Addr::new(10, 1, 3, 2)), None);
        }
        let daemons = if name.contains("frr") { 2 } else { 1 };
        let hosts = if name.contains("-rr") { 3 } else { 2 };
        assert_eq!(network.programs().count(), daemons * hosts, "{name}");
        echo(&network, &[1, 1400]);
        stream_both_ways(&network);
        segmented_datagrams_arrive(&network);
        network.check().unwrap();
        // No tenant's packet crosses the reflector.
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

#[test]
fn a_session_that_dies_takes_the_routes_and_brings_them_back() {
    for name in variants() {
        let mode = require!(mode(name));
        let network = mode.build(&PARAMS).unwrap();
        let found = route(&network, "a", TENANT_B);
        let cost = inject(mode, &network, "session-ends").cost;
        assert_eq!(route(&network, "a", TENANT_B), found, "{name}");
        // Without a route, no packet is sent.
        assert!(cost.lost() > 0 && cost.received >= 50, "{name}: {cost:?}");
    }
}

/// The other host keeps the routes of a killed BIRD with calico's configuration (graceful restart),
/// which the fault waits for; FRR's default is to withdraw them.
#[test]
fn a_killed_daemon_is_named_and_its_routes_come_back_with_the_next() {
    for name in ["bgp", "bgp-frr"] {
        let mode = require!(mode(name));
        let mut network = mode.build(&PARAMS).unwrap();
        network.check().unwrap();
        let found = route(&network, "a", TENANT_B);
        // The restarted daemon stays until the end.
        let _injected = inject(mode, &network, "daemon-killed");
        assert_eq!(route(&network, "a", TENANT_B), found, "{name}");
        testbed::poll("b's route", RECOVERY, || {
            let back = route(&network, "b", TENANT_A);
            let is_back = back == by(26, HOST_A, protocol(name));
            Ok(if is_back { Ok(()) } else { Err(format!("{back:?}")) })
        })
        .unwrap();
        let error = network.check().unwrap_err().to_string();
        assert!(error.contains(" in b") && error.contains("signal: 9"), "{error}");
    }
}

/// The address moves with the tenant to the third host, which announces it although it belongs to
/// another host's block.
#[test]
fn the_route_of_a_tenant_that_moves_follows_it() {
    for name in ["bgp-rr", "bgp-frr-rr"] {
        let mode = require!(mode(name));
        let network = mode.build(&PARAMS).unwrap();
        let carried = |host: &str| {
            network.host(host).unwrap().netlink().link("veth0").unwrap().counters.tx_packets
        };
        drop(inject(mode, &network, "tenant-moves"));
        assert_eq!(route(&network, "a", TENANT_B), by(32, REFLECTOR, protocol(name)), "{name}");
        // The test waits for 50 datagrams before the move, and for 50 after it.
        println!("{name}: {} by b, {} by the third host", carried("b"), carried("reflector"));
        assert!(carried("b") >= 50 && carried("reflector") >= 50, "{name}");
    }
}

/// The test that a separate process runs until it is killed.
const STANDING: &str = "bgp::nothing_is_left_after_its_end_or_a_kill";
/// Names the variant to build.
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
