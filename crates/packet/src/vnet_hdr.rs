//! The virtio-net header: offload metadata between the kernel and a device's user.
//!
//! Source: `include/uapi/linux/virtio_net.h`, `include/linux/virtio_net.h`.
//! Little-endian throughout, as `TUNSETVNETLE` sets a TAP. Offsets are in bytes
//! from the start of the Ethernet frame that follows.

use crate::{Layer, ParseError, Wanted};

/// One of the three layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// `struct virtio_net_hdr`.
    Basic,
    /// `struct virtio_net_hdr_v1`: with the number of buffers.
    V1,
    /// `struct virtio_net_hdr_v1_hash_tunnel`: with hash and tunnel offsets.
    /// Linux 6.17 and later.
    Tunnel,
}

impl Layout {
    /// Returns the length in bytes.
    pub const fn size(self) -> usize {
        match self {
            Layout::Basic => 10,
            Layout::V1 => 12,
            Layout::Tunnel => 24,
        }
    }
}

/// Bits of the header's field `flags`.
pub mod flags {
    /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum at `csum_start + csum_offset` is partial; it
    /// holds only the sum of the pseudo-header.
    pub const NEEDS_CSUM: u8 = 1;
    /// `VIRTIO_NET_HDR_F_DATA_VALID`: the checksum was verified.
    pub const DATA_VALID: u8 = 2;
    /// `VIRTIO_NET_HDR_F_UDP_TUNNEL_CSUM`: an outer UDP checksum is wanted, too.
    pub const UDP_TUNNEL_CSUM: u8 = 8;
}

/// Values and bits of `gso_type`.
pub mod gso_type {
    /// Not a GSO packet.
    pub const NONE: u8 = 0;
    /// `VIRTIO_NET_HDR_GSO_TCPV4`: TCP over IPv4.
    pub const TCPV4: u8 = 1;
    /// UDP fragmentation, which kernels no longer create.
    pub const UDP: u8 = 3;
    /// `VIRTIO_NET_HDR_GSO_TCPV6`: TCP over IPv6.
    pub const TCPV6: u8 = 4;
    /// UDP segmentation (USO), over IPv4 or IPv6.
    pub const UDP_L4: u8 = 5;
    /// Bit: inside a UDP tunnel over IPv4.
    pub const UDP_TUNNEL_IPV4: u8 = 0x20;
    /// Bit: inside a UDP tunnel over IPv6.
    pub const UDP_TUNNEL_IPV6: u8 = 0x40;
    /// Bit: TCP with CWR set.
    pub const ECN: u8 = 0x80;
}

/// The header with the fields of all layouts. Fields that a layout lacks are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct VnetHdr {
    /// Bits of module [`flags`].
    pub flags: u8,
    /// A value and bits of module [`gso_type`].
    pub gso_type: u8,
    /// Length of all headers in bytes; a hint only.
    pub hdr_len: u16,
    /// Payload bytes of each segment except the last.
    pub gso_size: u16,
    /// Start of the data that the checksum covers.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Number of buffers; TAP ignores it. From [`Layout::V1`] on.
    pub num_buffers: u16,
    /// Hash of the flow. [`Layout::Tunnel`] only.
    pub hash_value: u32,
    /// Kind of the hash. [`Layout::Tunnel`] only.
    pub hash_report: u16,
    /// Start of the outer UDP header. [`Layout::Tunnel`] only.
    pub outer_th_offset: u16,
    /// Start of the inner IP header. [`Layout::Tunnel`] only.
    pub inner_nh_offset: u16,
}

/// A GSO packet as announced by a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gso {
    /// Kind of the segments.
    pub kind: GsoKind,
    /// Payload bytes of each segment except the last; never 0.
    pub size: u16,
    /// The tunnel around it, if any.
    pub tunnel: Option<GsoTunnel>,
}

/// Kind of a GSO packet's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GsoKind {
    /// Segments of TCP over IPv4 (TSO).
    TcpV4,
    /// Segments of TCP over IPv6 (TSO).
    TcpV6,
    /// Datagrams of UDP over IPv4 or IPv6 (USO).
    Udp,
}

/// The tunnel around a GSO packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GsoTunnel {
    /// Whether the outer packet is IPv6.
    pub ipv6: bool,
    /// Whether each segment gets an outer UDP checksum.
    pub checksum: bool,
}

/// Why a header does not announce a packet that can be segmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum GsoError {
    /// An unknown type, or UDP fragmentation.
    #[error("gso_type {0:#04x} is not TCPV4, TCPV6 or UDP_L4")]
    Type(u8),
    /// The bits for IPv4 and for IPv6 tunnels are both set.
    #[error("gso_type {0:#04x} names both an IPv4 and an IPv6 tunnel")]
    BothTunnels(u8),
    /// The segment size is 0.
    #[error("gso_size is 0")]
    Size,
}

impl VnetHdr {
    /// Parses a header of that layout from the start of `bytes`.
    ///
    /// # Errors
    /// If there are too few bytes. The values of the fields are not validated.
    pub fn parse(bytes: &[u8], layout: Layout) -> Result<VnetHdr, ParseError> {
        let short = || ParseError::short(Layer::VnetHdr, layout.size(), bytes.len());
        let le16 = |b: &[u8; 24], at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
        let mut b = [0; 24];
        let got = bytes.get(..layout.size()).ok_or_else(short)?;
        b[..got.len()].copy_from_slice(got);
        Ok(VnetHdr {
            flags: b[0],
            gso_type: b[1],
            hdr_len: le16(&b, 2),
            gso_size: le16(&b, 4),
            csum_start: le16(&b, 6),
            csum_offset: le16(&b, 8),
            num_buffers: le16(&b, 10),
            hash_value: u32::from_le_bytes([b[12], b[13], b[14], b[15]]),
            hash_report: le16(&b, 16),
            // 18: padding
            outer_th_offset: le16(&b, 20),
            inner_nh_offset: le16(&b, 22),
        })
    }

    /// Returns the header in the longest layout; the other layouts are prefixes of it.
    pub fn to_bytes(&self) -> [u8; 24] {
        let mut b = [0; 24];
        b[0] = self.flags;
        b[1] = self.gso_type;
        b[2..4].copy_from_slice(&self.hdr_len.to_le_bytes());
        b[4..6].copy_from_slice(&self.gso_size.to_le_bytes());
        b[6..8].copy_from_slice(&self.csum_start.to_le_bytes());
        b[8..10].copy_from_slice(&self.csum_offset.to_le_bytes());
        b[10..12].copy_from_slice(&self.num_buffers.to_le_bytes());
        b[12..16].copy_from_slice(&self.hash_value.to_le_bytes());
        b[16..18].copy_from_slice(&self.hash_report.to_le_bytes());
        b[20..22].copy_from_slice(&self.outer_th_offset.to_le_bytes());
        b[22..24].copy_from_slice(&self.inner_nh_offset.to_le_bytes());
        b
    }

    /// Writes the header in that layout; returns its length in bytes.
    ///
    /// # Errors
    /// If the buffer is too small, or `gso_type` names a tunnel that the layout cannot describe.
    pub fn emit(&self, layout: Layout, buffer: &mut [u8]) -> Result<usize, crate::EmitError> {
        let size = layout.size();
        let tunnel = gso_type::UDP_TUNNEL_IPV4 | gso_type::UDP_TUNNEL_IPV6;
        // Only the tunnel layout has the offsets of the inner headers.
        if self.gso_type & tunnel != 0 && layout != Layout::Tunnel {
            let wanted = Layout::Tunnel.size();
            return Err(crate::EmitError::Buffer { layer: Layer::VnetHdr, wanted, got: size });
        }
        let room = crate::error::room(buffer, Layer::VnetHdr, size)?;
        room.copy_from_slice(&self.to_bytes()[..size]);
        Ok(size)
    }

    /// Returns whether the checksum at `csum_start + csum_offset` is partial.
    pub const fn needs_csum(&self) -> bool {
        self.flags & flags::NEEDS_CSUM != 0
    }

    /// Returns whether the checksum can be trusted: verified, or partial because the packet never
    /// left the machine.
    pub const fn checksum_is_trusted(&self) -> bool {
        self.flags & (flags::NEEDS_CSUM | flags::DATA_VALID) != 0
    }

    /// Returns the announced GSO packet; `None` for a single packet.
    ///
    /// # Errors
    /// For types that cannot be segmented, see [`GsoError`].
    pub const fn gso(&self) -> Result<Option<Gso>, GsoError> {
        use gso_type::{ECN, UDP_TUNNEL_IPV4, UDP_TUNNEL_IPV6};
        let kind = match self.gso_type & !(ECN | UDP_TUNNEL_IPV4 | UDP_TUNNEL_IPV6) {
            gso_type::NONE if self.gso_type == 0 => return Ok(None),
            gso_type::TCPV4 => GsoKind::TcpV4,
            gso_type::TCPV6 => GsoKind::TcpV6,
            gso_type::UDP_L4 => GsoKind::Udp,
            // UFO and unknown types.
            _ => return Err(GsoError::Type(self.gso_type)),
        };
        let checksum = self.flags & flags::UDP_TUNNEL_CSUM != 0;
        let tunnel = match self.gso_type & (UDP_TUNNEL_IPV4 | UDP_TUNNEL_IPV6) {
            0 => None,
            UDP_TUNNEL_IPV4 => Some(GsoTunnel { ipv6: false, checksum }),
            UDP_TUNNEL_IPV6 => Some(GsoTunnel { ipv6: true, checksum }),
            _ => return Err(GsoError::BothTunnels(self.gso_type)),
        };
        // The kernel refuses ECN on anything but TCP.
        if matches!(kind, GsoKind::Udp) && self.gso_type & ECN != 0 {
            return Err(GsoError::Type(self.gso_type));
        }
        // A GSO packet cannot be divided into segments without payload.
        if self.gso_size == 0 {
            return Err(GsoError::Size);
        }
        Ok(Some(Gso { kind, size: self.gso_size, tunnel }))
    }
}

/// Parses a header, for readers that get header and frame in one buffer; returns both.
///
/// # Errors
/// If there are too few bytes.
pub fn split(bytes: &[u8], layout: Layout) -> Result<(VnetHdr, &[u8]), ParseError> {
    let header = VnetHdr::parse(bytes, layout)?;
    match bytes.get(layout.size()..) {
        Some(frame) => Ok((header, frame)),
        None => Err(ParseError::new(
            Layer::VnetHdr,
            0,
            Wanted::Bytes(layout.size() as u64),
            bytes.len() as u64,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layout_is_written_and_read_field_by_field() {
        let header = VnetHdr {
            flags: flags::NEEDS_CSUM | flags::UDP_TUNNEL_CSUM,
            gso_type: gso_type::TCPV6 | gso_type::UDP_TUNNEL_IPV4 | gso_type::ECN,
            hdr_len: 0x0102,
            gso_size: 0x0304,
            csum_start: 0x0506,
            csum_offset: 0x0708,
            num_buffers: 0x090a,
            hash_value: 0x0b0c0d0e,
            hash_report: 0x0f10,
            outer_th_offset: 0x1112,
            inner_nh_offset: 0x1314,
        };
        let bytes = header.to_bytes();
        assert_eq!(
            bytes,
            [
                9, 0xa4, 2, 1, 4, 3, 6, 5, 8, 7, 0xa, 9, 0xe, 0xd, 0xc, 0xb, 0x10, 0xf, 0, 0, 0x12,
                0x11, 0x14, 0x13
            ]
        );
        assert_eq!(VnetHdr::parse(&bytes, Layout::Tunnel), Ok(header));
        let v1 = VnetHdr::parse(&bytes, Layout::V1).unwrap();
        assert_eq!((v1.num_buffers, v1.hash_value, v1.inner_nh_offset), (0x090a, 0, 0));
        assert_eq!(VnetHdr::parse(&bytes, Layout::Basic).unwrap().num_buffers, 0);
        for layout in [Layout::Basic, Layout::V1, Layout::Tunnel] {
            assert!(VnetHdr::parse(&bytes[..layout.size() - 1], layout).is_err());
        }
        let mut buffer = [0; 24];
        assert!(header.emit(Layout::V1, &mut buffer).is_err(), "no room for the tunnel");
        assert_eq!(header.emit(Layout::Tunnel, &mut buffer), Ok(24));
        assert_eq!(buffer, bytes);
    }

    #[test]
    fn packets_that_cannot_be_segmented_are_refused() {
        let gso = |gso_type, gso_size| VnetHdr { gso_type, gso_size, ..VnetHdr::default() }.gso();
        assert_eq!(gso(0, 0), Ok(None));
        assert_eq!(gso(1, 0), Err(GsoError::Size));
        assert_eq!(gso(3, 1), Err(GsoError::Type(3)));
        assert_eq!(gso(0x85, 1), Err(GsoError::Type(0x85)));
        assert_eq!(gso(0x20, 1), Err(GsoError::Type(0x20)));
        assert_eq!(gso(0x61, 1), Err(GsoError::BothTunnels(0x61)));
        let tunnel = Some(GsoTunnel { ipv6: true, checksum: false });
        assert_eq!(gso(0xc4, 9), Ok(Some(Gso { kind: GsoKind::TcpV6, size: 9, tunnel })));
    }
}
