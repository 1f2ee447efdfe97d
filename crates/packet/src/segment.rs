//! Segments a GSO packet into wire packets, as the kernel's GSO does.
//!
//! Sources: `tcp_gso_segment` (`net/ipv4/tcp_offload.c`), `__udp_gso_segment` and
//! `__skb_udp_tunnel_segment` (`net/ipv4/udp_offload.c`), `inet_gso_segment`
//! (`net/ipv4/af_inet.c`), `ipv6_gso_segment` (`net/ipv6/ip6_offload.c`), and the
//! checks of `virtio_net_hdr_to_skb` (`include/linux/virtio_net.h`).
//!
//! Every segment repeats all headers. TCP: sequence numbers continue, FIN and PSH stay on the last
//! segment only, CWR on the first only. UDP: each segment has its own length. IPv4: the inner and
//! outer IDs increase by one per segment, and the header checksum is recomputed. A tunnel's outer
//! UDP checksum is computed if the vnet header asks for it, and left unchanged otherwise.
//!
//! These packets are refused:
//!
//! - GSO packets whose IP length is not the frame's; the kernel's stack would have trimmed them;
//! - IP fragments;
//! - IPv6 fragment and authentication headers, for which the kernel refuses GSO, too.
//!
//! If a TCP packet is announced as a GSO packet but fits into one segment, it passes as a single
//! packet. The kernel drops it if it does not fit when the length of its options is added.

use crate::checksum::{OutOfFrame, Sum, complete_partial};
use crate::error::room;
use crate::frame::{Headers, Network, Packet, Transport, Unsupported};
use crate::tcp::Flags;
use crate::vnet_hdr::{GsoError, GsoKind, GsoTunnel, VnetHdr, flags, gso_type};
use crate::{EmitError, Layer, get16, get32, put16, put32};

/// The kernel's `UDP_MAX_SEGMENTS`.
pub const UDP_MAX_SEGMENTS: usize = 128;

/// The transport checksum of each segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TransportChecksum {
    /// Computed here for each segment.
    #[default]
    Full,
    /// Left partial, as the sum of the pseudo-header, for a receiver that accepts `NEEDS_CSUM`. A
    /// tunnel's outer checksum is computed nevertheless.
    Partial,
}

/// The IPv4 ID of each segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Ids {
    /// Increased by one from segment to segment.
    #[default]
    Incrementing,
    /// The same in all segments: the kernel's `SKB_GSO_TCP_FIXEDID`, which a vnet header cannot
    /// express.
    Fixed,
}

/// Options for segmentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Policy {
    /// The transport checksum of each segment.
    pub checksum: TransportChecksum,
    /// The (inner) IPv4 ID of each segment.
    pub ids: Ids,
    /// The IPv4 ID of each segment's outer header.
    pub outer_ids: Ids,
}

/// Why a frame cannot be segmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SegmentError {
    /// The vnet header announces an unknown kind of GSO packet.
    #[error(transparent)]
    Gso(#[from] GsoError),
    /// The frame does not have the headers of a GSO packet.
    #[error(transparent)]
    Headers(#[from] Unsupported),
    /// The frame does not match the type in the vnet header.
    #[error("gso_type {gso_type:#04x} on a frame of {network:?} and {transport:?}")]
    Type {
        /// Type in the vnet header.
        gso_type: u8,
        /// Network layer of the frame.
        network: Network,
        /// Transport layer of the frame.
        transport: Transport,
    },
    /// An offset of the vnet header does not match the frame's headers.
    #[error("{field}: expected {wanted}, got {got}")]
    Offset {
        /// Name of the vnet header's field.
        field: &'static str,
        /// Offset of the frame's header.
        wanted: usize,
        /// Offset in the vnet header.
        got: usize,
    },
    /// UDP GSO packets need `NEEDS_CSUM`.
    #[error("UDP GSO packet without NEEDS_CSUM")]
    UdpChecksum,
    /// The packet does not end where the frame ends.
    #[error("packet ends at byte {packet} of a frame of {frame} bytes")]
    Length {
        /// End according to the IP and UDP lengths.
        packet: usize,
        /// Length of the frame.
        frame: usize,
    },
    /// There are more UDP segments than the kernel allows.
    #[error("{0} UDP segments, more than {UDP_MAX_SEGMENTS}")]
    TooMany(usize),
    /// A single segment exceeds the length limit for pieces.
    #[error("segments of {segment_len} bytes do not fit into pieces of at most {max_len} bytes")]
    PieceTooShort {
        /// Maximum length of a piece, bytes.
        max_len: usize,
        /// Length of one segment in bytes.
        segment_len: usize,
    },
    /// The field of a partial checksum is outside the frame.
    #[error(transparent)]
    OutOfFrame(#[from] OutOfFrame),
}

/// A validated frame that can be written segment by segment.
#[derive(Debug, Clone, Copy)]
pub struct Segmenter<'a> {
    frame: &'a [u8],
    vnet: VnetHdr,
    work: Work,
    count: usize,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    /// A single packet: copy it.
    Copy,
    /// A single packet with a partial checksum: copy and complete it.
    Complete { start: usize, offset: usize },
    /// A GSO packet: segment it.
    Cut(Cut),
}

#[derive(Debug, Clone, Copy)]
struct Cut {
    inner: Headers,
    outer: Option<(Headers, GsoTunnel)>,
    /// Payload bytes of each piece except the last: `group` wire segments.
    size: usize,
    group: usize,
    /// Sum of the pseudo-header without the length, from the sender's partial checksum or computed.
    pseudo: Sum,
    policy: Policy,
}

/// Result of [`Segmenter::write_all`]: consecutive segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Written {
    /// Number of segments that were written.
    pub count: usize,
    /// Distance between the starts of consecutive segments in bytes, including the prefix. All
    /// segments except the last have this length.
    pub stride: usize,
    /// Total number of bytes written, including prefixes.
    pub total: usize,
}

impl Written {
    /// Returns the segments, in order, from the buffer they were written to.
    pub fn segments<'b>(&self, buffer: &'b [u8]) -> impl ExactSizeIterator<Item = &'b [u8]> {
        buffer.get(..self.total).unwrap_or(&[]).chunks(self.stride.max(1))
    }
}

impl<'a> Segmenter<'a> {
    /// Validates a frame with its vnet header, using the kernel's [`Policy::default`]. A single
    /// packet is "segmented" into itself, with its partial checksum completed.
    ///
    /// # Errors
    /// If header and frame contradict each other, see [`SegmentError`].
    pub fn new(frame: &'a [u8], header: &VnetHdr) -> Result<Segmenter<'a>, SegmentError> {
        Segmenter::with_policy(frame, header, Policy::default())
    }

    /// [`Segmenter::new`] with another policy.
    ///
    /// # Errors
    /// As [`Segmenter::new`].
    pub fn with_policy(
        frame: &'a [u8],
        header: &VnetHdr,
        policy: Policy,
    ) -> Result<Segmenter<'a>, SegmentError> {
        let single = || {
            let (start, offset) = (header.csum_start.into(), header.csum_offset.into());
            // With `Partial`, [`Segmenter::header`] passes `NEEDS_CSUM` on to the receiver.
            if !header.needs_csum() || policy.checksum == TransportChecksum::Partial {
                return Ok(Work::Copy);
            }
            let length = frame.len();
            // Check now, so that writing cannot fail.
            if start + offset + 2 > length {
                return Err(OutOfFrame { start, offset, length });
            }
            Ok(Work::Complete { start, offset })
        };
        // Not a GSO packet: it is its own only segment.
        let Some(gso) = header.gso()? else {
            return Ok(Segmenter { frame, vnet: *header, work: single()?, count: 1 });
        };
        let packet = match gso.tunnel {
            None => Packet::parse(frame)?,
            Some(_) => Packet::parse_vxlan(frame)?,
        };
        let inner = packet.inner;
        check(frame, header, &packet, gso.kind, gso.tunnel)?;
        let (size, payload) = (usize::from(gso.size), inner.payload_len());
        let count = payload.div_ceil(size).max(1);
        // The kernel refuses more segments as well.
        if gso.kind == GsoKind::Udp && count > UDP_MAX_SEGMENTS {
            return Err(SegmentError::TooMany(count));
        }
        // "Too small packets are not really GSO ones."
        // In a tunnel, the outer lengths and checksum are still to be written.
        if count == 1 && gso.tunnel.is_none() {
            return Ok(Segmenter { frame, vnet: *header, work: single()?, count });
        }
        let length = inner.end - inner.transport_offset;
        let pseudo = if header.needs_csum() {
            // The sender's sum, correct or not: as in the kernel, only the length in it is
            // replaced, so that errors are not hidden.
            let seed = Sum::from_value(get16(frame, inner.checksum_at()));
            seed.minus_word((length >> 16) as u16).minus_word(length as u16)
        } else {
            inner.pseudo_header(frame, 0)
        };
        let outer = packet.outer.zip(gso.tunnel);
        let cut = Cut { inner, outer, size, group: 1, pseudo, policy };
        Ok(Segmenter { frame, vnet: *header, work: Work::Cut(cut), count })
    }

    /// Splits a GSO packet into smaller GSO packets. Each has as many whole segments as fit into a
    /// frame of `max_len` bytes. This is for packets that become too long by a tunnel's headers.
    /// Checksums stay partial; [`Segmenter::header`] describes each piece. A single packet is not
    /// changed.
    ///
    /// # Errors
    /// As [`Segmenter::new`], and if a single segment is longer.
    pub fn pieces(
        frame: &'a [u8],
        header: &VnetHdr,
        max_len: usize,
    ) -> Result<Segmenter<'a>, SegmentError> {
        let policy = Policy { checksum: TransportChecksum::Partial, ..Policy::default() };
        let mut pieces = Segmenter::with_policy(frame, header, policy)?;
        if let Work::Cut(cut) = &mut pieces.work {
            let segment_len = cut.inner.payload_offset + cut.size.min(cut.inner.payload_len());
            // No packet is longer, and the multiplication below must not overflow.
            let room = max_len.min(1 << 17).checked_sub(segment_len);
            let room = room.ok_or(SegmentError::PieceTooShort { max_len, segment_len })?;
            cut.group = 1 + room / cut.size;
            cut.size *= cut.group;
            pieces.count = cut.inner.payload_len().div_ceil(cut.size).max(1);
        }
        Ok(pieces)
    }

    /// Returns the vnet header of a segment or piece; `index` starts at 0.
    pub fn header(&self, index: usize) -> VnetHdr {
        match &self.work {
            Work::Copy => VnetHdr {
                flags: self.vnet.flags & !flags::UDP_TUNNEL_CSUM,
                csum_start: self.vnet.csum_start,
                csum_offset: self.vnet.csum_offset,
                ..VnetHdr::default()
            },
            Work::Complete { .. } => VnetHdr::default(),
            Work::Cut(cut) if cut.policy.checksum == TransportChecksum::Full => VnetHdr::default(),
            Work::Cut(cut) => {
                let inner = &cut.inner;
                let needed = VnetHdr {
                    flags: flags::NEEDS_CSUM,
                    csum_start: inner.transport_offset as u16,
                    csum_offset: inner.transport.checksum_offset() as u16,
                    ..VnetHdr::default()
                };
                let payload = inner.payload_len().saturating_sub(index * cut.size).min(cut.size);
                // A piece with one wire segment is not a GSO packet.
                if payload <= cut.size / cut.group {
                    return needed;
                }
                let VnetHdr { csum_start, csum_offset, .. } = needed;
                // CWR stays on the first piece.
                let ecn = if index == 0 { 0 } else { gso_type::ECN };
                VnetHdr {
                    flags: self.vnet.flags | flags::NEEDS_CSUM,
                    gso_type: self.vnet.gso_type & !ecn,
                    csum_start,
                    csum_offset,
                    ..self.vnet
                }
            }
        }
    }

    /// Returns the number of segments, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the length of each segment except the last, in bytes.
    pub fn segment_len(&self) -> usize {
        match &self.work {
            Work::Cut(cut) if self.count > 1 => cut.inner.payload_offset + cut.size,
            _ => self.frame.len(),
        }
    }

    /// Returns the number of bytes that [`Segmenter::write_all`] writes.
    pub fn total_len(&self, prefix_len: usize) -> usize {
        let headers = match &self.work {
            Work::Cut(cut) => cut.inner.payload_offset,
            _ => 0,
        };
        (self.count - 1) * (headers + prefix_len) + self.frame.len() + prefix_len
    }

    /// Writes all segments consecutively, each after a copy of `prefix`. With a VXLAN header as
    /// prefix, one `sendmsg` with `UDP_SEGMENT` can send all of them.
    ///
    /// # Errors
    /// If the buffer is shorter than [`Segmenter::total_len`]; nothing is written then.
    pub fn write_all(&self, prefix: &[u8], buffer: &mut [u8]) -> Result<Written, EmitError> {
        let total = self.total_len(prefix.len());
        let mut rest = room(buffer, Layer::Ethernet, total)?;
        let stride = self.segment_len() + prefix.len();
        for index in 0..self.count {
            let (segment, later) = rest.split_at_mut(stride.min(rest.len()));
            let (front, segment) = segment.split_at_mut(prefix.len());
            front.copy_from_slice(prefix);
            self.fill(index, segment);
            rest = later;
        }
        Ok(Written { count: self.count, stride, total })
    }

    /// Writes one segment, `index` from 0; returns its length in bytes.
    ///
    /// # Errors
    /// If the buffer is too small, or there is no such segment (`wanted` is then the largest
    /// `usize`).
    pub fn write(&self, index: usize, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let layer = Layer::Ethernet;
        // There is no segment with this index.
        if index >= self.count {
            return Err(EmitError::Buffer { layer, wanted: usize::MAX, got: buffer.len() });
        }
        let before = index * (self.segment_len());
        // The last segment may be shorter.
        let len = self.segment_len().min(self.total_len(0) - before);
        self.fill(index, room(buffer, layer, len)?);
        Ok(len)
    }

    /// Writes a segment to `out`, which has the segment's length.
    fn fill(&self, index: usize, out: &mut [u8]) {
        match &self.work {
            Work::Copy => out.copy_from_slice(self.frame),
            Work::Complete { start, offset } => {
                out.copy_from_slice(self.frame);
                // Cannot fail: start and offset were checked against the frame.
                let _ = complete_partial(out, *start, *offset);
            }
            Work::Cut(cut) => cut.fill(self.frame, index, index + 1 == self.count, out),
        }
    }
}

impl Cut {
    fn fill(&self, frame: &[u8], index: usize, last: bool, out: &mut [u8]) {
        let inner = &self.inner;
        let (headers, payload) = out.split_at_mut(inner.payload_offset);
        headers.copy_from_slice(&frame[..inner.payload_offset]);
        let from = inner.payload_offset + index * self.size;
        payload.copy_from_slice(&frame[from..from + payload.len()]);

        let end = out.len();
        let id = |headers: &Headers, ids| match (headers.network, ids) {
            (Network::Ipv4, Ids::Incrementing) => Some(
                get16(frame, headers.network_offset + 4).wrapping_add((index * self.group) as u16),
            ),
            // `None` keeps the field unchanged: IPv6 has no ID, and fixed IDs equal the first one.
            _ => None,
        };
        inner.set_network_length(out, end, id(inner, self.policy.ids));

        let th = inner.transport_offset;
        let length = end - th;
        match inner.transport {
            Transport::Tcp => {
                let sequence = get32(frame, th + 4).wrapping_add((index * self.size) as u32);
                put32(out, th + 4, sequence);
                let mut flags = Flags(out[th + 13]);
                if !last {
                    flags = flags.without(Flags::FIN.with(Flags::PSH));
                }
                if index > 0 {
                    flags = flags.without(Flags::CWR);
                }
                out[th + 13] = flags.0;
            }
            Transport::Udp => put16(out, th + 4, length as u16),
        }
        // The field holds the sum of the pseudo-header while the rest is summed.
        let seed = self.pseudo.plus_u32(length as u32);
        put16(out, inner.checksum_at(), seed.value());
        if self.policy.checksum == TransportChecksum::Full {
            let sum = Sum::of(&out[th..]);
            let checksum = match inner.transport {
                Transport::Tcp => sum.checksum(),
                Transport::Udp => sum.udp_checksum(),
            };
            put16(out, inner.checksum_at(), checksum);
        }

        // Without a tunnel there are no outer headers to adjust.
        let Some((outer, tunnel)) = &self.outer else { return };
        outer.set_network_length(out, end, id(outer, self.policy.outer_ids));
        let th = outer.transport_offset;
        put16(out, th + 4, (end - th) as u16);
        if tunnel.checksum {
            if self.policy.checksum == TransportChecksum::Partial
                && end - inner.payload_offset > self.size / self.group
            {
                // Still a GSO packet: the length in it is replaced when it is segmented.
                let pseudo = outer.pseudo_header(out, end - th);
                put16(out, outer.checksum_at(), pseudo.value());
                return;
            }
            put16(out, outer.checksum_at(), 0);
            // A complete inner transport sums to the complement of its pseudo-header (`lco_csum`),
            // so its payload need not be summed again.
            let covered = Sum::of(&out[th..inner.transport_offset]);
            let covered = covered.plus_word(!seed.value());
            let sum = outer.pseudo_header(out, end - th).plus(covered);
            put16(out, outer.checksum_at(), sum.udp_checksum());
        }
    }
}

/// Performs the checks of `virtio_net_hdr_to_skb` and of the GSO functions.
fn check(
    frame: &[u8],
    header: &VnetHdr,
    packet: &Packet,
    kind: GsoKind,
    tunnel: Option<GsoTunnel>,
) -> Result<(), SegmentError> {
    let inner = &packet.inner;
    let kinds_agree = match (kind, inner.network, inner.transport) {
        (GsoKind::TcpV4, network, transport) => {
            (network, transport) == (Network::Ipv4, Transport::Tcp)
        }
        (GsoKind::TcpV6, network, transport) => {
            (network, transport) == (Network::Ipv6, Transport::Tcp)
        }
        (GsoKind::Udp, _, transport) => transport == Transport::Udp,
    };
    let tunnels_agree = match (tunnel, &packet.outer) {
        (Some(tunnel), Some(outer)) => tunnel.ipv6 == (outer.network == Network::Ipv6),
        // The outer headers were only parsed because the vnet header names a tunnel.
        _ => true,
    };
    // The headers must match the GSO type, or wrong fields would be changed.
    if !kinds_agree || !tunnels_agree {
        let (network, transport) = (inner.network, inner.transport);
        return Err(SegmentError::Type { gso_type: header.gso_type, network, transport });
    }
    let offset = |field, wanted: usize, got: u16| {
        let got = usize::from(got);
        if wanted == got { Ok(()) } else { Err(SegmentError::Offset { field, wanted, got }) }
    };
    if header.needs_csum() {
        offset("csum_start", inner.transport_offset, header.csum_start)?;
        offset("csum_offset", inner.transport.checksum_offset(), header.csum_offset)?;
    } else if kind == GsoKind::Udp {
        return Err(SegmentError::UdpChecksum);
    }
    if let Some(outer) = &packet.outer {
        offset("outer_th_offset", outer.transport_offset, header.outer_th_offset)?;
        offset("inner_nh_offset", inner.network_offset, header.inner_nh_offset)?;
        udp_ends_with(frame, outer)?;
    }
    if inner.transport == Transport::Udp {
        udp_ends_with(frame, inner)?;
    }
    // Padding would become part of the last segment.
    if inner.end != frame.len() {
        return Err(SegmentError::Length { packet: inner.end, frame: frame.len() });
    }
    Ok(())
}

fn udp_ends_with(frame: &[u8], headers: &Headers) -> Result<(), SegmentError> {
    let end = headers.transport_offset + usize::from(get16(frame, headers.transport_offset + 4));
    // Bytes behind the datagram would be repeated in each segment.
    if end != frame.len() || headers.end != frame.len() {
        return Err(SegmentError::Length { packet: end, frame: frame.len() });
    }
    Ok(())
}
