//! OV064: Packets are routed from a larger MTU into an overlay with a smaller one.

use super::leads_on::{tunnel, underlays};
use super::nat_mtu::{CLAMP_RISK, clamp, forwards, no_clamp, routed, translates, unclamped};
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV064",
    title: "Routed into a smaller MTU without MSS clamp",
    severity: Severity::Warn,
    explanation: "The namespace routes packets from a device with a larger MTU into a VXLAN \
        overlay, whose MTU is smaller by the tunnel's headers, and no rule lowers the TCP MSS. \
        Senders learn the overlay's MTU by ICMP only (fragmentation needed). If a firewall drops \
        that, connections open and stall at the first large answer. Clamp the MSS on the overlay's \
        device, or use one MTU. OV019 covers namespaces that also translate addresses.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        // A host that does not forward has no packets of others.
        if !forwards(namespace) {
            continue;
        }
        let routed = routed(view, at);
        let into = routed.iter().filter_map(|spot| Some((*spot, tunnel(view, *spot)?)));
        // No route leads into a tunnel.
        let Some((least, tunnel)) = into.min_by_key(|(spot, _)| spot.interface.mtu) else {
            continue;
        };
        let underlays = underlays(view, tunnel);
        // A device that only carries the tunnel brings no packets into it. If the underlay is
        // unknown, that could be any device.
        if underlays.is_empty() {
            continue;
        }
        let from = routed.iter().filter(|spot| !underlays.contains(&spot.place));
        let Some(most) = from.max_by_key(|spot| spot.interface.mtu) else { continue };
        let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { continue };
        if most.interface.mtu <= least.interface.mtu
            || translates(chains)
            || !unclamped(outcome, least)
        {
            continue;
        }
        let (clamp, undo) = clamp(least);
        // While no packet is too large, or senders obey the ICMP messages, nothing is lost.
        let refused = namespace.snmp.get().map_or(0, |pair| {
            let moved = pair.after.since(&pair.before);
            moved.ip.frag_fails.saturating_add(moved.ip6.frag_fails)
        });
        let severity = if refused > 0 { Severity::Warn } else { Severity::Info };
        outcome.add(
            CHECK
                .on(least)
                .evidence(format!("MTU of {}: {}", most.name(), most.interface.mtu), "IFLA_MTU")
                .evidence(format!("MTU of {}: {}", least.name(), least.interface.mtu), "IFLA_MTU")
                .evidence("the namespace forwards", "ip_forward")
                .evidence(format!("Ip, Ip6 FragFails +{refused}"), "/proc/net/snmp, snmp6")
                .severity(severity)
                .evidence(no_clamp(least), "nftables, iptables")
                .cost(Cost::estimated(0.2, "connections whose ICMP is lost"))
                .confidence(Confidence::Low)
                .by_hand(clamp, CLAMP_RISK, undo),
        );
    }
}
