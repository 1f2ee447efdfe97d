//! OpenStack's network node: translated addresses, the origin of rules and flows, traffic when a
//! router fails, and the clean-up.

use crate::modes::mode;
use crate::traffic;
use crate::traffic::inject;
use crate::traffic::processes;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use inject::{RECOVERY, inject};
use lab::fault::during;
use lab::{Network, Params, modes};
use netstate::{HopKind, Side};
use processes::processes_in;
use test_support::standing::{Standing, is_meant, stands};
use test_support::{left_out, need, require, some_at_once};
use testbed::{Host, NIC, Offload};
use traffic::{BYTES, LIMIT, echo, segmented_datagrams_arrive, stream_both_ways};

const PARAMS: Params = Params::new(1500, Offload::Full);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const ROUTER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
const FLOATING: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
const TENANT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 11);

fn variants() -> Vec<&'static str> {
    let names = modes().iter().map(|mode| mode.name());
    let is_one = |name: &&str| {
        ["vrouter", "floating-ip", "snat"].iter().any(|scene| name.starts_with(scene))
    };
    names.filter(is_one).collect()
}

/// Bytes that crossed a hop from client to server, and back.
fn crossed(network: &Network, hop: &netstate::Hop) -> [u64; 2] {
    let counters = match &hop.meter {
        Some(meter) if hop.kind == HopKind::Stage => meter.read().carried,
        _ => network.host(&hop.host).unwrap().netlink().link(&hop.device).unwrap().counters,
    };
    match hop.forward {
        Side::Rx => [counters.rx_bytes, counters.tx_bytes],
        Side::Tx => [counters.tx_bytes, counters.rx_bytes],
    }
}

/// Drives every variant whose name starts with `start`: traffic of all kinds, of which each byte
/// crosses every device that is not bypassed.
fn carry_traffic(start: &str) {
    require!(need::root());
    let mut all = Vec::new();
    for name in variants().into_iter().filter(|name| name.starts_with(start)) {
        match mode(name) {
            Ok(mode) => {
                all.extend([PARAMS, Params::new(9000, Offload::None)].map(|p| (mode, p)));
            }
            Err(reason) => left_out(&reason),
        }
    }
    some_at_once(&all, |(mode, params)| {
        let name = mode.name();
        let begun = Instant::now();
        let mut network = mode.build(params).unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name} {}: built in {:.1?}", params.mtu, begun.elapsed());
        let vlan = name.contains("-vlan");
        assert_eq!(network.tenant_mtu, if vlan { params.mtu } else { params.mtu - 50 });
        echo(&network, &[1, 1400]);
        // External hosts do not know the tunnel: oversized packets are lost until the router has
        // announced its MTU.
        if name.starts_with("vrouter") || vlan {
            echo(&network, &[1472, 20_000]);
        }
        stream_both_ways(&network);
        segmented_datagrams_arrive(&network);
        network.check().unwrap();
        for hop in network.hops.iter().filter(|hop| hop.bypass.is_none()) {
            let bytes = crossed(&network, hop);
            // On a busy machine the fast path may lack a heartbeat, and then leaves packets to the
            // kernel.
            let least = if hop.kind == HopKind::Stage { 0 } else { BYTES as u64 };
            let all = bytes.iter().all(|bytes| *bytes > least);
            assert!(all, "{name} {}: {} {}: {bytes:?}", params.mtu, hop.host, hop.device);
        }
    });
}

#[test]
fn there_are_sixteen_variants() {
    assert_eq!(variants().len(), 16);
}

#[test]
fn routers_between_tenants_carry_traffic_over_their_hops() {
    carry_traffic("vrouter");
}

#[test]
fn floating_addresses_carry_traffic_over_their_hops() {
    carry_traffic("floating-ip");
}

#[test]
fn shared_addresses_carry_traffic_over_their_hops() {
    carry_traffic("snat");
}

/// Sends a datagram from `from`, a socket of its host, to `to` and waits for it at `listening`.
/// Returns the sender's address as seen there.
fn seen_from(from: &UdpSocket, to: SocketAddr, listening: &UdpSocket) -> SocketAddr {
    testbed::poll("a datagram", LIMIT, || {
        from.send_to(b"overlay", to).unwrap();
        Ok(listening.recv_from(&mut [0; 16]).map_err(|error| error.to_string()))
    })
    .unwrap()
    .1
}

fn socket(host: &Host, at: (Ipv4Addr, u16)) -> UdpSocket {
    let socket = host.netns().run(|| UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// Variants of a mode that this machine can build, without those with the fast path.
fn buildable(scene: &str) -> Vec<&'static str> {
    let plain = variants().into_iter().filter(|name| name.starts_with(scene));
    plain.filter(|name| !name.contains("+accel") && mode(name).is_ok()).collect()
}

#[test]
fn a_floating_ip_is_one_tenant_s_both_ways() {
    require!(need::root());
    some_at_once(&buildable("floating-ip"), |name| {
        let network = mode(name).unwrap().build(&PARAMS).unwrap();
        assert_eq!(network.address.target.ip(), IpAddr::V4(FLOATING), "{name}");
        assert_eq!(network.address.listen.ip(), IpAddr::V4(TENANT), "{name}");
        let outside = socket(network.client(), (OUTSIDE, 7000));
        let tenant = socket(network.server(), (TENANT, 7001));
        let seen = seen_from(&outside, (FLOATING, 7001).into(), &tenant);
        assert_eq!(seen, (OUTSIDE, 7000).into(), "{name}: the outside's address stays");
        let other = socket(network.server(), (TENANT, 7002));
        let seen = seen_from(&other, (OUTSIDE, 7000).into(), &outside);
        assert_eq!(seen.ip(), IpAddr::V4(FLOATING), "{name}: not the router's");
    });
}

#[test]
fn many_are_behind_the_router_s_address() {
    require!(need::root());
    some_at_once(&buildable("snat"), |name| {
        let network = mode(name).unwrap().build(&PARAMS).unwrap();
        let outside = socket(network.server(), (OUTSIDE, 7000));
        let seen: BTreeSet<SocketAddr> = (7001..7009)
            .map(|port| {
                let tenant = socket(network.client(), (TENANT, port));
                seen_from(&tenant, (OUTSIDE, 7000).into(), &outside)
            })
            .collect();
        assert_eq!(seen.len(), 8, "{name}: {seen:?}");
        assert!(seen.iter().all(|seen| seen.ip() == IpAddr::V4(ROUTER)), "{name}: {seen:?}");
        // No outside host can reach a port that no tenant opened.
        let tenant = socket(network.client(), (TENANT, 7100));
        outside.send_to(b"x", (TENANT, 7100)).unwrap_err();
        outside.send_to(b"x", (ROUTER, 7100)).unwrap();
        assert!(tenant.recv_from(&mut [0; 16]).is_err(), "{name}");
    });
}

#[test]
fn rules_and_connections_are_where_neutron_has_them() {
    require!(mode("vrouter"));
    let scenes = [("vrouter", false), ("floating-ip", true), ("snat", true)];
    some_at_once(&scenes, |&(name, translated)| {
        let network = mode(name).unwrap().build(&PARAMS).unwrap();
        echo(&network, &[100]);
        let router = network.host("qrouter").unwrap();
        let rules = router.run(&mut Command::new("iptables-save")).unwrap();
        for rule in [
            "-A PREROUTING -j neutron-l3-agent-PREROUTING",
            "-A neutron-postrouting-bottom",
            "-A neutron-filter-top -j neutron-l3-agent-local",
            "-A neutron-l3-agent-scope -i qr-net1 -j MARK --set-xmark 0x4000000/0xffff0000",
        ] {
            assert!(rules.contains(rule), "{name}: {rule}\n{rules}");
        }
        assert_eq!(rules.contains("SNAT --to-source 203.0.113.2"), translated, "{name}: {rules}");
        assert_eq!(rules.contains("DNAT --to-destination"), name == "floating-ip", "{name}");
        // The router tracks forwarded flows; no other host has to.
        let count = |host: &str| {
            let host = network.host(host).unwrap();
            let path = "/proc/sys/net/netfilter/nf_conntrack_count";
            let text = host.netns().run(|| std::fs::read_to_string(path)).unwrap().unwrap();
            text.trim().parse::<u64>().unwrap()
        };
        assert!(count("qrouter") > 0, "{name}");
        assert_eq!((count("network"), count("a"), count("b")), (0, 0, 0), "{name}");
    });
}

/// Runs a command in the process tree of a host's programs.
fn inside(network: &Network, host: &str, command: &[&str]) -> String {
    let init = network.init_pid(host).unwrap();
    let mut enter = Command::new("nsenter");
    enter.arg(format!("--mount=/proc/{init}/ns/mnt")).arg("--").args(command);
    network.host(host).unwrap().run(&mut enter).unwrap()
}

#[test]
fn connections_of_open_vswitch_s_firewall_are_in_the_zone_of_their_network() {
    require!(mode("vrouter-ovs"), mode("vrouter-ovs-vlan"));
    some_at_once(&["vrouter-ovs", "vrouter-ovs-vlan"], |name| {
        let network = mode(name).unwrap().build(&PARAMS).unwrap();
        echo(&network, &[100]);
        stream_both_ways(&network);
        for (host, zone) in [("a", "zone=1"), ("b", "zone=2")] {
            let socket = format!("/run/openvswitch-{host}/vswitchd.ctl");
            let entries =
                inside(&network, host, &["ovs-appctl", "-t", &socket, "dpctl/dump-conntrack"]);
            for protocol in ["tcp,", "udp,"] {
                let tracked = |line: &str| line.starts_with(protocol) && line.contains(zone);
                assert!(entries.lines().any(tracked), "{name} {host} {protocol}: {entries}");
            }
            assert!(!entries.contains("mark=1"), "{name} {host}: {entries}");
        }
        // An address that is not the port's is dropped.
        let client = network.client();
        client.address("eth0", Ipv4Addr::new(10, 1, 0, 99), 24).unwrap();
        let forged = socket(client, (Ipv4Addr::new(10, 1, 0, 99), 7000));
        let server = socket(network.server(), (Ipv4Addr::new(10, 2, 0, 11), 7001));
        for _ in 0..5 {
            forged.send_to(b"x", (Ipv4Addr::new(10, 2, 0, 11), 7001)).unwrap();
        }
        assert!(server.recv_from(&mut [0; 16]).is_err(), "{name}");
    });
}

/// Whether a router's namespace has the router's addresses.
fn has_addresses(network: &Network, router: &str) -> bool {
    let own = network.host(router).unwrap().netlink().addresses().unwrap();
    [Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1)]
        .iter()
        .all(|address| own.iter().any(|own| own.address == IpAddr::V4(*address)))
}

/// Packets that a router's namespace sent towards the server.
fn forwarded(network: &Network, router: &str) -> u64 {
    network.host(router).unwrap().netlink().link("qr-net2").unwrap().counters.tx_packets
}

#[test]
fn the_other_router_takes_over_from_one_whose_link_goes_down() {
    let mode = require!(mode("vrouter-ha"));
    let mut network = mode.build(&PARAMS).unwrap();
    echo(&network, &[1, 1400]);
    assert!(has_addresses(&network, "qrouter-1") && !has_addresses(&network, "qrouter-2"));
    let before = forwarded(&network, "qrouter-2");
    drop(inject(mode, &network, "link-down"));
    let by_second = forwarded(&network, "qrouter-2") - before;
    assert!(by_second >= 50, "{by_second} packets by the second router");
    stream_both_ways(&network);
    // The first router returns, and sees the second.
    let (cost, ()) = during(&network, || {
        network.host("network-1").unwrap().netlink().set_up(NIC)?;
        testbed::poll("one router", RECOVERY, || {
            let both = ["qrouter-1", "qrouter-2"].map(|router| has_addresses(&network, router));
            Ok(if both[0] == both[1] { Err(format!("{both:?}")) } else { Ok(()) })
        })
    })
    .unwrap();
    println!("vrouter-ha, the link is up again: {} lost, {cost:?}", cost.lost());
    stream_both_ways(&network);
    network.check().unwrap();
}

#[test]
fn the_other_router_takes_over_from_a_killed_keepalived() {
    let mode = require!(mode("vrouter-ha"));
    let mut network = mode.build(&PARAMS).unwrap();
    network.check().unwrap();
    drop(inject(mode, &network, "daemon-killed"));
    // No daemon removes the first router's addresses; the failure of its host does.
    assert!(has_addresses(&network, "qrouter-1") && has_addresses(&network, "qrouter-2"));
    let down = || Ok(network.host("network-1").unwrap().netlink().set_down(NIC)?);
    let (cost, ()) = during(&network, down).unwrap();
    println!("vrouter-ha, its host's link down: {} lost, {cost:?}", cost.lost());
    let error = network.check().unwrap_err().to_string();
    assert!(error.contains("keepalived in qrouter-1") && error.contains("signal: 9"), "{error}");
}

/// Files that the programs could leave on the machine at their built-in paths, and mounts.
fn left_on_the_machine() -> (Vec<String>, String) {
    let mut files = Vec::new();
    for directory in ["/run", "/run/openvswitch", "/var/run/openvswitch", "/tmp", "/run/lock"] {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.path().display().to_string());
        files.extend(names.filter(|name| name.contains("keepalived") || name.contains("vswitch")));
    }
    files.sort();
    (files, std::fs::read_to_string("/proc/self/mountinfo").unwrap())
}

/// The test that a separate process runs until it is killed.
const STANDING: &str = "network_node::nothing_is_left_after_a_kill_at_any_moment";
/// Names the variant to build.
const VARIANT: &str = "OVERLANE_TEST_VARIANT";

/// In a process of its own: prints a line when it starts, and builds.
fn stands_until_killed() {
    let mode = mode(&std::env::var(VARIANT).unwrap()).unwrap();
    let mut lines = stands("");
    let network = mode.build(&PARAMS).unwrap();
    let _ = lines.next();
    drop(network);
}

/// The descendants of a process.
fn below(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task");
    let tasks = std::fs::read_dir(path).into_iter().flatten().flatten();
    let children =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect();
    children.into_iter().flat_map(|child| [vec![child], below(child)].concat()).collect()
}

#[test]
fn nothing_is_left_after_a_kill_at_any_moment() {
    if is_meant() {
        return stands_until_killed();
    }
    let names = ["vrouter-ha", "vrouter-ovs", "floating-ip"];
    require!(mode(names[0]), mode(names[1]), mode(names[2]));
    // Moments during the build, and one after it or at its end.
    let moments = (0..6u64).map(|number| Some(Duration::from_millis(number * 397 % 1700)));
    let of = |moment| names.map(|name| (name, moment));
    let all: Vec<(&str, Option<Duration>)> = moments.chain([None]).flat_map(of).collect();
    let before = left_on_the_machine();
    some_at_once(&all, |&(name, moment)| {
        let mut standing = Standing::start(STANDING, &[(VARIANT, name)]).unwrap();
        let mut seen = BTreeSet::new();
        let begun = Instant::now();
        while moment.is_some_and(|moment| begun.elapsed() < moment) {
            seen.extend(below(standing.pid()));
            std::thread::sleep(Duration::from_millis(5));
        }
        seen.extend(below(standing.pid()));
        let namespaces: BTreeSet<u64> = seen.iter().filter_map(|pid| namespace_of(*pid)).collect();
        if moment.is_some() { standing.kill() } else { standing.end() }.unwrap();
        let own = namespace_of(std::process::id()).unwrap();
        let namespaces: BTreeSet<u64> =
            namespaces.into_iter().filter(|namespace| *namespace != own).collect();
        testbed::poll("the end of the programs", LIMIT, || {
            let left = processes_in(&namespaces);
            Ok(if left.is_empty() { Ok(()) } else { Err(format!("{name} {moment:?}: {left:?}")) })
        })
        .unwrap();
    });
    assert_eq!(left_on_the_machine(), before);
}

fn namespace_of(pid: u32) -> Option<u64> {
    let data = std::fs::metadata(format!("/proc/{pid}/ns/net")).ok()?;
    Some(std::os::unix::fs::MetadataExt::ino(&data))
}
