//! OV107: Whether a packet filter drops packets depends on more than addresses and ports.

use std::collections::BTreeSet;

use super::packet_filter::{named_rule, source};
use super::rule_drops::counter_source;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::{Filtered, PassageKind};

pub(super) const CHECK: Check = Check {
    code: "OV107",
    title: "A packet filter may drop some packets",
    severity: Severity::Info,
    explanation: "An overlay's packets reach a rule that drops some of them: at random, above a \
        rate or a number of connections, or by a property that doctor does not evaluate. doctor \
        cannot decide whether it drops too many. Compare the rule's counter with the packets that \
        are missing (`nft list ruleset`, `iptables -vnL`); `overlane trace` names the rule beside \
        each packet that it drops.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        let mut reported = BTreeSet::new();
        for passage in namespace.passages.get().into_iter().flatten() {
            let Filtered::Depends { family, table, chain, handle, on } = &passage.verdict else {
                continue;
            };
            // One rule concerns many packets.
            if !reported.insert((family, table, chain, handle)) {
                continue;
            }
            let packets = match passage.kind {
                PassageKind::TunnelOut => "outgoing packets of the tunnel",
                PassageKind::TunnelIn => "incoming packets of the tunnel",
                PassageKind::Resolution => "ARP requests for the tunnel's address",
                PassageKind::FragmentationNeeded | PassageKind::FragmentationNeededOut => {
                    "ICMP \"fragmentation needed\""
                }
                PassageKind::Solicitation => "ICMPv6 neighbour solicitations",
                PassageKind::Forward | PassageKind::ForwardService => "packets of tenants",
                PassageKind::Outside => "packets of tenants to the outside",
                PassageKind::OutsideReply => "answers from the outside to tenants",
                PassageKind::HostService => "packets of tenants to the host's DHCP or DNS server",
                PassageKind::ForwardEcho => "ICMP echo requests of tenants",
                PassageKind::Bridged => "frames that only cross a bridge",
                PassageKind::BridgedArp => "ARP requests that only cross a bridge",
                // A tenant's own filter is its own affair, and a source need not be translated.
                PassageKind::TenantEcho
                | PassageKind::TenantService
                | PassageKind::OutsideSource => continue,
            };
            let object = format!("{family} {table} {chain}");
            let rule = named_rule(family, &object, *handle);
            let finding = CHECK
                .in_namespace(namespace, object)
                .evidence(
                    format!(
                        "{rule}: `{on}` decides about {packets}, for example {} to {}",
                        passage.from, passage.to
                    ),
                    source(family),
                )
                .cost(Cost::estimated(0.2, "packets that the rule drops"))
                .confidence(Confidence::Low);
            let dropped = super::rule_drops::dropped(namespace, (family, table, chain), *handle);
            outcome.add(match dropped {
                Some(count) => finding
                    .evidence(format!("it dropped +{count}"), counter_source(family))
                    .confidence(Confidence::Medium),
                // It has no counter, or counted nothing.
                None => finding,
            });
        }
    }
}
