//! Reads received frames: which class they belong to, and what is wrong with them.

use std::net::IpAddr;

use packet::checksum::{Sum, complete_partial};
use packet::ipv4::{Ipv4, Protocol};
use packet::ipv6::Ipv6;
use packet::segment::Segmenter;
use packet::tcp::{Flags, Tcp};
use packet::vnet_hdr::{VnetHdr, gso_type};
use serde::{Deserialize, Serialize};

use crate::class::{Checksum, Class, Extra, Family, Port, Transport, TunnelKind};
use crate::content::{Location, Session};
use crate::frame::{HOP_BY_HOP, JUMBO_HEADER, JUMBO_PAYLOAD};

/// IP protocol of GRE.
const GRE: Protocol = Protocol(47);
/// Length of an Ethernet frame that may be padded, bytes.
const PADDED: usize = 60;

/// Damage of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The IP header is malformed, or its checksum is wrong.
    IpHeader,
    /// The checksum of TCP, UDP or ICMP is wrong; in a tunnel, the inner one.
    Checksum,
    /// The outer checksum of a tunnel is wrong.
    OuterChecksum,
    /// The checksum of UDP was removed; in a tunnel, the outer one.
    ChecksumRemoved,
    /// A checksum that was sent wrong was corrected: corruption on the path would be hidden.
    ChecksumRepaired,
    /// The device reported a wrong checksum as verified.
    ChecksumNotVerified,
    /// A length field does not match the packet.
    Length,
    /// A UDP GSO packet was cut into datagrams of another size.
    Segmentation,
    /// TCP flags are on the wrong segment, or changed.
    Flags,
    /// The tunnel's header was changed.
    TunnelHeader,
    /// The first bytes or the middle of the payload were changed.
    Payload,
    /// The last bytes of a GSO packet's payload were changed.
    Tail,
}

impl Fault {
    /// Returns a description, as the end of a sentence.
    pub fn text(self) -> &'static str {
        match self {
            Fault::IpHeader => "IP header wrong",
            Fault::Checksum => "checksum wrong",
            Fault::OuterChecksum => "outer checksum wrong",
            Fault::ChecksumRemoved => "checksum removed",
            Fault::ChecksumRepaired => "a wrong checksum was corrected",
            Fault::ChecksumNotVerified => "the receiver reported a wrong checksum as verified",
            Fault::Length => "length wrong",
            Fault::Segmentation => "datagrams cut at other places",
            Fault::Flags => "TCP flags wrong",
            Fault::TunnelHeader => "tunnel header wrong",
            Fault::Payload => "payload changed",
            Fault::Tail => "tail of the payload changed",
        }
    }
}

/// A received piece of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Index of the class in the session's list.
    pub class: u16,
    /// Repetition, if the piece is large enough to name it.
    pub repetition: Option<u16>,
    /// Offset in the payload, if known.
    pub offset: Option<i64>,
    /// Payload, bytes.
    pub length: u32,
    /// Payload bytes of each segment of an uncut or merged packet; 0: a single one.
    pub segment: u16,
    /// Whether the checksum was partial.
    pub partial: bool,
    /// Whether an address or port was translated on the way.
    pub translated: bool,
    /// Damage, without duplicates.
    pub faults: Vec<Fault>,
}

/// Data to recognise a session's packets.
#[derive(Debug, Clone)]
pub struct Expected<'a> {
    /// Secret of the session.
    pub session: Session,
    /// Addresses of the sender. A packet without a whole block of payload counts only if it has one
    /// of them: a client learns nothing of other traffic.
    pub sources: [Option<IpAddr>; 2],
    /// Classes that are being sent.
    pub classes: &'a [Class],
    /// Number of the first class in the payloads.
    pub first: u16,
    /// Source port of class 0.
    pub source_base: u16,
    /// Destination port of the session.
    pub own_port: u16,
    /// First VNI of the session, see [`vni_of`].
    pub vni: u32,
}

/// Returns the VNI of a class. Devices with different attributes need different ones.
pub fn vni_of(first: u32, class: &Class) -> u32 {
    let Some(tunnel) = class.tunnel else { return first };
    let port = Port::ALL.iter().position(|port| *port == class.port).unwrap_or(0) as u32;
    let family = u32::from(class.family == Family::V6);
    first | port << 2 | family << 1 | u32::from(tunnel.checksum)
}

/// Metadata of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    pub header: VnetHdr,
    /// Whether the device claims that the checksum is right.
    pub verified: bool,
}

/// State of one frame's parsing.
struct Reader<'a> {
    expected: &'a Expected<'a>,
    class: Class,
    meta: Meta,
    /// The frame with finished checksums, unless it is a GSO packet.
    frame: &'a [u8],
    faults: Vec<Fault>,
}

/// Transport header and payload of a frame.
struct Body<'a> {
    source_port: u16,
    flags: Option<Flags>,
    payload: &'a [u8],
}

impl Expected<'_> {
    fn class_at(&self, number: u16) -> Option<(u16, Class)> {
        // The number is from the packet: a damaged one may name a class of another batch.
        let index = number.checked_sub(self.first)?;
        Some((index, *self.classes.get(usize::from(index))?))
    }

    /// Reads a frame: no piece if it is not of this session, and several if a receiver merged the
    /// datagrams of a tunnel into a UDP GSO packet, which the kernel cuts again for its tunnel
    /// device (`udp_unexpected_gso`).
    pub fn read(&self, meta: &Meta, frame: &[u8]) -> Vec<Piece> {
        let is_merged = meta.header.gso_type == gso_type::UDP_L4;
        if is_merged
            && self.class_of(frame).is_some_and(|(_, class)| class.tunnel.is_some())
            && let Ok(merged) = Segmenter::new(frame, &meta.header)
        {
            let mut cut = vec![0; merged.total_len(0)];
            // The capture is of a malformed GSO packet, which has no datagrams to compare.
            let Ok(written) = merged.write_all(&[], &mut cut) else { return Vec::new() };
            let meta = Meta { header: VnetHdr::default(), ..*meta };
            return written.segments(&cut).filter_map(|one| self.piece(&meta, one)).collect();
        }
        self.piece(meta, frame).into_iter().collect()
    }

    /// Returns index and class of a frame; `None` if it is not of this session.
    fn class_of(&self, frame: &[u8]) -> Option<(u16, Class)> {
        match self.session.locate(frame) {
            Some(place) => self.class_at(place.class),
            None => self.by_ports(frame),
        }
    }

    fn piece(&self, meta: &Meta, frame: &[u8]) -> Option<Piece> {
        let place = self.session.locate(frame);
        let (index, class) = self.class_of(frame)?;
        let gso = meta.header.gso_size;
        let mut whole = frame.to_vec();
        if meta.header.needs_csum() && gso == 0 {
            let (start, offset) = (meta.header.csum_start, meta.header.csum_offset);
            // A field outside the frame stays as it is; the checksum is then found wrong.
            let _ = complete_partial(&mut whole, start.into(), offset.into());
        }
        let mut reader =
            Reader { expected: self, class, meta: *meta, frame: &whole, faults: Vec::new() };
        let body = reader.walk();
        let mut faults = std::mem::take(&mut reader.faults);
        let (length, translated, place) = match body {
            Some(body) => {
                let place =
                    self.session.locate(body.payload).or_else(|| small(self, &class, index));
                reader.compare(&body, place, &mut faults);
                let translated = class.transport != Transport::Icmp
                    && class.tunnel.is_none()
                    && body.source_port != 0
                    && body.source_port != self.source_base.wrapping_add(self.first + index);
                (body.payload.len() as u32, translated, place)
            }
            // The headers are too damaged to find the payload.
            None => {
                if faults.is_empty() {
                    faults.push(Fault::Length);
                }
                (0, false, place)
            }
        };
        faults.sort_unstable();
        faults.dedup();
        Some(Piece {
            class: index,
            repetition: place.map(|place| place.repetition),
            offset: place.map(|place| place.offset),
            length,
            segment: gso,
            partial: meta.header.needs_csum(),
            translated,
            faults,
        })
    }

    /// Attributes a frame whose payload is small or damaged, by its ports.
    fn by_ports(&self, frame: &[u8]) -> Option<(u16, Class)> {
        let (at, protocol, from) = match Family::of(frame)? {
            Family::V4 => {
                let ip = Ipv4::parse(frame.get(14..)?).ok()?;
                (14 + ip.header_len(), ip.protocol(), IpAddr::from(ip.source()))
            }
            Family::V6 => {
                let ip = Ipv6::parse(frame.get(14..)?).ok()?;
                let upper = ip.upper_layer().ok()?;
                (14 + 40 + upper.extensions_len, upper.protocol, IpAddr::from(ip.source()))
            }
        };
        self.sources.contains(&Some(from)).then_some(())?;
        let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk::<2>()?));
        let (source, destination) = match protocol {
            Protocol::TCP | Protocol::UDP => (word(at)?, word(at + 2)?),
            // The identifier of an echo request.
            Protocol::ICMP | Protocol::ICMPV6 if matches!(frame.get(at)?, 8 | 128) => {
                (word(at + 4)?, self.own_port)
            }
            // Other protocols have no ports, so no class can be recognised by them.
            _ => return None,
        };
        let (index, class) = self.class_at(source.wrapping_sub(self.source_base))?;
        let transport = match (class.tunnel.is_some(), class.transport) {
            (true, _) | (false, Transport::Udp) => protocol == Protocol::UDP,
            (false, Transport::Tcp) => protocol == Protocol::TCP,
            (false, Transport::Icmp) => [Protocol::ICMP, Protocol::ICMPV6].contains(&protocol),
        };
        (transport && destination == class.port.number(self.own_port)).then_some((index, class))
    }
}

impl Family {
    /// Returns the IP version of a frame without VLAN tags.
    pub fn of(frame: &[u8]) -> Option<Family> {
        match frame.get(12..14)? {
            [0x08, 0x00] => Some(Family::V4),
            [0x86, 0xdd] => Some(Family::V6),
            // ARP and other protocols are not sent by a probe.
            _ => None,
        }
    }
}

/// A payload without a whole block is the only piece of its class.
fn small(expected: &Expected<'_>, class: &Class, index: u16) -> Option<Location> {
    let class_number = expected.first + index;
    (class.payload < 32).then_some(Location { class: class_number, repetition: 0, offset: 0 })
}

impl<'a> Reader<'a> {
    fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Walks from the outer IP header to the payload. `None` if a header is malformed.
    fn walk(&mut self) -> Option<Body<'a>> {
        let frame = self.frame;
        let Some(tunnel) = self.class.tunnel else {
            return self.packet(frame, self.class.family, true);
        };
        if tunnel.kind == TunnelKind::Gre {
            let packet = self.out_of_gre(frame, self.class.family, tunnel.inner)?;
            return self.transport(packet, tunnel.inner, false);
        }
        let mut frame = self.decapsulated(frame, self.class.family)?;
        if tunnel.nested {
            frame = self.decapsulated(frame, Family::V4)?;
        }
        self.packet(frame, tunnel.inner, false)
    }

    /// Reads the outer headers of a tunnel packet and returns the frame in it.
    fn decapsulated(&mut self, frame: &'a [u8], family: Family) -> Option<&'a [u8]> {
        let (protocol, segment, pseudo, _) = self.network(frame, family)?;
        // A damaged outer header: the inner packet cannot be located.
        if protocol != Protocol::UDP || segment.len() < 16 {
            self.fault(Fault::IpHeader);
            return None;
        }
        let whole = self.meta.header.gso_size > 0;
        let length = usize::from(u16::from_be_bytes([segment[4], segment[5]]));
        if length != segment.len() && !whole {
            self.fault(Fault::Length);
        }
        let checksum = u16::from_be_bytes([segment[6], segment[7]]);
        // An outer checksum that the receiver's device has not finished yet is partial, too.
        let outer_start = (self.frame.len() - segment.len()) as u16;
        let is_partial =
            self.meta.header.needs_csum() && self.meta.header.csum_start <= outer_start;
        if checksum == 0 {
            if self.class.tunnel.is_some_and(|tunnel| tunnel.checksum) {
                self.fault(Fault::ChecksumRemoved);
            }
        } else if !whole && !is_partial && !pseudo.plus_bytes(segment).is_valid() {
            self.fault(Fault::OuterChecksum);
        }
        let vni = u32::from_be_bytes([0, segment[12], segment[13], segment[14]]);
        if vni != vni_of(self.expected.vni, &self.class) {
            self.fault(Fault::TunnelHeader);
        }
        Some(&segment[16..])
    }

    /// Reads the outer headers of a GRE packet and returns the IP packet in it.
    fn out_of_gre(&mut self, frame: &'a [u8], outer: Family, inner: Family) -> Option<&'a [u8]> {
        let (protocol, gre, _, _) = self.network(frame, outer)?;
        // A damaged outer header: the inner packet cannot be located.
        if protocol != GRE {
            self.fault(Fault::IpHeader);
            return None;
        }
        let ether_type: [u8; 2] = match inner {
            Family::V4 => [0x08, 0x00],
            Family::V6 => [0x86, 0xdd],
        };
        // RFC 2784, section 2.1: without checksum, version 0.
        let parts = gre.split_first_chunk::<4>();
        let Some((header, packet)) = parts else {
            self.fault(Fault::Length);
            return None;
        };
        if header[..2] != [0, 0] || header[2..] != ether_type {
            self.fault(Fault::TunnelHeader);
        }
        Some(packet)
    }

    /// Reads the IP header of a frame: protocol, data, sum of the pseudo-header, and whether it is
    /// a fragment.
    fn network(
        &mut self,
        frame: &'a [u8],
        family: Family,
    ) -> Option<(Protocol, &'a [u8], Sum, bool)> {
        // Another IP version than was sent: nothing behind this header can be compared.
        if Family::of(frame) != Some(family) {
            self.fault(Fault::IpHeader);
            return None;
        }
        self.internet(frame.get(14..).unwrap_or_default(), family)
    }

    /// As [`Reader::network`], for a packet without an Ethernet header.
    fn internet(
        &mut self,
        packet: &'a [u8],
        family: Family,
    ) -> Option<(Protocol, &'a [u8], Sum, bool)> {
        // Ethernet pads short frames, in a tunnel those of the inner device.
        let may_be_padded = packet.len() + 14 <= PADDED;
        match family {
            Family::V4 if self.meta.header.gso_size > 0 && packet.get(2..4) == Some(&[0, 0]) => {
                self.big(packet)
            }
            Family::V4 => {
                let Ok(ip) = Ipv4::parse(packet) else {
                    // A length beyond the frame is by far the most frequent malformation.
                    self.fault(Fault::Length);
                    return None;
                };
                if !ip.checksum_is_valid() {
                    self.fault(Fault::IpHeader);
                }
                if ip.total_len() < packet.len() && !may_be_padded {
                    self.fault(Fault::Length);
                }
                Some((ip.protocol(), ip.payload(), ip.pseudo_header(), ip.is_fragment()))
            }
            Family::V6 if self.meta.header.gso_size > 0 && packet.get(4..6) == Some(&[0, 0]) => {
                self.big_v6(packet)
            }
            Family::V6 => {
                let parsed =
                    Ipv6::parse(packet).ok().and_then(|ip| Some((ip, ip.upper_layer().ok()?)));
                let Some((ip, upper)) = parsed else {
                    self.fault(Fault::Length);
                    return None;
                };
                if 40 + ip.payload().len() < packet.len() && !may_be_padded {
                    self.fault(Fault::Length);
                }
                let length = upper.payload.len() as u32;
                let pseudo = packet::ipv6::pseudo_header(&ip, upper.protocol, length);
                Some((upper.protocol, upper.payload, pseudo, upper.fragment))
            }
        }
    }

    /// Reads the IP header of a packet of BIG TCP, which has no length.
    fn big(&mut self, packet: &'a [u8]) -> Option<(Protocol, &'a [u8], Sum, bool)> {
        let length = usize::from(*packet.first()? & 15) * 4;
        // The length is from the packet, so it may exceed the packet.
        let parts = packet.split_at_checked(length).filter(|_| length >= 20);
        let Some((header, data)) = parts else {
            self.fault(Fault::Length);
            return None;
        };
        if !self.class.needs_big_tcp() {
            self.fault(Fault::Length);
        }
        if !Sum::of(header).is_valid() {
            self.fault(Fault::IpHeader);
        }
        // Nobody has computed the checksum yet: the pseudo-header is not needed.
        Some((Protocol(header[9]), data, Sum::ZERO, false))
    }

    /// As [`Reader::big`], for IPv6: with or without a jumbo payload option.
    fn big_v6(&mut self, packet: &'a [u8]) -> Option<(Protocol, &'a [u8], Sum, bool)> {
        // The packet ends within the header; the rest cannot be compared.
        let Some((header, data)) = packet.split_first_chunk::<40>() else {
            self.fault(Fault::Length);
            return None;
        };
        if !self.class.needs_big_tcp() {
            self.fault(Fault::Length);
        }
        if header[0] >> 4 != 6 {
            self.fault(Fault::IpHeader);
        }
        if header[6] != HOP_BY_HOP {
            return Some((Protocol(header[6]), data, Sum::ZERO, false));
        }
        // BIG TCP packets before Linux 7.0 have this option; without it the length is unknown.
        let Some((option, rest)) = data.split_first_chunk::<JUMBO_HEADER>() else {
            self.fault(Fault::Length);
            return None;
        };
        let [next, header_length, kind, size, length @ ..] = *option;
        if (header_length, kind, size) != (0, JUMBO_PAYLOAD, 4) {
            self.fault(Fault::IpHeader);
        }
        if u32::from_be_bytes(length) as usize != data.len() {
            self.fault(Fault::Length);
        }
        Some((Protocol(next), rest, Sum::ZERO, false))
    }

    /// Reads a frame without a tunnel.
    fn packet(&mut self, frame: &'a [u8], family: Family, outermost: bool) -> Option<Body<'a>> {
        // Another IP version than was sent: nothing behind this header can be compared.
        if Family::of(frame) != Some(family) {
            self.fault(Fault::IpHeader);
            return None;
        }
        self.transport(frame.get(14..).unwrap_or_default(), family, outermost)
    }

    /// Reads an IP packet without a tunnel.
    fn transport(&mut self, packet: &'a [u8], family: Family, outermost: bool) -> Option<Body<'a>> {
        let (protocol, segment, pseudo, fragment) = self.internet(packet, family)?;
        let wanted = match (self.class.transport, family) {
            (Transport::Tcp, _) => Protocol::TCP,
            (Transport::Udp, _) => Protocol::UDP,
            (Transport::Icmp, Family::V4) => Protocol::ICMP,
            (Transport::Icmp, Family::V6) => Protocol::ICMPV6,
        };
        // The ports belong to a class, so this is a damaged header, not foreign traffic.
        if protocol != wanted {
            self.fault(Fault::IpHeader);
            return None;
        }
        if fragment {
            // The header of the datagram is in its first fragment; `locate` finds the place.
            let at = self.expected.session.locate(segment)?.offset;
            let skip = usize::try_from(-at).unwrap_or(0);
            return Some(Body { source_port: 0, flags: None, payload: segment.get(skip..)? });
        }
        let (source_port, flags, checksum, header) = match self.class.transport {
            Transport::Tcp => {
                // A packet cut within its header: the rest cannot be compared.
                let Ok(tcp) = Tcp::parse(segment) else {
                    self.fault(Fault::Length);
                    return None;
                };
                (tcp.source_port(), Some(tcp.flags()), tcp.checksum(), tcp.header_len())
            }
            Transport::Udp | Transport::Icmp => {
                let head = segment.first_chunk::<8>();
                // A packet cut within its header: the rest cannot be compared.
                let Some(head) = head else {
                    self.fault(Fault::Length);
                    return None;
                };
                let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
                if self.class.transport == Transport::Icmp {
                    (word(4), None, word(2), 8)
                } else {
                    if usize::from(word(4)) != segment.len() {
                        self.fault(Fault::Length);
                    }
                    (word(0), None, word(6), 8)
                }
            }
        };
        let pseudo = match (self.class.transport, family) {
            (Transport::Icmp, Family::V4) => Sum::ZERO,
            _ => pseudo,
        };
        self.checksum(checksum, pseudo.plus_bytes(segment).is_valid(), outermost);
        Some(Body { source_port, flags, payload: &segment[header..] })
    }

    fn checksum(&mut self, checksum: u16, is_valid: bool, outermost: bool) {
        // Merged and unsegmented packets: GRO has verified each segment, or no checksum was
        // computed.
        let trusted = self.meta.header.needs_csum();
        let absent = self.class.transport == Transport::Udp && checksum == 0;
        match self.class.checksum {
            Checksum::Wrong if is_valid && !absent => self.fault(Fault::ChecksumRepaired),
            Checksum::Wrong if self.meta.verified && !trusted => {
                self.fault(Fault::ChecksumNotVerified);
            }
            // A device may add one. If it is wrong, the packet is lost.
            Checksum::Zero if !absent && !is_valid && !trusted => self.fault(Fault::Checksum),
            Checksum::Wrong | Checksum::Zero => {}
            Checksum::Finished | Checksum::Partial if absent && !trusted => {
                self.fault(if outermost { Fault::ChecksumRemoved } else { Fault::Checksum });
            }
            Checksum::Finished | Checksum::Partial if !is_valid && !trusted => {
                self.fault(Fault::Checksum);
            }
            // An offload may finish or verify these, so both forms are correct.
            Checksum::Finished | Checksum::Partial => {}
        }
    }

    /// Compares payload and flags with those that were sent.
    fn compare(&self, body: &Body<'_>, place: Option<Location>, faults: &mut Vec<Fault>) {
        // Without the identification the sent bytes are unknown.
        let Some(place) = place else {
            faults.push(Fault::Payload);
            return;
        };
        let whole = self.class.payload as usize;
        let wanted = self.expected.session.payload(place.class, place.repetition, whole);
        let start = usize::try_from(place.offset).ok();
        let sent = start.and_then(|start| wanted.get(start..)).unwrap_or_default();
        if start.is_none() || body.payload.len() > sent.len() {
            faults.push(Fault::Length);
        }
        // Where the checksum adds up to zero, it proves the last two bytes.
        let proven = if self.class.extra == Extra::ZeroSum { 2 } else { 0 };
        let compared = sent.iter().take(sent.len().saturating_sub(proven));
        let differs = body.payload.iter().zip(compared).position(|(got, wanted)| got != wanted);
        if let Some(at) = differs {
            let in_tail = self.class.segment > 0
                && place.offset + at as i64 >= i64::from(self.class.segment)
                && at * 2 >= body.payload.len();
            faults.push(if in_tail { Fault::Tail } else { Fault::Payload });
        }
        if let (Some(flags), true) = (body.flags, self.class.segment > 0) {
            let is_first = place.offset == 0;
            let is_last = place.offset + body.payload.len() as i64 >= whole as i64;
            // CWR stays on the first segment, PSH on the last one (`tcp_gso_segment`).
            let cwr = self.class.extra == Extra::Ecn && is_first;
            let wrong = flags.intersects(Flags::CWR) != cwr
                || flags.intersects(Flags::PSH) != is_last
                || flags.intersects(Flags::FIN.with(Flags::SYN).with(Flags::RST));
            // GRO sets PSH if it merged any segment that had it, and keeps CWR packets apart.
            if wrong && self.meta.header.gso_size == 0 {
                faults.push(Fault::Flags);
            }
        }
    }
}

#[cfg(test)]
mod tests;
