//! Datagrams longer than the path MTU: the fragments of a datagram are one journey, and reports
//! match the kernel's counts.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use lab::Network;
use observe::{Filter, Packet, PacketEnding, PacketLeg, PacketStep};
use test_support::{bound, require};
use testbed::{Host, NIC, Offload, Wire, mac};

use super::healthy::counted;
use super::seen::{Seen, begins_in, drops, inode, is_received};
use super::traffic::{port, server};
use super::{LIMIT, network};

/// Longer than a packet of the tenants' MTU, and of the NICs' MTU.
const BYTES: usize = 3500;
const DATAGRAMS: usize = 20;

/// IPv6 addresses of the tenants.
const SIX: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2)];

fn run(host: &Host, line: &str) {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap());
    host.run(command.args(words)).unwrap();
}

/// A counter of IP, by its IPv4 name.
fn counter(host: &Host, is_six: bool, name: &str) -> u64 {
    if !is_six {
        return counted(host, "Ip", name);
    }
    let text = host.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp6"));
    let text = text.unwrap().unwrap();
    let name = format!("Ip6{name}");
    let is_it = |line: &&str| line.split_whitespace().next() == Some(&name);
    text.lines().find(is_it).unwrap().split_whitespace().last().unwrap().parse().unwrap()
}

/// Client and server of long datagrams, which may be fragmented.
struct Sockets {
    client: UdpSocket,
    server: UdpSocket,
    to: SocketAddr,
}

impl Sockets {
    fn new(network: &Network, port: u16, is_six: bool) -> Sockets {
        let hosts = [network.client(), network.server()];
        let mut to = network.address.target;
        if is_six {
            for (host, address) in hosts.into_iter().zip(SIX) {
                host.sysctl("net/ipv6/conf/all/disable_ipv6", "0").unwrap();
                host.sysctl("net/ipv6/conf/eth0/disable_ipv6", "0").unwrap();
                run(host, &format!("ip address add {address}/64 dev eth0 nodad"));
            }
            to.set_ip(IpAddr::V6(SIX[1]));
        }
        // Otherwise DF is set, and IPv4 routers may not fragment what the sender may.
        hosts[0].sysctl("net/ipv4/ip_no_pmtu_disc", "1").unwrap();
        let any: IpAddr = if is_six { Ipv6Addr::UNSPECIFIED.into() } else { [0, 0, 0, 0].into() };
        let bind = |host: &Host, at: SocketAddr| {
            let socket = host.netns().run(|| bound(|| UdpSocket::bind(at))).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            socket
        };
        let sockets = Sockets {
            client: bind(hosts[0], (any, port).into()),
            server: bind(hosts[1], (any, to.port()).into()),
            to,
        };
        testbed::poll("a short datagram at the server", LIMIT, || {
            sockets.send(7);
            Ok(if sockets.receive() { Ok(()) } else { Err(String::new()) })
        })
        .unwrap();
        while sockets.receive() {}
        sockets
    }

    fn send(&self, bytes: usize) {
        self.client.send_to(&vec![7; bytes], self.to).unwrap();
    }

    fn receive(&self) -> bool {
        self.server.recv(&mut [0; 65_536]).is_ok()
    }
}

/// Tenants and tunnels get a larger MTU than the NICs, so the tunnel's packets are fragmented.
fn lengthen(network: &Network) {
    let mtu = |host: &str, device: &str, mtu: u32| {
        run(network.host(host).unwrap(), &format!("ip link set dev {device} mtu {mtu}"));
    };
    for (host, tenant) in [("a", "tenant-a"), ("b", "tenant-b")] {
        mtu(host, NIC, 4100);
        for device in ["vxlan0", "br0", "veth0"] {
            mtu(host, device, 4000);
        }
        mtu(tenant, "eth0", 4000);
        mtu(host, NIC, 1500);
    }
}

fn is_fragment(step: &PacketStep) -> bool {
    step.fragment.is_some() || step.tunnel_fragment.is_some()
}

/// Legs of a journey that are fragments, with their first step.
fn fragments(packet: &Packet) -> Vec<(&PacketLeg, &PacketStep)> {
    let legs = packet.legs.iter().enumerate();
    let first =
        legs.filter_map(|(at, leg)| Some((leg, packet.steps.iter().find(|step| step.leg == at)?)));
    first.filter(|(_, step)| is_fragment(step)).collect()
}

fn reassembled(packet: &Packet) -> usize {
    packet.legs.iter().filter(|leg| leg.reassembled_from.is_some()).count()
}

/// Journeys of the datagrams that a client sent from this port.
fn of_port<'p>(packets: &'p [Packet], client: &Host, port: u16) -> Vec<&'p Packet> {
    let is_of = |packet: &&Packet| {
        let from = packet.flow.as_ref().and_then(|flow| flow.source_port);
        begins_in(packet, client.name()) && from == Some(port)
    };
    packets.iter().filter(is_of).collect()
}

/// Sends long datagrams; reported fragmentations and reassemblies match the hosts' counts.
fn followed(network: &Network, is_six: bool, [cuts, joins]: [(&str, bool); 2]) {
    let port = port();
    let sockets = Sockets::new(network, port, is_six);
    let counts = || {
        let of = |(host, is_six): (&str, bool), name: &str| {
            counter(network.host(host).unwrap(), is_six, name)
        };
        [of(cuts, "FragCreates"), of(joins, "ReasmReqds"), of(joins, "ReasmOKs")]
    };
    let mut seen = Seen::of_port(network, port);
    let before = counts();
    for at in 0..DATAGRAMS {
        sockets.send(BYTES - 8 * at);
        assert!(sockets.receive(), "datagram {at}: {}", seen.text());
        seen.look();
    }
    seen.rest();
    let counted: Vec<u64> = counts().iter().zip(before).map(|(now, then)| now - then).collect();
    let reported = of_port(&seen.packets, network.client(), port);
    assert_eq!(reported.len(), DATAGRAMS, "{}", seen.text());
    assert_eq!(seen.packets.len(), DATAGRAMS, "fragments of nothing: {}", seen.text());
    let pieces: usize = reported.iter().map(|packet| fragments(packet).len()).sum();
    let wholes: usize = reported.iter().map(|packet| reassembled(packet)).sum();
    assert_eq!([pieces, pieces, wholes].map(|count| count as u64), counted[..], "{}", seen.text());
    for packet in reported {
        let text = packet.text();
        assert_eq!(drops(packet).count(), 0, "{text}");
        for (leg, step) in fragments(packet) {
            assert_eq!(leg.ending, PacketEnding::Reassembled, "{text}");
            let reported = step.tunnel_fragment.or(step.fragment).unwrap();
            assert!(reported.id > 0 && (reported.more || reported.offset > 0), "{text}");
            // It has the ports of the first fragment, and its tunnel.
            let flow = step.flow.as_ref().unwrap();
            assert_eq!(flow.source_port, Some(port), "{text}");
            assert_eq!(flow.protocol, "udp", "{text}");
            assert_eq!(step.tunnel.is_some(), step.tunnel_fragment.is_some(), "{text}");
        }
        let whole = packet.legs.last().unwrap();
        assert!(whole.reassembled_from.is_some() && is_received(&whole.ending), "{text}");
    }
    println!(
        "{DATAGRAMS} datagrams, {pieces} fragments reported and counted, {wholes} reassembled"
    );
}

#[test]
fn datagrams_that_the_tenant_cuts_are_followed() {
    for is_six in [false, true] {
        let network = require!(network("vxlan", Offload::Full));
        followed(&network, is_six, [("tenant-a", is_six), ("tenant-b", is_six)]);
    }
}

#[test]
fn packets_of_the_tunnel_that_are_cut_are_followed() {
    let network = require!(network("vxlan", Offload::Full));
    lengthen(&network);
    followed(&network, false, [("a", false), ("b", false)]);
}

/// The tenants' own fragments inside fragments of the tunnel.
#[test]
fn fragments_in_fragments_are_followed() {
    let network = require!(network("vxlan", Offload::Full));
    lengthen(&network);
    let port = port();
    let sockets = Sockets::new(&network, port, false);
    let mut seen = Seen::of_port(&network, port);
    let packet = seen.until(
        "a datagram that was cut twice",
        || {
            sockets.send(5000);
            sockets.receive();
        },
        |packets| {
            let all = of_port(packets, network.client(), port);
            all.first().map(|packet| (*packet).clone()).ok_or_else(|| "none".to_owned())
        },
    );
    let text = packet.text();
    let of_tunnel = |leg: &(&PacketLeg, &PacketStep)| leg.1.tunnel_fragment.is_some();
    let (outer, inner): (Vec<_>, Vec<_>) = fragments(&packet).into_iter().partition(of_tunnel);
    // The tenant splits it in two, and the host splits the first of these in three. Reassembly
    // restores the tenant's first fragment.
    assert_eq!((outer.len(), inner.len(), reassembled(&packet)), (3, 3, 2), "{text}");
    for (leg, step) in outer {
        assert_eq!(leg.ending, PacketEnding::Reassembled, "{text}");
        assert_eq!(step.fragment.map(|inner| (inner.offset, inner.more)), Some((0, true)));
        assert_ne!(step.fragment.unwrap().id, step.tunnel_fragment.unwrap().id, "{text}");
    }
    for part in [
        "outer first fragment of id 0x",
        "outer fragment at 1480 of id 0x",
        "last fragment, at 3976, of id 0x",
        "fragmented\n",
        "reassembled with the other fragments\n",
        "the datagram, reassembled:\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(is_received(&packet.legs.last().unwrap().ending), "{text}");
}

/// Linux does not fragment packets of a tunnel over IPv6, but those of tunnels in user space.
#[test]
fn ipv6_packets_of_a_tunnel_that_are_cut_are_followed() {
    let network = require!(network("vxlan6", Offload::Full));
    lengthen(&network);
    let port = port();
    let sockets = Sockets::new(&network, port, false);
    let (a, b) = (network.host("a").unwrap(), network.host("b").unwrap());
    let tunnel = a.netns().run(|| UdpSocket::bind("[::]:0").unwrap()).unwrap();
    let frame = vxlan(&network, port, BYTES);
    let counts = || ["ReasmReqds", "ReasmOKs"].map(|name| counter(b, true, name));
    let mut seen = Seen::of_port(&network, port);
    let before = counts();
    for _ in 0..DATAGRAMS {
        tunnel.send_to(&frame, (Wire::B6, 4789)).unwrap();
        assert!(sockets.receive(), "{}", seen.text());
        seen.look();
    }
    seen.rest();
    let reported = of_port(&seen.packets, a, port);
    assert_eq!((reported.len(), seen.packets.len()), (DATAGRAMS, DATAGRAMS), "{}", seen.text());
    let pieces: usize = reported.iter().map(|packet| fragments(packet).len()).sum();
    let counted = counts().into_iter().zip(before).map(|(now, then)| now - then);
    assert_eq!(counted.collect::<Vec<u64>>(), [pieces as u64, DATAGRAMS as u64]);
    for packet in reported {
        let text = packet.text();
        assert!(text.contains("in VXLAN 42 [fd07::1]:"), "{text}");
        for (leg, step) in fragments(packet) {
            assert_eq!(leg.ending, PacketEnding::Reassembled, "{text}");
            assert!(step.tunnel_fragment.is_some_and(|outer| outer.id > 0), "{text}");
        }
        assert!(is_received(&packet.legs.last().unwrap().ending), "{text}");
    }
    println!("{DATAGRAMS} packets of a tunnel, {pieces} fragments reported and counted");
}

/// A tunnel's payload (RFC 7348, 5): a datagram between the tenants, without UDP checksums.
fn vxlan(network: &Network, port: u16, bytes: usize) -> Vec<u8> {
    let (from, to) = (network.client(), network.server());
    let (length, of_udp) = (28 + bytes, 8 + bytes);
    let mut ip = vec![0x45, 0, (length >> 8) as u8, length as u8, 0, 7, 0, 0, 64, 17, 0, 0];
    ip.extend([10, 1, 0, 11]);
    ip.extend(server(network).octets());
    let words = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![8, 0, 0, 0, 0, 0, 42, 0];
    packet.extend(mac(to.name(), "eth0").0);
    packet.extend(mac(from.name(), "eth0").0);
    packet.extend([8, 0]);
    packet.extend(ip);
    for word in [port, lab::PORT, of_udp as u16, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(vec![7; bytes]);
    packet
}

/// A router with connection tracking reassembles a datagram, and fragments it again.
#[test]
fn packets_reassembled_and_refragmented_by_a_router_are_one_journey() {
    let network = require!(network("routed", Offload::Full));
    let rules = "table ip t { chain c { type filter hook forward priority 0; ct state new; }; }";
    let router = network.host("b").unwrap();
    router.nft(rules).unwrap();
    let port = port();
    let sockets = Sockets::new(&network, port, false);
    let mut seen = Seen::of_port(&network, port);
    let names = ["ReasmReqds", "ReasmOKs", "FragCreates"];
    let counts = || names.map(|name| counter(router, false, name));
    let before = counts();
    sockets.send(BYTES);
    assert!(sockets.receive());
    seen.rest();
    let [packet] = &of_port(&seen.packets, network.client(), port)[..] else {
        panic!("{}", seen.text())
    };
    let text = packet.text();
    let counted = counts().into_iter().zip(before).map(|(now, then)| now - then);
    assert_eq!(counted.collect::<Vec<u64>>(), [3, 1, 3], "{text}");
    assert_eq!((fragments(packet).len(), reassembled(packet)), (6, 2), "{text}");
    let of_router = |packet: &&PacketLeg| packet.ending == PacketEnding::Fragmented;
    assert_eq!(packet.legs.iter().filter(of_router).count(), 1, "{text}");
    assert!(is_received(&packet.legs.last().unwrap().ending), "{text}");
}

/// Reasons of dropped fragments of a journey in the server's namespace, sorted.
fn reasons(packet: &Packet, server: &Host) -> Vec<String> {
    let all = drops(packet).inspect(|(step, ..)| assert_eq!(step.namespace, server.name()));
    let mut reasons: Vec<String> =
        all.map(|(_, reason, function)| format!("{reason} in {function}")).collect();
    reasons.sort();
    reasons
}

/// The journey of a datagram that does not arrive.
fn lost_packet(network: &Network, sockets: &Sockets, port: u16) -> (Packet, String) {
    let mut seen = Seen::of_port(network, port);
    sockets.send(BYTES);
    let packet = seen.until(
        "the end of a datagram that was lost",
        || (),
        |packets| {
            let all = of_port(packets, network.client(), port);
            all.first().map(|packet| (*packet).clone()).ok_or_else(|| "none".to_owned())
        },
    );
    assert!(!sockets.receive());
    seen.rest();
    assert_eq!(seen.packets.len(), 1, "{}", seen.text());
    (packet, seen.text())
}

#[test]
fn a_dropped_fragment_and_its_waiting_fragments_are_reported_by_reason() {
    for (is_six, rule) in [
        (
            false,
            "table ip t { chain c { type filter hook prerouting priority -500; \
                 ip frag-off & 0x1fff != 0 drop; }; }",
        ),
        (
            true,
            "table ip6 t { chain c { type filter hook prerouting priority -500; \
                frag frag-off != 0 drop; }; }",
        ),
    ] {
        let network = require!(network("vxlan", Offload::Full));
        let server = network.server();
        let port = port();
        let sockets = Sockets::new(&network, port, is_six);
        server.sysctl("net/ipv4/ipfrag_time", "1").unwrap();
        server.sysctl("net/ipv6/ip6frag_time", "1").unwrap();
        server.nft(rule).unwrap();
        let before = counter(server, is_six, "ReasmTimeout");
        let (packet, text) = lost_packet(&network, &sockets, port);
        let expire = if is_six { "ip6frag_expire_frag_queue" } else { "ip_expire" };
        let wanted = [
            format!("FRAG_REASM_TIMEOUT in {expire}"),
            "NETFILTER_DROP in nft_do_chain".to_owned(),
            "NETFILTER_DROP in nft_do_chain".to_owned(),
        ];
        let got = reasons(&packet, server);
        assert_eq!(got.len(), wanted.len(), "{text}");
        for (got, wanted) in got.iter().zip(&wanted) {
            let reason = wanted.split(' ').next().unwrap();
            assert_eq!(got.split(' ').next(), Some(reason), "{text}");
        }
        assert_eq!(counter(server, is_six, "ReasmTimeout") - before, 1);
        println!("IPv6 {is_six}: {got:?}");
    }
}

#[test]
fn fragments_without_memory_are_reported() {
    for is_six in [false, true] {
        let network = require!(network("vxlan", Offload::Full));
        let server = network.server();
        let port = port();
        let sockets = Sockets::new(&network, port, is_six);
        for name in ["low", "high"] {
            let path = if is_six { "net/ipv6/ip6frag" } else { "net/ipv4/ipfrag" };
            server.sysctl(&format!("{path}_{name}_thresh"), "0").unwrap();
        }
        let before = counter(server, is_six, "ReasmFails");
        let (packet, text) = lost_packet(&network, &sockets, port);
        let got = reasons(&packet, server);
        let by = if is_six { "ipv6_frag_rcv" } else { "ip_defrag" };
        assert_eq!(got, vec![format!("NOT_SPECIFIED in {by}"); 3], "{text}");
        assert_eq!(counter(server, is_six, "ReasmFails") - before, 3);
        assert!(text.contains("memory"), "{text}");
    }
}

/// A datagram is followed with all of its fragments, or not at all.
#[test]
fn by_chance_all_fragments_are_followed_or_none() {
    for is_six in [false, true] {
        let network = require!(network("vxlan", Offload::Full));
        let port = port();
        let sockets = Sockets::new(&network, port, is_six);
        let netns = network.hosts().iter().map(|host| inode(host)).collect();
        let mut seen = Seen::filtered(&network, Filter { sample: 4, netns, ..Filter::default() });
        for _ in 0..200 {
            sockets.send(BYTES);
            assert!(sockets.receive());
            seen.look();
        }
        seen.rest();
        let reported = of_port(&seen.packets, network.client(), port);
        assert!((1..200).contains(&reported.len()), "{} journeys", reported.len());
        for packet in &reported {
            let text = packet.text();
            assert_eq!((fragments(packet).len(), reassembled(packet)), (3, 1), "{text}");
            assert!(is_received(&packet.legs.last().unwrap().ending), "{text}");
        }
        println!("IPv6 {is_six}: {} of 200 datagrams, each with all its fragments", reported.len());
    }
}
