//! Sends random packets over the fast path and the slow path. The output at the other tenant, on
//! the wire and back at the sender must be equal byte by byte.
//!
//! In every other network, a route, a rule or a policy changes halfway ([`turn`]). After that, the
//! fast path must not send or accept packets that the kernel does not.
//!
//! `OVERLANE_ACCEL_CASES` sets the number of cases, `OVERLANE_ACCEL_SEED` the first seed.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use accel::{Accel, Options, Wanted};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recv, recvfrom,
    setsockopt, socket, sockopt,
};
use packet::ethernet::MacAddr;
use packet::vnet_hdr::{Layout, flags};
use sys::tap::{Offload as TapOffload, Tap, TapOptions};
use test_support::{bound, need, require};
use testbed::{Host, NIC, Offload, mac};

use super::build::Random;
use super::pair::{DEVICE, LIMIT};
use super::sandbox::{Keeper, Sandbox};
use super::underlay::Underlay;

mod case;
mod topology;
mod turn;

use case::Case;
use topology::Shape;
use turn::Turn;

const CASES: usize = 2000;
/// Cases between two changes of the path.
const BATCH: usize = 100;
/// After this time without a packet in the sockets, none will follow. Milliseconds.
const QUIET: u16 = 100;
const PORT: &str = "port0";
const MAC_A: [u8; 6] = [0x02, 0xaa, 0, 0, 0, 1];
const MAC_B: [u8; 6] = [0x06, 0xbb, 0, 0, 0, 2];
const VNET: usize = 10;
/// Queue length of a TAP device, frames. All cases are sent before any is read, and one of them may
/// become 46 frames. The kernel's default of 1,000 would drop some.
const QUEUE: u32 = 10_000;
/// The connection of a tenant that accepts GSO packets. Ports and addresses are those that `Spec`
/// writes, except for the client's port.
const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 40_000);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 5201);

/// Outcome of several cases. Frames are sorted, because the two paths deliver at different times.
#[derive(PartialEq, Eq, Default)]
struct Outcome {
    accepted: Vec<bool>,
    wire: Vec<Vec<u8>>,
    there: Vec<Vec<u8>>,
    back: Vec<Vec<u8>>,
}

impl Outcome {
    /// The first difference and its place.
    fn difference(&self, other: &Outcome) -> Option<String> {
        if self.accepted != other.accepted {
            return Some("the device accepted others".into());
        }
        for (place, one, two) in [
            ("wire", &self.wire, &other.wire),
            ("tenant b", &self.there, &other.there),
            ("tenant a", &self.back, &other.back),
        ] {
            let is_same =
                one.len() == two.len() && one.iter().zip(two).all(|(a, b)| is_alike(a, b));
            if !is_same {
                let lost = two.iter().find(|frame| !one.iter().any(|other| is_alike(other, frame)));
                let more = one.iter().find(|frame| !two.iter().any(|other| is_alike(other, frame)));
                let shown = |frame: Option<&Vec<u8>>| {
                    frame.map(|f| format!("{} bytes {:02x?}", f.len(), &f[..f.len().min(130)]))
                };
                return Some(format!(
                    "{place}: {} frames fast, {} slow\n only fast: {:?}\n only slow: {:?}",
                    one.len(),
                    two.len(),
                    shown(more),
                    shown(lost)
                ));
            }
        }
        None
    }
}

/// Whether two frames are the same. A checksum of zero has two forms, 0x0000 and 0xffff, and the
/// kernel's ways of segmentation choose different ones: one frame in 65,536.
fn is_alike(one: &[u8], two: &[u8]) -> bool {
    let differs: Vec<usize> = (0..one.len().min(two.len())).filter(|&i| one[i] != two[i]).collect();
    one.len() == two.len()
        && match differs[..] {
            [] => true,
            [first, second] => {
                let forms = [&one[first..=second], &two[first..=second]];
                forms == [&[0, 0], &[0xff, 0xff]] || forms == [&[0xff, 0xff], &[0, 0]]
            }
            _ => false,
        }
}

/// The receiving tenant.
enum Tenant {
    /// A TAP device of this process.
    Tap(Tap),
    /// The end of a veth pair in a namespace of its own. Its filter drops every packet that it
    /// receives and sends.
    Veth { socket: OwnedFd, _host: Host, _connection: TcpStream },
}

impl Tenant {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Tenant::Tap(tap) => tap.as_fd(),
            Tenant::Veth { socket, .. } => socket.as_fd(),
        }
    }

    fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        match self {
            Tenant::Tap(tap) => tap.read(buffer).ok(),
            // Without a vnet header: equivalent to an empty one.
            Tenant::Veth { socket, .. } => {
                buffer[..VNET].fill(0);
                let frame = &mut buffer[VNET..];
                let length = recv(socket.as_raw_fd(), frame, MsgFlags::empty()).ok()?;
                Some(VNET + length)
            }
        }
    }

    /// Behind an existing veth pair: opens a connection by frames written to `tap`.
    fn connected(host: Host, tap: &Tap, to: MacAddr) -> Tenant {
        let listener = host.netns().run(|| bound(|| TcpListener::bind(SERVER))).unwrap();
        tap.write(&Case::handshake(to, 0x02, 99, 0).bytes()).unwrap();
        let mut buffer = vec![0; 70_000];
        let theirs = testbed::poll("the answer", LIMIT, || {
            let Ok(length) = tap.read(&mut buffer) else { return Ok(Err(String::new())) };
            let frame = &buffer[VNET..length];
            let answer = frame.len() >= 54 && frame[23] == 6 && frame[47] == 0x12;
            let number = || u32::from_be_bytes(frame[38..42].try_into().unwrap());
            Ok(if answer { Ok(number()) } else { Err(format!("{frame:02x?}")) })
        })
        .unwrap();
        tap.write(&Case::handshake(to, 0x10, 100, theirs + 1).bytes()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        host.nft(
            "table inet t { chain i { type filter hook input priority 0; drop; }; \
             chain o { type filter hook output priority 0; drop; }; }",
        )
        .unwrap();
        let socket = host.netns().run(frames).unwrap();
        Tenant::Veth { socket, _host: host, _connection: connection }
    }
}

/// A socket that sees every frame of the calling thread's namespace.
pub(super) fn frames() -> OwnedFd {
    let flags = SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).unwrap();
    setsockopt(&socket, sockopt::RcvBufForce, &(128 << 20)).unwrap();
    socket
}

/// The path that is compared with the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparedPath {
    Fast,
    /// Partial bypass: rules deny a verdict to every flow.
    Half,
}

impl ComparedPath {
    /// Counters of packets on this path: sent in the first host, received in the second.
    fn taken(self) -> [&'static [&'static str]; 2] {
        match self {
            ComparedPath::Fast => [&["encap_hit", "encap_shortcut"], &["decap_hit"]],
            ComparedPath::Half => [&["encap_half"], &["decap_half"]],
        }
    }
}

/// Two hosts; the sending tenant is a TAP device of this process.
struct Bench {
    way: ComparedPath,
    tap: Tap,
    tenant: Tenant,
    underlay: Underlay,
    /// Sees all frames of the second host, whose NIC has this index.
    wire: OwnedFd,
    nics: [usize; 2],
    accels: [Accel; 2],
    hosts: [Host; 2],
    _sandboxes: Option<[Sandbox; 2]>,
    /// Destination of the sender's frames.
    to: MacAddr,
    /// The change halfway, and whether it was made.
    turn: Option<Turn>,
    turned: bool,
    described: String,
}

impl Bench {
    fn random(way: ComparedPath, number: usize, random: &mut Random) -> Bench {
        Bench::with(way, number, random, None)
    }

    /// The same with VXLAN devices that encapsulate GSO packets below this size.
    fn with(way: ComparedPath, number: usize, random: &mut Random, gso: Option<u32>) -> Bench {
        let shape = match way {
            ComparedPath::Fast => Shape::nth(number, random),
            ComparedPath::Half => Shape::Routed { rp_filter: random.below(3) as u8 },
        };
        let hosts = shape.hosts();
        let mut sandboxes = shape.sandboxes();
        let profile = [Offload::Full, Offload::NoTunnel, Offload::None][random.below(3)];
        let underlay = Underlay::BOTH[random.below(2)];
        let mtu = underlay.mtu();
        let addresses = topology::addresses(underlay);
        underlay.join_at(&hosts[0], &hosts[1], profile, shape.speaks(), addresses);
        turn::second_wire(&hosts, underlay, addresses);
        // The sending NIC completes checksums, or leaves them partial.
        let finished = random.once_in(2);
        hosts[0].set_features(NIC, &[("tx-checksum-ip-generic", !finished)]).unwrap();
        let tos = random.next() as u8 & 0xfc;
        let own = match underlay {
            // With several own addresses, only the kernel knows which one it uses.
            Underlay::V4 => !random.once_in(3),
            Underlay::V6 => true,
        };
        let binding = topology::Binding { own, device: random.once_in(2) };
        let options = format!(
            "ttl {} tos {} df {} {} srcport {} {}",
            // 0: the route's value.
            if random.once_in(4) { 0 } else { 1 + random.below(255) },
            if random.once_in(4) { "inherit".to_owned() } else { format!("0x{tos:02x}") },
            ["unset", "set"][random.below(2)],
            topology::checksums(underlay, random),
            // 0 0: the namespace's local port range.
            [0, 49152][random.below(2)],
            0,
        );
        let options = options.replace("srcport 49152 0", "srcport 49152 65535");
        let open = |host: &Host| {
            let options =
                TapOptions { vnet_header: Some(Layout::Basic.size()), ..TapOptions::named(PORT) };
            let tap = host.netns().run(|| Tap::open(&options).unwrap()).unwrap();
            tap.negotiate_offload(TapOffload::PLAIN).unwrap();
            tap.set_nonblocking(true).unwrap();
            host.netlink().set_mtu(PORT, mtu).unwrap();
            host.netlink().set_tx_queue_len(PORT, QUEUE).unwrap();
            host.netlink().set_up(PORT).unwrap();
            tap
        };
        let inner = |number: usize| match &sandboxes {
            Some(sandboxes) => &*sandboxes[number],
            None => &hosts[number],
        };
        let tap = open(inner(0));
        // For frames on the partial bypass, the vnet header must say whether the checksum is
        // finished.
        let is_behind = shape == Shape::Alone || (random.once_in(2) && way == ComparedPath::Fast);
        let behind = is_behind.then(|| Host::new("tenant-b").unwrap());
        let other = match &behind {
            None => Some(open(inner(1))),
            Some(tenant) => {
                inner(1).connect(PORT, tenant, "eth0", mtu).unwrap();
                tenant.netlink().set_down("eth0").unwrap();
                tenant.netlink().set_mac("eth0", MacAddr(MAC_B)).unwrap();
                tenant.netlink().set_up("eth0").unwrap();
                shape.tenant(tenant, mac("b", shape.inner(1)));
                None
            }
        };
        let harmless = match way {
            ComparedPath::Fast => topology::harmless(shape, underlay, random),
            ComparedPath::Half => topology::holding(random),
        };
        let turn = random.once_in(2).then(|| Turn::random(shape, underlay, tos, random));
        for (number, host) in hosts.iter().enumerate() {
            let sandbox = sandboxes.as_ref().map(|sandboxes| &sandboxes[number]);
            shape.build(host, sandbox, number, (underlay, binding, &options));
            topology::sh(host, harmless);
            // The arrival times of packets decide how GRO merges them.
            for (host, device) in [(inner(number), DEVICE), (host, NIC)] {
                host.set_features(device, &[("rx-gro", false)]).unwrap();
            }
        }
        if let (Some(sandboxes), Some(tenant)) = (&mut sandboxes, &behind) {
            sandboxes[1].tenant = Some(Keeper::of(tenant));
        }
        let wire = hosts[1].netns().run(frames).unwrap();
        let nics =
            [NIC, turn::OTHER].map(|nic| hosts[1].netlink().link(nic).unwrap().index as usize);
        let accels = hosts.each_ref().map(|host| {
            let options = Options { gso_max_size: gso, ..Options::default() };
            Accel::with(host.netns(), Wanted::All, options).unwrap()
        });
        // Makes both hosts learn both addresses.
        let [to, from] = shape.doors();
        let tenant = match (behind, other) {
            (Some(tenant), _) => Tenant::connected(tenant, &tap, to),
            (None, Some(other)) => {
                let mut back = Case::probe(from);
                back.frame[6..12].copy_from_slice(&MAC_B);
                other.write(&back.bytes()).unwrap();
                Tenant::Tap(other)
            }
            (None, None) => unreachable!("one of them is made above"),
        };
        let what = if matches!(tenant, Tenant::Tap(_)) { "TAP" } else { "veth" };
        let described = format!(
            "{shape:?} over {underlay:?}, {binding:?}, {harmless:?}, {profile}, to a {what}, finished checksums {finished}, {options}, then {turn:?}"
        );
        let bench = Bench {
            way,
            tap,
            tenant,
            underlay,
            wire,
            nics,
            accels,
            hosts,
            _sandboxes: sandboxes,
            to,
            turn,
            turned: false,
            described,
        };
        bench.fast();
        bench
    }

    /// Packets in each host, counted by the given words.
    fn packets(&self, words: [&[&str]; 2]) -> [u64; 2] {
        [0, 1].map(|host: usize| {
            let status = self.accels[host].status();
            let of = |word: &&str| match *word {
                // The tenant's device counts them by the reason why they did not take the fast
                // path.
                "encap_half" => status.sent_half().packets,
                word => status.packets(word),
            };
            words[host].iter().map(of).sum()
        })
    }

    /// Sends until these counters increase in the hosts.
    fn until(&self, words: [&[&str]; 2]) {
        testbed::poll(&format!("{words:?}"), LIMIT, || {
            let before = self.packets(words);
            self.tap.write(&Case::probe(self.to).bytes()).unwrap();
            let now = self.packets(words);
            let both = now[0] > before[0] && now[1] > before[1];
            Ok(both.then_some(()).ok_or_else(|| {
                format!("{}: {:#?}", self.described, self.accels.each_ref().map(Accel::status))
            }))
        })
        .unwrap();
        self.collect();
    }

    /// Makes the change, and waits until the fast path has mirrored it.
    fn turn(&mut self) {
        let Some(turn) = &self.turn else { return };
        self.accels.iter().for_each(|accel| accel.pause(false));
        self.in_force();
        let before = self.accels[turn.host].status().generation;
        topology::sh(&self.hosts[turn.host], &turn.script);
        testbed::poll(&format!("the change: {}", turn.script), LIMIT, || {
            let now = self.accels[turn.host].status().generation;
            Ok((now > before && now & 1 == 0).then_some(()).ok_or_else(|| self.described.clone()))
        })
        .unwrap();
        self.turned = true;
        // Then both paths have the state (path MTUs) that the kernel learns from the first packets.
        self.slow();
    }

    /// Waits until the plan is in force.
    fn in_force(&self) {
        testbed::poll("maps in force", LIMIT, || {
            let all = self.accels.iter().all(|accel| accel.status().generation & 1 == 0);
            Ok(all.then_some(()).ok_or_else(|| self.described.clone()))
        })
        .unwrap();
    }

    fn fast(&self) {
        self.accels.iter().for_each(|accel| accel.pause(false));
        if self.turned {
            // The case must show whether any packet is forwarded now. A heartbeat arrives within
            // the time in which no packet does.
            self.in_force();
            self.tap.write(&Case::probe(self.to).bytes()).unwrap();
            self.collect();
            return;
        }
        let [sent, received] = self.way.taken();
        // Finished outer checksums are unverified, so the slow path gets them.
        let received = match self.way {
            ComparedPath::Fast => [received, &["decap_checksum"]].concat(),
            ComparedPath::Half => [received, &["decap_verdict", "decap_tracking"]].concat(),
        };
        self.until([sent, &received]);
    }

    fn slow(&self) {
        self.accels.iter().for_each(|accel| accel.pause(true));
        if self.turned {
            // A heartbeat expires after 100 ms.
            for _ in 0..2 {
                self.tap.write(&Case::probe(self.to).bytes()).unwrap();
                self.collect();
            }
            return;
        }
        self.until([&["encap_stale"], &["decap_stale"]]);
    }

    fn send(&self, cases: &[Case]) -> Outcome {
        let accepted = cases.iter().map(|case| self.tap.write(&case.bytes()).is_ok()).collect();
        Outcome { accepted, ..self.collect() }
    }

    /// Reads packets until none arrives for [`QUIET`].
    fn collect(&self) -> Outcome {
        let mut outcome = Outcome::default();
        let mut buffer = vec![0; 70_000];
        loop {
            let mut fds = [self.tap.as_fd(), self.tenant.fd(), self.wire.as_fd()]
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            if poll(&mut fds, PollTimeout::from(QUIET)).unwrap() == 0 {
                break;
            }
            while let Ok(length) = self.tap.read(&mut buffer) {
                outcome.back.extend(seen(&buffer[..length]));
            }
            while let Some(length) = self.tenant.read(&mut buffer) {
                let frame = &mut buffer[..length];
                if self.way == ComparedPath::Half {
                    finish_sum(frame);
                }
                outcome.there.extend(seen(frame));
            }
            while let Ok((length, at)) = recvfrom::<LinkAddr>(self.wire.as_raw_fd(), &mut buffer) {
                // A tenant's bytes may look like a tunnel's on other devices.
                let at = at.unwrap().ifindex();
                if let Some(nic) = self.nics.iter().position(|nic| *nic == at) {
                    let frame = tunnelled(self.underlay, &buffer[..length]);
                    outcome.wire.extend(frame.map(|frame| [vec![nic as u8], frame].concat()));
                }
            }
        }
        for frames in [&mut outcome.wire, &mut outcome.there, &mut outcome.back] {
            frames.sort();
        }
        outcome
    }
}

/// Completes the checksum of a frame with its vnet header, as the kernel does on the partial
/// bypass: no program can clear `skb->encapsulation`, so devices without checksum offload inside
/// tunnels leave the checksum to the kernel.
fn finish_sum(bytes: &mut [u8]) {
    let (header, frame) = bytes.split_at_mut(VNET);
    let of = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (start, offset, is_gso) = (of(6), of(8), header[1] != 0);
    if header[0] & flags::NEEDS_CSUM != 0 && !is_gso {
        packet::checksum::complete_partial(frame, start, offset).unwrap();
        // The kernel treats TCP like UDP here, although TCP's 0 could stay.
        let field = &mut frame[start + offset..start + offset + 2];
        if field == [0, 0] {
            field.fill(0xff);
        }
        header[0] &= !flags::NEEDS_CSUM;
    }
}

/// A frame with its vnet header, without fields that the kernel varies; `None` for packets that
/// hosts with IPv6 send by themselves.
fn seen(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    if topology::is_own(&bytes[VNET..]) {
        return None;
    }
    // Whether a checksum was already verified is a hint, not a property of the packet.
    bytes[0] &= flags::NEEDS_CSUM;
    bytes[2..4].fill(0);
    if bytes[0] == 0 {
        bytes[6..10].fill(0);
    }
    topology::without_own_id(&mut bytes[VNET..]);
    Some(bytes)
}

/// A VXLAN frame on the wire, without identification and checksum of its outer IPv4 header.
fn tunnelled(underlay: Underlay, frame: &[u8]) -> Option<Vec<u8>> {
    let inner = underlay.inner(frame)?;
    let mut frame = frame.to_vec();
    if underlay == Underlay::V4 {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
    }
    topology::without_own_id(frame.get_mut(inner..).unwrap_or_default());
    Some(frame)
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}

#[test]
fn random_packets_are_handled_alike_on_both_paths() {
    require!(need::root());
    assert_handled_alike(ComparedPath::Fast, CASES);
}

#[test]
fn random_filtered_packets_are_handled_alike_on_both_paths() {
    require!(need::root(), need::tool("nft"));
    assert_handled_alike(ComparedPath::Half, CASES / 2);
}

/// Lengths of frames: up to that of the largest IPv4 packet in a tunnel, and of the largest GSO packet
/// (`GSO_MAX_SIZE`, include/linux/netdevice.h).
const LENGTHS: [usize; 10] =
    [65_400, 65_499, 65_500, 65_535, 65_536, 65_549, 65_550, 100_000, 262_144, 524_000];
/// Number of packets that fit into a tunnel's length fields.
const PLAIN: u64 = 2;
const GSO_MAX_SIZE: u32 = 524_280;

/// Where the kernel limits VXLAN devices to 64 KiB, it segments larger packets before it encapsulates
/// them. With an option, the fast path encapsulates them, and the device below segments them.
#[test]
fn packets_above_64_kib_are_handled_alike_on_both_paths() {
    assert_large_alike([3, 5]);
}

#[test]
fn packets_above_64_kib_are_handled_alike_in_many_networks() {
    assert_large_alike([20, 20]);
}

/// Numbers of networks: without the option, with it.
fn assert_large_alike(networks: [usize; 2]) {
    require!(need::root());
    let seed = number("OVERLANE_ACCEL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("OVERLANE_ACCEL_SEED={seed}");
    let mut random = Random(seed);
    let [mut taken, mut wire] = [[0; 2]; 2];
    for (at, gso) in [None, Some(GSO_MAX_SIZE)].into_iter().enumerate() {
        for shape in 0..networks[at] {
            let bench = Bench::with(ComparedPath::Fast, shape, &mut random, gso);
            let batch: Vec<Case> =
                LENGTHS.map(|length| Case::big(&mut random, bench.to, length)).into();
            bench.fast();
            let before = bench.packets(ComparedPath::Fast.taken())[0];
            let fast = bench.send(&batch);
            let hits = bench.packets(ComparedPath::Fast.taken())[0] - before;
            bench.slow();
            let slow = bench.send(&batch);
            let difference = fast.difference(&slow);
            assert_eq!(difference, None, "seed {seed}, {gso:?}: {}", bench.described);
            assert!(fast.accepted.iter().all(|accepted| *accepted), "{:?}", fast.accepted);
            if gso.is_none() {
                assert!(hits <= PLAIN, "{hits} taken: {}", bench.described);
            }
            taken[at] += hits;
            wire[at] += fast.wire.len() as u64;
        }
    }
    eprintln!(
        "{taken:?} taken of {networks:?} times {}, {wire:?} frames on the wire",
        LENGTHS.len()
    );
    assert!(taken[1] > networks[1] as u64 * PLAIN, "{taken:?}");
}

fn assert_handled_alike(way: ComparedPath, cases: usize) {
    let seed = number("OVERLANE_ACCEL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let cases = number("OVERLANE_ACCEL_CASES").unwrap_or(cases as u64) as usize;
    eprintln!("OVERLANE_ACCEL_SEED={seed} OVERLANE_ACCEL_CASES={cases}");
    let mut random = Random(seed);
    let (mut done, mut taken, mut accepted) = (0, [0; 2], 0);
    let (mut turns, mut varied) = (BTreeMap::new(), 0);
    // On a starved machine fewer packets take the fast path, so more cases are run.
    let enough = |taken: [u64; 2]| taken[0] as usize > cases / 5;
    while done < cases || (done < 5 * cases && !enough(taken)) {
        let mut bench = Bench::random(way, done / (4 * BATCH), &mut random);
        for number in 0..4 {
            if number == 2 {
                bench.turn();
            }
            let batch: Vec<Case> =
                (0..BATCH).map(|_| Case::random(&mut random, bench.to)).collect();
            // Then both paths have the state that the kernel learns from a destination's first
            // packets (the path MTU of an inner address, where it routes).
            if bench.turned {
                bench.send(&batch);
            }
            bench.fast();
            let hits = || bench.packets(way.taken());
            let before = hits();
            let fast = bench.send(&batch);
            let after = hits();
            bench.slow();
            let slow = bench.send(&batch);
            if !bench.turned {
                assert!(!slow.wire.is_empty(), "nothing was seen at the NIC: {}", bench.described);
            }
            let difference = fast.difference(&slow);
            if let Some(difference) = &difference
                && bench.turned
                && before == after
            {
                // Both runs used the kernel alone: its answers and segmentation depend on learned
                // state (path MTUs).
                eprintln!("varies without the fast path: {}: {difference}", bench.described);
                varied += BATCH;
            } else if let Some(difference) = difference {
                panic!(
                    "seed {seed}, cases {done}..{}: {}: {difference}",
                    done + BATCH,
                    bench.described
                );
            }
            for host in [0, 1] {
                taken[host] += after[host] - before[host];
            }
            if let (true, Some(turn)) = (bench.turned, &bench.turn) {
                let (cases, sent) = turns.entry(turn.kind).or_insert((0, 0));
                (*cases, *sent) = (*cases + BATCH, *sent + slow.wire.len());
            }
            accepted += fast.accepted.iter().filter(|accepted| **accepted).count();
            done += BATCH;
        }
    }
    eprintln!("after a change: cases, frames on the wire: {turns:?}");
    eprintln!("{varied} cases varied without the fast path");
    eprintln!("{done} cases, {accepted} accepted by the device, {taken:?} taken ({way:?})");
    assert!(enough(taken), "too few were taken to tell anything");
}
