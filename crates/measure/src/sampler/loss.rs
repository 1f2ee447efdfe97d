//! Attributes lost datagrams to places.
//!
//! One lost datagram can be counted at several places. A drop at the softnet backlog behind a veth
//! pair is counted at the backlog, at both devices, and also at the sender's IP layer and UDP
//! socket, as the error travels back.
//!
//! Places are therefore evaluated in order: first those that count whole datagrams of this path,
//! last those that count any packets. Each place only explains what earlier ones left. Never more
//! is attributed than was lost. The rest is reported as unattributed.
//!
//! If the kernel's drop reasons are known ([`Dropped`]), they come first. A packet is freed once,
//! so they count each drop once and identify the queue. Counters then only explain what exceeds
//! them.

use std::collections::BTreeMap;

use netstate::snmp::Udp;

use super::{Dropped, NamespaceSample};
use results::Loss;

mod kernel;

/// Datagrams sent and received, and the counters on the way.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Datagrams accepted by the sender's kernel.
    pub sent: u64,
    /// Datagrams read by the receiver.
    pub received: u64,
    /// Datagrams per skb on the path. Above 1 if UDP GSO packets stay whole, so that one dropped
    /// skb loses several datagrams. 1 for fragmented datagrams, too: any lost fragment loses the
    /// datagram.
    pub datagrams_per_skb: f64,
    /// Datagrams per skb at the receiving socket. Above 1 with `UDP_GRO`.
    pub datagrams_per_receive: f64,
    /// Every namespace on the path, including the sender's and the receiver's.
    pub namespaces: &'a [NamespaceSample],
    /// Packets dropped at a full softnet backlog, all CPUs.
    pub softnet_dropped: u64,
    /// Drops by device along the path (`a/veth0`).
    pub devices: &'a [(String, u64)],
    /// The kernel's drop reasons with the label of their namespace, grouped by namespace, the
    /// receiver's first; empty if BPF is not allowed.
    pub drops: &'a [(String, Dropped)],
    /// Drops in user space by program.
    pub programs: &'a [(String, u64)],
}

/// Attributes every lost datagram.
pub fn attribute(evidence: &Evidence<'_>) -> Loss {
    let mut ledger = Ledger::new(evidence.sent, evidence.received);
    let per_skb = evidence.datagrams_per_skb;

    let mut seen = kernel::charge(&mut ledger, evidence.drops, evidence.namespaces);
    for namespace in evidence.namespaces {
        let (udp, udp6) = (&namespace.counters.udp, &namespace.counters.udp6);
        let seen = seen.sockets.entry(namespace.label.clone()).or_default();
        let per_receive = evidence.datagrams_per_receive;
        sockets(&mut ledger, &namespace.label, &udp.plus(udp6), per_receive, seen);
    }
    for namespace in evidence.namespaces {
        let label = &namespace.label;
        let drops = namespace.packet_socket_drops.unwrap_or(0);
        ledger.charge_beyond(
            format!("{label} packet socket"),
            drops,
            per_skb,
            &mut seen.total.clone(),
        );
        let refused = conntrack_refused(namespace);
        let seen = seen.netfilter.entry(label.clone()).or_default();
        ledger.charge_beyond(format!("{label} conntrack"), refused, per_skb, seen);
    }
    for (program, dropped) in evidence.programs {
        // The drops of a program with a kernel engine also have kernel reasons.
        ledger.charge_beyond(program.clone(), *dropped, per_skb, &mut seen.total.clone());
    }
    let backlog = evidence.softnet_dropped;
    ledger.charge_beyond("softnet backlog".to_owned(), backlog, per_skb, &mut seen.backlog);
    // The backlog's drops also count at the devices before it, and a device's drops at the IP
    // layer above it: use only the excess.
    let mut downstream = evidence.softnet_dropped;
    for (device, drops) in evidence.devices {
        let new = drops.saturating_sub(evidence.softnet_dropped);
        ledger.charge_beyond(format!("{device} device"), new, per_skb, &mut seen.total.clone());
        downstream = downstream.saturating_add(new);
    }
    for namespace in evidence.namespaces {
        ip(&mut ledger, namespace, downstream, per_skb, seen.total);
    }
    ledger.close()
}

/// Returns the packets refused by connection tracking.
fn conntrack_refused(namespace: &NamespaceSample) -> u64 {
    // A failed insertion drops its packet and may also count as a drop.
    let refused = namespace.conntrack.unwrap_or_default();
    refused.drop.max(refused.insert_failed)
}

/// Charges datagrams dropped at sockets. Each cause of `InErrors` has one of three counters or
/// none; `NoPorts` is separate.
fn sockets(ledger: &mut Ledger, label: &str, udp: &Udp, per_receive: f64, seen: &mut u64) {
    let known = udp.rcvbuf_errors.saturating_add(udp.mem_errors).saturating_add(udp.in_csum_errors);
    for (cause, datagrams) in [
        ("socket buffer", udp.rcvbuf_errors),
        ("UDP memory limit", udp.mem_errors),
        ("UDP checksum", udp.in_csum_errors),
        ("UDP receive error", udp.in_errors.saturating_sub(known)),
        ("no socket", udp.no_ports),
    ] {
        ledger.charge_beyond(format!("{label} {cause}"), datagrams, per_receive, seen);
    }
}

/// Charges packets dropped at the IP layer of both versions.
fn ip(ledger: &mut Ledger, namespace: &NamespaceSample, downstream: u64, per_skb: f64, seen: u64) {
    let (ip, ext, ip6) =
        (&namespace.counters.ip, &namespace.counters.ip_ext, &namespace.counters.ip6);
    // IPv6 counts an oversized packet both as too big and as not fragmented.
    let too_big = ip.frag_fails + ip6.in_too_big_errors.max(ip6.frag_fails);
    for (cause, packets) in [
        ("reassembly", ip.reasm_fails + ip6.reasm_fails),
        ("packet too big", too_big),
        ("no route", ip.out_no_routes + ext.in_no_routes + ip6.in_no_routes + ip6.out_no_routes),
        (
            "IP input error",
            ip.in_hdr_errors
                + ip.in_addr_errors
                + ext.in_truncated_pkts
                + ext.in_csum_errors
                + ip6.in_hdr_errors
                + ip6.in_addr_errors
                + ip6.in_truncated_pkts,
        ),
        ("IP input discard", ip.in_discards + ip6.in_discards),
        // Drops of queueing disciplines appear here, although the socket saw success.
        ("IP output discard", (ip.out_discards + ip6.out_discards).saturating_sub(downstream)),
    ] {
        let place = format!("{} {cause}", namespace.label);
        // These counters may count any of the known drops again.
        ledger.charge_beyond(place, packets, per_skb, &mut seen.clone());
    }
}

/// Sums losses over samples, place by place.
pub fn total<'a>(losses: impl IntoIterator<Item = &'a Loss>) -> Loss {
    let mut sum = Loss::default();
    for loss in losses {
        sum.sent += loss.sent;
        sum.received += loss.received;
        sum.unattributed += loss.unattributed;
        for (place, datagrams) in &loss.places {
            *sum.places.entry(place.clone()).or_default() += datagrams;
        }
    }
    sum.fraction = fraction(sum.places.values().sum::<u64>() + sum.unattributed, sum.sent);
    sum
}

fn fraction(lost: u64, sent: u64) -> f64 {
    if sent > 0 { lost as f64 / sent as f64 } else { 0.0 }
}

/// Datagrams that are not explained yet.
struct Ledger {
    sent: u64,
    received: u64,
    left: u64,
    places: BTreeMap<String, u64>,
}

impl Ledger {
    fn new(sent: u64, received: u64) -> Ledger {
        // More received than sent means duplicates, which are no loss.
        Ledger { sent, received, left: sent.saturating_sub(received), places: BTreeMap::new() }
    }

    /// Attributes up to `count` drops of `datagrams_each` datagrams.
    fn charge(&mut self, place: String, count: u64, datagrams_each: f64) {
        self.charge_beyond(place, count, datagrams_each, &mut 0);
    }

    /// Like [`Self::charge`], for a counter of which `seen` datagrams may already be explained.
    /// Reduces `seen` by those.
    fn charge_beyond(&mut self, place: String, count: u64, datagrams_each: f64, seen: &mut u64) {
        // A float-to-integer cast saturates and maps NaN to 0. A drop loses at least one datagram,
        // whatever mean the caller passes.
        let datagrams = ((count as f64 * datagrams_each).round() as u64).max(count);
        let again = datagrams.min(*seen);
        *seen -= again;
        let taken = (datagrams - again).min(self.left);
        if taken > 0 {
            self.left -= taken;
            *self.places.entry(place).or_default() += taken;
        }
    }

    fn close(self) -> Loss {
        let lost = self.sent.saturating_sub(self.received);
        Loss {
            sent: self.sent,
            received: self.received,
            fraction: fraction(lost, self.sent),
            places: self.places,
            unattributed: self.left,
        }
    }
}

#[cfg(test)]
mod tests;
