//! Two hosts whose tenants are TAP devices, so a test builds every byte of a connection.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use accel::{Accel, Options, Wanted};
use netstate::connection::{Connections, Entry, Tuple, connections};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use packet::checksum::{Sum, complete_partial, pseudo_header_v4, pseudo_header_v6};
use packet::ethernet::MacAddr;
use packet::vnet_hdr::{Layout, VnetHdr, flags};
use sys::tap::{Offload as TapOffload, Tap, TapOptions};
use test_support::full_backlogs;
use testbed::{Host, NIC, Offload, mac, poll};

use super::super::pair::{BRIDGE, DEVICE, LIMIT, sh, since};
use super::super::underlay::Underlay;

const VNET: usize = 10;
/// Above the server's ports.
const FIRST_PORT: u16 = 20_000;
pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
const WINDOW: u16 = 30_000;
/// Tenants: client, server, and a neighbour of the client.
const MACS: [MacAddr; 3] = [
    MacAddr([2, 0x77, 0, 0, 0, 0x11]),
    MacAddr([2, 0x77, 0, 0, 0, 0x12]),
    MacAddr([2, 0x77, 0, 0, 0, 0x13]),
];
const RULES: &str = "nft 'table inet t { chain c { type filter hook forward priority -5; \
                     ct state invalid drop; }; }'";
/// Rules of kube-proxy for a service with one endpoint, for one IP version.
const SERVICE: &str = "IPT -N KUBE-FORWARD
    IPT -A FORWARD -j KUBE-FORWARD
    IPT -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
    IPT -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
    IPT -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    IPT -t nat -N KUBE-SERVICES
    IPT -t nat -N KUBE-SVC-1
    IPT -t nat -N KUBE-SEP-1
    IPT -t nat -A PREROUTING -j KUBE-SERVICES
    IPT -t nat -A KUBE-SERVICES -d SERVICE -p tcp --dport 80 -j KUBE-SVC-1
    IPT -t nat -A KUBE-SERVICES -d SERVICE -p udp --dport 80 -j KUBE-SVC-1
    IPT -t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j RETURN
    IPT -t nat -A KUBE-SVC-1 -j KUBE-SEP-1
    IPT -t nat -A KUBE-SEP-1 -s ENDPOINT -j MARK --or-mark 0x4000
    IPT -t nat -A KUBE-SEP-1 -p tcp -j DNAT --to-destination TARGET
    IPT -t nat -A KUBE-SEP-1 -p udp -j DNAT --to-destination TARGET
    IPT -t nat -N KUBE-POSTROUTING
    IPT -t nat -A POSTROUTING -j KUBE-POSTROUTING
    IPT -t nat -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
    IPT -t nat -A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
    IPT -t nat -A KUBE-POSTROUTING -j MASQUERADE";

/// How packets of the tenants reach rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Routed,
    /// A bridge with br_netfilter.
    Bridged,
    /// Routed. The client connects to a service address, which its host translates by the rules of
    /// kube-proxy.
    Service,
}

impl Shape {
    pub(super) const ALL: [Shape; 3] = [Shape::Routed, Shape::Bridged, Shape::Service];
}

/// A connection between the tenants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) port: u16,
    /// The next sequence number of each side.
    pub(super) next: [u32; 2],
}

/// How a frame differs from a correct one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    None,
    /// The checksum is right but unverified.
    Finished,
    Checksum,
    /// Another data offset, in words.
    Offset(u8),
    /// Cut to this number of bytes from the transport header on.
    Cut(usize),
    /// A datagram with another length field.
    Length(u16),
}

/// A segment, or a datagram if `udp`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    /// Sent by the second tenant, or with its addresses.
    pub(super) back: bool,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) payload: usize,
    pub(super) udp: bool,
    pub(super) flaw: Flaw,
}

/// Two hosts. Their tenants' packets are routed, or cross a bridge with br_netfilter.
pub(super) struct World {
    pub(super) hosts: [Host; 2],
    pub(super) taps: [Tap; 3],
    pub(super) accels: Option<[Accel; 2]>,
    pub(super) shape: Shape,
    pub(super) v6: bool,
    /// The connection that the next segments belong to.
    pub(super) connection: Connection,
    last_port: u16,
    /// Addresses of the hosts' bridges. Asking the kernel for each frame would take most of the time.
    bridges: Cell<[MacAddr; 2]>,
    conntracks: [Connections; 2],
    /// Distinguishes segments. In the IPv4 identification or the IPv6 flow label.
    number: Cell<u16>,
    /// Packets that the fast path had dropped when the connection began.
    pub(super) refused_before: u64,
}

impl World {
    pub(super) fn new(shape: Shape, v6: bool, is_fast: bool) -> World {
        let hosts = ["a", "b"].map(|name| Host::with_ipv6(name).unwrap());
        let underlay = Underlay::V4;
        let is_routed = shape != Shape::Bridged;
        let mtu = underlay.mtu();
        underlay.join(&hosts[0], &hosts[1], Offload::Full, is_routed);
        let tap = |host: &Host, name: &str| {
            let options =
                TapOptions { vnet_header: Some(Layout::Basic.size()), ..TapOptions::named(name) };
            let tap = host.netns().run(|| Tap::open(&options).unwrap()).unwrap();
            tap.negotiate_offload(TapOffload::PLAIN).unwrap();
            tap.set_nonblocking(true).unwrap();
            host.netlink().set_mtu(name, mtu).unwrap();
            host.netlink().set_up(name).unwrap();
            tap
        };
        let taps = [tap(&hosts[0], "port0"), tap(&hosts[1], "port0"), tap(&hosts[0], "port1")];
        let [a, b] = underlay.addresses();
        for (at, local, remote) in [(0, a, b), (1, b, a)] {
            let (host, own, other) = (&hosts[at], 11 + at, 12 - at);
            let device = mac(host.name(), DEVICE);
            let learning = if is_routed { "nolearning".into() } else { format!("remote {remote}") };
            sh(
                host,
                &format!(
                    "ip link add {DEVICE} address {device} type vxlan id 42 local {local} \
                        dev {NIC} dstport 4789 {learning}
                     ip link set {DEVICE} mtu {mtu} up"
                ),
            );
            let mut ports = vec!["port0"];
            if at == 0 {
                ports.push("port1");
            }
            if is_routed {
                host.forward().unwrap();
                host.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
                host.bridge(BRIDGE, mtu, &ports).unwrap();
                let tenant = MACS[at];
                let there = mac(hosts[1 - at].name(), DEVICE);
                sh(
                    host,
                    &format!(
                        "ip addr add 10.1.{own}.0/32 dev {DEVICE}
                         ip addr add fd00:{own}::/128 dev {DEVICE} nodad
                         ip addr add 10.1.0.1/32 dev {BRIDGE}
                         ip addr add fd00::1/128 dev {BRIDGE} nodad
                         ip route add 10.1.0.{own}/32 dev {BRIDGE}
                         ip route add fd00::{own}/128 dev {BRIDGE}
                         ip neigh add 10.1.0.{own} lladdr {tenant} dev {BRIDGE}
                         ip neigh add fd00::{own} lladdr {tenant} dev {BRIDGE}
                         ip route add 10.1.0.{other}/32 via 10.1.{other}.0 dev {DEVICE} onlink
                         ip route add fd00::{other}/128 via fd00:{other}:: dev {DEVICE} onlink
                         ip neigh add 10.1.{other}.0 lladdr {there} dev {DEVICE}
                         ip neigh add fd00:{other}:: lladdr {there} dev {DEVICE}
                         bridge fdb add {there} dev {DEVICE} dst {remote} self permanent"
                    ),
                );
            } else {
                ports.push(DEVICE);
                host.bridge(BRIDGE, mtu, &ports).unwrap();
                sh(
                    host,
                    "sysctl -qw net.bridge.bridge-nf-call-iptables=1 \
                                net.bridge.bridge-nf-call-ip6tables=1",
                );
            }
            sh(host, RULES);
            // Entries do not expire during a comparison, also on a busy machine.
            for timeout in ["close", "last_ack", "close_wait"] {
                host.sysctl(&format!("net/netfilter/nf_conntrack_tcp_timeout_{timeout}"), "120")
                    .unwrap();
            }
            if shape == Shape::Service && at == 0 {
                for (program, service, endpoint, target) in [
                    ("iptables-nft", "10.96.0.10", "10.1.0.12", "10.1.0.12:8080"),
                    ("ip6tables-nft", "fd96::10", "fd00::12", "[fd00::12]:8080"),
                ] {
                    let rules = SERVICE
                        .replace("IPT", program)
                        .replace("-d SERVICE", &format!("-d {service}"));
                    sh(host, &rules.replace("ENDPOINT", endpoint).replace("TARGET", target));
                }
            }
            host.settle().unwrap();
        }
        let open = |host: &Host| host.netns().run(|| Connections::open().unwrap()).unwrap();
        let conntracks = hosts.each_ref().map(open);
        let mut world = World {
            hosts,
            taps,
            accels: None,
            shape,
            v6,
            connection: Connection::default(),
            last_port: FIRST_PORT,
            bridges: Cell::new([MacAddr([0; 6]); 2]),
            conntracks,
            number: Cell::new(0),
            refused_before: 0,
        };
        world.read_bridges();
        if is_fast {
            world.accelerate();
        }
        world
    }

    /// Reads the addresses of the bridges, to which routed frames are sent.
    pub(super) fn read_bridges(&self) {
        if self.shape == Shape::Bridged {
            return;
        }
        let of = |host: &Host| host.netlink().link(BRIDGE).unwrap().mac.unwrap();
        self.bridges.set(self.hosts.each_ref().map(of));
    }

    pub(super) fn sides(&self, segment: &Segment) -> (usize, usize) {
        if segment.back { (1, 0) } else { (0, 1) }
    }

    /// Addresses and ports of a direction, as its sender sees them.
    fn ends(&self, segment: &Segment) -> [(IpAddr, u16); 2] {
        self.ends_of(&self.connection, segment.back)
    }

    fn ends_of(&self, connection: &Connection, back: bool) -> [(IpAddr, u16); 2] {
        let of = |v4: [u8; 4], v6: [u16; 2]| -> IpAddr {
            match self.v6 {
                true => Ipv6Addr::new(v6[0], 0, 0, 0, 0, 0, 0, v6[1]).into(),
                false => Ipv4Addr::from(v4).into(),
            }
        };
        let client = (of([10, 1, 0, 11], [0xfd00, 0x11]), connection.port);
        let server = of([10, 1, 0, 12], [0xfd00, 0x12]);
        match (self.shape, back) {
            (Shape::Service, false) => [client, (of([10, 96, 0, 10], [0xfd96, 0x10]), 80)],
            (Shape::Service, true) => [(server, 8080), client],
            (_, false) => [client, (server, 80)],
            (_, true) => [(server, 80), client],
        }
    }

    /// A frame with its vnet header, and its number. `source`: the tenant whose device sends it.
    pub(super) fn frame(&self, source: usize, segment: &Segment) -> (Vec<u8>, u16) {
        let (from, to) = self.sides(segment);
        let number = self.number.get().wrapping_add(1);
        self.number.set(number);
        let mut frame = Vec::new();
        let door = match self.shape {
            Shape::Bridged => MACS[to],
            Shape::Routed | Shape::Service => self.bridges.get()[from],
        };
        frame.extend(door.0);
        frame.extend(MACS[source].0);
        let header = if segment.udp { 8 } else { 20 };
        let length = header + segment.payload;
        let protocol = if segment.udp { 17 } else { 6 };
        let ends = self.ends(segment);
        let sum = match ends.map(|(address, _)| address) {
            [IpAddr::V6(source), IpAddr::V6(dest)] => {
                frame.extend([0x86, 0xdd, 0x60, 0]);
                frame.extend(number.to_be_bytes());
                frame.extend((length as u16).to_be_bytes());
                frame.extend([protocol, 64]);
                frame.extend(source.octets());
                frame.extend(dest.octets());
                pseudo_header_v6(source, dest, protocol, length as u32)
            }
            [IpAddr::V4(source), IpAddr::V4(dest)] => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((20 + length as u16).to_be_bytes());
                frame.extend(number.to_be_bytes());
                frame.extend([0x40, 0, 64, protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(dest.octets());
                let check = Sum::of(&frame[14..34]).checksum();
                frame[24..26].copy_from_slice(&check.to_be_bytes());
                pseudo_header_v4(source, dest, protocol, length as u32)
            }
            _ => unreachable!("addresses of two families"),
        };
        let start = frame.len();
        ends.iter().for_each(|(_, port)| frame.extend(port.to_be_bytes()));
        let offset = if segment.udp {
            frame.extend((length as u16).to_be_bytes());
            frame.extend(sum.value().to_be_bytes());
            6
        } else {
            frame.extend(segment.seq.to_be_bytes());
            frame.extend(segment.ack.to_be_bytes());
            frame.extend([0x50, segment.flags]);
            frame.extend(WINDOW.to_be_bytes());
            frame.extend(sum.value().to_be_bytes());
            frame.extend([0, 0]);
            16
        };
        frame.extend((0..segment.payload).map(|at| at as u8));
        let mut vnet = VnetHdr {
            flags: flags::NEEDS_CSUM,
            csum_start: start as u16,
            csum_offset: offset,
            ..VnetHdr::default()
        };
        if let Flaw::Offset(words) = segment.flaw {
            frame[start + 12] = words << 4;
        }
        // Over the changed offset, too: a wrong checksum is a flaw of its own.
        if segment.flaw != Flaw::None {
            complete_partial(&mut frame, start, offset.into()).unwrap();
            vnet = VnetHdr::default();
        }
        match segment.flaw {
            Flaw::None | Flaw::Finished | Flaw::Offset(_) => {}
            Flaw::Checksum => frame[start + usize::from(offset)] ^= 0x55,
            Flaw::Length(length) => {
                frame[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
            }
            Flaw::Cut(kept) => {
                frame.truncate(start + kept);
                if self.v6 {
                    frame[18..20].copy_from_slice(&(kept as u16).to_be_bytes());
                } else {
                    frame[16..18].copy_from_slice(&(20 + kept as u16).to_be_bytes());
                    frame[24..26].fill(0);
                    let check = Sum::of(&frame[14..34]).checksum();
                    frame[24..26].copy_from_slice(&check.to_be_bytes());
                }
            }
        }
        let mut bytes = vec![0; VNET];
        vnet.emit(Layout::Basic, &mut bytes).unwrap();
        bytes.extend(frame);
        (bytes, number)
    }

    /// Sends a segment from a tenant's device, and returns its number.
    pub(super) fn write(&self, source: usize, segment: &Segment) -> u16 {
        let (bytes, number) = self.frame(source, segment);
        self.taps[source].write(&bytes).unwrap();
        number
    }

    /// Numbers of the frames that have arrived at a tenant since the last call.
    pub(super) fn arrived(&self, at: usize) -> Vec<u16> {
        // A larger frame is cut.
        let mut buffer = [0; 256];
        let mut numbers = Vec::new();
        let number = VNET + if self.v6 { 16 } else { 18 };
        while let Ok(length) = self.taps[at].read(&mut buffer) {
            if length > number + 1 {
                numbers.push(u16::from_be_bytes([buffer[number], buffer[number + 1]]));
            }
        }
        numbers
    }

    /// Sends a segment from a tenant's device. Returns whether it arrives.
    pub(super) fn send_from(&self, source: usize, segment: &Segment, within: Duration) -> bool {
        let to = self.sides(segment).1;
        let number = self.write(source, segment);
        let until = Instant::now() + within;
        while !self.arrived(to).contains(&number) {
            if !self.waits_for_frame(to, until) {
                return false;
            }
        }
        true
    }

    /// Waits until a frame arrives at a tenant; returns whether one has.
    pub(super) fn waits_for_frame(&self, at: usize, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(left).unwrap();
        let mut fds = [PollFd::new(self.taps[at].as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, timeout).unwrap() > 0
    }

    pub(super) fn send(&self, segment: &Segment) -> bool {
        self.send_from(self.sides(segment).0, segment, Duration::from_millis(60))
    }

    /// Sends a segment that must arrive. The devices share the CPUs' input queues with the whole
    /// machine: a segment lost there is sent again.
    pub(super) fn must(&self, segment: &Segment) {
        let source = self.sides(segment).0;
        loop {
            let before = self.lost_in_queues();
            if self.send_from(source, segment, LIMIT) {
                return;
            }
            let (after, seen) = (self.lost_in_queues(), self.states());
            assert!(
                self.refused() == self.refused_before
                    && after[0] > before[0]
                    && after[1] > before[1],
                "{:?}, IPv6 {}, {:?}: {segment:?} did not arrive: refused {} of {}, entries {seen:?}, lost in queues {before:?}, now \
                 {after:?}, {:#?}",
                self.shape,
                self.v6,
                self.connection,
                self.refused(),
                self.refused_before,
                self.accels.as_ref().map(|accels| accels.each_ref().map(Accel::status))
            );
        }
    }

    /// Packets that the fast path dropped.
    pub(super) fn refused(&self) -> u64 {
        let dropped = |accel: &Accel| {
            let packets = accel.status().packets;
            let of = |name| packets.get(name).map_or(0, |counted| counted.packets);
            ["encap_lost", "decap_lost", "guard_drop"].map(of).iter().sum::<u64>()
        };
        self.accels.iter().flatten().map(dropped).sum()
    }

    /// Packets lost because a CPU's input queue was full: on the machine, and at these hosts'
    /// devices.
    pub(super) fn lost_in_queues(&self) -> [u64; 2] {
        let at_host = |host: &Host| -> u64 {
            let text = host.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
            let text = text.unwrap().unwrap();
            let devices = text.lines().filter_map(|line| line.split_once(':'));
            let dropped = |(_, counts): (&str, &str)| {
                counts.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
            };
            devices.map(dropped).sum()
        };
        [full_backlogs().into(), self.hosts.iter().map(at_host).sum()]
    }

    /// The next segment of a side.
    pub(super) fn segment(&self, back: bool, flags: u8, payload: usize) -> Segment {
        let [mut seq, mut ack] = self.connection.next;
        if back {
            std::mem::swap(&mut seq, &mut ack);
        }
        Segment { back, seq, ack, flags, payload, udp: false, flaw: Flaw::None }
    }

    pub(super) fn data(&mut self, back: bool, payload: usize) {
        self.must(&self.segment(back, ACK | PSH, payload));
        self.advance(back, payload);
    }

    /// The side has sent this number of bytes, SYN and FIN included.
    pub(super) fn advance(&mut self, back: bool, bytes: usize) {
        let next = &mut self.connection.next[usize::from(back)];
        *next = next.wrapping_add(bytes as u32);
    }

    /// Sends segments of several connections without waiting for each: on a busy machine they would
    /// be too slow for an established flow.
    pub(super) fn burst(&mut self, all: &mut [Connection], back: bool, payload: usize) {
        self.burst_of(24, all, back, payload);
    }

    fn burst_of(&mut self, segments: usize, all: &mut [Connection], back: bool, payload: usize) {
        /// Devices queue 500 frames.
        const AT_ONCE: usize = 10;
        let (source, to) = if back { (1, 0) } else { (0, 1) };
        for some in all.chunks_mut(AT_ONCE) {
            self.arrived(to);
            let mut missing = HashMap::new();
            for _ in 0..segments {
                for connection in &mut *some {
                    self.connection = *connection;
                    let segment = self.segment(back, ACK | PSH, payload);
                    missing.insert(self.write(source, &segment), (*connection, segment));
                    self.advance(back, payload);
                    *connection = self.connection;
                }
            }
            let until = Instant::now() + Duration::from_secs(1);
            while !missing.is_empty() && self.waits_for_frame(to, until) {
                self.arrived(to).iter().for_each(|number| _ = missing.remove(number));
            }
            // Late, or lost.
            let mut missing: Vec<_> = missing.into_values().collect();
            missing.sort_by_key(|(connection, segment)| (connection.port, segment.seq));
            for (connection, segment) in missing {
                self.connection = connection;
                self.must(&segment);
            }
        }
    }

    /// The next segments belong to a new connection.
    pub(super) fn begin(&mut self, seed: u32) {
        self.last_port += 1;
        self.connection = Connection { port: self.last_port, next: [seed, seed.wrapping_mul(7)] };
    }

    /// Opens a new connection and waits until it is on the fast path, if there is one.
    pub(super) fn connect(&mut self, seed: u32) {
        self.connection = self.connect_all(&[seed])[0];
    }

    /// Opens new connections and waits until they are on the fast path, if there is one.
    pub(super) fn connect_all(&mut self, seeds: &[u32]) -> Vec<Connection> {
        self.refused_before = self.refused();
        let mut all = Vec::new();
        for &seed in seeds {
            self.open(seed);
            all.push(self.connection);
        }
        self.become_fast(&mut all);
        all
    }

    /// Opens a new connection.
    pub(super) fn open(&mut self, seed: u32) {
        self.begin(seed);
        let syn = Segment { ack: 0, ..self.segment(false, SYN, 0) };
        // The bridges learn from the first frames, which may be lost.
        poll("the first segment", LIMIT, || {
            Ok(if self.send(&syn) { Ok(()) } else { Err(String::new()) })
        })
        .unwrap();
        self.advance(false, 1);
        self.must(&self.segment(true, SYN | ACK, 0));
        self.advance(true, 1);
        self.must(&self.segment(false, ACK, 0));
    }

    /// Exchanges data until the connection is on the fast path, if there is one.
    pub(super) fn becomes_fast(&mut self) {
        let mut all = [self.connection];
        self.become_fast(&mut all);
        [self.connection] = all;
    }

    /// The same for several connections.
    pub(super) fn become_fast(&mut self, all: &mut [Connection]) {
        /// Their bursts take less than a second, also on a busy machine: a pause of that length
        /// begins a flow anew.
        const AT_ONCE: usize = 8;
        let last = self.connection;
        all.chunks_mut(AT_ONCE).for_each(|some| self.exchange(some));
        // CPUs may have handled the segments of a burst in another order.
        for back in [false, true] {
            self.burst_of(1, all, back, 60);
        }
        self.connection = last;
    }

    fn exchange(&mut self, all: &mut [Connection]) {
        let rounds = |world: &mut World, all: &mut [Connection]| {
            world.burst(all, false, 100);
            world.burst(all, true, 50);
        };
        if self.accels.is_none() {
            return (0..3).for_each(|_| rounds(self, all));
        }
        let statuses = |world: &World| {
            world.accels.as_ref().map(|accels| accels.each_ref().map(Accel::status)).unwrap()
        };
        self.refused_before = self.refused();
        poll("verdicts", 3 * LIMIT, || {
            let is_marked = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.is_marked);
            let [first, second] = self.entries_of(all);
            let entries = first.iter().zip(&second);
            let slow = all.iter().zip(entries).filter(|(_, (a, b))| !is_marked(a) || !is_marked(b));
            let mut slow: Vec<_> = slow.map(|(connection, _)| *connection).collect();
            if slow.is_empty() {
                return Ok(Ok(()));
            }
            rounds(self, &mut slow);
            for connection in slow {
                *all.iter_mut().find(|other| other.port == connection.port).unwrap() = connection;
            }
            Ok(Err(format!("{:#?}", statuses(self))))
        })
        .unwrap();
        poll("the fast path", LIMIT, || {
            let before = statuses(self);
            rounds(self, all);
            let accels = self.accels.as_ref().unwrap();
            let least = 8 * all.len() as u64;
            let taken = accels.iter().zip(&before).all(|(accel, before)| {
                since(accel, before, "encap_hit") > least
                    && since(accel, before, "decap_hit") > least
            });
            let seen = || format!("{:#?}, {:#?}", self.entries_of(all), statuses(self));
            Ok(taken.then_some(()).ok_or_else(seen))
        })
        .unwrap();
    }

    pub(super) fn accelerate(&mut self) {
        self.accelerate_with(Options::default);
    }

    pub(super) fn accelerate_with(&mut self, options: fn() -> Options) {
        let start = |host: &Host| Accel::with(host.netns(), Wanted::All, options()).unwrap();
        self.accels = Some(self.hosts.each_ref().map(start));
    }

    /// Conntrack's entries of these connections in both hosts.
    pub(super) fn entries_of(&self, all: &[Connection]) -> [Vec<Option<Entry>>; 2] {
        let found = [0, 1].map(|host: usize| {
            let of = |one: &Connection| self.conntracks[host].get(&self.tuple(host, one)).unwrap();
            all.iter().map(of).collect::<Vec<_>>()
        });
        if found.iter().flatten().all(Option::is_some) {
            return found;
        }
        // Some are gone, or in another zone. A dump walks all buckets of one table for all
        // namespaces, which takes tens of ms.
        self.tcp_entries().map(|mut entries| {
            all.iter().map(|connection| entries.remove(&connection.port)).collect()
        })
    }

    /// The client's segments of a connection, as a host sees them before it translates them.
    fn tuple(&self, host: usize, connection: &Connection) -> Tuple {
        let [client, server] = self.ends_of(connection, false);
        let [server, _] = if host == 1 { self.ends_of(connection, true) } else { [server, client] };
        Tuple { source: client, destination: server, protocol: 6 }
    }

    /// Conntrack's entries of TCP connections in both hosts, by the client's port.
    fn tcp_entries(&self) -> [HashMap<u16, Entry>; 2] {
        let v6 = self.v6;
        self.hosts.each_ref().map(|host| {
            let mut found = HashMap::new();
            let each = |entry: &Entry| {
                if entry.tcp_state.is_some() && entry.original.source.0.is_ipv6() == v6 {
                    // The server may have begun the entry.
                    let ports = [entry.original.source.1, entry.original.destination.1];
                    found.insert(ports[0].max(ports[1]), entry.clone());
                }
            };
            host.netns().run(|| connections(each)).unwrap().unwrap();
            found
        })
    }

    /// The state of conntrack's entry in both hosts.
    pub(super) fn states(&self) -> [&'static str; 2] {
        self.entries_of(&[self.connection]).map(|entries| state_name(entries[0].as_ref()))
    }
}

/// The name of an entry's state.
pub(super) fn state_name(entry: Option<&Entry>) -> &'static str {
    /// `enum tcp_conntrack`.
    const NAMES: [&str; 10] = [
        "NONE",
        "SYN_SENT",
        "SYN_RECV",
        "ESTABLISHED",
        "FIN_WAIT",
        "CLOSE_WAIT",
        "LAST_ACK",
        "TIME_WAIT",
        "CLOSE",
        "SYN_SENT2",
    ];
    let Some(number) = entry.and_then(|entry| entry.tcp_state) else { return "none" };
    NAMES.get(usize::from(number)).unwrap_or(&"unknown")
}

/// The connection's entry in both hosts.
pub(super) fn entries(world: &World) -> [Entry; 2] {
    world
        .entries_of(&[world.connection])
        .map(|mut entries| entries.remove(0).expect("an entry of the connection"))
}
