//! What the kernel's reasons for dropping a packet mean to an overlay.

/// A reason in a sentence, and where to look on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// The kernel's name of it, without prefix.
    pub reason: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// The check of `doctor` that looks for the cause, where there is one.
    pub check: Option<&'static str>,
}

const fn of(
    reason: &'static str,
    check: Option<&'static str>,
    meaning: &'static str,
) -> Explanation {
    Explanation { reason, meaning, check }
}

/// Of `include/net/dropreason-core.h` (Linux 6.18): those that packets of an overlay meet.
const EXPLANATIONS: &[Explanation] = &[
    of(
        bpf_load::NOT_TOLD,
        None,
        "This kernel does not tell why it drops a packet (Linux 5.17 and \
       newer do): the function is what is known.",
    ),
    of(
        "VXLAN_ENTRY_EXISTS",
        None,
        "The forwarding table has a static entry for the \
       sender's MAC address at another remote end than the one that it came from.",
    ),
    of(
        "VXLAN_INVALID_HDR",
        None,
        "The VXLAN header has bits that this device does not know: \
       another protocol on this port, or an extension that only the other end has.",
    ),
    of(
        "VXLAN_VNI_NOT_FOUND",
        Some("OV034"),
        "No VXLAN device of this namespace has the network \
       identifier of the packet.",
    ),
    of(
        "IP_TUNNEL_ECN",
        None,
        "The outer header says that congestion was met, and the inner \
       packet's sender does not understand that.",
    ),
    of(
        "MAC_INVALID_SOURCE",
        Some("OV039"),
        "The sender's MAC address is a multicast one, or the \
       receiver's own: a duplicate, or a packet that came back.",
    ),
    of("LOCAL_MAC", None, "The destination's MAC address is one of this host."),
    of("ARP_PVLAN_DISABLE", None, "An answer on behalf of another port, which is switched off."),
    of(
        "UDP_CSUM",
        Some("OV009"),
        "The UDP checksum is wrong: computed wrongly, or over a packet \
       that was changed afterwards.",
    ),
    of(
        "TCP_CSUM",
        Some("OV009"),
        "The TCP checksum is wrong: computed wrongly, or over a packet \
       that was changed afterwards.",
    ),
    of("SKB_CSUM", Some("OV009"), "A checksum is wrong where it was computed or verified."),
    of("IP_CSUM", Some("OV009"), "The checksum of the IPv4 header is wrong."),
    of(
        "SOCKET_RCVBUFF",
        Some("OV031"),
        "The receiving socket's buffer is full: the reader is \
       too slow, or its buffer too small.",
    ),
    of(
        "PROTO_MEM",
        Some("OV031"),
        "The memory that sockets of this protocol may have is used \
       up.",
    ),
    of("SOCKET_BACKLOG", None, "The socket is busy and its backlog full."),
    of("NO_SOCKET", None, "Nobody listens on the destination's port."),
    of(
        "NETFILTER_DROP",
        None,
        "A rule of nftables, iptables or another netfilter hook dropped \
       it.",
    ),
    of(
        "CPU_BACKLOG",
        Some("OV025"),
        "The backlog of a CPU is full: packets come faster than it \
       takes them (net.core.netdev_max_backlog), or one flow has more than its share.",
    ),
    of(
        "QDISC_DROP",
        Some("OV048"),
        "The queueing discipline is full, its policy drops, or the device has no carrier.",
    ),
    of("QDISC_OVERLIMIT", Some("OV048"), "The queueing discipline is full."),
    of("QDISC_CONGESTED", Some("OV048"), "The queueing discipline sees congestion."),
    of("FULL_RING", Some("OV046"), "The ring of the TAP device is full: its reader is too slow."),
    of("DEV_READY", Some("OV051"), "The device is down, or has no carrier."),
    of("DEV_HDR", None, "The device could not make its header."),
    of(
        "PKT_TOO_BIG",
        Some("OV016"),
        "The packet is longer than the MTU of the path, and may not \
       be cut.",
    ),
    of("PKT_TOO_SMALL", None, "The packet is shorter than its headers say."),
    of("NO_TX_TARGET", Some("OV035"), "No port or remote end is there to send it to."),
    of(
        "BRIDGE_INGRESS_STP_STATE",
        None,
        "The bridge port does not forward: spanning tree, or it \
       was just added.",
    ),
    of(
        "IP_RPFILTER",
        Some("OV042"),
        "An answer to the sender would leave by another device: \
       reverse path filtering drops it.",
    ),
    of("IP_INADDRERRORS", None, "No route leads to the destination for a packet from there."),
    of("IP_OUTNOROUTES", None, "No route leads to the destination."),
    of("IP_INNOROUTES", None, "No route leads to the destination."),
    of("IP_LOCAL_SOURCE", None, "The sender's address is one of this host."),
    of("IP_INVALID_SOURCE", None, "The sender's address cannot be one."),
    of("IP_INVALID_DEST", None, "The destination's address cannot be one here."),
    of("NEIGH_FAILED", Some("OV041"), "Nobody answered for the neighbour's address."),
    of("NEIGH_CREATEFAIL", Some("OV040"), "The neighbour table is full."),
    of("NEIGH_QUEUEFULL", Some("OV041"), "Too many packets wait for the neighbour's address."),
    of("NEIGH_DEAD", None, "The neighbour's entry is being removed."),
    of("FRAG_REASM_TIMEOUT", Some("OV021"), "Not all fragments came in time."),
    of("FRAG_TOO_FAR", Some("OV021"), "Fragments of later packets overtook too many."),
    of("DUP_FRAG", None, "The fragment came before."),
    of("TC_INGRESS", None, "A traffic control filter or program at ingress dropped it."),
    of("TC_EGRESS", None, "A traffic control filter or program at egress dropped it."),
    of("XDP", None, "An XDP program dropped it."),
    of("TAP_FILTER", None, "The TAP device's filter dropped it."),
    of("TAP_TXFILTER", None, "The TAP device's address filter dropped it."),
    of("UNHANDLED_PROTO", None, "Nobody here understands this protocol."),
    of(
        "OTHERHOST",
        Some("OV039"),
        "The destination's MAC address is not this device's: a stale \
       neighbour or forwarding entry, or flooding.",
    ),
    of("SKB_GSO_SEG", None, "A GSO packet could not be cut."),
    of("NOMEM", None, "No memory was left."),
    of("XFRM_POLICY", None, "An IPsec policy forbids it."),
    of("TCP_OLD_DATA", None, "The connection has these bytes already: sent twice."),
    of("TCP_OFOMERGE", None, "The connection has these bytes already."),
    of("TCP_INVALID_SEQUENCE", None, "The bytes are outside of the connection's window."),
    of("NOT_SPECIFIED", None, "The kernel tells no reason here."),
];

const NO_DEFRAG: &str = "Fragments of the packet overlap or do not fit, or the memory for \
    fragments is full (net.ipv4.ipfrag_high_thresh, net.ipv6.ip6frag_high_thresh).";

/// The same by function of the kernel, where that tells more than the reason.
const BY_FUNCTION: &[(&str, Explanation)] = &[
    (
        "br_dev_queue_push_xmit",
        of(
            "NOT_SPECIFIED",
            Some("OV014"),
            "The packet is longer than the MTU of the bridge port that it is to leave by.",
        ),
    ),
    (
        "__dev_forward_skb2",
        of(
            "NOT_SPECIFIED",
            Some("OV015"),
            "The other end of the veth pair is down, or its MTU is smaller than the packet.",
        ),
    ),
    ("ip_defrag", of("NOT_SPECIFIED", Some("OV021"), NO_DEFRAG)),
    ("ipv6_frag_rcv", of("NOT_SPECIFIED", Some("OV021"), NO_DEFRAG)),
    (
        "ip6_fragment",
        of(
            "NOT_SPECIFIED",
            Some("OV013"),
            "The packet is longer than the MTU of the path. The kernel cuts no IPv6 packets that \
             it forwards, and none of its tunnels.",
        ),
    ),
    (
        "ip_error",
        of("NOT_SPECIFIED", None, "A route forbids it: blackhole, unreachable, prohibit."),
    ),
];

/// What a reason means, told by this function of the kernel; `None` for those that tell nothing
/// about overlays.
pub fn explanation(reason: &str, function: Option<&str>) -> Option<&'static Explanation> {
    let is_of =
        |(name, known): &&(&str, Explanation)| Some(*name) == function && known.reason == reason;
    let by_function = BY_FUNCTION.iter().find(is_of).map(|(_, known)| known);
    by_function.or_else(|| EXPLANATIONS.iter().find(|known| known.reason == reason))
}
