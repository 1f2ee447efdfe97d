//! Where lost datagrams went.
//!
//! One lost datagram can be counted at several places. A drop at the softnet backlog behind
//! a veth pair shows at the backlog and at both devices. It also shows at the sender's IP
//! layer and UDP socket, as the error travels back.
//!
//! Places are therefore asked in an order: first those that count whole datagrams of this
//! very path, last those that count anything that passes. Each can only explain what the
//! ones before it left. Never is more attributed than was lost. What is left over at the
//! end is reported as unattributed.
//!
//! Where the kernel's own reasons are known ([`Dropped`]), they come first. A packet is
//! freed once, so they count each drop once, and say which queue it was. Counters then
//! explain only what goes beyond them.

use std::collections::BTreeMap;

use netstate::snmp::Udp;

use super::{Dropped, NamespaceSample};
use results::Loss;

mod kernel;

/// What was sent and received, and what was counted on the way.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Datagrams the sender's kernel accepted.
    pub sent: u64,
    /// Datagrams the receiver read.
    pub received: u64,
    /// Datagrams in one skb on the path: above 1 where UDP GSO packets
    /// cross uncut, so that one dropped skb loses several. 1 also where a
    /// datagram is cut into fragments: losing any of them loses it.
    pub datagrams_per_skb: f64,
    /// Datagrams in one skb at the receiving socket: above 1 with `UDP_GRO`.
    pub datagrams_per_receive: f64,
    /// Every namespace on the path, the sender's and receiver's among them.
    pub namespaces: &'a [NamespaceSample],
    /// Packets dropped at a full softnet backlog, all CPUs.
    pub softnet_dropped: u64,
    /// Device → packets dropped there, along the path (`a/veth0`).
    pub devices: &'a [(String, u64)],
    /// The kernel's own reasons with the label of their namespace, those of one
    /// namespace together, the receiver's namespace first; empty where BPF is
    /// not allowed.
    pub drops: &'a [(String, Dropped)],
    /// Program → packets it dropped in user space.
    pub programs: &'a [(String, u64)],
}

/// Accounts for every lost datagram.
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
        // A program that works in the kernel is seen there, too.
        ledger.charge_beyond(program.clone(), *dropped, per_skb, &mut seen.total.clone());
    }
    let backlog = evidence.softnet_dropped;
    ledger.charge_beyond("softnet backlog".to_owned(), backlog, per_skb, &mut seen.backlog);
    // The backlog's drops show at the devices before it, and a device's drops
    // at the IP layer above it; only what goes beyond them is new.
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

/// Packets that connection tracking refused.
fn conntrack_refused(namespace: &NamespaceSample) -> u64 {
    // A failed insertion drops its packet and may count it as dropped, too.
    let refused = namespace.conntrack.unwrap_or_default();
    refused.drop.max(refused.insert_failed)
}

/// Datagrams dropped at sockets: each cause of `InErrors` is one of three
/// counters or none, and `NoPorts` stands beside it.
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

/// Packets dropped at the IP layer, of both versions.
fn ip(ledger: &mut Ledger, namespace: &NamespaceSample, downstream: u64, per_skb: f64, seen: u64) {
    let (ip, ext, ip6) =
        (&namespace.counters.ip, &namespace.counters.ip_ext, &namespace.counters.ip6);
    // IPv6 counts an oversized packet as too big and as not cut.
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
        // Queueing disciplines show here: the socket was told of success.
        ("IP output discard", (ip.out_discards + ip6.out_discards).saturating_sub(downstream)),
    ] {
        let place = format!("{} {cause}", namespace.label);
        // Any of the drops seen may be counted here once more.
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

/// What is still to be explained.
struct Ledger {
    sent: u64,
    received: u64,
    left: u64,
    places: BTreeMap<String, u64>,
}

impl Ledger {
    fn new(sent: u64, received: u64) -> Ledger {
        // More received than sent are duplicates, which are not a loss.
        Ledger { sent, received, left: sent.saturating_sub(received), places: BTreeMap::new() }
    }

    /// Explains as much of what is left as `count` drops of `datagrams_each` can.
    fn charge(&mut self, place: String, count: u64, datagrams_each: f64) {
        self.charge_beyond(place, count, datagrams_each, &mut 0);
    }

    /// The same of a counter of which `seen` datagrams may have been explained
    /// already; takes off `seen` what it counts of them.
    fn charge_beyond(&mut self, place: String, count: u64, datagrams_each: f64, seen: &mut u64) {
        // A float-to-integer cast saturates, and of NaN it makes 0; a drop
        // loses at least one datagram whatever the caller's mean says.
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
