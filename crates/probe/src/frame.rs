//! Builds the frames of a class, with the vnet header that asks the device for offloads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::checksum::{Sum, pseudo_header_v4, pseudo_header_v6};
use packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use packet::ipv4::{Ipv4Header, Protocol};
use packet::ipv6::Ipv6Header;
use packet::tcp::{Flags, TcpHeader};
use packet::udp::UdpHeader;
use packet::vnet_hdr::{VnetHdr, flags, gso_type};
use sys::packet_socket::VNET_HEADER;

use crate::class::{Checksum, Class, Extra, Family, Transport, TunnelKind};

/// Inner destination of encapsulated frames: a group address that no bridge forwards (IEEE
/// 802.1Q, table 8-1), in case that a tunnel endpoint accepts the packet.
pub const INNER_DESTINATION: MacAddr = MacAddr([0x01, 0x80, 0xc2, 0x00, 0x00, 0x0d]);
/// Inner source of encapsulated frames, locally administered.
pub const INNER_SOURCE: MacAddr = MacAddr([0x02, 0x6f, 0x76, 0x6c, 0x70, 0x62]);
/// Inner addresses: those for documentation (RFC 5737, RFC 3849), which are never routed.
pub const INNER_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// The same for IPv6.
pub const INNER_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
];
/// DSCP AF11.
const AF11: u8 = 10 << 2;
/// ECT(0).
const ECT_0: u8 = 2;
/// Next header of hop-by-hop options (RFC 8200, section 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// Type of the jumbo payload option (RFC 2675, section 2).
pub const JUMBO_PAYLOAD: u8 = 0xc2;
/// Length of a hop-by-hop header with this option alone, bytes.
pub const JUMBO_HEADER: usize = 8;
/// Length of an Ethernet header, bytes.
const ETHERNET: usize = 14;
/// Destination port of packets inside a tunnel: discard.
pub const INNER_PORT: u16 = 9;

/// Addresses of the packets of one IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Hardware address of the sending device.
    pub source_mac: MacAddr,
    /// Hardware address of the next hop.
    pub next_hop: MacAddr,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
}

impl Ends {
    /// The ends of frames inside a tunnel.
    pub fn inner(family: Family) -> Ends {
        let pair: [IpAddr; 2] = match family {
            Family::V4 => INNER_V4.map(IpAddr::from),
            Family::V6 => INNER_V6.map(IpAddr::from),
        };
        Ends {
            source_mac: INNER_SOURCE,
            next_hop: INNER_DESTINATION,
            source: pair[0],
            destination: pair[1],
        }
    }
}

/// Fields of a packet that differ from repetition to repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Source port, or the ICMP identifier.
    pub source_port: u16,
    /// Destination port.
    pub port: u16,
    /// IPv4 ID, flow label and ICMP sequence number.
    pub id: u16,
    /// Time to live.
    pub ttl: u8,
    /// VNI of a tunnel.
    pub vni: u32,
    /// Whether IPv6 packets above 64 KiB have a jumbo payload option, as before Linux 7.0.
    pub jumbo_option: bool,
}

/// A frame, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Metadata for the device.
    pub header: VnetHdr,
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Returns the vnet header as a packet socket takes it.
    pub fn vnet(&self) -> [u8; VNET_HEADER] {
        let bytes = self.header.to_bytes();
        std::array::from_fn(|at| bytes[at])
    }

    pub fn ether_type(&self) -> u16 {
        u16::from_be_bytes([self.bytes[12], self.bytes[13]])
    }

    /// Returns vnet header and packet for a device without Ethernet headers.
    pub fn without_ethernet(&self) -> ([u8; VNET_HEADER], &[u8]) {
        let less = |at: u16| at.saturating_sub(ETHERNET as u16);
        let header = VnetHdr {
            hdr_len: less(self.header.hdr_len),
            csum_start: less(self.header.csum_start),
            ..self.header
        };
        let bytes = header.to_bytes();
        (std::array::from_fn(|at| bytes[at]), &self.bytes[ETHERNET..])
    }
}

/// First sequence number of a TCP class.
pub fn first_sequence(flow: &Flow) -> u32 {
    u32::from(flow.source_port) << 16 | u32::from(flow.id)
}

/// Builds the frames of one repetition: one, or two fragments. With a tunnel, the packet is
/// encapsulated here, unless `in_device`: then the frame is for a tunnel device.
///
/// # Errors
/// A payload that is too long for IP, as text.
pub fn build(
    class: &Class,
    ends: &Ends,
    flow: &Flow,
    payload: &[u8],
    in_device: bool,
) -> Result<Vec<Frame>, String> {
    let failed = |error: packet::EmitError| format!("{class}: {error}");
    let Some(tunnel) = class.tunnel else {
        if class.extra == Extra::Fragments {
            return fragments(class, ends, flow, payload).map_err(failed);
        }
        return Ok(vec![plain(class, ends, flow, payload).map_err(failed)?]);
    };
    let inner_flow = Flow { port: INNER_PORT, ..*flow };
    let bare = Class { tunnel: None, family: tunnel.inner, ..*class };
    let inner = plain(&bare, &Ends::inner(tunnel.inner), &inner_flow, payload).map_err(failed)?;
    if in_device {
        return Ok(vec![inner]);
    }
    let checksum = if tunnel.checksum { Checksum::Finished } else { Checksum::Zero };
    let outer = Class { tunnel: None, transport: Transport::Udp, checksum, ..*class };
    let outer = Class { extra: Extra::Plain, segment: 0, ..outer };
    let mut frame = inner.bytes;
    if tunnel.nested {
        let port = nested_port(tunnel.kind);
        let middle = Class { family: Family::V4, ..outer };
        let body = encapsulated(tunnel.kind, flow.vni, &frame);
        let body = body.ok_or_else(|| format!("{class}: only a device makes GRE packets"))?;
        let ends = Ends::inner(Family::V4);
        frame = plain(&middle, &ends, &Flow { port, ..*flow }, &body).map_err(failed)?.bytes;
    }
    let body = encapsulated(tunnel.outermost(), flow.vni, &frame);
    let body = body.ok_or_else(|| format!("{class}: only a device makes GRE packets"))?;
    Ok(vec![plain(&outer, ends, flow, &body).map_err(failed)?])
}

/// Port of a tunnel inside a VXLAN tunnel.
pub fn nested_port(kind: TunnelKind) -> u16 {
    match kind {
        TunnelKind::Geneve => 6081,
        TunnelKind::Vxlan | TunnelKind::Gre => 4789,
    }
}

/// Returns the payload of a tunnel's UDP packet; `None` for GRE, which has none.
fn encapsulated(kind: TunnelKind, vni: u32, frame: &[u8]) -> Option<Vec<u8>> {
    let mut body = match kind {
        // RFC 7348, section 5: flag I, VNI.
        TunnelKind::Vxlan => vec![8, 0, 0, 0],
        // RFC 8926, section 3.4: version 0, no options, Ethernet.
        TunnelKind::Geneve => vec![0, 0, 0x65, 0x58],
        TunnelKind::Gre => return None,
    };
    body.extend_from_slice(&(vni << 8).to_be_bytes());
    body.extend_from_slice(frame);
    Some(body)
}

fn protocol(class: &Class, ends: &Ends) -> Protocol {
    match (class.transport, ends.source) {
        (Transport::Tcp, _) => Protocol::TCP,
        (Transport::Udp, _) => Protocol::UDP,
        (Transport::Icmp, IpAddr::V4(_)) => Protocol::ICMP,
        (Transport::Icmp, IpAddr::V6(_)) => Protocol(58),
    }
}

fn pseudo_header(ends: &Ends, protocol: Protocol, length: usize) -> Sum {
    let length = length as u32;
    match (ends.source, ends.destination) {
        (IpAddr::V4(a), IpAddr::V4(b)) => pseudo_header_v4(a, b, protocol.0, length),
        (IpAddr::V6(a), IpAddr::V6(b)) => pseudo_header_v6(a, b, protocol.0, length),
        _ => Sum::ZERO,
    }
}

/// Writes the transport header and payload, with a partial checksum, and returns the offset of the
/// checksum.
fn segment(
    class: &Class,
    flow: &Flow,
    payload: &[u8],
) -> Result<(Vec<u8>, usize), packet::EmitError> {
    let (mut bytes, at) = match class.transport {
        Transport::Udp => {
            let udp = UdpHeader { source_port: flow.source_port, destination_port: flow.port };
            (udp.to_bytes(payload.len(), 0)?.to_vec(), 6)
        }
        Transport::Tcp => {
            let mut flags = Flags::ACK.with(Flags::PSH);
            if class.extra == Extra::Ecn {
                flags = flags.with(Flags::CWR);
            }
            let tcp = TcpHeader {
                source_port: flow.source_port,
                destination_port: flow.port,
                sequence: first_sequence(flow),
                acknowledgement: 1,
                flags,
                window: 512,
                urgent: 0,
            };
            // Time stamps, as most connections have them (RFC 7323, section 3.2).
            let options: &[u8] = match class.extra {
                Extra::Options => &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
                _ => &[],
            };
            let mut bytes = vec![0; 20 + options.len()];
            tcp.emit(options, 0, &mut bytes)?;
            (bytes, 16)
        }
        Transport::Icmp => {
            let kind = if class.inner_family() == Family::V4 { 8 } else { 128 };
            let [a, b] = flow.source_port.to_be_bytes();
            let [c, d] = flow.id.to_be_bytes();
            (vec![kind, 0, 0, 0, a, b, c, d], 2)
        }
    };
    bytes.extend_from_slice(payload);
    Ok((bytes, at))
}

fn network(
    class: &Class,
    ends: &Ends,
    flow: &Flow,
    protocol: Protocol,
    length: usize,
) -> Result<Vec<u8>, packet::EmitError> {
    let tos = match class.extra {
        Extra::Ecn => ECT_0,
        Extra::Dscp => AF11,
        _ => 0,
    };
    let options = class.extra == Extra::Options && class.transport != Transport::Tcp;
    match (ends.source, ends.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header {
                traffic_class: tos,
                flow_label: u32::from(flow.source_port),
                // Destination options (RFC 8200, section 4.6): one PadN option.
                next_header: if options { Protocol(60) } else { protocol },
                hop_limit: flow.ttl,
                source,
                destination,
            };
            if length > usize::from(u16::MAX) {
                return big_v6(header, length, flow.jumbo_option);
            }
            let mut bytes = header.to_bytes(length + if options { 8 } else { 0 })?.to_vec();
            if options {
                bytes.extend_from_slice(&[protocol.0, 0, 1, 4, 0, 0, 0, 0]);
            }
            Ok(bytes)
        }
        (source, destination) => {
            let v4 = |address| match address {
                IpAddr::V4(address) => address,
                IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
            };
            let header = Ipv4Header {
                tos,
                id: flow.id,
                dont_fragment: class.extra != Extra::Fragments,
                ttl: flow.ttl,
                protocol,
                source: v4(source),
                destination: v4(destination),
            };
            // Eight NOP options.
            let options: &[u8] = if options { &[1; 8] } else { &[] };
            let mut bytes = vec![0; 20 + options.len()];
            if bytes.len() + length <= usize::from(u16::MAX) {
                header.emit(options, length, &mut bytes)?;
                return Ok(bytes);
            }
            // BIG TCP: a length of 0 (`iph_set_totlen`, include/linux/ip.h).
            header.emit(options, 0, &mut bytes)?;
            bytes[2..4].fill(0);
            bytes[10..12].fill(0);
            let checksum = Sum::of(&bytes).checksum();
            bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
            Ok(bytes)
        }
    }
}

/// Writes the IPv6 header of a packet of BIG TCP: a length of 0 (`ip6_xmit`, net/ipv6/ip6_output.c).
/// Linux before 7.0 adds a hop-by-hop header with the length (RFC 2675), which it removes when it
/// cuts the packet.
fn big_v6(
    header: Ipv6Header,
    length: usize,
    jumbo_option: bool,
) -> Result<Vec<u8>, packet::EmitError> {
    if !jumbo_option {
        return Ok(header.to_bytes(0)?.to_vec());
    }
    let outer = Ipv6Header { next_header: Protocol(HOP_BY_HOP), ..header };
    let mut bytes = outer.to_bytes(0)?.to_vec();
    bytes.extend_from_slice(&[header.next_header.0, 0, JUMBO_PAYLOAD, 4]);
    bytes.extend_from_slice(&((length + JUMBO_HEADER) as u32).to_be_bytes());
    Ok(bytes)
}

fn ethernet(ends: &Ends) -> [u8; 14] {
    let ether_type = if ends.source.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    EthernetHeader { destination: ends.next_hop, source: ends.source_mac, ether_type }.to_bytes()
}

fn plain(
    class: &Class,
    ends: &Ends,
    flow: &Flow,
    payload: &[u8],
) -> Result<Frame, packet::EmitError> {
    let protocol = protocol(class, ends);
    let (mut body, at) = segment(class, flow, payload)?;
    let ip = network(class, ends, flow, protocol, body.len())?;
    // ICMP over IPv4 has no pseudo-header (RFC 792).
    let pseudo = match (class.transport, ends.source) {
        (Transport::Icmp, IpAddr::V4(_)) => Sum::ZERO,
        _ => pseudo_header(ends, protocol, body.len()),
    };
    let start = 14 + ip.len();
    let mut header = VnetHdr::default();
    if class.extra == Extra::ZeroSum
        && let Some(end) = body.last_chunk_mut::<2>()
    {
        *end = [0; 2];
        let rest = pseudo.plus_bytes(&body).checksum();
        let end = body.len() - 2;
        body[end..].copy_from_slice(&rest.to_be_bytes());
    }
    let finished = finish(pseudo.plus_bytes(&body));
    let field = match class.checksum {
        Checksum::Finished => finished,
        Checksum::Wrong => finished ^ 0x5a5a,
        Checksum::Zero => 0,
        Checksum::Partial => {
            header.flags = flags::NEEDS_CSUM;
            header.csum_start = start as u16;
            header.csum_offset = at as u16;
            pseudo.value()
        }
    };
    body[at..at + 2].copy_from_slice(&field.to_be_bytes());
    if class.segment > 0 {
        header.gso_type = match (class.transport, ends.source) {
            (Transport::Tcp, IpAddr::V4(_)) => gso_type::TCPV4,
            (Transport::Tcp, IpAddr::V6(_)) => gso_type::TCPV6,
            _ => gso_type::UDP_L4,
        };
        if class.transport == Transport::Tcp && class.extra == Extra::Ecn {
            header.gso_type |= gso_type::ECN;
        }
        header.gso_size = class.segment;
        header.hdr_len = (start + body.len() - payload.len()) as u16;
    }
    let mut bytes = ethernet(ends).to_vec();
    bytes.extend_from_slice(&ip);
    bytes.extend_from_slice(&body);
    Ok(Frame { header, bytes })
}

/// Returns a checksum that is never the value for "none" (RFC 768).
fn finish(sum: Sum) -> u16 {
    match sum.checksum() {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Builds a packet as two fragments of about equal size.
fn fragments(
    class: &Class,
    ends: &Ends,
    flow: &Flow,
    payload: &[u8],
) -> Result<Vec<Frame>, packet::EmitError> {
    let whole = Class { extra: Extra::Plain, ..*class };
    let protocol = protocol(class, ends);
    let packet = plain(&whole, ends, flow, payload)?.bytes;
    let is_v4 = ends.source.is_ipv4();
    let body = &packet[14 + if is_v4 { 20 } else { 40 }..];
    // Offsets count eight bytes.
    let cut = (body.len() / 2).next_multiple_of(8);
    let mut frames = Vec::new();
    for (offset, more, part) in [(0, true, &body[..cut]), (cut, false, &body[cut..])] {
        let mut bytes = ethernet(ends).to_vec();
        let offset = offset as u16;
        if is_v4 {
            let mut ip = network(class, ends, flow, protocol, part.len())?;
            let word = (offset / 8) | if more { 0x2000 } else { 0 };
            ip[6..8].copy_from_slice(&word.to_be_bytes());
            ip[10..12].copy_from_slice(&[0, 0]);
            let checksum = Sum::of(&ip).checksum();
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            bytes.extend_from_slice(&ip);
        } else {
            // RFC 8200, section 4.5.
            bytes.extend(network(&whole, ends, flow, Protocol(44), part.len() + 8)?);
            let [high, low] = (offset | u16::from(more)).to_be_bytes();
            let [a, b] = flow.id.to_be_bytes();
            bytes.extend_from_slice(&[protocol.0, 0, high, low, 0, 0, a, b]);
        }
        bytes.extend_from_slice(part);
        frames.push(Frame { header: VnetHdr::default(), bytes });
    }
    Ok(frames)
}
