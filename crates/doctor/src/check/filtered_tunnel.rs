//! OV071: A packet filter drops a tunnel's outer packets.

use super::packet_filter::{Accept, add, dropped};
use super::{Check, CheckOutcome, Severity, View};
use crate::host::PassageKind;

pub(super) const CHECK: Check = Check {
    code: "OV071",
    title: "A packet filter drops the tunnel's packets",
    severity: Severity::Error,
    explanation: "The rules of nftables, iptables-nft or iptables-legacy drop UDP datagrams to the \
        port of a tunnel, between this host and a remote VTEP, in the direction named, ICMP \
        \"fragmentation needed\" about them, or ARP and neighbour discovery for the tunnel's address \
        (arptables of a load balancer). A network plug-in may drop all other packets to its \
        port, or the firewall has no rule that accepts the tunnel. doctor evaluates the \
        rules for these packets as for the first of a connection. Where a rule depends on more \
        than that, it reports nothing.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, passage) in dropped(view, outcome) {
        let (what, severity, share) = match passage.kind {
            PassageKind::TunnelOut => ("outgoing UDP", Severity::Error, 1.0),
            PassageKind::TunnelIn => ("incoming UDP", Severity::Error, 1.0),
            // Only a smaller MTU on the way makes it matter.
            PassageKind::FragmentationNeeded => {
                ("ICMP \"fragmentation needed\"", Severity::Warn, 0.3)
            }
            PassageKind::Solicitation => ("ICMPv6 neighbour solicitations", Severity::Error, 1.0),
            PassageKind::Resolution => ("ARP requests", Severity::Error, 1.0),
            _ => continue,
        };
        let (from, to, port) = (passage.from, passage.to, passage.port);
        let text = match port {
            0 => format!("{what} from {from} to {to}"),
            _ => format!("{what} {port} from {from} to {to}"),
        };
        let family = if to.is_ipv4() { "ip" } else { "ip6" };
        let accept = match port {
            0 if to.is_ipv6() => Accept {
                nft: "icmpv6 type nd-neighbor-solicit accept".to_owned(),
                iptables: "-p icmpv6 --icmpv6-type neighbour-solicitation".to_owned(),
            },
            0 if passage.kind == PassageKind::Resolution => Accept {
                nft: format!("arp saddr ip {from} arp daddr ip {to} accept"),
                // Rules of iptables do not see ARP.
                iptables: String::new(),
            },
            0 => Accept {
                nft: format!("{family} saddr {from} icmp type destination-unreachable accept"),
                iptables: format!("-s {from} -p icmp --icmp-type destination-unreachable"),
            },
            _ => Accept {
                nft: format!("{family} saddr {from} {family} daddr {to} udp dport {port} accept"),
                iptables: format!("-s {from} -d {to} -p udp --dport {port}"),
            },
        };
        add(&CHECK, outcome, namespace, passage, &text, (severity, share), &accept);
    }
}
