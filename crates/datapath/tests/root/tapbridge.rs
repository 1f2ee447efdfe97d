//! The bridge of two TAPs between private namespaces: forwarded packets, and its end.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use datapath::Error;
use datapath::counters::{Counters, DropReason};
use datapath::tapbridge::netmap::{Address, Netmap};
use datapath::tapbridge::{Bridge, Engine, EngineChoice, Port, PortOptions, Running, Side};
use netstate::snmp::Snmp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sys::tap::Offload;
use test_support::{left_out, need, require};
use testbed::Host;
use traffic::{LIMIT, pattern, ping, tcp, udp};

use crate::traffic;

/// Engines that this machine can run.
fn engines() -> Vec<Engine> {
    let mut engines = Engine::ALL.to_vec();
    if let Err(error) = sys::frame_ring::FrameRing::new(&[], &[], 16, 4096) {
        left_out(&error);
        engines.retain(|engine| *engine != Engine::Uring);
    }
    engines
}

/// Engines among these that join two namespaces.
fn joining() -> impl Iterator<Item = Engine> {
    engines().into_iter().filter(|engine| *engine != Engine::Bpf)
}

/// How the two sides of a bench differ from each other and from the default.
#[derive(Debug, Clone, Copy)]
struct Plan {
    offload: [Offload; 2],
    queues: usize,
    mtu: u32,
    engine: Engine,
}

impl Plan {
    fn new(engine: Engine) -> Plan {
        Plan { offload: [Offload::ALL; 2], queues: 1, mtu: 1500, engine }
    }
}

/// Two tenants with a device each, joined.
struct Bench {
    running: Running,
    left: Host,
    right: Host,
}

const LEFT: &str = "10.9.0.1";
const RIGHT: &str = "10.9.0.2";
const RIGHT_V6: &str = "fd09::2";

impl Bench {
    fn new(plan: Plan) -> Bench {
        let (left, right) = (Host::with_ipv6("left").unwrap(), Host::with_ipv6("right").unwrap());
        let open = |host: &Host, side: Side, v4: &str, v6: &str| {
            let options = PortOptions {
                queues: plan.queues,
                offload: plan.offload[side as usize],
                ..PortOptions::named("tap0")
            };
            let port = Port::open(&options, host.netns()).unwrap();
            host.netlink().set_mtu("tap0", plan.mtu).unwrap();
            host.address("tap0", v6.parse::<IpAddr>().unwrap(), 64).unwrap();
            host.address("tap0", v4.parse::<IpAddr>().unwrap(), 24).unwrap();
            port
        };
        let ports =
            (open(&left, Side::Left, LEFT, "fd09::1"), open(&right, Side::Right, RIGHT, RIGHT_V6));
        let bridge = Bridge::new(ports.0, ports.1, None).unwrap();
        let running = bridge.engine(EngineChoice::Only(plan.engine)).unwrap().start().unwrap();
        Bench { running, left, right }
    }

    /// Ends the bridge, and asserts that every frame has a fate.
    fn end(self) -> [Counters; 2] {
        let (counters, outcome) = self.running.stop();
        outcome.unwrap();
        for c in &counters {
            assert_eq!(c.received, c.forwarded + c.answered + c.dropped(), "{c:?}");
        }
        counters
    }
}

const SIZES: [usize; 14] =
    [1, 2, 17, 18, 19, 1000, 1471, 1472, 1473, 8972, 8973, 30_001, 65_506, 65_507];

fn everything_crosses(plan: Plan) -> [Counters; 2] {
    eprintln!("{plan:?}");
    let bench = Bench::new(plan);
    ping(&bench.left, RIGHT, 56);
    ping(&bench.right, LEFT, 4000);
    ping(&bench.left, RIGHT_V6, 56);
    tcp(&bench.left, &bench.right, RIGHT, RIGHT, 3_000_000);
    tcp(&bench.right, &bench.left, LEFT, LEFT, 1_000_000);
    tcp(&bench.left, &bench.right, RIGHT_V6, RIGHT_V6, 1_000_000);
    udp(&bench.left, &bench.right, RIGHT, RIGHT, &SIZES);
    udp(&bench.left, &bench.right, RIGHT_V6, RIGHT_V6, &[1, 1400, 65_507]);
    bench.end()
}

#[test]
fn every_kind_of_traffic_crosses_uncut() {
    require!(need::tun());
    for engine in joining() {
        for (queues, mtu) in [(1, 1500), (2, 9000), (1, 65_521)] {
            let counters = everything_crosses(Plan { queues, mtu, ..Plan::new(engine) });
            let c = counters[0];
            assert_eq!((c.cut, c.dropped()), (0, 0), "{c:?}");
            // A mean beyond the longest wire packet, acknowledgements included.
            let mean = c.received_bytes / c.received;
            assert!(mean > u64::from(mtu.min(1514)), "GSO packets arrived cut: {c:?}");
        }
    }
}

#[test]
fn without_offloads_packets_cross_one_by_one() {
    require!(need::tun());
    let plan = Plan { offload: [Offload::NONE; 2], ..Plan::new(Engine::Epoll) };
    let counters = everything_crosses(plan);
    for c in counters {
        assert_eq!((c.cut, c.dropped()), (0, 0), "{c:?}");
        assert!(c.received_bytes / c.received <= 1514, "{c:?}");
    }
    assert!(counters[0].received > 2500, "{counters:?}");
}

#[test]
fn packets_are_segmented_and_checksummed_for_a_side_without_offloads() {
    require!(need::tun());
    let few = Offload::CSUM | Offload::TSO6 | Offload::TSO4;
    for right in [Offload::NONE, Offload::CSUM, few] {
        let plan = Plan { offload: [Offload::ALL, right], ..Plan::new(Engine::Epoll) };
        let [from_left, from_right] = everything_crosses(plan);
        assert_eq!((from_left.dropped(), from_right.dropped()), (0, 0), "{from_left:?}");
        assert_eq!(from_right.cut, 0, "the left takes all: {from_right:?}");
        if right != few {
            assert!(from_left.cut > 10 && from_left.pieces > 20 * from_left.cut, "{from_left:?}");
        }
    }
}

#[test]
fn checksums_are_finished_for_who_does_not_take_them_unfinished() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, recv, socket};
    require!(need::tun());
    for (offload, finished) in [(Offload::NONE, true), (Offload::ALL, false)] {
        let plan = Plan { offload: [Offload::ALL, offload], ..Plan::new(Engine::Epoll) };
        let bench = Bench::new(plan);
        ping(&bench.left, RIGHT, 56);
        let sniffer = bench.right.netns().run(|| {
            let flags = SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
        });
        let sniffer = sniffer.unwrap().unwrap();
        let timeout = nix::sys::time::TimeVal::new(LIMIT.as_secs() as i64, 0);
        nix::sys::socket::setsockopt(&sniffer, nix::sys::socket::sockopt::ReceiveTimeout, &timeout)
            .unwrap();
        let sender = bench.left.netns().run(|| UdpSocket::bind((LEFT, 0))).unwrap().unwrap();
        sender.send_to(&pattern(700, 5), (RIGHT, 9)).unwrap();
        let mut buffer = [0; 2000];
        let right = loop {
            let length =
                recv(sniffer.as_raw_fd(), &mut buffer, nix::sys::socket::MsgFlags::empty())
                    .unwrap();
            let Ok(sliced) = etherparse::SlicedPacket::from_ethernet(&buffer[..length]) else {
                continue;
            };
            let (Some(etherparse::NetSlice::Ipv4(ip)), Some(etherparse::TransportSlice::Udp(udp))) =
                (&sliced.net, &sliced.transport)
            else {
                continue;
            };
            let header = ip.header().to_header();
            let wanted = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
            break udp.checksum() == wanted;
        };
        assert_eq!(right, finished, "{offload}");
        bench.end();
    }
}

#[test]
fn udp_gso_packets_cross_uncut_or_are_cut() {
    require!(need::tun());
    for (right, uncut) in [(Offload::ALL, true), (Offload::CSUM, false)] {
        let plan = Plan { offload: [Offload::ALL, right], ..Plan::new(Engine::Epoll) };
        let bench = Bench::new(plan);
        ping(&bench.left, RIGHT, 56);
        let bind = |host: &Host, ip: &str| {
            let address = SocketAddr::new(ip.parse().unwrap(), 0);
            let socket = host.netns().run(|| UdpSocket::bind(address)).unwrap().unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket
        };
        let (receiver, sender) = (bind(&bench.right, RIGHT), bind(&bench.left, LEFT));
        nix::sys::socket::setsockopt(&sender, nix::sys::socket::sockopt::UdpGsoSegment, &1000)
            .unwrap();
        let before = bench.running.counters(Side::Left);
        let sent = pattern(10_500, 3);
        sender.send_to(&sent, receiver.local_addr().unwrap()).unwrap();
        let mut got = Vec::new();
        let mut buffer = [0; 2000];
        while got.len() < sent.len() {
            let length = receiver.recv(&mut buffer).unwrap();
            assert!(length == 1000 || length == 500, "{length}");
            got.extend_from_slice(&buffer[..length]);
        }
        assert!(got == sent);
        let after = bench.running.counters(Side::Left);
        let (cut, pieces) = (after.cut - before.cut, after.pieces - before.pieces);
        assert_eq!((cut, pieces), if uncut { (0, 0) } else { (1, 11) });
        bench.end();
    }
}

#[test]
fn a_side_that_is_down_costs_its_frames_only() {
    require!(need::tun());
    let bench = Bench::new(Plan::new(Engine::Epoll));
    ping(&bench.left, RIGHT, 56);
    bench.right.netlink().set_down("tap0").unwrap();
    let sender = bench.left.netns().run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    testbed::poll("frames dropped as the device is down", LIMIT, || {
        sender.send_to(b"lost", (RIGHT, 9)).unwrap();
        let down = bench.running.counters(Side::Left).dropped_by(DropReason::Down);
        Ok(if down > 0 { Ok(()) } else { Err(String::new()) })
    })
    .unwrap();
    bench.right.netlink().set_up("tap0").unwrap();
    ping(&bench.left, RIGHT, 56);
    bench.end();
}

#[test]
fn a_device_that_vanishes_ends_the_bridge_by_name() {
    require!(need::tun());
    for (engine, queues) in joining().flat_map(|engine| [(engine, 1), (engine, 3)]) {
        let bench = Bench::new(Plan { queues, ..Plan::new(engine) });
        ping(&bench.left, RIGHT, 56);
        bench.right.netlink().delete_link("tap0").unwrap();
        let mut ready = [PollFd::new(bench.running.ended(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(LIMIT).unwrap();
        assert_eq!(poll(&mut ready, timeout).unwrap(), 1, "the bridge goes on");
        let (_, outcome) = bench.running.stop();
        assert!(matches!(&outcome, Err(Error::Vanished(name)) if name == "tap0"), "{outcome:?}");
        gone(&bench.left);
    }
}

#[test]
fn devices_go_with_the_bridge() {
    require!(need::tun());
    let bench = Bench::new(Plan { queues: 2, ..Plan::new(Engine::Epoll) });
    let Bench { running, left, right } = bench;
    assert!(left.netlink().link("tap0").is_ok());
    drop(running);
    for host in [left, right] {
        gone(&host);
    }
}

/// A starting child of another test may hold the device for a moment.
fn gone(host: &Host) {
    testbed::poll(&format!("the end of tap0 in {}", host.name()), LIMIT, || {
        let is_gone = host.netlink().link("tap0").is_err();
        Ok(if is_gone { Ok(()) } else { Err("there".to_owned()) })
    })
    .unwrap();
}

/// One machine with both devices.
struct Netmapped {
    running: Running,
    host: Host,
}

impl Netmapped {
    fn new(engine: Engine, offload: Offload) -> Netmapped {
        let host = Host::new("both").unwrap();
        let address = |ip: &str| Address { ip: ip.parse().unwrap(), prefix: 24 };
        let (left, right) = (address("192.168.64.64"), address("192.168.32.32"));
        let open = |name: &str, address: Address| {
            let options = PortOptions { offload, ..PortOptions::named(name) };
            let port = Port::open(&options, host.netns()).unwrap();
            host.address(name, address.ip, address.prefix).unwrap();
            port
        };
        let ports = (open("tap0", left), open("tap1", right));
        let netmap = Netmap::new(left, right).unwrap();
        let bridge = Bridge::new(ports.0, ports.1, Some(netmap)).unwrap();
        let running = bridge.engine(EngineChoice::Only(engine)).unwrap().start().unwrap();
        Netmapped { running, host }
    }
}

#[test]
fn netmap_lets_a_machine_reach_its_other_device() {
    require!(need::tun());
    for (engine, offload) in [
        (Engine::Bpf, Offload::ALL),
        (Engine::Bpf, Offload::CSUM | Offload::TSO4 | Offload::TSO6),
        (Engine::Epoll, Offload::ALL),
        (Engine::Epoll, Offload::NONE),
        (Engine::Epoll, Offload::CSUM),
    ] {
        eprintln!("{engine} {offload}");
        let Netmapped { running, host } = Netmapped::new(engine, offload);
        ping(&host, "192.168.64.32", 56);
        ping(&host, "192.168.32.64", 4000);
        tcp(&host, &host, "192.168.32.32", "192.168.64.32", 2_000_000);
        tcp(&host, &host, "192.168.64.64", "192.168.32.64", 500_000);
        udp(&host, &host, "192.168.32.32", "192.168.64.32", &SIZES);
        let (counters, outcome) = running.stop();
        outcome.unwrap();
        for c in counters {
            assert!(c.answered > 0, "{c:?}");
            assert_eq!(c.dropped(), 0, "{c:?}");
            assert_eq!(c.received, c.forwarded + c.answered, "{c:?}");
            assert_eq!(c.in_kernel > 20, engine == Engine::Bpf, "{c:?}");
            assert!(c.forwarded - c.in_kernel >= 6, "pings go through user space: {c:?}");
        }
    }
}

#[test]
fn netmap_brings_icmp_errors_back_to_their_cause() {
    require!(need::tun());
    for engine in engines() {
        let Netmapped { running, host } = Netmapped::new(engine, Offload::ALL);
        let socket = host.netns().run(|| UdpSocket::bind("192.168.64.64:0")).unwrap().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        // The port is closed. The kernel delivers "port unreachable" to a socket only if the quoted
        // packet is the one that the socket has sent.
        socket.connect("192.168.64.32:9").unwrap();
        socket.send(b"is anybody there?").unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        let (_, outcome) = running.stop();
        outcome.unwrap();
    }
}

#[test]
fn the_kernel_redirects_within_a_namespace_only() {
    require!(need::tun());
    let (one, other) = (Host::new("one").unwrap(), Host::new("other").unwrap());
    let open = |host: &Host, name: &str, offload: Offload| {
        let options = PortOptions { offload, ..PortOptions::named(name) };
        Port::open(&options, host.netns()).unwrap()
    };
    let refused = |left: Port, right: Port| {
        let bridge = Bridge::new(left, right, None).unwrap();
        match bridge.engine(EngineChoice::Only(Engine::Bpf)) {
            Err(Error::Unavailable(unavailable)) => unavailable.reason,
            other => panic!("{other:?}"),
        }
    };
    // Different names, because a starting child of another test may still hold the last one.
    let (all, none) = (Offload::ALL, Offload::NONE);
    let reason = refused(open(&one, "tap0", all), open(&other, "tap1", all));
    assert!(reason.contains("different network namespaces"), "{reason}");
    let reason = refused(open(&one, "tap2", all), open(&one, "tap3", none));
    assert!(reason.contains("does not segment"), "{reason}");
    let ports = (open(&one, "tap4", none), open(&one, "tap5", none));
    let bridge = Bridge::new(ports.0, ports.1, None).unwrap();
    let running = bridge.engine(EngineChoice::Auto).unwrap().start().unwrap();
    assert_eq!(running.engine(), Engine::Epoll);
}

#[test]
fn the_kernel_redirects_every_frame_of_a_plain_bridge() {
    require!(need::tun());
    let host = Host::new("one").unwrap();
    let open = |name: &str| Port::open(&PortOptions::named(name), host.netns()).unwrap();
    let (left, right) = (open("tap0"), open("tap1"));
    let owner = right.queues()[0].hardware_address().unwrap();
    host.netlink().set_up("tap1").unwrap();
    host.address("tap0", "10.9.0.1".parse::<IpAddr>().unwrap(), 24).unwrap();
    let target = "10.9.0.2".parse().unwrap();
    host.netlink().add_neighbour("tap0", target, netstate::MacAddr(owner)).unwrap();
    let bridge = Bridge::new(left, right, None).unwrap();
    let running = bridge.engine(EngineChoice::Auto).unwrap().start().unwrap();
    assert_eq!(running.engine(), Engine::Bpf);

    let received = || {
        let snmp = host.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
        // Routing then drops them, because their source is its own address.
        Snmp::parse(&snmp.unwrap().unwrap()).unwrap().ip.in_receives
    };
    let before = received();
    let socket = host.netns().run(|| UdpSocket::bind("10.9.0.1:0")).unwrap().unwrap();
    for _ in 0..10 {
        socket.send_to(b"to the other side", (target, 9)).unwrap();
    }
    testbed::poll("ten frames", LIMIT, || {
        let c = running.counters(Side::Left);
        let seen = (c.in_kernel, c.forwarded, c.received, received() - before);
        Ok(if seen == (10, 10, 10, 10) { Ok(()) } else { Err(format!("{seen:?}")) })
    })
    .unwrap();
    assert_eq!(running.counters(Side::Right), Counters::default());
    running.stop().1.unwrap();
}
