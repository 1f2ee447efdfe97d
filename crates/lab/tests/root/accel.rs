//! The fast path in a testbed: traffic bypasses bridge, routes and VXLAN device, and the hops show
//! when it does not.

use crate::traffic;

use lab::{Capabilities, Network, Params};
use libbpf_rs::Program;
use netstate::{Counters, HopKind, Side, TrafficDirection};
use test_support::standing::{Standing, is_meant, stands};
use test_support::{need, require};
use testbed::{Offload, Privileges};
use traffic::{BYTES, LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

fn network(mode: &str, offload: Offload) -> Result<Network, String> {
    need::networks()?;
    let mode = lab::find(mode).unwrap();
    let probed = mode.probe(&Capabilities::new(Privileges::Root).unwrap());
    probed.map_err(|unsupported| format!("{}: {}", mode.name(), unsupported.reason))?;
    Ok(mode.build(&Params::new(1500, offload)).unwrap())
}

/// Packets to the server and back over each hop, without excluded ones.
fn crossed(network: &Network) -> Vec<[u64; 2]> {
    let both = |side, Counters { rx_packets: rx, tx_packets: tx, .. }| match side {
        Side::Rx => [rx, tx],
        Side::Tx => [tx, rx],
    };
    let read = |hop: &netstate::Hop| {
        let counters = match &hop.meter {
            Some(meter) => meter.read().carried,
            None => network.host(&hop.host).unwrap().netlink().link(&hop.device).unwrap().counters,
        };
        let excused = hop.bypass.as_ref().and_then(|bypass| bypass.excused.as_ref());
        let excused = excused.map_or_else(Counters::default, |meter| meter.read().carried);
        both(hop.forward, counters.since(&excused))
    };
    network.hops.iter().map(read).collect()
}

/// Packets on each hop during an exchange of [`BYTES`] each way, after addresses are resolved.
fn exchange(network: &Network) -> Vec<[u64; 2]> {
    let before = crossed(network);
    stream_both_ways(network);
    let after = crossed(network);
    let since = |(after, before): (&[u64; 2], &[u64; 2])| {
        [0, 1].map(|way| after[way].saturating_sub(before[way]))
    };
    after.iter().zip(&before).map(since).collect()
}

const MODES: [&str; 3] = ["vxlan+accel", "vxlan6+accel", "vxlan-routed+accel"];

#[test]
fn traffic_passes_bridge_and_device_by() {
    for (mode, offload) in MODES.into_iter().zip(Offload::ALL) {
        let network = require!(network(mode, offload));
        is_passed_by(&network, &format!("{mode} {offload}"));
    }
}

#[test]
fn traffic_passes_them_by_in_every_profile() {
    for mode in MODES {
        for offload in Offload::ALL {
            let network = require!(network(mode, offload));
            is_passed_by(&network, &format!("{mode} {offload}"));
        }
    }
}

#[test]
fn traffic_passes_docker_s_sandbox_by() {
    let network = require!(network("swarm+accel", Offload::Full));
    is_passed_by(&network, "swarm+accel");
}

#[test]
fn packets_without_offloads_pass_docker_s_sandbox_by() {
    let network = require!(network("swarm+accel", Offload::None));
    is_passed_by(&network, "swarm+accel without offloads");
}

/// Asserts that bypassed hops carry almost nothing, and the other hops carry everything.
fn is_passed_by(network: &Network, what: &str) {
    testbed::poll("the fast path", LIMIT, || {
        echo(network, &[1, 64, 1400]);
        let carried = exchange(network);
        let wrong = network.hops.iter().zip(&carried).find(|(hop, [forward, reverse])| {
            let passed = |way| {
                hop.bypass.as_ref().is_some_and(|b| b.way == way || b.way == TrafficDirection::Both)
            };
            // At least the number of the largest possible GSO packets.
            let enough = |packets: u64| packets as usize >= BYTES / 65536;
            let few = |packets: u64| (packets as usize) < BYTES / 65536 / 3;
            let right = |way, packets| if passed(way) { few(packets) } else { enough(packets) };
            !right(TrafficDirection::Forward, *forward)
                || !right(TrafficDirection::Reverse, *reverse)
        });
        Ok(match wrong {
            None => Ok(()),
            Some((hop, carried)) => Err(format!("{what}: {hop:?}: {carried:?}")),
        })
    })
    .unwrap();
    segmented_datagrams_arrive(network);
}

#[test]
fn packets_on_the_slow_path_are_seen() {
    let network = require!(network("vxlan+accel", Offload::Full));
    network
        .host("b")
        .unwrap()
        .nft("table bridge t { chain c { type filter hook forward priority 0; }; }")
        .unwrap();
    testbed::poll("the slow path", LIMIT, || {
        let carried = exchange(&network);
        let of = |host: &str, kind, bypassed: bool| {
            let hops = network.hops.iter().zip(&carried);
            hops.filter(|(hop, _)| {
                (hop.host.as_str(), hop.kind, hop.bypass.is_some()) == (host, kind, bypassed)
            })
            .map(|(_, [forward, _])| *forward)
            .max()
            .unwrap()
        };
        let (stage, device) = (of("b", HopKind::Stage, false), of("b", HopKind::Device, true));
        let slow = stage == 0 && device as usize >= BYTES / 65536;
        Ok(if slow { Ok(()) } else { Err(format!("{stage} fast, {device} slow")) })
    })
    .unwrap();
}

/// The test that a separate process runs until it is killed.
const STANDING: &str = "accel::nothing_of_it_outlives_a_kill";

/// In a process of its own.
fn stands_until_killed() {
    let network = network("vxlan+accel", Offload::Full).unwrap();
    // Until it is killed.
    let _ = stands("").next();
    drop(network);
}

#[test]
fn nothing_of_it_outlives_a_kill() {
    if is_meant() {
        return stands_until_killed();
    }
    drop(require!(network("vxlan+accel", Offload::Full)));
    let mut standing = Standing::start(STANDING, &[]).unwrap();
    let fds = format!("/proc/{}/fdinfo", standing.pid());
    let mut programs: Vec<u32> = std::fs::read_dir(fds)
        .unwrap()
        .filter_map(|fd| std::fs::read_to_string(fd.ok()?.path()).ok())
        .filter_map(|info| {
            info.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
        })
        .collect();
    programs.sort_unstable();
    programs.dedup();
    // Two in each host.
    assert!(programs.len() >= 4, "{programs:?}");
    standing.kill().unwrap();
    testbed::poll("the end of the programs", LIMIT, || {
        let there = |id: &&u32| Program::fd_from_id(**id).is_ok();
        let left: Vec<_> = programs.iter().filter(there).collect();
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?} of {programs:?}")) })
    })
    .unwrap();
}
