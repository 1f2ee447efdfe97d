//! VXLAN devices filled by BGP EVPN: the origin of entries, neighbour suppression, traffic when a
//! tenant moves or a daemon is killed, and the clean-up.

use crate::modes::mode;
use crate::traffic;
use crate::traffic::daemons;
use crate::traffic::inject;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use daemons::left_on_the_machine;
use inject::{RECOVERY, inject};
use lab::{Network, Params, modes};
use netstate::control_plane::Controlled;
use netstate::{HopKind, MacAddr};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{Stop, require, some_at_once};
use testbed::{Host, Offload, mac};
use traffic::{LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

const PARAMS: Params = Params::new(1500, Offload::Full);
const TENANT_A: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);
const TENANT_B: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 12);
const HOST_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const HOST_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const HOST_C: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
/// `RTPROT_ZEBRA` (`linux/rtnetlink.h`).
const ZEBRA: u8 = 11;

fn index(host: &Host, device: &str) -> u32 {
    host.netlink().link(device).unwrap().index
}

/// The VTEP to which a host's VXLAN device sends frames for an address, by a control plane's entry.
fn vtep(host: &Host, mac: MacAddr) -> Option<IpAddr> {
    let device = index(host, "vxlan0");
    let is_meant =
        |entry: &Controlled| (entry.link, entry.bridge, entry.mac) == (device, None, mac);
    let fdb = host.netlink().controlled_fdb().unwrap();
    fdb.into_iter().find(is_meant).and_then(|entry| entry.address)
}

/// A host's neighbour entry for an address, as the control plane wrote it, and the protocol that
/// wrote it.
fn neighbour(host: &Host, address: Ipv4Addr) -> Option<(MacAddr, Option<u8>)> {
    let bridge = index(host, "br0");
    let neighbours = host.netlink().controlled_neighbours().unwrap();
    let is_meant =
        |entry: &&Controlled| (entry.link, entry.address) == (bridge, Some(address.into()));
    neighbours.iter().find(is_meant).map(|entry| (entry.mac, entry.protocol))
}

/// Modes that bridge with one device per VNI. The others need a VRF or a bridge that filters VLANs,
/// and are measured in a guest (cli/tests/at_guest.rs).
#[test]
fn entries_are_zebra_s_and_carry_traffic() {
    let names = modes().iter().map(|mode| mode.name());
    let is_meant =
        |name: &&str| name.starts_with("evpn") && !["evpn-l3", "evpn-svd"].contains(name);
    let names: Vec<_> = names.filter(is_meant).collect();
    assert_eq!(names.len(), 4);
    require!(mode("evpn"), mode("evpn+accel"));
    some_at_once(&names, |name| {
        let begun = Instant::now();
        let mut network = mode(name).unwrap().build(&PARAMS).unwrap();
        println!("{name}: built in {:.1?}", begun.elapsed());
        for (host, other, address, at) in
            [("a", "tenant-b", TENANT_B, HOST_B), ("b", "tenant-a", TENANT_A, HOST_A)]
        {
            let host = network.host(host).unwrap();
            let mac = mac(other, "eth0");
            assert_eq!(vtep(host, mac), Some(at.into()), "{name}");
            assert_eq!(neighbour(host, address), Some((mac, Some(ZEBRA))), "{name}");
            // Nothing was learned from packets: the device has an entry for each remote end, and
            // one for the tenant.
            let device = index(host, "vxlan0");
            let fdb = host.netlink().fdb().unwrap();
            let own = fdb.iter().filter(|entry| entry.link == device && entry.bridge.is_none());
            let others = network.hosts().len() - 2 - if name.contains("rr") { 2 } else { 1 };
            assert_eq!(own.count(), others + 1, "{name}: {fdb:?}");
        }
        echo(&network, &[1, 1400]);
        stream_both_ways(&network);
        segmented_datagrams_arrive(&network);
        network.check().unwrap();
        for hop in network.hops.iter().filter(|hop| hop.kind == HopKind::Device) {
            let counters =
                network.host(&hop.host).unwrap().netlink().link(&hop.device).unwrap().counters;
            let bytes = counters.rx_bytes.min(counters.tx_bytes) as usize;
            assert!(hop.bypass.is_some() || bytes > traffic::BYTES, "{name} {hop:?}: {counters:?}");
        }
    });
}

/// A tenant that ignores ARP is still found: the bridge of the other host answers for it.
#[test]
fn the_bridge_answers_for_neighbours_that_zebra_knows() {
    require!(mode("evpn"), mode("evpn+accel"));
    some_at_once(&["evpn", "evpn+accel"], |name| {
        let network = mode(name).unwrap().build(&PARAMS).unwrap();
        let deaf = "table arp t { chain c { type filter hook input priority 0; drop; }; }";
        network.server().nft(deaf).unwrap();
        // Its own path back must not need a resolution.
        let client = mac("tenant-a", "eth0");
        network.server().netlink().add_neighbour("eth0", TENANT_A.into(), client).unwrap();
        let mut flush = Command::new("ip");
        network.client().run(flush.args(["neigh", "flush", "dev", "eth0"])).unwrap();
        echo(&network, &[1]);
        let known = network.client().netlink().neighbours().unwrap();
        let server = mac("tenant-b", "eth0");
        assert!(known.iter().any(|n| n.address == TENANT_B && n.mac == Some(server)), "{known:?}");
    });
}

#[test]
fn a_tenant_that_moves_is_followed() {
    require!(mode("evpn-rr"), mode("evpn-rr+accel"));
    some_at_once(&["evpn-rr", "evpn-rr+accel"], |name| {
        let mode = mode(name).unwrap();
        let network = mode.build(&PARAMS).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Measures when the fast path of `a` forwards packets again after zebra's new entry.
            let lag = scope.spawn(|| lag(&network, &is_done));
            let done = Stop(&is_done);
            drop(inject(mode, &network, "mac-moves"));
            if name.ends_with("+accel") {
                testbed::poll("the fast path of a", RECOVERY, || {
                    // The fast path needs traffic to forward.
                    echo(&network, &[1]);
                    Ok(if is_done.load(Ordering::Relaxed) { Ok(()) } else { Err(String::new()) })
                })
                .unwrap();
            }
            drop(done);
            if let Some(lag) = lag.join().unwrap() {
                println!("{name}: the fast path followed zebra's entry within {lag:.1?}");
            }
        });
        assert_eq!(vtep(network.host("a").unwrap(), mac("tenant-b", "eth0")), Some(HOST_C.into()));
        // FRR 8.4's remaining entries at `b` and `c`, and the delay of neighbours, differ from run
        // to run.
        echo(&network, &[1, 1400]);
    });
}

/// Time from the kernel's entry that leads to `c` until the fast path of `a` forwards packets
/// again. Before the cable has left `b`, it only polls the cable, so that traffic flows until then.
fn lag(network: &Network, is_done: &AtomicBool) -> Option<Duration> {
    let a = network.host("a").unwrap();
    let server = mac("tenant-b", "eth0");
    let stage = network.hops.iter().find(|hop| hop.kind == HopKind::Stage && hop.host == "a")?;
    let meter = stage.meter.as_ref().unwrap();
    let sent = || meter.read().carried.tx_packets;
    let over = || is_done.load(Ordering::Relaxed);
    let b = network.host("b").unwrap();
    while b.netlink().link("veth0").is_ok() && !over() {
        std::thread::sleep(Duration::from_millis(1));
    }
    while vtep(a, server) != Some(HOST_C.into()) && !over() {}
    let (begun, before) = (Instant::now(), sent());
    while sent() == before && !over() {
        std::thread::sleep(Duration::from_micros(100));
    }
    is_done.store(true, Ordering::Relaxed);
    Some(begun.elapsed())
}

/// Process ID of an FRR program in a host, and its command line.
fn program(network: &Network, host: &str, name: &str) -> (u32, Vec<String>) {
    let host = network.host(host).unwrap().netns().inode();
    let is_meant = |pid: &u32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net")).unwrap();
        comm.trim() == name && namespace.ino() == host
    };
    let pid = network.programs().map(testbed::Process::pid).find(is_meant).unwrap();
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    (pid, line.trim_end_matches('\0').split('\0').map(str::to_owned).collect())
}

/// Without `bgpd`, the other host withdraws its announcements, and the tunnel has no flooding
/// destinations. The next `bgpd` restores all of them.
#[test]
fn a_killed_bgpd_is_named_and_its_entries_come_back_with_the_next() {
    let mode = require!(mode("evpn"));
    let mut network = mode.build(&PARAMS).unwrap();
    network.check().unwrap();
    // The restarted `bgpd` stays until the end.
    let _injected = inject(mode, &network, "daemon-killed");
    let server = mac("tenant-b", "eth0");
    assert_eq!(vtep(network.host("a").unwrap(), server), Some(HOST_B.into()));
    let error = network.check().unwrap_err().to_string();
    assert!(error.contains("bgpd in b") && error.contains("signal: 9"), "{error}");
}

/// If `zebra` is killed, the kernel keeps its entries, and traffic continues.
#[test]
fn a_killed_zebra_is_named_and_traffic_goes_on() {
    let mut network = require!(mode("evpn")).build(&PARAMS).unwrap();
    let (pid, _) = program(&network, "a", "zebra");
    let server = mac("tenant-b", "eth0");
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    testbed::poll("zebra's end", RECOVERY, || Ok(network.check().err().ok_or_else(String::new)))
        .unwrap();
    let error = network.check().unwrap_err().to_string();
    assert!(error.contains("zebra in a") && error.contains("signal: 9"), "{error}");
    assert_eq!(vtep(network.host("a").unwrap(), server), Some(HOST_B.into()));
    echo(&network, &[1, 1400]);
}

/// Makes this test the process that is to be killed.
const BUILDS: &str = "OVERLANE_TEST_BUILDS_EVPN";
const KILLS: usize = 12;

/// Processes that have this one among their ancestors, by number and time of start.
fn descendants(of: u32) -> BTreeSet<(u32, String)> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name, in parentheses, may have any character.
        let Some((pid, rest)) = text.split_once(' ') else { continue };
        let fields: Vec<_> = rest[rest.rfind(')').unwrap() + 2..].split(' ').collect();
        let (pid, parent): (u32, u32) = (pid.parse().unwrap(), fields[1].parse().unwrap());
        parents.push((pid, parent, fields[19].to_owned()));
    }
    let mut found = BTreeSet::from([of]);
    let mut all = BTreeSet::new();
    loop {
        let before = all.len();
        for (pid, parent, begun) in &parents {
            if found.contains(parent) && *pid != of {
                found.insert(*pid);
                all.insert((*pid, begun.clone()));
            }
        }
        if all.len() == before {
            return all;
        }
    }
}

fn is_alive(process: &(u32, String)) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", process.0)).is_ok_and(|text| {
        text[text.rfind(')').unwrap() + 2..].split(' ').nth(19) == Some(process.1.as_str())
    })
}

/// Builds the mode and sends over it, again and again.
fn builds_until_killed() -> ! {
    let mode = mode("evpn-rr").unwrap();
    loop {
        let network = mode.build(&PARAMS).unwrap();
        for _ in 0..3 {
            stream_both_ways(&network);
        }
    }
}

#[test]
fn nothing_is_left_after_kills_at_random_moments() {
    if std::env::var_os(BUILDS).is_some() {
        builds_until_killed();
    }
    require!(mode("evpn-rr"));
    let before = left_on_the_machine();
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = seed.as_nanos() as u64;
    println!("seed {seed}");
    // Knuth's MMIX generator.
    let next = |random: &u64| {
        let random = random.wrapping_mul(6_364_136_223_846_793_005);
        Some(random.wrapping_add(1_442_695_040_888_963_407))
    };
    let random = std::iter::successors(Some(seed), next).skip(1).take(KILLS);
    let moments: Vec<_> =
        random.map(|random| Duration::from_millis((random >> 33) % 6000)).collect();
    some_at_once(&moments, |moment| {
        let mut child: Child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "evpn::nothing_is_left_after_kills_at_random_moments"])
            .env(BUILDS, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(*moment);
        // A stopped process starts no child between the search and its end.
        let pid = Pid::from_raw(child.id() as i32);
        kill(pid, Signal::SIGSTOP).unwrap();
        let all = descendants(child.id());
        kill(pid, Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        println!("kill after {moment:.1?}: {} processes", all.len());
        testbed::poll("the end of all programs", LIMIT, || {
            let left: Vec<_> = all.iter().filter(|process| is_alive(process)).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
        })
        .unwrap();
    });
    assert_eq!(left_on_the_machine(), before);
}
