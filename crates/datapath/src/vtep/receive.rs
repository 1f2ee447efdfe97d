//! From the wire to the TAP.
//!
//! Nothing received is trusted: sender, VNI, source address and lengths are all checked. Accepted
//! packets are merged again ([`packet::coalesce`]), so that the tenant gets GSO packets. They are
//! never sent back to the wire.
//!
//! The second TAP ([`super::handover`]) delivers a packet with complete metadata. A socket does
//! not. On veth and between VMs, a kernel VXLAN device sends packets that are neither segmented nor
//! checksummed, and a socket reports little of that:
//!
//! - A TCP GSO packet arrives as one datagram whose frame is longer than the network's MTU. Its
//!   segment size is not reported. The largest that the MTU allows is assumed.
//! - A UDP GSO packet also arrives as one datagram. Its segment size is reported in the same way as
//!   that of merged datagrams. The inner IP header's length distinguishes the two: it covers all of
//!   a GSO packet, but only one of the merged datagrams.
//! - A checksum equal to the sum of the pseudo-header is unfinished.

use std::net::IpAddr;

use packet::coalesce::{Coalescer, Delivery, Options};
use packet::decap::{self, DecapError, Merged};
use packet::ecn::{Ecn, Egress};
use packet::ethernet::{self, Ethernet};
use packet::frame::{Headers, Network as Family, Transport};
use packet::tcp::Flags;
use packet::vnet_hdr::{self, VnetHdr, flags, gso_type};
use packet::vxlan::{self, Vni, Vxlan};

use super::neighbour;
use super::place::Place;
use super::table::Learned;
use super::thread_network::ThreadNetwork;
use crate::counters::{DropReason, Tally};
use crate::vnet_layout::{HEADER, LAYOUT};

/// Receive state of one thread.
#[derive(Debug)]
pub(super) struct Intake {
    /// `None`: packets are not merged.
    coalescer: Option<Coalescer>,
    /// Index of the network whose packets are held for merging.
    holding: usize,
    /// Index of a network whose TAP is gone.
    gone: Option<usize>,
}

/// A UDP payload with its metadata.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) from: IpAddr,
    pub(super) tos: u8,
    pub(super) segment: Option<u16>,
    pub(super) truncated: bool,
    pub(super) bytes: &'a mut [u8],
}

impl Intake {
    /// `merge` enables merging, `udp` also for UDP.
    pub(super) fn new(merge: bool, udp: bool) -> Intake {
        let options = Options { udp, ..Options::default() };
        Intake { coalescer: merge.then(|| Coalescer::new(options)), holding: 0, gone: None }
    }

    /// Returns the index of a network whose TAP was found to be gone.
    pub(super) fn gone(&self) -> Option<usize> {
        self.gone
    }

    /// Handles a message: a datagram, several merged ones, or a GSO packet. `unassigned` counts
    /// packets that belong to no network.
    pub(super) fn message(
        &mut self,
        thread_networks: &[ThreadNetwork],
        unassigned: &Tally,
        message: Message<'_>,
        now: u32,
    ) {
        let Message { from, tos, segment, truncated, bytes } = message;
        // The rest of the datagram is lost.
        if truncated {
            unassigned.receive(bytes.len());
            return unassigned.discard(DropReason::Truncated, 1);
        }
        // A segment size that is not below the payload means a single datagram.
        let segment = segment.map(usize::from).filter(|size| *size > 0 && *size < bytes.len());
        let sender = Sender { from, ecn: Ecn::of(tos) };
        match segment {
            Some(size) if !is_one_udp_packet(bytes, size) => {
                for datagram in bytes.chunks_mut(size) {
                    self.datagram(thread_networks, unassigned, &sender, datagram, None, now);
                }
            }
            inner_size => {
                self.datagram(thread_networks, unassigned, &sender, bytes, inner_size, now)
            }
        }
    }

    /// Handles a complete frame of the underlay with its vnet header, as the second TAP delivers
    /// it. `unassigned` counts packets that belong to no network.
    pub(super) fn encapsulated(
        &mut self,
        thread_networks: &[ThreadNetwork],
        unassigned: &Tally,
        bytes: &mut [u8],
        port: u16,
        now: u32,
    ) {
        let discard = |length: usize, reason| {
            unassigned.receive(length);
            unassigned.discard(reason, 1);
        };
        let Ok((vnet, _)) = vnet_hdr::split(bytes, LAYOUT) else {
            return discard(0, DropReason::Malformed);
        };
        let bytes = &mut bytes[HEADER..];
        let refused = |error| match error {
            DecapError::HeaderChecksum | DecapError::Checksum => DropReason::Checksum,
            _ => DropReason::Malformed,
        };
        match decap::merged(bytes, &vnet, port) {
            Ok(Some(Merged { source, ecn, payload, size })) => {
                let sender = Sender { from: source, ecn };
                for datagram in bytes[payload].chunks_mut(size) {
                    self.datagram(thread_networks, unassigned, &sender, datagram, None, now);
                }
            }
            Ok(None) => match decap::frame(bytes, &vnet, port) {
                Ok(out) => {
                    let sender = Sender { from: out.source, ecn: out.ecn };
                    let envelope = Envelope { vni: out.vni, plain: out.reserved_bits_are_zero };
                    let (vnet, range) = (out.vnet, out.offset..out.offset + out.frame.len());
                    let known = Known::Header(vnet);
                    let frame = &mut bytes[range];
                    self.frame(thread_networks, unassigned, &sender, envelope, frame, known, now);
                }
                Err(error) => discard(bytes.len(), refused(error)),
            },
            Err(error) => discard(bytes.len(), refused(error)),
        }
    }

    /// Handles one VXLAN packet. `inner_size` is the segment size if it contains a UDP GSO packet.
    fn datagram(
        &mut self,
        thread_networks: &[ThreadNetwork],
        unassigned: &Tally,
        sender: &Sender,
        bytes: &mut [u8],
        inner_size: Option<usize>,
        now: u32,
    ) {
        let Ok(view) = Vxlan::parse(bytes) else {
            unassigned.receive(bytes.len().saturating_sub(vxlan::HEADER_LEN));
            return unassigned.discard(DropReason::Malformed, 1);
        };
        let envelope = Envelope { vni: view.vni(), plain: view.reserved_bits_are_zero() };
        let frame = &mut bytes[vxlan::HEADER_LEN..];
        let known = Known::SegmentSize(inner_size);
        self.frame(thread_networks, unassigned, sender, envelope, frame, known, now);
    }

    #[expect(clippy::too_many_arguments, reason = "where from, what, and when")]
    fn frame(
        &mut self,
        thread_networks: &[ThreadNetwork],
        unassigned: &Tally,
        sender: &Sender,
        envelope: Envelope,
        frame: &mut [u8],
        known: Known,
        now: u32,
    ) {
        let discard = |reason| {
            unassigned.receive(frame.len());
            unassigned.discard(reason, 1);
        };
        // RFC 7348 says to ignore them. But protocols that use them (GPE, GBP) carry other payloads
        // than a plain frame. The kernel drops them, too.
        if !envelope.plain {
            return discard(DropReason::Reserved);
        }
        let Some(index) = thread_networks
            .iter()
            .position(|thread_network| thread_network.network.vni == envelope.vni)
        else {
            return discard(DropReason::UnknownVni);
        };
        let thread_network = &thread_networks[index];
        thread_network.back.receive(frame.len());
        let vnet = match check(thread_network, sender, frame, known, now) {
            Ok(vnet) => vnet,
            Err(reason) => return thread_network.back.discard(reason, 1),
        };
        // Only frames of one network are merged, so deliver those of the previous one.
        if self.holding != index {
            self.flush(thread_networks);
            self.holding = index;
        }
        let gone = &mut self.gone;
        let mut deliver = |delivery: Delivery<'_>| {
            if write(thread_network, &delivery) {
                *gone = Some(index);
            }
        };
        match &mut self.coalescer {
            Some(coalescer) => {
                coalescer.push(frame, &vnet, &mut deliver);
            }
            // Merging is disabled.
            None => deliver(Delivery {
                vnet,
                frame,
                segments: 1,
                fixed_ids: false,
                fixed_outer_ids: false,
            }),
        }
    }

    /// Delivers all packets held for merging.
    pub(super) fn flush(&mut self, thread_networks: &[ThreadNetwork]) {
        let (gone, holding) = (&mut self.gone, self.holding);
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.flush(&mut |delivery| {
                if write(&thread_networks[holding], &delivery) {
                    *gone = Some(holding);
                }
            });
        }
    }
}

#[derive(Debug)]
struct Sender {
    from: IpAddr,
    ecn: Ecn,
}

/// Fields of the VXLAN header.
#[derive(Debug, Clone, Copy)]
struct Envelope {
    vni: Vni,
    /// Whether all its reserved bits are zero.
    plain: bool,
}

/// Metadata of a frame.
#[derive(Debug, Clone, Copy)]
enum Known {
    /// From the second TAP: the complete vnet header.
    Header(VnetHdr),
    /// From a socket: the segment size, if it may be a UDP GSO packet.
    SegmentSize(Option<usize>),
}

/// Returns whether a payload with that segment size is one VXLAN packet with a UDP GSO packet
/// inside.
fn is_one_udp_packet(bytes: &[u8], size: usize) -> bool {
    // Too short for a VXLAN header; the datagrams are checked one by one.
    let Some(frame) = bytes.get(vxlan::HEADER_LEN..) else { return false };
    Headers::parse(frame).is_ok_and(|headers| {
        headers.transport == Transport::Udp
            && headers.end == frame.len()
            && headers.payload_len() > size
    })
}

/// Checks whether a frame may be delivered; returns its vnet header.
fn check(
    thread_network: &ThreadNetwork,
    sender: &Sender,
    frame: &mut [u8],
    known: Known,
    now: u32,
) -> Result<VnetHdr, DropReason> {
    let (network, policy) = (&thread_network.network, &thread_network.policy);
    // Only configured endpoints may send, unless any-remote is set.
    if !policy.may_send(sender.from) {
        return Err(DropReason::UnknownRemote);
    }
    let link = Ethernet::parse(frame).map_err(|_| DropReason::Malformed)?;
    let source = link.source();
    // A multicast address cannot be a source.
    if !source.is_unicast() {
        return Err(DropReason::Source);
    }
    // The TAP's own frame has returned.
    if source == thread_network.own {
        return Err(DropReason::Looped);
    }
    let vnet = match known {
        Known::Header(vnet) => vnet,
        Known::SegmentSize(size) => vnet(frame, size, network.mtu as usize)?,
    };
    // Check ECN before learning, so that nothing is learned from a dropped packet.
    match decap::apply_ecn(frame, sender.ecn) {
        Egress::Forward(_) | Egress::ForwardUnexpected(_) => {}
        Egress::Drop => return Err(DropReason::Congestion),
    }
    let place = Place::Remote(sender.from);
    let learned = network.learn(policy, source, place, now);
    match learned {
        // A static entry locates the address elsewhere.
        Learned::Configured => return Err(DropReason::Spoofed),
        // A bridge behind the TAP would learn the address without any check.
        Learned::Local => return Err(DropReason::InUse),
        learned => thread_network.back.learn_of(learned),
    }
    // A sender whose source address is contested is not trusted about other addresses.
    if policy.suppresses()
        && learned != Learned::Contested
        && !vnet.needs_csum()
        && let Some(claim) = neighbour::examine(frame).and_then(|resolving| resolving.claim)
    {
        match network.notice(policy, claim, place, now) {
            // Hosts may change the hardware address of an IP address at will: not an event worth
            // counting.
            Learned::Moved => {}
            learned => thread_network.back.learn_of(learned),
        }
    }
    Ok(vnet)
}

/// Returns the vnet header of a frame that was received from a socket.
fn vnet(frame: &[u8], inner_size: Option<usize>, mtu: usize) -> Result<VnetHdr, DropReason> {
    let mut vnet = VnetHdr::default();
    if let Some((start, offset)) = decap::unfinished_checksum(frame) {
        vnet.flags = flags::NEEDS_CSUM;
        (vnet.csum_start, vnet.csum_offset) = (start, offset);
    }
    // A frame within the MTU is not a GSO packet.
    if frame.len() <= ethernet::HEADER_LEN + mtu {
        return Ok(vnet);
    }
    // The packet type has no segmentation, so it is delivered as it is.
    let Ok(headers) = Headers::parse(frame) else { return Ok(vnet) };
    let payload = headers.payload_len();
    let (kind, size) = match (headers.transport, headers.network, inner_size) {
        (Transport::Udp, _, Some(size)) => (gso_type::UDP_L4, size),
        // A datagram that was fragmented on the underlay, so it exceeds the MTU without being GSO.
        (Transport::Udp, _, None) => return Ok(vnet),
        (Transport::Tcp, family, _) => {
            let room = mtu.checked_sub(headers.payload_offset - headers.network_offset);
            let kind = match family {
                Family::Ipv4 => gso_type::TCPV4,
                Family::Ipv6 => gso_type::TCPV6,
            };
            (kind, room.filter(|room| *room > 0).ok_or(DropReason::Uncuttable)?)
        }
    };
    // One segment needs no segmentation.
    if payload <= size {
        return Ok(vnet);
    }
    vnet.gso_type = kind;
    vnet.gso_size = u16::try_from(size).map_err(|_| DropReason::Uncuttable)?;
    vnet.hdr_len = headers.payload_offset as u16;
    if headers.transport == Transport::Tcp
        && frame
            .get(headers.transport_offset + 13)
            .is_some_and(|f| Flags(*f).intersects(Flags::CWR))
    {
        vnet.gso_type |= gso_type::ECN;
    }
    // The kernel rejects UDP GSO packets with a finished checksum.
    if kind == gso_type::UDP_L4 && !vnet.needs_csum() {
        return Err(DropReason::Uncuttable);
    }
    Ok(vnet)
}

/// Writes a frame to the TAP and counts it; returns whether the TAP is gone.
fn write(thread_network: &ThreadNetwork, delivery: &Delivery<'_>) -> bool {
    let packets = delivery.segments as u64;
    match thread_network.tap.write(&delivery.vnet.to_bytes(), delivery.frame) {
        Ok(()) => {
            // Each packet but the first brought its own headers, which merging has removed.
            let headers = (packets - 1) * u64::from(delivery.vnet.hdr_len);
            thread_network.back.forward(packets, delivery.frame.len() as u64 + headers);
            thread_network.back.hand_over();
            false
        }
        Err(error) => {
            thread_network.back.discard(DropReason::of_write(&error), packets);
            error.raw_os_error() == Some(nix::errno::Errno::EBADFD as i32)
        }
    }
}
