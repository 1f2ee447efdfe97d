//! Errors of parsing and emitting.

use std::fmt;

/// Format in which an error was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layer {
    /// IEEE 802.3 header.
    Ethernet,
    /// IEEE 802.1Q or 802.1ad tag.
    Vlan,
    /// RFC 826.
    Arp,
    /// RFC 791.
    Ipv4,
    /// RFC 8200, fixed header.
    Ipv6,
    /// RFC 8200, extension header.
    Ipv6Extension,
    /// RFC 792.
    Icmp,
    /// RFC 4443 and RFC 4861.
    Icmpv6,
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 7348.
    Vxlan,
    /// `include/uapi/linux/virtio_net.h`.
    VnetHdr,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Ethernet => "Ethernet",
            Layer::Vlan => "VLAN tag",
            Layer::Arp => "ARP",
            Layer::Ipv4 => "IPv4",
            Layer::Ipv6 => "IPv6",
            Layer::Ipv6Extension => "IPv6 extension header",
            Layer::Icmp => "ICMP",
            Layer::Icmpv6 => "ICMPv6",
            Layer::Tcp => "TCP",
            Layer::Udp => "UDP",
            Layer::Vxlan => "VXLAN",
            Layer::VnetHdr => "virtio-net header",
        })
    }
}

/// Expected value of a field or length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// This many bytes or more, from here on.
    Bytes(u64),
    /// Exactly this value of the field.
    Value(&'static str, u64),
    /// At least this value of the field.
    AtLeast(&'static str, u64),
    /// At most this value of the field.
    AtMost(&'static str, u64),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Bytes(n) => write!(f, "{n} bytes"),
            Wanted::Value(field, v) => write!(f, "{field} {v}"),
            Wanted::AtLeast(field, v) => write!(f, "{field} of at least {v}"),
            Wanted::AtMost(field, v) => write!(f, "{field} of at most {v}"),
        }
    }
}

/// Bytes are not in the expected format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{layer} at byte {offset}: expected {wanted}, got {got}")]
pub struct ParseError {
    /// The expected format.
    pub layer: Layer,
    /// Offset of the error from the start of the parsed bytes.
    pub offset: usize,
    /// The expected value.
    pub wanted: Wanted,
    /// The actual value: a number of bytes, or the field's value.
    pub got: u64,
}

impl ParseError {
    pub(crate) const fn new(layer: Layer, offset: usize, wanted: Wanted, got: u64) -> ParseError {
        ParseError { layer, offset, wanted, got }
    }

    /// Returns the error for fewer bytes than a header needs.
    pub(crate) const fn short(layer: Layer, wanted: usize, got: usize) -> ParseError {
        ParseError::new(layer, 0, Wanted::Bytes(wanted as u64), got as u64)
    }

    /// Returns the error with an offset relative to a frame in which the layer starts at `base`.
    #[must_use]
    pub const fn shifted(self, base: usize) -> ParseError {
        ParseError { offset: self.offset + base, ..self }
    }
}

/// A header or packet cannot be written as requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EmitError {
    /// The caller's buffer is too small.
    #[error("{layer}: expected a buffer of {wanted} bytes, got {got}")]
    Buffer {
        /// Format of the header or packet.
        layer: Layer,
        /// Bytes that the header or packet needs.
        wanted: usize,
        /// Bytes that the buffer has.
        got: usize,
    },
    /// A length exceeds its field.
    #[error("{layer}: length {got} exceeds the field's limit of {limit}")]
    Length {
        /// The format with the length field.
        layer: Layer,
        /// Largest allowed length, bytes.
        limit: usize,
        /// Requested length, bytes.
        got: usize,
    },
    /// The length of options is not a multiple of four bytes.
    #[error("{layer}: options of {got} bytes are not a multiple of four")]
    Options {
        /// The format with the options.
        layer: Layer,
        /// Length of the options, bytes.
        got: usize,
    },
}

/// Returns the first `wanted` bytes of `buffer`.
pub(crate) fn room(buffer: &mut [u8], layer: Layer, wanted: usize) -> Result<&mut [u8], EmitError> {
    let got = buffer.len();
    buffer.get_mut(..wanted).ok_or(EmitError::Buffer { layer, wanted, got })
}
