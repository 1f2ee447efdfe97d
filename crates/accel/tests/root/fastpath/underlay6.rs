//! Properties of an IPv6 underlay: reasons for the slow path, optional checksums, and the MTU and
//! hop limit of a NIC.

use std::net::UdpSocket;
use std::process::Command;

use accel::{Accel, Wanted};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::AsRawFd;
use test_support::{need, require};
use testbed::{Offload, mac, poll};

use super::pair::{BRIDGE, DEVICE, LIMIT, Pair, TENANT_B, sh, since};
use super::refusals::{Case, refused_in_turn};
use super::underlay::Underlay;

const CASES: &[Case] = &[
    (
        "ip -6 rule add fwmark 1 table 100",
        "ip -6 rule del fwmark 1 table 100",
        "[vxlan0: IPv6 policy routing: rule 32765 (table 100)]",
        true,
    ),
    (
        "ip -6 route add fd07::2/128 nexthop via fd07::97 dev nic0 nexthop via fd07::98 dev nic0",
        "ip -6 route del fd07::2/128",
        "[fd07::2: a route has several next hops]",
        false,
    ),
    (
        "sysctl -qw net.ipv4.nexthop_compat_mode=0
         ip -6 nexthop add id 7 dev nic0; ip -6 route add fd07::/72 nhid 7",
        "ip -6 route del fd07::/72; ip -6 nexthop del id 7
         sysctl -qw net.ipv4.nexthop_compat_mode=1",
        "[fd07::2: a route has a next hop object]",
        true,
    ),
    (
        "ip -6 route add unreachable fd07::2/128",
        "ip -6 route del unreachable fd07::2/128",
        "[fd07::2: no unicast IPv6 route]",
        false,
    ),
    (
        "ip -6 route add fd07::2/128 via fd07::98 dev nic0",
        "ip -6 route del fd07::2/128",
        "[fd07::2: fd07::98: no usable neighbour entry]",
        false,
    ),
    (
        "ip addr del fd07::1/64 dev nic0; ip -6 route add fd07::/64 dev nic0",
        "ip -6 route del fd07::/64 dev nic0; ip addr add fd07::1/64 dev nic0 nodad",
        "[fd07::2: fd07::1 is not an address of this host]",
        false,
    ),
    (
        "tc qdisc add dev nic0 clsact",
        "tc qdisc del dev nic0 clsact",
        "[fd07::2: nic0: tc filters (clsact qdisc)]",
        true,
    ),
    (
        "nft 'table ip6 t { chain c { type filter hook output priority 0; udp sport 1 drop; }; }'",
        "nft delete table ip6 t",
        "[fd07::2: packet filter: nftables ip6 t c: source port]",
        true,
    ),
    (
        "ip xfrm policy add dir out src fd09::/64 dst fd08::/64 action block",
        "ip xfrm policy flush",
        "[vxlan0: IPsec policies]",
        true,
    ),
];

#[test]
fn hooks_that_would_be_bypassed_are_refused_over_ipv6_too() {
    require!(need::root());
    refused_in_turn(&Pair::over(Underlay::V6, Offload::Full, true), CASES);
}

#[test]
fn the_source_address_is_known_where_there_is_but_one() {
    require!(need::root());
    let pair = Pair::over(Underlay::V6, Offload::Full, true);
    sh(
        &pair.a,
        &format!(
            "ip link del {DEVICE}
             ip link add {DEVICE} type vxlan id 42 remote fd07::2 dev nic0 dstport 4789
             ip link set {DEVICE} mtu 1430 master {BRIDGE} up"
        ),
    );
    let cases = [(
        "ip addr add fd06::1/64 dev nic0 nodad",
        "ip addr del fd06::1/64 dev nic0",
        "[fd07::2: no local address, and the host has several]",
        true,
    )];
    refused_in_turn(&pair, &cases);
}

#[test]
fn datagrams_without_a_checksum_are_taken_only_where_the_device_takes_them() {
    require!(need::root());
    let pair = Pair::over(Underlay::V6, Offload::Full, false);
    let tenant = mac("tenant-a", "eth0");
    sh(
        &pair.b,
        &format!(
            "ip link del {DEVICE}
             ip link add {DEVICE} type vxlan id 42 local fd07::2 remote fd07::1 dev nic0 \
                dstport 4789 udp6zerocsumtx noudp6zerocsumrx
             ip link set {DEVICE} mtu 1430 master {BRIDGE} up
             bridge fdb add {tenant} dev {DEVICE} dst fd07::1 self permanent
             bridge fdb add {tenant} dev {DEVICE} master static"
        ),
    );
    sh(
        &pair.tenant_a,
        &format!("ip neigh add {TENANT_B} lladdr {} dev eth0", mac("tenant-b", "eth0")),
    );
    let accel = Accel::start(pair.b.netns(), Wanted::All).unwrap();
    // Pings from the other side make its address known.
    sh(&pair.tenant_b, "ping -n -c 1 -W 1 10.1.0.11 || true");
    poll("datagrams without a checksum", LIMIT, || {
        let mut ping = Command::new("ping");
        ping.args(["-n", "-c", "1", "-W", "0.1", &TENANT_B.to_string()]);
        pair.tenant_a.run(&mut ping).unwrap_err();
        let seen = accel.status().packets("decap_checksum");
        Ok((seen > 0).then_some(()).ok_or_else(|| format!("{:#?}", accel.status())))
    })
    .unwrap();
    assert_eq!(accel.status().packets("decap_hit"), 0);
}

#[test]
fn mtu_and_hop_limit_are_those_of_the_nic() {
    require!(need::root());
    let pair = Pair::over(Underlay::V6, Offload::Full, false);
    sh(&pair.a, "sysctl -qw net.ipv6.conf.nic0.hop_limit=23");
    let accels = pair.accelerate();
    let open = || {
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll)
            .unwrap()
    };
    let tap = pair.b.netns().run(open).unwrap();
    setsockopt(&tap, sockopt::ReceiveTimeout, &TimeVal::milliseconds(50)).unwrap();
    let before = accels[0].status();
    pair.settle_sender(&accels[0]);
    assert!(since(&accels[0], &before, "encap_hit") > 0);
    let mut buffer = vec![0; 70_000];
    let limits: Vec<u8> = std::iter::from_fn(|| {
        let length = recv(tap.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok()?;
        let frame = &buffer[..length];
        let sent = frame.get(6..12) == Some(&mac("a", "nic0").0);
        Some((sent && Underlay::V6.inner(frame).is_some()).then(|| frame[21]))
    })
    .flatten()
    .collect();
    assert!(!limits.is_empty() && limits.iter().all(|limit| *limit == 23), "{limits:?}");

    // The kernel does not notify this change; the daemon polls it once a second.
    sh(&pair.a, "sysctl -qw net.ipv6.conf.nic0.mtu=1400");
    let socket = pair.tenant_a.netns().run(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    poll("a packet to be too big", LIMIT, || {
        // The tenant has learned a path MTU from a packet on the slow path.
        sh(&pair.tenant_a, "ip route flush cache");
        let _ = socket.send_to(&[0; 1350], (TENANT_B, 5409));
        let seen = since(&accels[0], &before, "encap_mtu");
        Ok((seen > 0).then_some(()).ok_or_else(|| format!("{:#?}", accels[0].status())))
    })
    .unwrap();
}
