//! Two namespaces with a TAP device each, and a program in between that plays network card and
//! wire: it cuts GSO packets and finishes checksums, and can do so wrongly.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

use netstate::Netlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use packet::checksum::Sum;
use packet::ethernet::MacAddr;
use packet::segment::Segmenter;
use packet::vnet_hdr::{GsoKind, Layout, VnetHdr};
use probe::answering::ServerSettings;
use probe::end::Access;
use probe::local::Between;
use probe::message::RATE;
use probe::report::Report;
use probe::run::Options;
use probe::switch::{Journaled, Switch};
use sys::netns::NetNs;
use sys::tap::{Offload, TUNNEL_HEADER, Tap, TapOptions};

/// Addresses of the two ends, client first.
const V4: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2))];
const V6: [IpAddr; 2] = [
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)),
];
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 254);
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 9, 1]), MacAddr([2, 0, 0, 0, 9, 2])];
/// Name of the device at both ends.
pub const DEVICE: &str = "eth0";

/// A fault of the network card or the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Works correctly.
    None,
    /// Wrong inner checksums when it cuts GSO packets inside a tunnel.
    InnerChecksum,
    /// The last bytes of a UDP GSO packet are wrong; the checksum matches them.
    UsoTail,
    /// The checksum of UDP packets that it should finish is zero.
    ChecksumZeroed,
    /// A UDP checksum that adds up to zero is sent as 0, which stands for no checksum.
    ZeroSum,
    /// Checksums that it should finish stay partial.
    ChecksumUnfinished,
    /// The last segment of a UDP GSO packet has the length of the others.
    UsoLength,
    /// TCP GSO packets of more than 32 KiB vanish.
    LargeGsoLost,
    /// Packets above this size vanish.
    BlackHole(usize),
    /// UDP packets to port 4789 above this size vanish.
    TunnelHole(usize),
    /// Packets above this size are answered by ICMP.
    Narrow(usize),
    /// There are three routers. Packets above this size vanish after this router.
    HoleAfter(u8, usize),
    /// UDP packets to port 4789 vanish if it should finish their checksum.
    Port4789,
    /// Wrong checksums when it cuts TCP over IPv6.
    Tso6,
    /// Wrong checksums when it cuts TCP over IPv4.
    Tso4,
    /// CWR stays on all segments.
    Cwr,
    /// The last byte of packets in a tunnel in a VXLAN tunnel is wrong.
    NestedPayload,
    /// One packet in 1,000 is damaged.
    Rare,
    /// This share of packets vanishes, percent.
    Loss(u64),
    /// Every packet arrives twice.
    Twice,
    /// Each pair of packets arrives in the other order.
    Swapped,
    /// A wire of this rate, bytes/s, behind a queue of this length, bytes.
    Slow(u64, u64),
}

impl Fault {
    /// Whether packets are neither damaged nor lost because of an offload.
    fn is_of_the_wire(self) -> bool {
        matches!(self, Fault::Loss(_) | Fault::Twice | Fault::Swapped | Fault::Slow(..))
    }
}

/// A wire between both ends.
#[derive(Default)]
struct Link {
    count: u64,
    held: Option<Vec<u8>>,
    /// Bytes that wait in the queue, and when they were counted.
    queue: (f64, Option<Instant>),
}

impl Link {
    /// Passes a frame on as the fault of the wire wants it.
    fn pass(&mut self, fault: Fault, tap: &Tap, frame: &[u8]) {
        self.count += 1;
        match fault {
            // Fibonacci hashing: neither regular nor different in each run.
            Fault::Loss(percent)
                if self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 < (percent << 32) / 100 => {
            }
            Fault::Twice => {
                put(tap, frame);
                put(tap, frame);
            }
            Fault::Swapped => match self.held.take() {
                Some(held) => {
                    put(tap, frame);
                    put(tap, &held);
                }
                None => self.held = Some(frame.to_vec()),
            },
            Fault::Slow(rate, length) => {
                let now = Instant::now();
                let (waiting, since) = self.queue;
                let gone = since.map_or(0.0, |since| (now - since).as_secs_f64() * rate as f64);
                let waiting = (waiting - gone).max(0.0);
                let fits = waiting + frame.len() as f64 <= length as f64;
                self.queue = (waiting + if fits { frame.len() as f64 } else { 0.0 }, Some(now));
                if fits {
                    put(tap, frame);
                }
            }
            _ => put(tap, frame),
        }
    }

    /// Passes a held frame on: no other one follows.
    fn rest(&mut self, tap: &Tap) {
        if let Some(held) = self.held.take() {
            put(tap, &held);
        }
    }
}

/// Place of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mangled {
    pub fault: Fault,
    /// From the client to the server.
    pub out: bool,
    /// From the server to the client.
    pub back: bool,
}

pub struct Bed {
    addresses: [IpAddr; 2],
    client: Arc<NetNs>,
    server: Arc<NetNs>,
    mangled: Arc<Mutex<Mangled>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

fn tap(netns: &NetNs, own: usize, addresses: [IpAddr; 2]) -> Tap {
    let options = TapOptions {
        vnet_header: Some(TUNNEL_HEADER),
        napi: true,
        exclusive: true,
        ..TapOptions::named(DEVICE)
    };
    let tap = netns.run(|| Tap::open(&options)).unwrap().unwrap();
    let offload = tap.negotiate_offload(Offload::ALL).unwrap();
    assert!(offload.contains(Offload::UDP_TUNNEL_GSO), "{offload}");
    tap.set_nonblocking(true).unwrap();
    let netlink = Netlink::open_in(netns).unwrap();
    netlink.set_mac(DEVICE, MACS[own]).unwrap();
    // Without this, an IPv6 address cannot be used for a second.
    let sysctl = format!("/proc/sys/net/ipv6/conf/{DEVICE}/accept_dad");
    netns.run(|| std::fs::write(sysctl, "0")).unwrap().unwrap();
    netlink.set_up("lo").unwrap();
    netlink.set_up(DEVICE).unwrap();
    let prefix = if addresses[own].is_ipv4() { 24 } else { 64 };
    netlink.add_address(DEVICE, addresses[own], prefix).unwrap();
    let index = netlink.link(DEVICE).unwrap().index;
    // The kernel makes an address local some time after it has acknowledged it.
    while !netlink.is_own(index, addresses[own]).unwrap() {
        std::thread::yield_now();
    }
    netlink.add_neighbour(DEVICE, addresses[1 - own], MACS[1 - own]).unwrap();
    tap
}

impl Bed {
    /// Builds a bed whose ends know each other by IPv4 or IPv6 addresses.
    pub fn new(ipv6: bool) -> Bed {
        let addresses = if ipv6 { V6 } else { V4 };
        let client = Arc::new(NetNs::new().unwrap());
        let server = Arc::new(NetNs::new().unwrap());
        let taps = Arc::new([tap(&client, 0, addresses), tap(&server, 1, addresses)]);
        let mangled = Mangled { fault: Fault::None, out: false, back: false };
        let mangled = Arc::new(Mutex::new(mangled));
        let stop = Arc::new(AtomicBool::new(false));
        let threads = [0, 1].map(|from| {
            let (taps, mangled, stop) = (taps.clone(), mangled.clone(), stop.clone());
            std::thread::spawn(move || forward(&taps, from, &mangled, &stop))
        });
        Bed { addresses, client, server, mangled, stop, threads: threads.into() }
    }

    /// Namespaces of the client and of the server.
    pub fn namespaces(&self) -> [&NetNs; 2] {
        [&self.client, &self.server]
    }

    pub fn mangle(&self, mangled: Mangled) {
        *self.mangled.lock().unwrap() = mangled;
    }

    /// Runs a probe from the client; with a journal, it searches the setting.
    pub fn probe(&self, options: &Options, journal: Option<&Path>) -> Report {
        self.probe_with([Access::open, Access::open], options, journal)
    }

    /// As [`Bed::probe`], with these sockets of client and server.
    pub fn probe_with(
        &self,
        access: [fn() -> Access; 2],
        options: &Options,
        journal: Option<&Path>,
    ) -> Report {
        self.probe_allowed(access, options, journal, None)
    }

    /// As [`Bed::probe_with`]. The search may switch these settings of the server, too.
    pub fn probe_allowed(
        &self,
        access: [fn() -> Access; 2],
        options: &Options,
        journal: Option<&Path>,
        settings: Option<Arc<dyn ServerSettings>>,
    ) -> Report {
        let [client, server] = self.addresses;
        let between = Between {
            namespaces: self.namespaces(),
            client: (client, server),
            server: (server, client),
            access,
            rate: RATE,
            settings,
        };
        let mut journaled = journal.map(|directory| Journaled { directory, hops: &[] });
        let switch = journaled.as_mut().map(|one| one as &mut (dyn Switch + Send));
        between.run(options, switch, &AtomicBool::new(false)).unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn forward(taps: &[Tap; 2], from: usize, mangled: &Mutex<Mangled>, stop: &AtomicBool) {
    let mut real_time = None;
    let mut buffer = vec![0; 80 << 10];
    let mut wire = vec![0; 256 << 10];
    let count = AtomicU64::new(0);
    let mut link = Link::default();
    while !stop.load(Ordering::Relaxed) {
        let length = match taps[from].read(&mut buffer) {
            Ok(length) => length,
            Err(_) => {
                link.rest(&taps[1 - from]);
                let mut fds = [PollFd::new(taps[from].as_fd(), PollFlags::POLLIN)];
                let _ = poll(&mut fds, PollTimeout::from(50_u8));
                continue;
            }
        };
        let mangled = *mangled.lock().unwrap();
        let active = if from == 0 { mangled.out } else { mangled.back };
        let fault = if active { mangled.fault } else { Fault::None };
        // A slow wire does not wait for a CPU. Without the right to it, it is less exact. Others
        // would keep the kernel's threads from delivering packets.
        match fault {
            Fault::Slow(..) if real_time.is_none() => real_time = sys::priority::real_time().ok(),
            Fault::Slow(..) => {}
            _ => real_time = None,
        }
        let bytes = &buffer[..length];
        let Ok(header) = VnetHdr::parse(bytes, Layout::Tunnel) else { continue };
        let frame = &bytes[TUNNEL_HEADER..];
        let Ok(cut) = Segmenter::new(frame, &header) else { continue };
        let gso = header.gso().ok().flatten();
        if fault == Fault::LargeGsoLost && gso.is_some() && frame.len() > 32 << 10 {
            continue;
        }
        let Ok(written) = cut.write_all(&[], &mut wire) else { continue };
        let total = written.count;
        for (at, segment) in written.segments(&wire).enumerate() {
            let mut segment = segment.to_vec();
            let is_last = at + 1 == total;
            let pass = mangle(fault, &header, frame, &mut segment, is_last, &count);
            match pass {
                Pass::On if fault.is_of_the_wire() => link.pass(fault, &taps[1 - from], &segment),
                Pass::On => put(&taps[1 - from], &segment),
                Pass::Drop => {}
                Pass::Answer(icmp) => put(&taps[from], &icmp),
            }
        }
    }
}

fn put(tap: &Tap, frame: &[u8]) {
    let bytes = [&[0; TUNNEL_HEADER], frame].concat();
    // A full queue is a loss like on any wire.
    let _ = tap.write(&bytes);
}

enum Pass {
    On,
    Drop,
    Answer(Vec<u8>),
}

/// Whether a frame is a UDP packet over IPv4 to port 4789.
fn to_vxlan(frame: &[u8]) -> bool {
    frame[12] == 0x08 && frame[23] == 17 && frame[36..38] == 4789_u16.to_be_bytes()
}

/// Start of the transport header of a frame without a tunnel.
fn transport(frame: &[u8]) -> usize {
    if frame[12] == 0x08 { 14 + usize::from(frame[14] & 15) * 4 } else { 54 }
}

fn mangle(
    fault: Fault,
    header: &VnetHdr,
    original: &[u8],
    segment: &mut [u8],
    is_last: bool,
    count: &AtomicU64,
) -> Pass {
    let gso = header.gso().ok().flatten();
    let kind = gso.filter(|gso| gso.tunnel.is_none()).map(|gso| gso.kind);
    let field = usize::from(header.csum_start) + usize::from(header.csum_offset);
    let is_udp = header.csum_offset == 6;
    let single_partial = gso.is_none() && header.needs_csum();
    match fault {
        Fault::InnerChecksum if gso.is_some_and(|gso| gso.tunnel.is_some()) => {
            segment[field] ^= 0x55;
        }
        Fault::UsoTail if kind == Some(GsoKind::Udp) && is_last => {
            let end = segment.len();
            // Both words change so that the checksum stays right.
            let at = end - end % 2 - 4;
            segment.swap(at, at + 2);
            segment.swap(at + 1, at + 3);
        }
        Fault::ChecksumZeroed if single_partial && is_udp => {
            segment[field..field + 2].copy_from_slice(&[0, 0]);
        }
        Fault::ZeroSum if single_partial && is_udp && segment[field..field + 2] == [0xff, 0xff] => {
            segment[field..field + 2].copy_from_slice(&[0, 0]);
        }
        Fault::ChecksumUnfinished if single_partial => {
            segment[field..field + 2].copy_from_slice(&original[field..field + 2]);
        }
        Fault::UsoLength if kind == Some(GsoKind::Udp) && is_last => {
            let at = transport(segment) + 4;
            segment[at..at + 2].copy_from_slice(&(header.gso_size + 8).to_be_bytes());
        }
        Fault::BlackHole(mtu) if segment.len() > mtu + 14 => return Pass::Drop,
        Fault::TunnelHole(mtu) if segment.len() > mtu + 14 && to_vxlan(segment) => {
            return Pass::Drop;
        }
        Fault::Narrow(mtu) if segment.len() > mtu + 14 => return too_big(segment, mtu),
        Fault::HoleAfter(router, mtu) if segment[12] == 0x08 => {
            let ttl = segment[22];
            let passes = segment.len() <= mtu + 14 || ttl <= router;
            return match ttl {
                _ if !passes => Pass::Drop,
                1..=3 => icmp(segment, [11, 0, 0, 0], hop(ttl)),
                _ => Pass::On,
            };
        }
        Fault::Port4789 if single_partial && is_udp => {
            let at = transport(segment) + 2;
            if segment[at..at + 2] == 4789_u16.to_be_bytes() {
                return Pass::Drop;
            }
        }
        Fault::Tso6 if kind == Some(GsoKind::TcpV6) => segment[field] ^= 0x55,
        Fault::Tso4 if kind == Some(GsoKind::TcpV4) => segment[field] ^= 0x55,
        Fault::Cwr if matches!(kind, Some(GsoKind::TcpV4 | GsoKind::TcpV6)) => {
            let flags = usize::from(header.csum_start) + 13;
            // The original packet has CWR: keep it on all segments, with the checksum.
            if original[flags] & 0x80 != 0 && segment[flags] & 0x80 == 0 {
                segment[flags] |= 0x80;
                let old = u16::from_be_bytes([segment[field], segment[field + 1]]);
                let sum = Sum::from_value(!old).plus_word(0x80).checksum();
                segment[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            }
        }
        // Outer IPv4 20, UDP 8, VXLAN 8, Ethernet 14 bytes; then IPv4 with UDP to a tunnel's port.
        Fault::NestedPayload if segment.len() > 14 + 50 + 28 && segment[12] == 0x08 => {
            let (inner, ports) = (14 + 50, [4789_u16.to_be_bytes(), 6081_u16.to_be_bytes()]);
            let is_udp = segment[inner] == 0x45 && segment[inner + 9] == 17;
            let port = [segment[inner + 22], segment[inner + 23]];
            if is_udp && ports.contains(&port) {
                let at = segment.len() - 1;
                segment[at] ^= 0xff;
            }
        }
        Fault::Rare if count.fetch_add(1, Ordering::Relaxed) % 1000 == 999 => {
            let at = segment.len() - 1;
            segment[at] ^= 0xff;
        }
        _ => {}
    }
    Pass::On
}

/// Address of a router of [`Fault::HoleAfter`].
pub fn hop(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, 250 + number)
}

/// Answers an IPv4 packet with "fragmentation needed", as a router.
fn too_big(frame: &[u8], mtu: usize) -> Pass {
    let [high, low] = (mtu as u16).to_be_bytes();
    icmp(frame, [3, 4, high, low], ROUTER)
}

/// Answers an IPv4 packet with an ICMP error: type, code, and the second half of the next word.
fn icmp(frame: &[u8], [kind, code, high, low]: [u8; 4], router: Ipv4Addr) -> Pass {
    if frame[12] != 0x08 {
        return Pass::Drop;
    }
    let mut icmp = vec![kind, code, 0, 0, 0, 0, high, low];
    icmp.extend_from_slice(&frame[14..14 + 28]);
    let sum = Sum::of(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = packet::ipv4::Ipv4Header {
        tos: 0,
        id: 1,
        dont_fragment: true,
        ttl: 64,
        protocol: packet::ipv4::Protocol::ICMP,
        source: router,
        destination: Ipv4Addr::new(frame[26], frame[27], frame[28], frame[29]),
    };
    let ip = ip.to_bytes(icmp.len()).unwrap();
    let ethernet = [&frame[6..12], &frame[0..6], &frame[12..14]].concat();
    Pass::Answer([&ethernet[..], &ip, &icmp].concat())
}
