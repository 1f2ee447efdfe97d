//! Attributes drops by the kernel's drop reasons.

use std::collections::BTreeMap;

use super::Ledger;
use crate::sampler::{Dropped, NamespaceSample};

/// Datagrams explained by the kernel's reasons. Counters that count the same drops again only
/// explain the excess.
#[derive(Debug, Default)]
pub(super) struct ExplainedDrops {
    /// At sockets, by namespace.
    pub sockets: BTreeMap<String, u64>,
    /// At netfilter, including connection tracking, by namespace.
    pub netfilter: BTreeMap<String, u64>,
    /// At softnet backlogs of any CPU.
    pub backlog: u64,
    pub total: u64,
}

/// LossPlace that a drop reason stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LossPlace {
    /// A socket of the namespace, with its label.
    Socket(&'static str),
    /// The namespace's IP layer, with its label.
    Ip(&'static str),
    Netfilter,
    Backlog,
    Qdisc,
    /// A queue of fixed length between a device and its reader.
    Ring,
    /// The device itself: down, not ready, or unfit for the packet.
    Device,
    /// A copy for another receiver: from a flooding bridge or for a packet socket.
    NotOurs,
    Other,
}

fn place(reason: &str, function: Option<&str>) -> LossPlace {
    match reason {
        // Exhausted reassembly memory has no drop reason of its own.
        "NOT_SPECIFIED" if function.is_some_and(is_reassembly) => LossPlace::Ip("reassembly"),
        "SOCKET_RCVBUFF" => LossPlace::Socket("socket buffer"),
        "PROTO_MEM" => LossPlace::Socket("UDP memory limit"),
        "NO_SOCKET" => LossPlace::Socket("no socket"),
        "UDP_CSUM" => LossPlace::Socket("UDP checksum"),
        "SOCKET_FILTER" => LossPlace::Socket("socket filter"),
        "PKT_TOO_BIG" => LossPlace::Ip("packet too big"),
        "FRAG_REASM_TIMEOUT" | "FRAG_TOO_FAR" | "DUP_FRAG" => LossPlace::Ip("reassembly"),
        "IP_OUTNOROUTES" | "IP_INNOROUTES" => LossPlace::Ip("no route"),
        "NETFILTER_DROP" => LossPlace::Netfilter,
        "CPU_BACKLOG" => LossPlace::Backlog,
        "FULL_RING" => LossPlace::Ring,
        "DEV_READY" | "DEV_HDR" | "SKB_GSO_SEG" => LossPlace::Device,
        "OTHERHOST" | "PACKET_SOCK_ERROR" => LossPlace::NotOurs,
        _ if reason.starts_with("QDISC_") => LossPlace::Qdisc,
        _ => LossPlace::Other,
    }
}

/// Returns whether a function belongs to fragment reassembly (`net/ipv4/ip_fragment.c`,
/// `net/ipv4/inet_fragment.c`, `net/ipv6/reassembly.c`).
fn is_reassembly(function: &str) -> bool {
    ["ip_defrag", "ip_frag_", "inet_frag_", "ipv6_frag_", "ip6_frag_"]
        .iter()
        .any(|name| function.starts_with(name))
}

/// Charges the kernel's drops by namespace, beginning with the receiver's, sockets first.
pub(super) fn charge(
    ledger: &mut Ledger,
    drops: &[(String, Dropped)],
    namespaces: &[NamespaceSample],
) -> ExplainedDrops {
    let mut seen = ExplainedDrops::default();
    let mut order: Vec<(usize, &(String, Dropped))> = Vec::new();
    let mut labels: Vec<&str> = Vec::new();
    for drop in drops {
        // Drops of one namespace are adjacent.
        if labels.last() != Some(&drop.0.as_str()) {
            labels.push(&drop.0);
        }
        let rank = match place(&drop.1.reason, drop.1.function.as_deref()) {
            // Copies for other receivers come last: they only explain the rest.
            LossPlace::NotOurs => 2 * drops.len(),
            LossPlace::Socket(_) => 2 * labels.len(),
            _ => 2 * labels.len() + 1,
        };
        order.push((rank, drop));
    }
    order.sort_by_key(|(rank, _)| *rank);
    for (_, (label, drop)) in order {
        let mut packets = drop.packets;
        let at = |what: &str| match drop.device.as_str() {
            "" => format!("{label} {what}"),
            device => format!("{label} {device} {what}"),
        };
        let name = match place(&drop.reason, drop.function.as_deref()) {
            LossPlace::Socket(words) => {
                *seen.sockets.entry(label.clone()).or_default() += packets;
                format!("{label} {words}")
            }
            LossPlace::Ip(words) => format!("{label} {words}"),
            LossPlace::Netfilter => {
                // A full conntrack table and a rule have the same reason; conntrack counts its own
                // drops.
                let refused = namespaces
                    .iter()
                    .find(|namespace| namespace.label == *label)
                    .map_or(0, super::conntrack_refused);
                let netfilter = seen.netfilter.entry(label.clone()).or_default();
                let tracked = refused.saturating_sub(*netfilter).min(packets);
                *netfilter += packets;
                seen.total += tracked;
                packets -= tracked;
                ledger.charge(format!("{label} conntrack"), tracked, 1.0);
                format!("{label} netfilter")
            }
            LossPlace::Backlog => {
                seen.backlog += packets;
                at("softnet backlog")
            }
            LossPlace::Qdisc => at("qdisc"),
            LossPlace::Ring => at("ring"),
            LossPlace::Device => at("device"),
            LossPlace::NotOurs | LossPlace::Other => {
                let function = drop.function.as_deref();
                let function = function.map(|f| format!(" ({f})")).unwrap_or_default();
                match drop.device.as_str() {
                    "" => format!("{label}: {}{function}", drop.reason),
                    device => format!("{label} {device}: {}{function}", drop.reason),
                }
            }
        };
        seen.total += packets;
        ledger.charge(name, packets, 1.0);
    }
    seen
}
