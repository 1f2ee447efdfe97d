//! The kernel's merge rules, one function per header.

use super::{Options, Refusal};
use crate::checksum::Sum;
use crate::frame::{Headers, Network, Packet, Transport};
use crate::ipv4;
use crate::tcp::Flags;
use crate::vnet_hdr::VnetHdr;
use crate::{get16, get32};

/// A packet that may be merged with others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub packet: Packet,
    /// FIN or PSH is set: it ends the GSO packet.
    pub ends: bool,
}

/// Checks whether a packet can be merged at all.
pub(super) fn candidate(
    frame: &[u8],
    vnet: &VnetHdr,
    packet: &Packet,
    options: &Options,
) -> Result<Candidate, Refusal> {
    let inner = &packet.inner;
    // The kernel merges GSO packets only if their sizes are equal, and they have little to gain.
    if vnet.gso_type != 0 {
        return Err(Refusal::Super);
    }
    // A receiver without UDP GRO would get one large datagram.
    if inner.transport == Transport::Udp && !options.udp {
        return Err(Refusal::UdpOff);
    }
    // Data after the packet would have to be removed, or would become payload.
    if inner.end != frame.len() || packet.outer.is_some_and(|outer| outer.end != frame.len()) {
        return Err(Refusal::Padding);
    }
    let partial_at = vnet.needs_csum().then_some(usize::from(vnet.csum_start));
    if let Some(outer) = &packet.outer {
        network(frame, outer)?;
        udp_length(frame, outer)?;
        // A partial checksum anywhere means that the packet was never on a wire.
        let trusted = vnet.checksum_is_trusted();
        // Merging computes a new checksum, which would hide the damage.
        if !trusted && !outer.checksum_is_valid(frame) {
            return Err(Refusal::Checksum);
        }
    }
    network(frame, inner)?;
    let flags = match inner.transport {
        Transport::Tcp => Flags(frame[inner.transport_offset + 13]),
        Transport::Udp => {
            udp_length(frame, inner)?;
            // "requires non zero csum, for symmetry with GSO"
            if get16(frame, inner.checksum_at()) == 0 {
                return Err(Refusal::NoChecksum);
            }
            Flags(0)
        }
    };
    // As the first packet it would set `gso_size` to 0, which is invalid.
    if inner.payload_len() == 0 {
        return Err(Refusal::NoPayload);
    }
    // Segmentation would repeat these flags on every segment.
    if flags.intersects(Flags::SYN.with(Flags::RST).with(Flags::URG)) {
        return Err(Refusal::Control);
    }
    let trusted = match partial_at {
        Some(start) => start == inner.transport_offset,
        // Inside a tunnel, DATA_VALID only refers to the outer checksum.
        None => vnet.checksum_is_trusted() && packet.outer.is_none(),
    };
    // The GSO packet gets a new checksum, which would hide that this one is wrong.
    if !trusted && !inner.checksum_is_valid(frame) {
        return Err(Refusal::Checksum);
    }
    Ok(Candidate { packet: *packet, ends: flags.intersects(Flags::FIN.with(Flags::PSH)) })
}

fn network(frame: &[u8], headers: &Headers) -> Result<(), Refusal> {
    if headers.network == Network::Ipv4 {
        // The kernel merges no packets with options either (`inet_gro_receive`).
        if headers.transport_offset - headers.network_offset != ipv4::HEADER_LEN {
            return Err(Refusal::Ipv4Options);
        }
        // Segmentation computes a valid checksum, which would hide the error.
        if !Sum::of(&frame[headers.network_offset..headers.transport_offset]).is_valid() {
            return Err(Refusal::HeaderChecksum);
        }
    }
    Ok(())
}

fn udp_length(frame: &[u8], headers: &Headers) -> Result<(), Refusal> {
    let length = usize::from(get16(frame, headers.transport_offset + 4));
    // Data after the UDP length would become payload.
    if length == headers.end - headers.transport_offset { Ok(()) } else { Err(Refusal::UdpLength) }
}

/// How the IPv4 IDs continue in a GSO packet; known from its second packet on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IdRun {
    Unknown,
    Incrementing,
    Fixed,
}

/// Checks whether `new`, with the same header lengths, continues the GSO packet of `count` packets
/// that begins with the headers `old`.
pub(super) fn continues_network(
    old: &[u8],
    new: &[u8],
    headers: &Headers,
    count: usize,
    run: IdRun,
) -> Result<IdRun, Refusal> {
    let at = headers.network_offset;
    match headers.network {
        Network::Ipv4 => {
            // Segmentation copies these fields, so they must be equal.
            if old[at + 1] != new[at + 1] {
                return Err(Refusal::Tos);
            }
            // The segments of a GSO packet share one TTL.
            if old[at + 8] != new[at + 8] {
                return Err(Refusal::Ttl);
            }
            let dont_fragment = get16(new, at + 6) & ipv4::DF;
            // The segments of a GSO packet share one DF bit.
            if get16(old, at + 6) & ipv4::DF != dont_fragment {
                return Err(Refusal::DontFragment);
            }
            let offset = get16(new, at + 4).wrapping_sub(get16(old, at + 4));
            let next = offset == count as u16;
            match run {
                IdRun::Unknown | IdRun::Incrementing if next => Ok(IdRun::Incrementing),
                // With DF set the ID has no meaning and may repeat (RFC 6864, section 4.1).
                IdRun::Unknown if offset == 0 && dont_fragment != 0 => Ok(IdRun::Fixed),
                IdRun::Fixed if offset == 0 => Ok(IdRun::Fixed),
                // Segmentation can only create IDs that increase or stay the same.
                _ => Err(Refusal::Id),
            }
        }
        Network::Ipv6 => {
            let difference = get32(old, at) ^ get32(new, at);
            // The lower 20 bits are the flow label, the others the traffic class.
            if difference & 0x000f_ffff != 0 {
                return Err(Refusal::FlowLabel);
            }
            // The segments of a GSO packet share one TOS byte.
            if difference != 0 {
                return Err(Refusal::Tos);
            }
            if old[at + 7] != new[at + 7] {
                return Err(Refusal::Ttl);
            }
            let extensions = at + crate::ipv6::HEADER_LEN..headers.transport_offset;
            // The segments of a GSO packet share their extension headers.
            if old[at + 6] != new[at + 6] || old[extensions.clone()] != new[extensions] {
                return Err(Refusal::Extensions);
            }
            Ok(run)
        }
    }
}

/// Checks whether the TCP packet `new` continues a GSO packet of `payload` bytes.
pub(super) fn continues_tcp(
    old: &[u8],
    new: &[u8],
    headers: &Headers,
    payload: usize,
) -> Result<(), Refusal> {
    let at = headers.transport_offset;
    let (old_flags, new_flags) = (Flags(old[at + 13]), Flags(new[at + 13]));
    // CWR marks only the first segment, so it starts a new packet.
    if new_flags.intersects(Flags::CWR) {
        return Err(Refusal::Cwr);
    }
    let may_differ = Flags::CWR.with(Flags::FIN).with(Flags::PSH);
    // Byte 12: data offset, reserved bits and the accurate ECN flag.
    if old_flags.without(may_differ) != new_flags.without(may_differ)
        || old[at + 12] != new[at + 12]
    {
        return Err(Refusal::Flags);
    }
    if get16(old, at + 14) != get16(new, at + 14) {
        // Segmentation copies the window, so an update would be lost.
        return Err(Refusal::Window);
    }
    if get32(old, at + 8) != get32(new, at + 8) {
        // Segmentation copies the acknowledgement number, so an update would be lost.
        return Err(Refusal::Acknowledgement);
    }
    // Without URG the kernel ignores this field. But segmentation could not restore a different
    // value.
    if get16(old, at + 18) != get16(new, at + 18) {
        return Err(Refusal::Urgent);
    }
    let options = at + crate::tcp::HEADER_LEN..headers.payload_offset;
    if old[options.clone()] != new[options] {
        // Segmentation copies the options, such as time stamps.
        return Err(Refusal::TcpOptions);
    }
    if get32(old, at + 4).wrapping_add(payload as u32) != get32(new, at + 4) {
        // A gap or a retransmission: segments must be contiguous.
        return Err(Refusal::Sequence);
    }
    Ok(())
}
