//! Why a packet was not merged.

use crate::frame::Unsupported;

/// Why a packet was not merged. Reasons of the first group make a packet unfit for
/// merging with any other. Reasons of the second make it unfit for the GSO packet of
/// its flow that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Not TCP or UDP in a whole IP packet.
    #[error(transparent)]
    Headers(Unsupported),
    /// It is a GSO packet already.
    #[error("GSO packet already")]
    Super,
    /// UDP is not to be merged.
    #[error("UDP is not merged")]
    UdpOff,
    /// The IPv4 header has options: GRO of the kernel does not merge those either.
    #[error("IPv4 options")]
    Ipv4Options,
    /// The IPv4 header checksum is wrong.
    #[error("wrong IPv4 header checksum")]
    HeaderChecksum,
    /// The packet does not end where the frame ends.
    #[error("padding after the packet")]
    Padding,
    /// The UDP length is not the IP payload's.
    #[error("UDP length is not the IP payload's")]
    UdpLength,
    /// The transport checksum is wrong.
    #[error("wrong transport checksum")]
    Checksum,
    /// A UDP packet without checksum.
    #[error("UDP without checksum")]
    NoChecksum,
    /// No payload: a pure acknowledgement for instance.
    #[error("no payload")]
    NoPayload,
    /// SYN, RST or URG is set.
    #[error("SYN, RST or URG")]
    Control,
    /// FIN or PSH is set and nothing is held to which it could be the end.
    #[error("FIN or PSH without a beginning")]
    Ends,

    /// Hardware addresses or VLAN differ.
    #[error("other link header")]
    Link,
    /// The headers have other lengths, or one is in a tunnel.
    #[error("other header lengths")]
    HeaderLength,
    /// TOS octet or traffic class differs, for instance by CE.
    #[error("other TOS or traffic class")]
    Tos,
    /// TTL or hop limit differs.
    #[error("other TTL or hop limit")]
    Ttl,
    /// The Don't Fragment bit of the IPv4 header differs.
    #[error("other DF")]
    DontFragment,
    /// The IPv4 ID is not the next one (nor, with DF, always the same).
    #[error("IPv4 ID out of order")]
    Id,
    /// The flow label differs.
    #[error("other flow label")]
    FlowLabel,
    /// IPv6 extension headers differ.
    #[error("other extension headers")]
    Extensions,
    /// CWR, which a GSO packet can have on its first segment only.
    #[error("CWR after the first segment")]
    Cwr,
    /// Another flag differs but FIN and PSH.
    #[error("other TCP flags")]
    Flags,
    /// The receive window differs.
    #[error("other window")]
    Window,
    /// The acknowledgement number differs.
    #[error("other acknowledgement number")]
    Acknowledgement,
    /// The urgent pointer differs.
    #[error("other urgent pointer")]
    Urgent,
    /// The options differ, for instance a timestamp.
    #[error("other TCP options")]
    TcpOptions,
    /// The sequence number is not the next one: loss, repetition or reordering.
    #[error("sequence number out of order")]
    Sequence,
    /// The payload is longer than the segments before.
    #[error("longer than the segments before")]
    Longer,
    /// The GSO packet would become too large.
    #[error("GSO packet is full")]
    Full,
    /// The tunnel's headers differ: ports, VNI or presence of a checksum.
    #[error("other tunnel headers")]
    Tunnel,
}
