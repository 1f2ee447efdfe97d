//! Reasons why a packet was not merged.

use crate::frame::Unsupported;

/// Why a packet was not merged. The reasons of the first group exclude merging with any packet,
/// those of the second group only with the held GSO packet of its flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// It is not TCP or UDP in a complete IP packet.
    #[error(transparent)]
    Headers(Unsupported),
    /// It is a GSO packet already.
    #[error("GSO packet already")]
    Super,
    /// Merging UDP is disabled.
    #[error("UDP is not merged")]
    UdpOff,
    /// The IPv4 header has options. The kernel's GRO does not merge such packets either.
    #[error("IPv4 options")]
    Ipv4Options,
    /// The IPv4 header checksum is wrong.
    #[error("wrong IPv4 header checksum")]
    HeaderChecksum,
    /// The packet does not end where the frame ends.
    #[error("padding after the packet")]
    Padding,
    /// The UDP length differs from the length of the IP payload.
    #[error("UDP length differs from the IP payload's")]
    UdpLength,
    /// The transport checksum is wrong.
    #[error("wrong transport checksum")]
    Checksum,
    /// A UDP packet without a checksum.
    #[error("UDP without checksum")]
    NoChecksum,
    /// There is no payload, as in a pure acknowledgement.
    #[error("no payload")]
    NoPayload,
    /// SYN, RST or URG is set.
    #[error("SYN, RST or URG")]
    Control,
    /// FIN or PSH is set, and no packet is held that it could end.
    #[error("FIN or PSH on the first packet")]
    Ends,

    /// Hardware addresses or VLAN differ.
    #[error("different link header")]
    Link,
    /// The header lengths differ, or only one packet is in a tunnel.
    #[error("different header lengths")]
    HeaderLength,
    /// The TOS octet or traffic class differs, for example by CE.
    #[error("different TOS or traffic class")]
    Tos,
    /// TTL or hop limit differs.
    #[error("different TTL or hop limit")]
    Ttl,
    /// The Don't Fragment bit of the IPv4 header differs.
    #[error("different DF")]
    DontFragment,
    /// The IPv4 ID is not the next one (or, with DF, the same).
    #[error("IPv4 ID out of order")]
    Id,
    /// The flow label differs.
    #[error("different flow label")]
    FlowLabel,
    /// IPv6 extension headers differ.
    #[error("different extension headers")]
    Extensions,
    /// CWR is set, which a GSO packet can have on its first segment only.
    #[error("CWR after the first segment")]
    Cwr,
    /// A flag other than FIN and PSH differs.
    #[error("different TCP flags")]
    Flags,
    /// The receive window differs.
    #[error("different window")]
    Window,
    /// The acknowledgement number differs.
    #[error("different acknowledgement number")]
    Acknowledgement,
    /// The urgent pointer differs.
    #[error("different urgent pointer")]
    Urgent,
    /// The options differ, for example by a timestamp.
    #[error("different TCP options")]
    TcpOptions,
    /// The sequence number is not the next one, because of loss, repetition or reordering.
    #[error("sequence number out of order")]
    Sequence,
    /// The payload is longer than those of the previous segments.
    #[error("longer than the previous segments")]
    Longer,
    /// The GSO packet would become too large.
    #[error("GSO packet is full")]
    Full,
    /// The tunnel headers differ: ports, VNI or presence of a checksum.
    #[error("different tunnel headers")]
    Tunnel,
}
