//! A GSO packet that is being assembled.

use super::rules::{self, Candidate, IdRun};
use super::{Delivery, Options, Refusal};
use crate::flow::FlowKey;
use crate::frame::{Network, Packet, Transport};
use crate::tcp::Flags;
use crate::vnet_hdr::{VnetHdr, flags, gso_type};
use crate::{get16, put16, vlan, vxlan};

/// The kernel's `UDP_GRO_CNT_MAX`.
const UDP_MAX_SEGMENTS: usize = 64;

/// An IP packet of 65,535 bytes with its Ethernet header and two tags.
const BUFFER_LEN: usize = 65_535 + crate::ethernet::HEADER_LEN + 2 * vlan::TAG_LEN;

/// Packets of one flow, stored consecutively after the headers of the first one.
#[derive(Debug)]
pub(super) struct Held {
    buffer: Box<[u8]>,
    len: usize,
    first: Option<First>,
    count: usize,
    /// State of the IPv4 IDs, outer and inner.
    runs: [IdRun; 2],
}

/// Data from the first packet.
#[derive(Debug)]
struct First {
    key: FlowKey,
    packet: Packet,
    vnet: VnetHdr,
    size: usize,
}

impl Held {
    pub(super) fn new() -> Held {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Held { buffer, len: 0, first: None, count: 0, runs: [IdRun::Unknown; 2] }
    }

    pub(super) fn is_flow(&self, key: &FlowKey) -> bool {
        self.first.as_ref().is_some_and(|first| first.key == *key)
    }

    /// Starts with the first packet. A candidate is an IP packet that ends with its frame, so it
    /// fits into the buffer.
    pub(super) fn start(
        &mut self,
        key: FlowKey,
        frame: &[u8],
        vnet: &VnetHdr,
        candidate: &Candidate,
    ) {
        self.len = frame.len().min(self.buffer.len());
        self.buffer[..self.len].copy_from_slice(&frame[..self.len]);
        let size = candidate.packet.inner.payload_len();
        self.first = Some(First { key, packet: candidate.packet, vnet: *vnet, size });
        self.count = 1;
        self.runs = [IdRun::Unknown; 2];
    }

    /// Appends a packet; returns whether the GSO packet is complete.
    pub(super) fn append(
        &mut self,
        frame: &[u8],
        candidate: &Candidate,
        options: &Options,
    ) -> Result<bool, Refusal> {
        // Unreachable: `push` only calls this for a slot of this flow, which has a first packet.
        let Some(first) = &self.first else { return Err(Refusal::HeaderLength) };
        let (old, packet, inner) = (&self.buffer[..self.len], &first.packet, &first.packet.inner);
        let new = &candidate.packet;
        // `crate::segment` repeats the first packet's headers, so all offsets must be equal.
        if !same_shape(packet, new) {
            return Err(Refusal::HeaderLength);
        }
        let mut runs = self.runs;
        let link = packet.outer.unwrap_or(*inner).network_offset;
        // The kernel treats this as another flow (`gro_list_prepare`), see the module
        // documentation.
        if old[..link] != frame[..link] {
            return Err(Refusal::Link);
        }
        if let Some(outer) = &packet.outer {
            runs[0] = rules::continues_network(old, frame, outer, self.count, runs[0])?;
            let at = outer.transport_offset;
            // Either all segments have an outer checksum or none has, because `UDP_TUNNEL_CSUM` is
            // one flag for all.
            let checksum = |bytes| get16(bytes, outer.checksum_at()) == 0;
            let vxlan = outer.payload_offset..outer.payload_offset + vxlan::HEADER_LEN;
            if addresses(old, outer) != addresses(frame, outer)
                || old[at..at + 4] != frame[at..at + 4]
                || checksum(old) != checksum(frame)
                || old[vxlan.clone()] != frame[vxlan]
            {
                // Segmentation copies the tunnel headers, so they must be equal.
                return Err(Refusal::Tunnel);
            }
            let link = inner.link_offset..inner.network_offset;
            if old[link.clone()] != frame[link] {
                // Segmentation copies the link header, so it must be equal.
                return Err(Refusal::Link);
            }
        }
        runs[1] = rules::continues_network(old, frame, inner, self.count, runs[1])?;
        let payload = &frame[inner.payload_offset..];
        if inner.transport == Transport::Tcp {
            rules::continues_tcp(old, frame, inner, self.len - inner.payload_offset)?;
        }
        // `gso_size` is the length of the first payload. Only the last segment may be shorter.
        if payload.len() > first.size {
            return Err(Refusal::Longer);
        }
        let end = self.len + payload.len();
        // `skb_gro_receive` counts the whole packet, starting with its first IP header.
        if end - link >= options.max_size || end > self.buffer.len() {
            return Err(Refusal::Full);
        }
        self.buffer[self.len..end].copy_from_slice(payload);
        self.len = end;
        self.count += 1;
        self.runs = runs;
        // A shorter segment must be the last one, because `gso_size` applies to all others.
        let short = payload.len() < first.size;
        match inner.transport {
            Transport::Tcp => {
                let at = inner.transport_offset + 13;
                // Only the last packet can have FIN or PSH, and segmentation sets them on the last
                // segment.
                let ending = Flags(frame[at] & Flags::FIN.with(Flags::PSH).0);
                self.buffer[at] = Flags(self.buffer[at]).with(ending).0;
                Ok(short || candidate.ends)
            }
            Transport::Udp => Ok(short || self.count >= UDP_MAX_SEGMENTS),
        }
    }

    /// Completes the headers, and frees the slot for another flow.
    pub(super) fn finish(&mut self) -> Delivery<'_> {
        // Unreachable: a slot in use has a first packet.
        let Some(first) = self.first.take() else {
            return Delivery::single(VnetHdr::default(), &[]);
        };
        let frame = &mut self.buffer[..self.len];
        // A single packet is delivered unchanged.
        if self.count == 1 {
            return Delivery::single(first.vnet, frame);
        }
        let vnet = complete(frame, &first.packet, first.size as u16);
        let [fixed_outer_ids, fixed_ids] = self.runs.map(|run| run == IdRun::Fixed);
        Delivery { vnet, frame, segments: self.count, fixed_ids, fixed_outer_ids }
    }
}

/// Sets lengths and partial checksums in the headers of a GSO packet: `inet_gro_complete`,
/// `ipv6_gro_complete`, `tcp4_gro_complete`, `udp_gro_complete_segment`.
fn complete(frame: &mut [u8], packet: &Packet, size: u16) -> VnetHdr {
    let (end, inner) = (frame.len(), &packet.inner);
    let mut vnet = VnetHdr {
        flags: flags::NEEDS_CSUM,
        gso_size: size,
        hdr_len: inner.payload_offset as u16,
        csum_start: inner.transport_offset as u16,
        csum_offset: inner.transport.checksum_offset() as u16,
        ..VnetHdr::default()
    };
    vnet.gso_type = match (inner.transport, inner.network) {
        (Transport::Tcp, Network::Ipv4) => gso_type::TCPV4,
        (Transport::Tcp, Network::Ipv6) => gso_type::TCPV6,
        (Transport::Udp, _) => gso_type::UDP_L4,
    };
    let at = inner.transport_offset;
    let cwr = inner.transport == Transport::Tcp && Flags(frame[at + 13]).intersects(Flags::CWR);
    if cwr {
        vnet.gso_type |= gso_type::ECN;
    }
    if let Some(outer) = &packet.outer {
        vnet.gso_type |= match outer.network {
            Network::Ipv4 => gso_type::UDP_TUNNEL_IPV4,
            Network::Ipv6 => gso_type::UDP_TUNNEL_IPV6,
        };
        vnet.outer_th_offset = outer.transport_offset as u16;
        vnet.inner_nh_offset = inner.network_offset as u16;
        outer.set_network_length(frame, end, None);
        let length = end - outer.transport_offset;
        put16(frame, outer.transport_offset + 4, length as u16);
        // Keep a checksum of zero: `UDP_TUNNEL_CSUM` would give the segments a checksum that they
        // did not have.
        if get16(frame, outer.checksum_at()) != 0 {
            vnet.flags |= flags::UDP_TUNNEL_CSUM;
            let pseudo = outer.pseudo_header(frame, length);
            put16(frame, outer.checksum_at(), pseudo.value());
        }
    }
    inner.set_network_length(frame, end, None);
    if inner.transport == Transport::Udp {
        put16(frame, at + 4, (end - at) as u16);
    }
    let pseudo = inner.pseudo_header(frame, end - at);
    put16(frame, inner.checksum_at(), pseudo.value());
    vnet
}

/// Returns whether both have the same headers with the same lengths.
fn same_shape(a: &Packet, b: &Packet) -> bool {
    let shape = |packet: &Packet| {
        let outer = packet.outer.map(|o| (o.network, o.network_offset, o.transport_offset));
        (
            outer,
            packet.inner.network_offset,
            packet.inner.transport_offset,
            packet.inner.payload_offset,
        )
    };
    shape(a) == shape(b)
}

fn addresses<'f>(frame: &'f [u8], headers: &crate::frame::Headers) -> &'f [u8] {
    let at = headers.network_offset;
    match headers.network {
        Network::Ipv4 => &frame[at + 12..at + 20],
        Network::Ipv6 => &frame[at + 8..at + 40],
    }
}
