//! The routed shape: packet processing of the router, and packets left to the kernel.

use std::os::fd::AsRawFd;
use std::process::Command;

use accel::Accel;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use test_support::{need, require};
use testbed::{Offload, poll};

use super::pair::{DEVICE, LIMIT, Pair, sh, since};
use super::refusals::{Case, refused_in_turn};
use super::traffic::past_device;
use super::underlay::Underlay;

#[test]
fn routed_traffic_goes_both_ways_past_routes_and_device() {
    passes(&[
        (Underlay::V4, Offload::Full, true, true),
        (Underlay::V4, Offload::NoTunnel, false, false),
        (Underlay::V6, Offload::Full, false, true),
        (Underlay::V6, Offload::None, true, false),
    ]);
}

#[test]
fn routed_traffic_goes_both_ways_in_further_combinations() {
    passes(&[
        (Underlay::V4, Offload::Full, false, false),
        (Underlay::V4, Offload::NoTunnel, false, true),
        (Underlay::V4, Offload::None, true, false),
        (Underlay::V6, Offload::Full, true, false),
        (Underlay::V6, Offload::NoTunnel, true, true),
        (Underlay::V6, Offload::None, false, false),
    ]);
}

/// The last value: whether tenants are behind a bridge.
fn passes(paths: &[(Underlay, Offload, bool, bool)]) {
    require!(need::root());
    for &(underlay, offload, udp_csum, bridge) in paths {
        let pair = Pair::routed_over(underlay, offload, udp_csum, bridge);
        let what = format!("{offload} over {underlay:?}, checksum {udp_csum}, bridge {bridge}");
        let accels = pair.accelerate();
        pair.ping6();
        past_device(&pair, &accels, udp_csum, &what);
    }
}

/// (command in a host, its inverse, reason, whether traffic still passes)
const CASES: &[Case] = &[
    (
        "sysctl -qw net.ipv4.ip_forward=0",
        "sysctl -qw net.ipv4.ip_forward=1",
        "[vxlan0: vxlan0: IPv4 forwarding is off]",
        false,
    ),
    (
        "sysctl -qw net.ipv4.conf.br0.forwarding=0",
        "sysctl -qw net.ipv4.conf.br0.forwarding=1",
        "[br0: br0: IPv4 forwarding is off]",
        false,
    ),
    (
        "sysctl -qw net.ipv6.conf.all.forwarding=0",
        "sysctl -qw net.ipv6.conf.all.forwarding=1",
        "[IPv6: IPv6 forwarding is off]",
        false,
    ),
    (
        "sysctl -qw net.ipv6.conf.all.proxy_ndp=1",
        "sysctl -qw net.ipv6.conf.all.proxy_ndp=0",
        "[IPv6: neighbour discovery proxy is on]",
        true,
    ),
    (
        "ip -6 rule add fwmark 1 table 100",
        "ip -6 rule del fwmark 1 table 100",
        "[IPv6: IPv6 policy routing: rule 32765 (table 100)]",
        true,
    ),
    (
        "ip rule add iif br0 table 100",
        "ip rule del iif br0 table 100",
        "[vxlan0: policy routing: rule 32765 (table 100)]",
        true,
    ),
    (
        "ip route add 10.9.0.0/16 nexthop dev nic0 nexthop dev br0",
        "ip route del 10.9.0.0/16",
        "[vxlan0: routing: 10.9.0.0/16 has several next hops]",
        true,
    ),
    (
        "sysctl -qw net.ipv4.nexthop_compat_mode=0
         ip nexthop add id 7 dev nic0; ip route add 10.9.0.0/16 nhid 7",
        "ip route del 10.9.0.0/16; ip nexthop del id 7
         sysctl -qw net.ipv4.nexthop_compat_mode=1",
        "[vxlan0: routing: 10.9.0.0/16 has a next hop object]",
        true,
    ),
    (
        "ip route add 10.9.0.0/16 via 10.1.12.0 dev vxlan0 onlink mtu 1000",
        "ip route del 10.9.0.0/16",
        "[vxlan0: vxlan0: a route sets an MTU]",
        true,
    ),
    (
        "ip route add 10.9.0.0/16 dev br0 mtu 1000",
        "ip route del 10.9.0.0/16",
        "[br0: br0: a route sets an MTU]",
        true,
    ),
    (
        "ip xfrm policy add dir fwd src 10.9.0.0/16 dst 10.8.0.0/16 action block",
        "ip xfrm policy flush",
        "[vxlan0: IPsec policies]",
        true,
    ),
    (
        "ip xfrm policy setdefault fwd block",
        "ip xfrm policy setdefault fwd accept",
        "[vxlan0: IPsec policies]",
        false,
    ),
    ("tc qdisc add dev br0 clsact", "tc qdisc del dev br0 clsact", "[br0: br0: tc filters", true),
    (
        "tc qdisc add dev vxlan0 root pfifo",
        "tc qdisc del dev vxlan0 root",
        "[vxlan0: vxlan0: queueing discipline pfifo]",
        true,
    ),
    (
        "tc qdisc add dev br0 root pfifo",
        "tc qdisc del dev br0 root",
        "[br0: br0: queueing discipline pfifo]",
        true,
    ),
    (
        "bridge link set dev veth0 isolated on",
        "bridge link set dev veth0 isolated off",
        "[veth0: veth0: bridge port option isolated]",
        true,
    ),
    (
        "ip link set vxlan0 down",
        // Setting it down has removed its routes and neighbours.
        "ip link set vxlan0 up
         mac=$(bridge fdb show dev vxlan0 | cut -d' ' -f1)
         ip route add 10.1.0.12/32 via 10.1.12.0 dev vxlan0 onlink
         ip addr replace fd00:11::/128 dev vxlan0 nodad
         ip route replace fd00::12/128 via fd00:12:: dev vxlan0 onlink
         ip neigh replace 10.1.12.0 lladdr $mac dev vxlan0
         ip neigh replace fd00:12:: lladdr $mac dev vxlan0",
        "[vxlan0: it is down]",
        false,
    ),
];

#[test]
fn rules_that_a_router_evaluates_are_refused_while_they_exist() {
    require!(need::root());
    refused_in_turn(&Pair::routed(Offload::Full, true, true), CASES);
}

#[test]
fn a_device_of_its_own_is_refused_like_a_bridge() {
    require!(need::root());
    let cases = [
        (
            "sysctl -qw net.ipv4.conf.veth0.forwarding=0",
            "sysctl -qw net.ipv4.conf.veth0.forwarding=1",
            "[veth0: veth0: IPv4 forwarding is off]",
            false,
        ),
        (
            "tc qdisc add dev veth0 clsact",
            "tc qdisc del dev veth0 clsact",
            "[veth0: veth0: tc filters (clsact qdisc)]",
            true,
        ),
    ];
    refused_in_turn(&Pair::routed(Offload::Full, true, false), &cases);
}

#[test]
fn the_kernel_answers_packets_that_a_router_answers() {
    require!(need::root());
    let pair = Pair::routed(Offload::Full, true, true);
    // No rate limit: a starved machine sends more than six such errors.
    for router in [&pair.a, &pair.b] {
        sh(router, "sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0");
    }
    let accels = pair.accelerate();
    let fails = |options: &[&str], answer: &str| {
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "1", "-W", "5"]).args(options);
        let error = pair.tenant_a.run(&mut ping).unwrap_err().to_string();
        assert!(error.contains(answer), "{options:?}: {error}");
    };
    // Errors from the first router and from the second.
    for (hops, to, answer, router, counter) in [
        ("1", "10.1.0.12", "From 10.1.0.1 icmp_seq=1 Time to live exceeded", 0, "encap_ttl"),
        ("1", "fd00::12", "From fd00::1 icmp_seq=1 Time exceeded: Hop limit", 0, "encap_ttl"),
        ("2", "10.1.0.12", "Time to live exceeded", 1, "decap_ttl"),
        ("2", "fd00::12", "Time exceeded: Hop limit", 1, "decap_ttl"),
    ] {
        counted(&accels[router], counter, || fails(&["-t", hops, to], answer));
    }
    sh(&pair.tenant_a, "ip link set eth0 mtu 1500; ip link set eth0 up");
    sh(&pair.a, "ip link set veth0 mtu 1500");
    fails(&["-M", "do", "-s", "1472", "10.1.0.12"], "Frag needed and DF set (mtu = 1450)");
    // Without DF it is fragmented.
    sh(&pair.tenant_a, "ip route flush cache");
    pair.ping(&["-M", "dont", "-s", "1472"]);
    // Its own addresses answer, and unknown sources take the slow path.
    let before = accels[0].status();
    for own in ["10.1.0.1", "fd00::1"] {
        counted(&accels[0], "encap_route", || {
            let mut ping = Command::new("ping");
            pair.tenant_a.run(ping.args(["-n", "-c", "1", "-W", "5", own])).unwrap();
        });
    }
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0);
    sh(&pair.tenant_a, "ip addr add 10.7.0.1/32 dev eth0");
    counted(&accels[0], "encap_route", || {
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "1", "-I", "10.7.0.1", "10.1.0.12"]);
        pair.tenant_a.run(&mut ping).unwrap_err();
    });
}

/// Repeats an action until a counter increases: on a starved machine the heartbeat may expire, and
/// a packet takes the slow path for that reason.
fn counted(accel: &Accel, counter: &str, act: impl Fn()) {
    const ATTEMPTS: u32 = 20;
    for _ in 0..ATTEMPTS {
        let before = accel.status();
        act();
        if since(accel, &before, counter) > 0 {
            return;
        }
    }
    panic!("{counter} never counts: {:#?}", accel.status());
}

#[test]
fn a_tenant_whose_route_is_gone_gets_nothing() {
    require!(need::root());
    let pair = Pair::routed(Offload::Full, true, true);
    let accels = pair.accelerate();
    sh(&pair.b, "ip route replace unreachable 10.1.0.12/32");
    let before = accels[1].status();
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "1", "10.1.0.12"]);
    let error = pair.tenant_a.run(&mut ping).unwrap_err().to_string();
    assert!(error.contains("Destination Host Unreachable"), "{error}");
    assert_eq!(since(&accels[1], &before, "decap_hit"), 0);
    sh(&pair.b, "ip route del unreachable 10.1.0.12/32; ip route add 10.1.0.12/32 dev br0");
    pair.settle(&accels);
}

/// Returns a raw ICMP "fragmentation needed" about an echo reply of the router to the other tenant.
fn forged_path_mtu(mtu: u16) -> Vec<u8> {
    let mut quoted = Vec::new();
    etherparse::PacketBuilder::ipv4([10, 1, 0, 1], [10, 1, 0, 12], 64)
        .icmpv4_echo_reply(1, 1)
        .write(&mut quoted, &[])
        .unwrap();
    let header =
        etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
    let kind = etherparse::Icmpv4Type::DestinationUnreachable(header);
    let mut message = Vec::new();
    etherparse::Icmpv4Header::with_checksum(kind, &quoted).write(&mut message).unwrap();
    message.extend(quoted);
    message
}

#[test]
fn next_hop_objects_and_learned_path_mtus_are_no_reason() {
    require!(need::root());
    let pair = Pair::routed(Offload::Full, true, true);
    sh(
        &pair.a,
        "ip nexthop add id 7 via 10.1.12.0 dev vxlan0 onlink
         ip route replace 10.1.0.12/32 nhid 7",
    );
    let accels = pair.accelerate();
    pair.tenant_a
        .netns()
        .run(|| {
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket =
                socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Icmp).unwrap();
            let router = SockaddrIn::new(10, 1, 0, 1, 0);
            let message = forged_path_mtu(1000);
            sendto(socket.as_raw_fd(), &message, &router, MsgFlags::empty()).unwrap();
        })
        .unwrap();
    poll("the learned path MTU", LIMIT, || {
        let got = pair.a.run(Command::new("ip").args(["route", "get", "10.1.0.12"]))?;
        Ok(if got.contains("mtu 1000") { Ok(()) } else { Err(got) })
    })
    .unwrap();
    // A refusal and its end trigger a full read of routes.
    for (change, accelerates) in
        [("tc qdisc add dev vxlan0 root pfifo", false), ("tc qdisc del dev vxlan0 root", true)]
    {
        sh(&pair.a, change);
        poll(change, LIMIT, || {
            let status = accels[0].status();
            let is_so = status.accelerates(DEVICE) == accelerates;
            Ok(if is_so { Ok(()) } else { Err(format!("{status:#?}")) })
        })
        .unwrap();
    }
    pair.settle(&accels);
    // Removing the object removes the route without a notification for the route.
    let before = accels[0].status();
    sh(&pair.a, "ip nexthop del id 7");
    let mut ping = Command::new("ping");
    ping.args(["-n", "-c", "2", "-i", "0.01", "-W", "1", "10.1.0.12"]);
    pair.tenant_a.run(&mut ping).unwrap_err();
    assert_eq!(since(&accels[0], &before, "encap_hit"), 0);
}
