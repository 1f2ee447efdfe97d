//! Explanations of the kernel's drop reasons, as they apply to overlay networks.

/// A drop reason explained in a sentence, with the `doctor` check to run next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// The kernel's name of the reason, without its prefix.
    pub reason: &'static str,
    /// One or two sentences, shown to users.
    pub meaning: &'static str,
    /// The `doctor` check that looks for the cause, if there is one.
    pub check: Option<&'static str>,
}

const fn of(
    reason: &'static str,
    check: Option<&'static str>,
    meaning: &'static str,
) -> Explanation {
    Explanation { reason, meaning, check }
}

/// Reasons from `include/net/dropreason-core.h` (Linux 6.18) that packets of an overlay can meet.
pub const EXPLANATIONS: &[Explanation] = &[
    of(
        bpf_load::NOT_TOLD,
        None,
        "This kernel reports no drop reasons (Linux 5.17 and newer do). Only the function is \
            known.",
    ),
    of(
        "VXLAN_ENTRY_EXISTS",
        None,
        "The forwarding table has a static entry that maps the sender's MAC address to another \
            remote endpoint than the one the packet came from.",
    ),
    of(
        "VXLAN_INVALID_HDR",
        None,
        "The VXLAN header has flags that this device does not support: another protocol uses this \
            port, or only the other endpoint has the extension enabled.",
    ),
    of(
        "VXLAN_VNI_NOT_FOUND",
        Some("OV034"),
        "No VXLAN device in this namespace has the packet's VNI.",
    ),
    of(
        "IP_TUNNEL_ECN",
        None,
        "The outer header is marked as congestion experienced, but the inner packet's sender does \
            not support ECN.",
    ),
    of(
        "TUNNEL_TXINFO",
        None,
        "The tunnel's device takes VNI and remote endpoint from each packet (external), and no \
            route or program set them for this packet.",
    ),
    of(
        "MAC_INVALID_SOURCE",
        Some("OV039"),
        "The source MAC address is multicast or the receiver's own: a duplicate address, or a \
            packet that was looped back.",
    ),
    of("LOCAL_MAC", None, "The destination MAC address belongs to this host."),
    of("ARP_PVLAN_DISABLE", None, "Proxy ARP for a port in a private VLAN is disabled."),
    of(
        "UDP_CSUM",
        Some("OV009"),
        "The UDP checksum is wrong: it was computed incorrectly, or the packet was changed \
            afterwards.",
    ),
    of(
        "TCP_CSUM",
        Some("OV009"),
        "The TCP checksum is wrong: it was computed incorrectly, or the packet was changed \
            afterwards.",
    ),
    of("SKB_CSUM", Some("OV009"), "The kernel could not compute or verify the checksum."),
    of("IP_CSUM", Some("OV009"), "The checksum of the IPv4 header is wrong."),
    of(
        "SOCKET_RCVBUFF",
        Some("OV031"),
        "The receiving socket's buffer is full: the reader is too slow, or the buffer is too \
            small.",
    ),
    of("PROTO_MEM", Some("OV031"), "Sockets of this protocol have reached their memory limit."),
    of(
        "SOCKET_BACKLOG",
        None,
        "The socket is in use by another CPU or process and its backlog is full.",
    ),
    of(
        "NO_SOCKET",
        None,
        "No socket listens on the destination port. doctor looks for the device of a tunnel's port \
            (OV033), and for programs that listen at another address (OV117).",
    ),
    of(
        "NETFILTER_DROP",
        None,
        "A rule of nftables, iptables or another netfilter hook dropped the packet. doctor \
            evaluates the rules: OV071 for a tunnel's packets, OV073 for tenants'.",
    ),
    of(
        "CPU_BACKLOG",
        Some("OV025"),
        "The backlog of a CPU is full: packets arrive faster than the CPU processes them \
            (net.core.netdev_max_backlog), or one flow exceeds its share.",
    ),
    of(
        "QDISC_DROP",
        Some("OV048"),
        "The queueing discipline is full, its policy drops the packet, or the device has no \
            carrier: no program reads a TUN or TAP device, or it is not up yet.",
    ),
    of("QDISC_OVERLIMIT", Some("OV048"), "The queueing discipline is full."),
    of(
        "QDISC_CONGESTED",
        Some("OV048"),
        "The queueing discipline dropped the packet because of congestion.",
    ),
    of(
        "FULL_RING",
        Some("OV046"),
        "The ring of the TUN or TAP device is full: its reader is too slow, or does not read.",
    ),
    of("DEV_READY", Some("OV051"), "The device is down, or has no carrier."),
    of("DEV_HDR", None, "The device could not build its link-layer header."),
    of(
        "PKT_TOO_BIG",
        Some("OV016"),
        "The packet exceeds the MTU of the path and must not be fragmented.",
    ),
    of("PKT_TOO_SMALL", None, "The packet is shorter than its headers state."),
    of("NO_TX_TARGET", Some("OV035"), "The packet has no output port or remote endpoint."),
    of(
        "BRIDGE_INGRESS_STP_STATE",
        Some("OV075"),
        "The bridge port is not in the forwarding state: spanning tree blocks it, or it was just \
            added.",
    ),
    of(
        "IP_RPFILTER",
        Some("OV042"),
        "The route back to the source uses another device, so reverse path filtering drops the \
            packet.",
    ),
    of(
        "IP_INADDRERRORS",
        Some("OV068"),
        "This host does not forward, or there is no route to the destination for packets from this \
            source.",
    ),
    of("IP_OUTNOROUTES", None, "There is no route to the destination."),
    of("IP_INNOROUTES", None, "There is no route to the destination."),
    of("IP_LOCAL_SOURCE", None, "The source address belongs to this host."),
    of("IP_INVALID_SOURCE", None, "The source address is not a valid source."),
    of("IP_INVALID_DEST", None, "The destination address is not valid here."),
    of(
        "NEIGH_FAILED",
        Some("OV041"),
        "The neighbour did not answer ARP or neighbour solicitations.",
    ),
    of("NEIGH_CREATEFAIL", Some("OV040"), "The neighbour table is full."),
    of(
        "NEIGH_QUEUEFULL",
        Some("OV041"),
        "Too many packets are queued until the neighbour's address is resolved.",
    ),
    of("NEIGH_DEAD", None, "The neighbour's entry is being removed."),
    of(
        "FRAG_REASM_TIMEOUT",
        Some("OV021"),
        "Not all fragments arrived before the reassembly timeout.",
    ),
    of("FRAG_TOO_FAR", Some("OV021"), "Too many fragments of later packets arrived first."),
    of("DUP_FRAG", None, "The fragment is a duplicate."),
    of("TC_INGRESS", None, "A traffic control filter or program at ingress dropped it."),
    of("TC_EGRESS", None, "A traffic control filter or program at egress dropped it."),
    of("XDP", None, "An XDP program dropped it."),
    of("TAP_FILTER", None, "The TAP device's filter dropped it."),
    of("TAP_TXFILTER", None, "The TAP device's address filter dropped it."),
    of("UNHANDLED_PROTO", None, "This host does not support the protocol."),
    of(
        "OTHERHOST",
        Some("OV069"),
        "The destination MAC address is not this device's: a neighbour or forwarding entry is \
            stale, or the packet was flooded.",
    ),
    of("SKB_GSO_SEG", None, "A GSO packet could not be segmented."),
    of("NOMEM", None, "The kernel is out of memory."),
    of("XFRM_POLICY", None, "An IPsec policy forbids the packet."),
    of(
        "TCP_OLD_DATA",
        None,
        "The connection received these bytes before: the sender sent them twice.",
    ),
    of("TCP_OFOMERGE", None, "The connection received these bytes before, out of order."),
    of("TCP_INVALID_SEQUENCE", None, "The bytes are outside the connection's window."),
    of("NOT_SPECIFIED", None, "The kernel gives no reason here."),
];

const NO_DEFRAG: &str = "The fragments of the packet overlap or do not fit, or the memory for \
    fragments is full (net.ipv4.ipfrag_high_thresh, net.ipv6.ip6frag_high_thresh).";

/// Explanations by kernel function, where the function is more specific than the reason.
const BY_FUNCTION: &[(&str, Explanation)] = &[
    (
        "br_dev_queue_push_xmit",
        of(
            "NOT_SPECIFIED",
            Some("OV014"),
            "The packet exceeds the MTU of the bridge port that it would leave through.",
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
            "The packet exceeds the MTU of the path. The kernel does not fragment IPv6 packets \
                that it forwards or encapsulates.",
        ),
    ),
    (
        "ip_error",
        of(
            "NOT_SPECIFIED",
            None,
            "A route of type blackhole, unreachable or prohibit matches the packet.",
        ),
    ),
];

/// Drops that lose nothing, by reason and function. The kernel gives an answer to a ping to the
/// program and drops its own copy; a connection that waits after its end uses up the last packet.
const USED: [(&str, &str); 3] =
    [("NO_SOCKET", "ping_rcv"), ("NOT_SPECIFIED", "tcp_v4_rcv"), ("NOT_SPECIFIED", "tcp_v6_rcv")];

/// Whether a packet had been used when the kernel dropped it.
pub fn is_used(reason: &str, function: Option<&str>) -> bool {
    is_one_of(reason, function, &USED)
}

/// Whether a drop is one of these, by reason and function.
pub fn is_one_of(reason: &str, function: Option<&str>, drops: &[(&str, &str)]) -> bool {
    // The compiler names clones of a function `function.part.0` and the like.
    let function = function.and_then(|function| function.split('.').next());
    function.is_some_and(|function| drops.contains(&(reason, function)))
}

/// Returns the explanation of a drop reason, the one for this kernel function if there is any.
/// `None`: the reason does not matter to overlays.
pub fn explanation(reason: &str, function: Option<&str>) -> Option<&'static Explanation> {
    let is_of =
        |(name, known): &&(&str, Explanation)| Some(*name) == function && known.reason == reason;
    let by_function = BY_FUNCTION.iter().find(is_of).map(|(_, known)| known);
    by_function.or_else(|| EXPLANATIONS.iter().find(|known| known.reason == reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_that_lose_nothing_are_known_by_reason_and_function() {
        assert!(is_used("NO_SOCKET", Some("ping_rcv")));
        assert!(is_used("NOT_SPECIFIED", Some("tcp_v4_rcv.cold")));
        let multicast = [("NOT_SPECIFIED", "ip6_mc_input")];
        assert!(is_one_of("NOT_SPECIFIED", Some("ip6_mc_input"), &multicast));
        // A closed port, a packet for another host, and a kernel without names of functions.
        for (reason, function) in [
            ("NO_SOCKET", Some("tcp_v4_rcv")),
            ("OTHERHOST", Some("ip_rcv_core")),
            ("NO_SOCKET", None),
        ] {
            assert!(!is_used(reason, function), "{reason}");
        }
    }
}
