//! One end of a probed path: sends classes at a limited rate, and receives those of the other end.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netstate::Netlink;
use netstate::defects::kernel_version;
use netstate::interface::Interface;
use netstate::machine::MachineFacts;
use nix::errno::Errno;
use packet::ethernet::MacAddr;
use packet::ipv4::Ipv4;
use packet::ipv6::Ipv6;
use packet::vnet_hdr::{Layout, VnetHdr, flags};
use sys::ethtool::Ethtool;
use sys::packet_socket::{Instruction, PacketSocket, VNET_HEADER};

use crate::catalogue::overhead;
use crate::class::{Class, Family, Port};
use crate::content::Session;
use crate::frame::{Ends, Flow, Frame, JUMBO_HEADER, build};
use crate::message::{Batch, Collected, EndFacts, IcmpError, IcmpKind, Open, SendOutcome, Sent};
use crate::rate_limit::RateLimit;
use crate::seen::{Expected, Meta, vni_of};
use crate::tally::Counting;
use crate::tunnel::{TunnelDevice, TunnelSpace, Underlay};

/// Receive buffer of the packet socket, bytes: more than a batch.
const RECEIVE_BUFFER: i32 = 16 << 20;
/// Longest frame: a GSO packet and its headers, also with BIG TCP.
const LONGEST: usize = 256 << 10;
/// Most frames that are read at once: more than a batch, so that a flood ends.
const MOST_FRAMES: u32 = 200_000;
/// Most ICMP errors that are reported for a batch.
const MOST_ERRORS: usize = 1000;

/// One end's device, and the addresses of its packets.
#[derive(Debug, Clone)]
pub struct LocalPath {
    /// The device.
    pub interface: Interface,
    /// Addresses of the control connection: own and the peer's.
    pub addresses: (IpAddr, IpAddr),
    /// Hardware address of the next hop, or why it is unknown. Packet sockets need it.
    pub next_hop: Result<MacAddr, String>,
    /// Whether there is no router between the ends.
    pub on_link: bool,
    /// Own address of the other IP version.
    pub other: Option<IpAddr>,
    /// Driver of the device.
    pub driver: Option<String>,
    /// Features of the device that are on.
    pub features_on: Vec<String>,
}

impl LocalPath {
    /// Finds the device to the peer in the namespace of the calling thread. `via` names it instead.
    ///
    /// # Errors
    /// The reason why packets cannot be built, as text.
    pub fn find(own: IpAddr, peer: IpAddr, via: Option<&str>) -> Result<LocalPath, String> {
        let netlink = Netlink::open().map_err(|e| e.to_string())?;
        let way = netlink.way_to(peer, None).map_err(|e| e.to_string())?;
        let links = netlink.links().map_err(|e| e.to_string())?;
        let interface = match via {
            Some(name) => links.into_iter().find(|link| link.name == name),
            None => links.into_iter().find(|link| link.index == way.link),
        };
        let interface = interface.ok_or_else(|| match via {
            Some(name) => format!("no device {name}"),
            None => format!("the device to {peer} is gone"),
        })?;
        // The device was required by --via: another path would answer another question.
        if via.is_some() && interface.index != way.link {
            return Err(format!("{}: the route to {peer} leads elsewhere", interface.name));
        }
        let next_hop = match (interface.mac, interface.loopback) {
            (None, _) => Err(format!("{}: has no Ethernet header", interface.name)),
            (_, true) => Ok(MacAddr::ZERO),
            _ => {
                let hop = way.via.unwrap_or(peer);
                let neighbours = netlink.neighbours().map_err(|e| e.to_string())?;
                let known = neighbours.into_iter().find(|neighbour| {
                    neighbour.link == interface.index && neighbour.address == hop
                });
                known
                    .and_then(|neighbour| neighbour.mac)
                    .ok_or_else(|| format!("{hop} on {}: no neighbour entry", interface.name))
            }
        };
        let addresses = netlink.addresses().map_err(|e| e.to_string())?;
        let other = addresses
            .into_iter()
            .filter(|one| one.link == interface.index && one.address.is_ipv4() != peer.is_ipv4())
            .map(|one| one.address)
            // A global address rather than one of the link.
            .max_by_key(|address| !is_link_local(*address));
        let other = other.or_else(|| interface.mac.map(|mac| made_up(mac, !peer.is_ipv4())));
        // Without these, only the report is poorer.
        let ethtool = Ethtool::open().ok();
        let features = ethtool.as_ref().and_then(|tool| tool.features(&interface.name).ok());
        let features = features.unwrap_or_default().into_iter();
        Ok(LocalPath {
            // The driver only selects known defects; without it the probe still works.
            driver: ethtool.and_then(|tool| tool.driver(&interface.name).ok()),
            features_on: features.filter(|(_, f)| f.active).map(|(name, _)| name).collect(),
            addresses: (own, peer),
            next_hop,
            on_link: way.via.is_none(),
            other,
            interface,
        })
    }

    /// Returns the facts for the other end.
    pub fn facts(&self) -> EndFacts {
        EndFacts {
            device: self.interface.name.clone(),
            kind: self.interface.kind.clone(),
            driver: self.driver.clone(),
            mtu: self.interface.mtu,
            kernel: kernel_release(),
            hypervisor: MachineFacts::read().ok().and_then(|facts| facts.hypervisor),
            features_on: self.features_on.clone(),
            other: self.other,
            on_link: self.on_link,
            limited: None,
        }
    }
}

fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Whether IPv6 packets above 64 KiB have a jumbo payload option in this kernel. Linux 7.0 stopped
/// to write it ("net/ipv6: Drop HBH for BIG TCP on TX side").
fn has_jumbo_option(release: &str) -> bool {
    kernel_version(release).is_none_or(|version| version < (7, 0, 0))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// A link-local address derived from a hardware address. Packets with it go to the hardware address
/// of the peer, so it need not be resolvable.
fn made_up(mac: MacAddr, v4: bool) -> IpAddr {
    let m = mac.0;
    if v4 {
        return Ipv4Addr::new(169, 254, m[4].clamp(1, 254), m[5]).into();
    }
    let pair = |a, b| u16::from_be_bytes([a, b]);
    // RFC 4291, appendix A.
    let words = [pair(m[0] ^ 2, m[1]), pair(m[2], 0xff), pair(0xfe, m[3]), pair(m[4], m[5])];
    Ipv6Addr::new(0xfe80, 0, 0, 0, words[0], words[1], words[2], words[3]).into()
}

/// Sockets of an end.
#[derive(Debug)]
pub struct Sockets {
    /// Sends packets, and receives those of the other end.
    probing: PacketSocket,
    /// Sees the packets that leave by the device. The kernel shows a socket's packets only to other
    /// sockets.
    watching: PacketSocket,
}

impl Sockets {
    /// Opens the sockets in the namespace of the calling thread.
    pub fn open() -> sys::Result<Sockets> {
        let open = || {
            let socket = PacketSocket::open()?;
            socket.set_receive_buffer(RECEIVE_BUFFER)?;
            Ok(socket)
        };
        Ok(Sockets { probing: open()?, watching: open()? })
    }
}

/// An end of a session.
#[derive(Debug)]
pub struct Wire<'a> {
    sockets: &'a Sockets,
    rate_limit: &'a RateLimit,
    place: LocalPath,
    next_hop: MacAddr,
    open: Open,
    /// The peer's address of the other IP version.
    peers_other: Option<IpAddr>,
    /// Whether this process may make tunnel devices; otherwise the reason.
    may_make_tunnels: Result<(), String>,
    /// Namespace of tunnel devices, once one was needed; or why there is none.
    tunnels: OnceCell<Result<TunnelSpace, String>>,
    /// See [`Flow::jumbo_option`].
    jumbo_option: bool,
    listening: Option<Batch>,
    buffer: Vec<u8>,
}

/// Frames of one direction.
struct Read<'a> {
    pieces: Counting<'a>,
    late: BTreeMap<u16, u32>,
    errors: Vec<IcmpError>,
    /// More frames came than are read.
    flooded: bool,
}

impl<'a> Wire<'a> {
    /// Opens this end.
    ///
    /// # Errors
    /// If the socket cannot be bound to the device, as text.
    pub fn open(
        sockets: &'a Sockets,
        rate_limit: &'a RateLimit,
        place: LocalPath,
        open: Open,
        peers_other: Option<IpAddr>,
        may_make_tunnels: Result<(), String>,
    ) -> Result<Wire<'a>, String> {
        let next_hop = place.next_hop.clone()?;
        for socket in [&sockets.probing, &sockets.watching] {
            socket.filter(&filter(open.own_port)).map_err(|e| e.to_string())?;
            socket.listen(place.interface.index).map_err(|e| e.to_string())?;
        }
        let buffer = vec![0; LONGEST];
        Ok(Wire {
            sockets,
            rate_limit,
            place,
            next_hop,
            open,
            peers_other,
            may_make_tunnels,
            tunnels: OnceCell::new(),
            jumbo_option: has_jumbo_option(&kernel_release()),
            listening: None,
            buffer,
        })
    }

    /// Returns the destination port of the session.
    pub fn own_port(&self) -> u16 {
        self.open.own_port
    }

    /// Whether packets of a family can be sent, or the reason.
    fn ends(&self, family: Family) -> Result<Ends, String> {
        let (own, peer) = self.place.addresses;
        let is_own = (family == Family::V4) == peer.is_ipv4();
        let (source, destination) = match (is_own, self.place.other, self.peers_other) {
            (true, ..) => (own, peer),
            (false, Some(own), Some(peer)) if self.place.on_link => (own, peer),
            // The router's address would be needed for the other IP version, and it is not known.
            (false, ..) if !self.place.on_link => {
                return Err(format!(
                    "a router is on the path: probe the {family} address of the peer, too"
                ));
            }
            // The device or the peer lacks an address of this IP version.
            _ => return Err(format!("no {family} address")),
        };
        Ok(Ends {
            source_mac: self.place.interface.mac.unwrap_or(MacAddr::ZERO),
            next_hop: self.next_hop,
            source,
            destination,
        })
    }

    pub fn send(&mut self, batch: &Batch) -> Result<Sent, String> {
        self.discard()?;
        let mut sent = Sent::default();
        let rate_limit = self.rate_limit;
        let mut tunnel: Option<(Class, Result<TunnelDevice<'_>, String>)> = None;
        for (index, class) in batch.classes.iter().enumerate() {
            let number = batch.first + index as u16;
            let is_own = (class.family == Family::V4) == self.place.addresses.1.is_ipv4();
            let possible = match class.needs_device() {
                // The kernel needs real addresses for a device, not those of the link.
                true if !is_own => Err(format!(
                    "tunnels over {}: probe the {} address of the peer, too",
                    class.family, class.family
                )),
                // A tunnel device does not send over it to an address of this machine.
                true if self.place.interface.loopback => {
                    Err("no tunnel device over the loopback device".to_owned())
                }
                true => self.may_make_tunnels.clone(),
                false if class.needs_big_tcp() => self.takes_big_tcp(class),
                false => Ok(()),
            };
            let ends = match possible.and_then(|()| self.ends(class.family)) {
                Ok(ends) => ends,
                // A class that this end cannot send is reported as untestable, not as lost.
                Err(reason) => {
                    sent.outcomes.push(SendOutcome::Skipped(reason));
                    continue;
                }
            };
            let port = class.port.number(self.open.own_port);
            if class.needs_device() {
                // Devices differ in these properties only.
                let same = |a: &Class, b: &Class| {
                    let device = |class: &Class| {
                        (
                            class.family,
                            class.port,
                            class.tunnel.map(|t| (t.kind, t.checksum, t.nested)),
                        )
                    };
                    device(a) == device(b)
                };
                if !tunnel.as_ref().is_some_and(|(other, _)| same(other, class)) {
                    // Two devices with the same port would share attributes of the socket.
                    drop(tunnel.take());
                    let underlay = Underlay {
                        device: &self.place.interface.name,
                        mtu: self.place.interface.mtu,
                        addresses: (ends.source, ends.destination),
                    };
                    let vni = vni_of(self.open.vni, class);
                    let space = self.tunnels.get_or_init(TunnelSpace::open).as_ref();
                    let made = space.map_err(Clone::clone);
                    let made = made.and_then(|space| space.create(class, underlay, port, vni));
                    tunnel = Some((*class, made));
                }
                // Without the tunnel device the packet cannot be built; the reason is reported.
                if let Some((_, Err(reason))) = &tunnel {
                    sent.outcomes.push(SendOutcome::Skipped(reason.clone()));
                    continue;
                }
            }
            let device = tunnel.as_ref().and_then(|(_, made)| made.as_ref().ok());
            let device = device.filter(|_| class.needs_device());
            if batch.at_once {
                let bytes = class.wire_bytes() * u64::from(batch.repetitions);
                sent.bytes += bytes;
                rate_limit.wait(bytes, batch.rate);
            }
            let begun = Instant::now();
            let paced = |bytes| {
                if !batch.at_once {
                    sent.bytes += bytes;
                    rate_limit.wait(bytes, batch.rate);
                }
            };
            let outcome = self.send_class(class, number, batch, &ends, port, device, paced)?;
            sent.outcomes.push(outcome);
            if batch.at_once {
                sent.note_burst(begun);
            }
        }
        drop(tunnel);
        sent.handed = self.read(batch, true)?.pieces.finish();
        Ok(sent)
    }

    /// Whether BIG TCP is on, or the reason. Otherwise the kernel would cut these packets.
    fn takes_big_tcp(&self, class: &Class) -> Result<(), String> {
        let interface = &self.place.interface;
        let option = if class.family == Family::V6 && self.jumbo_option { JUMBO_HEADER } else { 0 };
        let needed = 14 + class.payload + overhead(class) + option as u32;
        let (setting, bytes, since) = match class.family {
            Family::V4 => ("gso_ipv4_max_size", interface.gso_ipv4_max_size, "6.3"),
            Family::V6 => ("gso_max_size", interface.gso_max_size, "5.19"),
        };
        match bytes {
            // A packet of exactly this size is cut, too (`gso_features_check`).
            Some(bytes) if bytes > needed => Ok(()),
            Some(bytes) => Err(format!(
                "BIG TCP is off: {setting} of {} is {bytes}, not above {needed}",
                interface.name
            )),
            None => Err(format!("BIG TCP over {} needs Linux {since}", class.family)),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn send_class(
        &self,
        class: &Class,
        number: u16,
        batch: &Batch,
        ends: &Ends,
        port: u16,
        device: Option<&TunnelDevice<'_>>,
        mut rate_limit: impl FnMut(u64),
    ) -> Result<SendOutcome, String> {
        for repetition in 0..batch.repetitions {
            let payload =
                Session(self.open.session).payload(number, repetition, class.payload as usize);
            let flow = Flow {
                source_port: self.open.source_base.wrapping_add(number),
                port,
                id: repetition,
                ttl: batch.ttl,
                vni: vni_of(self.open.vni, class),
                jumbo_option: self.jumbo_option,
            };
            for frame in build(class, ends, &flow, &payload, device.is_some())? {
                rate_limit(frame.bytes.len() as u64);
                let put = || match device {
                    Some(device) => device.send(&frame),
                    None => self.put(&frame),
                };
                match put() {
                    Ok(()) => {}
                    // The queue of the device is full: this end would cause the loss.
                    Err(Errno::ENOBUFS) if batch.at_once => {
                        return Ok(SendOutcome::Skipped("the device's queue is full".to_owned()));
                    }
                    Err(Errno::ENOBUFS) => {
                        std::thread::sleep(Duration::from_millis(5));
                        if put().is_err() {
                            return Ok(SendOutcome::Skipped(
                                "the device's queue is full".to_owned(),
                            ));
                        }
                    }
                    Err(errno) => {
                        return Ok(SendOutcome::Refused { errno: errno as i32, sent: repetition });
                    }
                }
            }
        }
        Ok(SendOutcome::Sent(batch.repetitions))
    }

    fn put(&self, frame: &Frame) -> Result<(), Errno> {
        self.sockets.probing.send(self.place.interface.index, &frame.vnet(), &frame.bytes)
    }

    /// Returns ICMP errors about a batch that was sent, received so far.
    ///
    /// # Errors
    /// If the socket fails, as text.
    pub fn errors(&mut self, batch: &Batch) -> Result<Vec<IcmpError>, String> {
        Ok(self.read(batch, false)?.errors)
    }

    /// Prepares to receive a batch.
    ///
    /// # Errors
    /// If the socket fails, as text.
    pub fn listen(&mut self, batch: Batch) -> Result<(), String> {
        self.discard()?;
        self.listening = Some(batch);
        Ok(())
    }

    /// Returns the packets of the batch that have been received so far.
    ///
    /// # Errors
    /// If the socket fails, or nothing is expected, as text.
    pub fn collect(&mut self) -> Result<Collected, String> {
        let batch = self.listening.take().ok_or("collect before listen")?;
        let read = self.read(&batch, false)?;
        let missed = self.sockets.probing.missed().map_err(|e| e.to_string())?;
        let missed = missed.max(u32::from(read.flooded));
        let (tallies, late, blind) = (read.pieces.finish(), read.late, BTreeMap::new());
        Ok(Collected { tallies, late, missed, blind })
    }

    /// Drops the packets received so far.
    fn discard(&mut self) -> Result<(), String> {
        let mut header = [0; VNET_HEADER];
        for socket in [&self.sockets.probing, &self.sockets.watching] {
            // Other traffic of these ports may never end.
            for _ in 0..MOST_FRAMES {
                if socket.receive(&mut header, &mut self.buffer).map_err(text)?.is_none() {
                    // Packets from before the batch would be counted for it.
                    break;
                }
            }
            socket.missed().map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Reads the frames of a batch: those that came in, or those that left by the device.
    fn read<'b>(&mut self, batch: &'b Batch, outgoing: bool) -> Result<Read<'b>, String> {
        let socket = if outgoing { &self.sockets.watching } else { &self.sockets.probing };
        let mut read = Read {
            pieces: Counting::new(&batch.classes),
            late: BTreeMap::new(),
            errors: Vec::new(),
            flooded: false,
        };
        let session = Session(self.open.session);
        let mut header = [0; VNET_HEADER];
        let (own, peer) = self.place.addresses;
        let sources = match outgoing {
            true => [Some(own), self.place.other],
            false => [Some(peer), self.peers_other],
        };
        for _ in 0..MOST_FRAMES {
            let received = socket.receive(&mut header, &mut self.buffer).map_err(text)?;
            let Some(received) = received else { return Ok(read) };
            // A truncated frame is not from a probe.
            if received.truncated || received.outgoing != outgoing {
                continue;
            }
            let frame = &self.buffer[..received.length];
            let Ok(header) = VnetHdr::parse(&header, Layout::Basic) else { continue };
            if !outgoing && let Some(error) = self.icmp_error(batch, frame) {
                if read.errors.len() < MOST_ERRORS && !read.errors.contains(&error) {
                    read.errors.push(error);
                }
                // An ICMP error is reported apart; it is no packet of the batch.
                continue;
            }
            // TP_STATUS_CSUM_VALID may also stand for a tunnel's outer checksum, which says nothing
            // about the packet in it (`csum_valid`, include/linux/skbuff.h).
            let meta = Meta { header, verified: header.flags & flags::DATA_VALID != 0 };
            let expected = Expected {
                session,
                sources,
                classes: &batch.classes,
                first: batch.first,
                source_base: self.open.source_base,
                own_port: self.open.own_port,
                vni: self.open.vni,
            };
            let place = session.locate(frame);
            if let Some(place) = place
                && place.class < batch.first
            {
                *read.late.entry(place.class).or_default() += 1;
                // A packet of an earlier batch counts as late, not as one of this batch.
                continue;
            }
            for piece in expected.read(&meta, frame) {
                read.pieces.add(&piece);
            }
        }
        read.flooded = true;
        Ok(read)
    }

    /// Reads an ICMP error about a packet of this batch.
    fn icmp_error(&self, batch: &Batch, frame: &[u8]) -> Option<IcmpError> {
        let (from, message, quoted_header) = match Family::of(frame)? {
            Family::V4 => {
                let ip = Ipv4::parse(frame.get(14..)?).ok()?;
                (ip.protocol().0 == 1).then_some(())?;
                let quoted = usize::from(ip.payload().get(8)? & 15) * 4;
                (IpAddr::from(ip.source()), ip.payload(), quoted)
            }
            Family::V6 => {
                let ip = Ipv6::parse(frame.get(14..)?).ok()?;
                let upper = ip.upper_layer().ok()?;
                (upper.protocol.0 == 58).then_some(())?;
                (IpAddr::from(ip.source()), upper.payload, 40)
            }
        };
        let (kind, code) = (*message.first()?, *message.get(1)?);
        let word = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk::<2>()?));
        let kind = match (from, kind, code) {
            (IpAddr::V4(_), 3, 4) => IcmpKind::TooBig(word(6)?.into()),
            (IpAddr::V6(_), 2, _) => {
                IcmpKind::TooBig(u32::from(word(4)?) << 16 | u32::from(word(6)?))
            }
            (IpAddr::V4(_), 11, 0) | (IpAddr::V6(_), 3, 0) => IcmpKind::TimeExceeded,
            // Other ICMP messages say nothing about the sent packet.
            _ => return None,
        };
        let source = word(8 + quoted_header)?;
        let class = source.wrapping_sub(self.open.source_base);
        let index = class.checked_sub(batch.first)?;
        (usize::from(index) < batch.classes.len()).then_some(IcmpError { from, class, kind })
    }
}

impl Drop for Wire<'_> {
    fn drop(&mut self) {
        // The socket stays open for the next session. If the device is gone, so is the hook.
        for socket in [&self.sockets.probing, &self.sockets.watching] {
            let _ = socket.rest(self.place.interface.index);
        }
    }
}

fn text(errno: Errno) -> String {
    format!("packet socket: {}", errno.desc())
}

/// Builds a filter for packets to the session's ports, ICMP and fragments. Other traffic of the
/// device is not copied.
fn filter(own_port: u16) -> Vec<Instruction> {
    // linux/filter.h: BPF_LD | BPF_H | BPF_ABS and so on.
    const LDH: u16 = 0x28;
    const LDB: u16 = 0x30;
    const LDH_X: u16 = 0x48;
    const LDX_MSH: u16 = 0xb1;
    const JEQ: u16 = 0x15;
    const JSET: u16 = 0x45;
    const RET: u16 = 0x06;
    const JA: u16 = 0x05;
    let op = |code, k, jt, jf| Instruction { code, jt, jf, k };
    let ports: Vec<u32> = Port::ALL.iter().map(|port| port.number(own_port).into()).collect();
    let n = ports.len() as u8;
    // Ends of the program: 0 drop, 1 accept; after the list of ports.
    let mut program = vec![
        op(LDH, 12, 0, 0),
        op(JEQ, 0x86dd, 8, 0),      // IPv6: at 10
        op(JEQ, 0x0800, 0, 13 + n), // neither: accept if tagged (below)
        // IPv4
        op(LDB, 23, 0, 0),
        op(JEQ, 6, 2, 0),
        op(JEQ, 17, 1, 0),
        op(JA, 11 + u32::from(n), 0, 0), // other protocols: accept
        op(LDH, 20, 0, 0),
        op(JSET, 0x1fff, 9 + n, 0), // not the first fragment: accept
        op(JA, 5, 0, 0),            // at 15
        // IPv6
        op(LDB, 20, 0, 0),
        op(JEQ, 6, 2, 0),
        op(JEQ, 17, 1, 0),
        op(JA, 4 + u32::from(n), 0, 0), // extension headers, ICMPv6: accept
        op(LDH, 56, 0, 0),
    ];
    // IPv6 continues behind the IPv4 part.
    program.push(op(JA, 2, 0, 0));
    program[9].k = 6;
    program.push(op(LDX_MSH, 14, 0, 0));
    program.push(op(LDH_X, 16, 0, 0));
    for (at, port) in ports.iter().enumerate() {
        program.push(op(JEQ, *port, n - at as u8, 0));
    }
    program.push(op(RET, 0, 0, 0));
    let accept = program.len() as u32;
    program.push(op(RET, u32::MAX, 0, 0));
    // Jumps to "accept".
    for at in [6, 13] {
        program[at].k = accept - at as u32 - 1;
    }
    program[8].jt = (accept - 9) as u8;
    program[2].jf = (accept - 3) as u8;
    program
}
