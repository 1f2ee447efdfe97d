//! Why bytes are not what they should be, or do not fit where they should go.

use std::fmt;

/// The format in which something was wrong.
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

/// What a field or a length should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// So many bytes from here on, or more.
    Bytes(u64),
    /// The field's value, exactly.
    Value(&'static str, u64),
    /// The field's value, or more.
    AtLeast(&'static str, u64),
    /// The field's value, or less.
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

/// Bytes that are not the format they were taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{layer} at byte {offset}: wanted {wanted}, got {got}")]
pub struct ParseError {
    /// The format that the bytes were taken for.
    pub layer: Layer,
    /// Where, in bytes from the start of what was given to be parsed.
    pub offset: usize,
    /// What should be there.
    pub wanted: Wanted,
    /// What is there: a number of bytes, or the field's value.
    pub got: u64,
}

impl ParseError {
    pub(crate) const fn new(layer: Layer, offset: usize, wanted: Wanted, got: u64) -> ParseError {
        ParseError { layer, offset, wanted, got }
    }

    /// Fewer bytes than the header needs.
    pub(crate) const fn short(layer: Layer, wanted: usize, got: usize) -> ParseError {
        ParseError::new(layer, 0, Wanted::Bytes(wanted as u64), got as u64)
    }

    /// The same error, seen from a frame in which the layer starts at `base`.
    #[must_use]
    pub const fn shifted(self, base: usize) -> ParseError {
        ParseError { offset: self.offset + base, ..self }
    }
}

/// A header or packet that cannot be written as asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EmitError {
    /// The caller's buffer is too small.
    #[error("{layer}: wanted a buffer of {wanted} bytes, got {got}")]
    Buffer {
        /// What was to be written.
        layer: Layer,
        /// Bytes that the header or packet needs.
        wanted: usize,
        /// Bytes that the buffer has.
        got: usize,
    },
    /// A length that its field cannot hold.
    #[error("{layer}: length {got} exceeds the field's limit of {limit}")]
    Length {
        /// The format with the length field.
        layer: Layer,
        /// Largest length that is allowed, bytes.
        limit: usize,
        /// Length that was asked for, bytes.
        got: usize,
    },
    /// Options whose length is not a multiple of four bytes.
    #[error("{layer}: options of {got} bytes are not a multiple of four")]
    Options {
        /// The format with the options.
        layer: Layer,
        /// Length of the options, bytes.
        got: usize,
    },
}

/// The first `wanted` bytes of `buffer`.
pub(crate) fn room(buffer: &mut [u8], layer: Layer, wanted: usize) -> Result<&mut [u8], EmitError> {
    let got = buffer.len();
    buffer.get_mut(..wanted).ok_or(EmitError::Buffer { layer, wanted, got })
}
