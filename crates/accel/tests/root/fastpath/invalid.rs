//! Segments that conntrack calls invalid, and ends of connections: the fast path and the kernel's
//! own path treat them in the same way. Tenants are TAP devices, so the test builds every byte of a
//! connection.

use std::time::{Duration, Instant};

use accel::{Accel, Wanted};
use netstate::connection::{Connections, Entry, connections};
use packet::checksum::{Sum, complete_partial, pseudo_header_v4, pseudo_header_v6};
use packet::ethernet::MacAddr;
use packet::vnet_hdr::{Layout, VnetHdr, flags};
use sys::tap::{Offload as TapOffload, Tap, TapOptions};
use test_support::{need, require};
use testbed::{Host, NIC, Offload, mac, poll};

use super::build::Random;
use super::pair::{BRIDGE, DEVICE, LIMIT, sh, since};
use super::underlay::Underlay;
use super::verdicts::STALE_MS;

const VNET: usize = 10;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
const WINDOW: u16 = 30_000;
/// Tenants: client, server, and a neighbour of the client.
const MACS: [MacAddr; 3] = [
    MacAddr([2, 0x77, 0, 0, 0, 0x11]),
    MacAddr([2, 0x77, 0, 0, 0, 0x12]),
    MacAddr([2, 0x77, 0, 0, 0, 0x13]),
];
const RULES: &str = "nft 'table inet t { chain c { type filter hook forward priority -5; \
                     ct state invalid drop; }; }'";

/// How a frame differs from a correct one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
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
struct Segment {
    /// Sent by the second tenant, or with its addresses.
    back: bool,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: usize,
    udp: bool,
    flaw: Flaw,
}

/// Two hosts. Their tenants' packets are routed, or cross a bridge with br_netfilter.
struct World {
    hosts: [Host; 2],
    taps: [Tap; 3],
    accels: Option<[Accel; 2]>,
    is_routed: bool,
    v6: bool,
    port: u16,
    /// The next sequence number of each side.
    next: [u32; 2],
    /// Packets that the fast path had dropped when the connection began.
    refused_before: u64,
}

impl World {
    fn new(is_routed: bool, v6: bool, is_fast: bool) -> World {
        let hosts = ["a", "b"].map(|name| Host::with_ipv6(name).unwrap());
        let underlay = Underlay::V4;
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
            host.settle().unwrap();
        }
        let mut world = World {
            hosts,
            taps,
            accels: None,
            is_routed,
            v6,
            port: 2000,
            next: [0; 2],
            refused_before: 0,
        };
        if is_fast {
            world.accelerate();
        }
        world
    }

    fn sides(&self, segment: &Segment) -> (usize, usize) {
        if segment.back { (1, 0) } else { (0, 1) }
    }

    /// A frame with its vnet header. `source`: the tenant whose device sends it.
    fn frame(&self, source: usize, segment: &Segment) -> Vec<u8> {
        let (from, to) = self.sides(segment);
        let mut frame = Vec::new();
        let door = match self.is_routed {
            true => mac_of(&self.hosts[from], BRIDGE),
            false => MACS[to],
        };
        frame.extend(door.0);
        frame.extend(MACS[source].0);
        let header = if segment.udp { 8 } else { 20 };
        let length = header + segment.payload;
        let protocol = if segment.udp { 17 } else { 6 };
        let addresses = [11 + from as u8, 11 + to as u8];
        let sum = if self.v6 {
            let [source, dest] = addresses.map(|last| {
                std::net::Ipv6Addr::new(
                    0xfd00,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    (last / 10 * 16 + last % 10).into(),
                )
            });
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((length as u16).to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend(source.octets());
            frame.extend(dest.octets());
            pseudo_header_v6(source, dest, protocol, length as u32)
        } else {
            let [source, dest] = addresses.map(|last| std::net::Ipv4Addr::new(10, 1, 0, last));
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + length as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            frame.extend(source.octets());
            frame.extend(dest.octets());
            let check = Sum::of(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&check.to_be_bytes());
            pseudo_header_v4(source, dest, protocol, length as u32)
        };
        let start = frame.len();
        let ports = if segment.back { [80, self.port] } else { [self.port, 80] };
        ports.iter().for_each(|port| frame.extend(port.to_be_bytes()));
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
        if segment.flaw != Flaw::None {
            complete_partial(&mut frame, start, offset.into()).unwrap();
            vnet = VnetHdr::default();
        }
        match segment.flaw {
            Flaw::None | Flaw::Finished => {}
            Flaw::Checksum => frame[start + usize::from(offset)] ^= 0x55,
            Flaw::Offset(words) => frame[start + 12] = words << 4,
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
        // The checksum over the changed field is right, or need not be verified.
        if matches!(segment.flaw, Flaw::Offset(_)) {
            vnet.flags = flags::DATA_VALID;
        }
        let mut bytes = vec![0; VNET];
        vnet.emit(Layout::Basic, &mut bytes).unwrap();
        bytes.extend(frame);
        bytes
    }

    /// Sends a segment from a tenant's device. Returns whether it arrives.
    fn send_from(&self, source: usize, segment: &Segment, within: Duration) -> bool {
        let bytes = self.frame(source, segment);
        let tap = &self.taps[self.sides(segment).1];
        let mut buffer = vec![0; 70_000];
        while tap.read(&mut buffer).is_ok() {}
        self.taps[source].write(&bytes).unwrap();
        // Addresses, TTL and checksums change on the way; the transport header before its checksum
        // does not.
        let start = VNET + if self.v6 { 54 } else { 34 };
        let length = if segment.udp { 6 } else { 16 };
        let wanted = &bytes[start..(start + length).min(bytes.len())];
        let until = Instant::now() + within;
        loop {
            match tap.read(&mut buffer) {
                Ok(length) if length >= start + wanted.len() => {
                    if buffer[start..start + wanted.len()] == *wanted {
                        return true;
                    }
                }
                Ok(_) => {}
                Err(_) if Instant::now() > until => return false,
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    fn send(&self, segment: &Segment) -> bool {
        self.send_from(self.sides(segment).0, segment, Duration::from_millis(60))
    }

    /// Sends a segment that must arrive. The devices share the CPUs' input queues with the whole
    /// machine: a segment lost there is sent again.
    fn must(&self, segment: &Segment) {
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
                "{segment:?} did not arrive: entries {seen:?}, lost in queues {before:?}, now \
                 {after:?}, {:#?}",
                self.accels.as_ref().map(|accels| accels.each_ref().map(Accel::status))
            );
        }
    }

    /// Packets that the fast path dropped.
    fn refused(&self) -> u64 {
        let dropped = |accel: &Accel| {
            let packets = accel.status().packets;
            let of = |name| packets.get(name).map_or(0, |counted| counted.packets);
            ["encap_lost", "decap_lost", "guard_drop"].map(of).iter().sum::<u64>()
        };
        self.accels.iter().flatten().map(dropped).sum()
    }

    /// Packets lost because a CPU's input queue was full: on the machine, and at these hosts'
    /// devices.
    fn lost_in_queues(&self) -> [u64; 2] {
        let machine = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
        let on_cpu = |line: &str| {
            let dropped = line.split_whitespace().nth(1).unwrap();
            u64::from_str_radix(dropped, 16).unwrap()
        };
        let at_host = |host: &Host| -> u64 {
            let text = host.netns().run(|| std::fs::read_to_string("/proc/thread-self/net/dev"));
            let text = text.unwrap().unwrap();
            let devices = text.lines().filter_map(|line| line.split_once(':'));
            let dropped = |(_, counts): (&str, &str)| {
                counts.split_whitespace().nth(3).unwrap().parse::<u64>().unwrap()
            };
            devices.map(dropped).sum()
        };
        [machine.lines().map(on_cpu).sum(), self.hosts.iter().map(at_host).sum()]
    }

    /// The next segment of a side.
    fn segment(&self, back: bool, flags: u8, payload: usize) -> Segment {
        let [mut seq, mut ack] = self.next;
        if back {
            std::mem::swap(&mut seq, &mut ack);
        }
        Segment { back, seq, ack, flags, payload, udp: false, flaw: Flaw::None }
    }

    fn data(&mut self, back: bool, payload: usize) {
        self.must(&self.segment(back, ACK | PSH, payload));
        let side = usize::from(back);
        self.next[side] = self.next[side].wrapping_add(payload as u32);
    }

    /// Sends segments without waiting for each: on a busy machine they would be too slow for an
    /// established flow.
    fn burst(&mut self, back: bool, payload: usize) {
        const SEGMENTS: usize = 24;
        let side = usize::from(back);
        let mut missing = Vec::new();
        for _ in 0..SEGMENTS {
            missing.push(self.segment(back, ACK | PSH, payload));
            self.next[side] = self.next[side].wrapping_add(payload as u32);
        }
        let (source, to) = self.sides(&missing[0]);
        let mut buffer = vec![0; 70_000];
        while self.taps[to].read(&mut buffer).is_ok() {}
        for segment in &missing {
            self.taps[source].write(&self.frame(source, segment)).unwrap();
        }
        // The sequence number.
        let at = VNET + if self.v6 { 54 } else { 34 } + 4;
        let until = Instant::now() + Duration::from_secs(1);
        while !missing.is_empty() && Instant::now() < until {
            match self.taps[to].read(&mut buffer) {
                Ok(length) if length > at + 4 => {
                    missing.retain(|segment| buffer[at..at + 4] != segment.seq.to_be_bytes());
                }
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
        // Late, or lost.
        missing.iter().for_each(|segment| self.must(segment));
    }

    /// Opens a new connection and waits until it is on the fast path, if there is one.
    fn connect(&mut self, seed: u32) {
        self.port += 1;
        self.refused_before = self.refused();
        self.next = [seed, seed.wrapping_mul(7)];
        let syn = Segment { ack: 0, ..self.segment(false, SYN, 0) };
        // The bridges learn from the first frames, which may be lost.
        poll("the first segment", LIMIT, || {
            Ok(if self.send(&syn) { Ok(()) } else { Err(String::new()) })
        })
        .unwrap();
        self.next[0] = self.next[0].wrapping_add(1);
        self.must(&self.segment(true, SYN | ACK, 0));
        self.next[1] = self.next[1].wrapping_add(1);
        self.must(&self.segment(false, ACK, 0));
        self.becomes_fast();
    }

    fn accelerate(&mut self) {
        let start = |host: &Host| Accel::start(host.netns(), Wanted::All).unwrap();
        self.accels = Some(self.hosts.each_ref().map(start));
    }

    /// Exchanges data until the connection is on the fast path, if there is one.
    fn becomes_fast(&mut self) {
        let rounds = |world: &mut World| {
            world.burst(false, 100);
            world.burst(true, 50);
        };
        if self.accels.is_none() {
            return (0..3).for_each(|_| rounds(self));
        }
        let statuses = |world: &World| {
            world.accels.as_ref().map(|accels| accels.each_ref().map(Accel::status)).unwrap()
        };
        self.refused_before = self.refused();
        poll("the fast path", LIMIT, || {
            let before = statuses(self);
            rounds(self);
            let accels = self.accels.as_ref().unwrap();
            let taken = accels.iter().zip(&before).all(|(accel, before)| {
                since(accel, before, "encap_hit") > 8 && since(accel, before, "decap_hit") > 8
            });
            let seen = || format!("{:#?}, {:#?}", entries(self), statuses(self));
            Ok(taken.then_some(()).ok_or_else(seen))
        })
        .unwrap();
    }

    /// The state of conntrack's entry in both hosts.
    fn states(&self) -> [&'static str; 2] {
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
        self.hosts.each_ref().map(|host| {
            let mut state = "none";
            let of_port = |entry: &Entry| {
                let (address, port) = entry.original.source;
                port == self.port && address.is_ipv6() == self.v6
            };
            let each = |entry: &Entry| {
                if let Some(number) = entry.tcp_state
                    && of_port(entry)
                {
                    state = NAMES.get(usize::from(number)).unwrap_or(&"unknown");
                }
            };
            host.netns().run(|| connections(each)).unwrap().unwrap();
            state
        })
    }
}

fn mac_of(host: &Host, device: &str) -> MacAddr {
    host.netlink().link(device).unwrap().mac.unwrap()
}

/// Sends the segments of a case in a world. Returns which of them arrived.
type Act = fn(&mut World) -> Vec<bool>;

/// A blind attacker knows addresses and ports, but not the sequence numbers.
fn blind(world: &World, flags: u8, payload: usize) -> Vec<bool> {
    let far = |at: u32| at.wrapping_mul(0x2345_6789).wrapping_add(1 << 30);
    let stab = |at: u32| {
        let [seq, ack] = world.next.map(|next| next.wrapping_add(far(at)));
        let segment = Segment { seq, ack, ..world.segment(false, flags, payload) };
        world.send_from(2, &segment, Duration::from_millis(60))
    };
    (0..4).map(stab).collect()
}

fn flawed(world: &World, flaw: Flaw) -> Vec<bool> {
    let of = |back| Segment { flaw, ..world.segment(back, ACK | PSH, 60) };
    [of(false), of(true)].iter().map(|segment| world.send(segment)).collect()
}

fn off(world: &World, seq: u32, ack: u32) -> Vec<bool> {
    let of = |back| {
        let segment = world.segment(back, ACK | PSH, 60);
        Segment {
            seq: segment.seq.wrapping_add(seq),
            ack: segment.ack.wrapping_add(ack),
            ..segment
        }
    };
    [of(false), of(true)].iter().map(|segment| world.send(segment)).collect()
}

/// Resets its own connection after new ones are forbidden, and reuses the port.
fn reset_and_reuse(world: &mut World) -> Vec<bool> {
    for host in &world.hosts {
        sh(host, "nft insert rule inet t c ct state new drop");
    }
    std::thread::sleep(Duration::from_millis(u64::from(STALE_MS)));
    let mut arrived = vec![world.send(&world.segment(false, RST | ACK, 0))];
    for turn in 0..6_u32 {
        let seq = world.next[0].wrapping_add(1 << 20).wrapping_add(turn);
        let syn = Segment { seq, ack: 0, ..world.segment(false, SYN, 0) };
        arrived.push(world.send(&syn));
    }
    for host in &world.hosts {
        sh(host, "nft flush chain inet t c; nft add rule inet t c ct state invalid drop");
    }
    arrived
}

/// The entry is deleted, and the server sends first: then the server's is the original direction.
fn made_anew(world: &mut World) -> Vec<bool> {
    for host in &world.hosts {
        sh(
            host,
            "nft insert rule inet t c tcp sport 80 ct state established ct direction original drop",
        );
    }
    world.becomes_fast();
    for host in &world.hosts {
        sh(host, "conntrack -F");
    }
    world.data(true, 60);
    let mut arrived = Vec::new();
    for _ in 0..5 {
        world.data(false, 60);
        let segment = world.segment(true, ACK | PSH, 60);
        arrived.push(world.send(&segment));
    }
    for host in &world.hosts {
        sh(host, "nft flush chain inet t c; nft add rule inet t c ct state invalid drop");
    }
    arrived
}

/// Both ends have lost their state and connect again with the same ports. Conntrack takes its windows
/// from the SYN and the SYN/ACK.
fn begin_anew(world: &mut World) -> Vec<bool> {
    let eventually = |world: &World, segment: Segment| {
        let until = Instant::now() + LIMIT;
        while !world.send(&segment) {
            if Instant::now() > until {
                return false;
            }
        }
        true
    };
    world.next = world.next.map(|next| next.wrapping_add(1 << 30));
    let syn = Segment { ack: 0, ..world.segment(false, SYN, 0) };
    let mut arrived = vec![eventually(world, syn)];
    world.next[0] = world.next[0].wrapping_add(1);
    arrived.push(eventually(world, world.segment(true, SYN | ACK, 0)));
    world.next[1] = world.next[1].wrapping_add(1);
    arrived.push(eventually(world, world.segment(false, ACK, 0)));
    for back in [false, true, false, true] {
        arrived.push(eventually(world, world.segment(back, ACK | PSH, 60)));
        let side = usize::from(back);
        world.next[side] = world.next[side].wrapping_add(60);
    }
    // The new windows are in force.
    arrived.extend(off(world, 1 << 30, 0));
    arrived
}

const CASES: &[(&str, Act)] = &[
    ("both ends begin anew", begin_anew),
    ("both ends begin anew under rules that give no verdict", |world| {
        for host in &world.hosts {
            sh(host, "nft insert rule inet t c limit rate over 1000000/second drop");
        }
        std::thread::sleep(Duration::from_millis(u64::from(STALE_MS)));
        let arrived = begin_anew(world);
        for host in &world.hosts {
            sh(host, "nft flush chain inet t c; nft add rule inet t c ct state invalid drop");
        }
        arrived
    }),
    ("an entry made anew in the other direction", made_anew),
    ("its own reset, and the port again", reset_and_reuse),
    ("blind resets", |world| blind(world, RST, 0)),
    ("blind resets with an acknowledgement", |world| blind(world, RST | ACK, 0)),
    ("blind ends", |world| blind(world, FIN | ACK, 0)),
    ("blind data", |world| blind(world, ACK, 80)),
    ("wrong checksums", |world| flawed(world, Flaw::Checksum)),
    ("unverified checksums", |world| flawed(world, Flaw::Finished)),
    ("data offset 4", |world| flawed(world, Flaw::Offset(4))),
    ("data offset 15 in a shorter segment", |world| {
        let short = Segment { flaw: Flaw::Offset(15), ..world.segment(false, ACK, 20) };
        vec![world.send(&short)]
    }),
    ("datagrams of wrong lengths and sums", |world| {
        let of = |back, flaw| Segment { udp: true, flaw, ..world.segment(back, 0, 60) };
        // An answered flow, so that datagrams take the fast path.
        for _ in 0..40 {
            [false, true].iter().for_each(|back| world.must(&of(*back, Flaw::None)));
        }
        let flaws = [Flaw::Length(7), Flaw::Length(69), Flaw::Checksum, Flaw::Cut(6)];
        let sent = flaws.iter().flat_map(|flaw| [of(false, *flaw), of(true, *flaw)]);
        sent.map(|segment| world.send(&segment)).collect()
    }),
    ("half a header", |world| flawed(world, Flaw::Cut(14))),
    ("sequence numbers off", |world| off(world, 1 << 30, 0)),
    ("acknowledgements off", |world| off(world, 0, 1 << 30)),
    ("old sequence numbers", |world| off(world, (-(1 << 30)) as u32, 0)),
    ("old acknowledgements", |world| off(world, 0, (-(1 << 30)) as u32)),
    ("a reset inside the window, then data", |world| {
        let reset = world.segment(false, RST, 0);
        let reset = Segment { seq: reset.seq.wrapping_add(500), ..reset };
        vec![world.send(&reset), world.send(&world.segment(true, ACK, 40))]
    }),
    ("a SYN in the middle, data, then a reset inside the window", |world| {
        let syn = world.segment(false, SYN, 0);
        let syn = Segment { seq: syn.seq.wrapping_add(1 << 30), ack: 0, ..syn };
        let mut arrived = vec![world.send(&syn)];
        world.data(false, 40);
        let reset = world.segment(true, RST, 0);
        let reset = Segment { seq: reset.seq.wrapping_add(500), ..reset };
        arrived.push(world.send(&reset));
        arrived
    }),
    ("half an end, then old acknowledgements", |world| {
        world.must(&world.segment(false, FIN | ACK, 0));
        world.next[0] = world.next[0].wrapping_add(1);
        off(world, (-(1 << 30)) as u32, (-(1 << 30)) as u32)
    }),
    ("an orderly end", |world| {
        let mut arrived = vec![world.send(&world.segment(false, FIN | ACK, 0))];
        world.next[0] = world.next[0].wrapping_add(1);
        arrived.push(world.send(&world.segment(true, FIN | ACK, 0)));
        world.next[1] = world.next[1].wrapping_add(1);
        arrived.push(world.send(&world.segment(false, ACK, 0)));
        // And the same ports again.
        let syn = world.segment(false, SYN, 0);
        arrived.push(world.send(&Segment { seq: syn.seq.wrapping_add(99), ack: 0, ..syn }));
        arrived
    }),
    ("the exact reset, and the port again", |world| {
        let mut arrived = vec![world.send(&world.segment(true, RST | ACK, 0))];
        let syn = world.segment(false, SYN, 0);
        arrived.push(world.send(&Segment { seq: syn.seq.wrapping_add(99), ack: 0, ..syn }));
        arrived
    }),
];

/// Cases whose segments conntrack passes without any effect. Beside the fast path it would obey
/// their flags, so they are dropped.
const DROPPED: &[&str] = &["blind ends", "half an end, then old acknowledgements"];

/// Runs every case without the fast path and with it.
fn compare(is_routed: bool) {
    require!(need::root(), need::tool("nft"), need::tool("conntrack"));
    let only = std::env::var("OVERLANE_ACCEL_CASE").ok();
    let mut differences = Vec::new();
    for v6 in [false, true] {
        let [mut slow, mut fast] = [false, true].map(|fast| World::new(is_routed, v6, fast));
        for (number, (name, act)) in CASES.iter().enumerate() {
            if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
                continue;
            }
            let [(kernel, expected), (arrived, _)] = [&mut slow, &mut fast].map(|world| {
                world.connect((number as u32).wrapping_mul(0x3000_0001) + 17);
                (act(world), world.states())
            });
            let name = format!("{name}, IPv{}", if v6 { 6 } else { 4 });
            let is_dropped = DROPPED.iter().any(|dropped| name.starts_with(dropped));
            if arrived != kernel && !(is_dropped && arrived.iter().all(|arrived| !arrived)) {
                differences.push(format!("{name}: {arrived:?} arrived, without it {kernel:?}"));
            }
            // Conntrack handles a reset a moment later.
            let same = poll(&name, LIMIT, || {
                let states = fast.states();
                let seen = || format!("entries are {states:?}, without it {expected:?}");
                Ok((states == expected).then_some(()).ok_or_else(seen))
            });
            differences.extend(same.err().map(|error| error.to_string()));
        }
    }
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn routed_segments_are_handled_as_without_the_fast_path() {
    compare(true);
}

#[test]
fn bridged_segments_are_handled_as_without_the_fast_path() {
    compare(false);
}

/// After the end, conntrack must refuse the segments that the guard refuses while accel runs.
fn compare_after_end(is_routed: bool) {
    require!(need::root(), need::tool("nft"));
    const ACTS: &[(&str, Act)] = &[
        ("blind resets", |world| blind(world, RST, 0)),
        ("blind ends", |world| blind(world, FIN | ACK, 0)),
        ("sequence numbers off", |world| off(world, 1 << 30, 0)),
        ("its own reset, and the port again", reset_and_reuse),
    ];
    for v6 in [false, true] {
        let [mut slow, mut fast] = [false, true].map(|fast| World::new(is_routed, v6, fast));
        for (number, (name, act)) in ACTS.iter().enumerate() {
            let [expected, seen] = [&mut slow, &mut fast].map(|world| {
                let is_fast = world.accels.is_some();
                world.connect((number as u32).wrapping_mul(0x3000_0001) + 17);
                if is_fast {
                    // A successor takes the connection to the fast path again.
                    world.accels = None;
                    world.accelerate();
                    world.becomes_fast();
                    world.accels = None;
                }
                for _ in 0..3 {
                    world.data(false, 100);
                    world.data(true, 50);
                }
                let seen = (act(world), world.states());
                if is_fast {
                    world.accelerate();
                }
                seen
            });
            assert_eq!(seen, expected, "{name}, IPv{}", if v6 { 6 } else { 4 });
        }
    }
}

#[test]
fn routed_segments_are_compared_with_windows_after_the_end() {
    compare_after_end(true);
}

#[test]
fn bridged_segments_are_compared_with_windows_after_the_end() {
    compare_after_end(false);
}

#[test]
fn connections_of_a_killed_process_are_left_to_conntrack() {
    require!(need::root(), need::tool("nft"), need::tool("conntrack"));
    let mut world = World::new(true, false, false);
    world.connect(17);
    // As the killed process has left it.
    for (host, entry) in world.hosts.iter().zip(entries(&world)) {
        let make_liberal = || Connections::open().unwrap().make_liberal(&entry.original);
        host.netns().run(make_liberal).unwrap().unwrap();
    }
    assert_eq!(off(&world, 1 << 30, 0), [true, true]);
    world.accelerate();
    poll("the entries to be renewed", LIMIT, || {
        let seen = entries(&world);
        let is_renewed = |entry: &Entry| !entry.is_marked && entry.liberal == [false; 2];
        Ok(seen.iter().all(is_renewed).then_some(()).ok_or_else(|| format!("{seen:#?}")))
    })
    .unwrap();
    world.becomes_fast();
    world.accels = None;
    // Conntrack itself makes an entry liberal that it begins amid a connection.
    world.hosts.iter().for_each(|host| sh(host, "conntrack -F"));
    world.data(false, 100);
    world.data(true, 50);
    let before = entries(&world);
    assert!(before.iter().all(|entry| entry.liberal == [true; 2]), "{before:#?}");
    let port = world.port;
    world.accelerate();
    world.connect(18);
    world.port = port;
    assert_eq!(entries(&world), before);
}

/// The connection's entry in both hosts.
fn entries(world: &World) -> [Entry; 2] {
    let of_host = |host: &Host| {
        let mut found = None;
        let each = |entry: &Entry| {
            if entry.tcp_state.is_some() && entry.original.source.1 == world.port {
                found = Some(entry.clone());
            }
        };
        host.netns().run(|| connections(each)).unwrap().unwrap();
        found.expect("an entry of the connection")
    };
    world.hosts.each_ref().map(of_host)
}

/// Segments in and out of the window, of all flags, with flaws.
fn random(random: &mut Random, world: &World) -> (usize, Segment) {
    const FLAGS: [u8; 12] = [
        ACK,
        ACK,
        ACK | PSH,
        ACK | PSH,
        ACK | 0x20,
        FIN | ACK,
        RST,
        RST | ACK,
        SYN,
        SYN | ACK,
        0,
        FIN | SYN,
    ];
    let off = |random: &mut Random| match random.below(8) {
        0 => random.next() as u32,
        1 => 1 << 30,
        2 => (-(1 << 30)) as u32,
        3 => random.below(1 << 16) as u32,
        4 => (random.below(1 << 16) as u32).wrapping_neg(),
        5 => 1,
        _ => 0,
    };
    let back = random.once_in(2);
    let flags = FLAGS[random.below(FLAGS.len())];
    let segment = world.segment(back, flags, [0, 0, 1, 40, 600][random.below(5)]);
    // Older kernels do not check the sequence number of segments without data.
    let seq = if segment.payload == 0 && flags & (RST | FIN) == 0 { 0 } else { off(random) };
    let flaw = match random.below(16) {
        0 => Flaw::Checksum,
        1 => Flaw::Finished,
        2 => Flaw::Offset([4, 15][random.below(2)]),
        3 => Flaw::Cut(random.below(20)),
        _ => Flaw::None,
    };
    let source = if !back && random.once_in(3) { 2 } else { usize::from(back) };
    let (seq, ack) = (segment.seq.wrapping_add(seq), segment.ack.wrapping_add(off(random)));
    (source, Segment { seq, ack, flaw, ..segment })
}

/// Compares the fast path with the kernel: it may pass nothing that the kernel would not.
#[test]
fn random_segments_leave_the_same_entries_behind() {
    require!(need::root(), need::tool("nft"));
    let from_environment = |name: &str, otherwise: usize| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let count = from_environment("OVERLANE_ACCEL_SEGMENTS", 120);
    let seed = from_environment("OVERLANE_ACCEL_SEED", 1);
    compare_random(count, seed as u64);
}

/// The same with enough random segments to be a proof.
#[test]
fn many_random_segments_leave_the_same_entries_behind() {
    require!(need::root(), need::tool("nft"));
    compare_random(100_000, 2);
}

fn compare_random(count: usize, seed: u64) {
    const AT_ONCE: usize = 4;
    const TURN: usize = 400;
    let mut numbers = Random(seed);
    let (mut sent, mut stricter, mut differences) = (0, 0, Vec::new());
    while sent < count {
        let (is_routed, v6) = (numbers.once_in(2), numbers.once_in(2));
        let [mut slow, mut fast] = [false, true].map(|fast| World::new(is_routed, v6, fast));
        let mut turn = 0;
        while sent < count && turn < TURN {
            let start = numbers.next() as u32;
            for world in [&mut slow, &mut fast] {
                world.connect(start);
            }
            let mut history = Vec::new();
            for _ in 0..AT_ONCE {
                let mut same = numbers.clone();
                let (source, one) = random(&mut numbers, &slow);
                let (_, other) = random(&mut same, &fast);
                let kernel = slow.send_from(source, &one, Duration::from_millis(8));
                let arrived = fast.send_from(source, &other, Duration::from_millis(8));
                history.push((source, other, kernel, arrived));
                (sent, turn) = (sent + 1, turn + 1);
                let expected = slow.states();
                // Conntrack handles a reset a moment later.
                let until = Instant::now() + Duration::from_secs(1);
                let states = loop {
                    let states = fast.states();
                    if states == expected || Instant::now() > until {
                        break states;
                    }
                };
                if arrived == kernel && states == expected {
                    continue;
                }
                // Dropped, although the kernel passes or obeys it.
                let has_ended = history.iter().any(|(_, sent, ..)| sent.flags & FIN != 0);
                if arrived <= kernel && (one.flags & (RST | FIN | SYN) != 0 || has_ended) {
                    stricter += 1;
                } else {
                    differences.push(format!(
                        "routed {is_routed}, IPv6 {v6}, next {:?}: {history:?}; entries \
                         {states:?}, without it {expected:?}",
                        fast.next
                    ));
                }
                // From here on the two are no longer comparable.
                break;
            }
        }
    }
    eprintln!("{sent} segments, {stricter} dropped beside the fast path only");
    assert!(differences.is_empty(), "{} of {sent}: {differences:#?}", differences.len());
}
