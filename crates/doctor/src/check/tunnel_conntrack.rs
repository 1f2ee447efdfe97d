//! OV030: Connection tracking is active where the tunnel's outer packets pass.

use super::nat_mtu::translates;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::Reading;
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV030",
    title: "The tunnel's own packets are tracked",
    severity: Severity::Info,
    explanation: "The namespace of the tunnel's underlay has packet filter chains that need \
        connection tracking. Every outer packet of the tunnel is looked up in the connection \
        table, and each source port of the tunnel takes an entry. A notrack rule for the tunnel's \
        port avoids both.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let mut seen = std::collections::BTreeSet::new();
    for (tunnel, vxlan) in view.tunnels() {
        let Some(ways) = view.ways(tunnel) else { continue };
        let Some(at) = view.namespace(ways.underlay) else { continue };
        let Some(namespace) = view.host().namespaces.get(at) else { continue };
        // Tunnels on one port share the rule, so report it once.
        if !seen.insert((at, vxlan.port)) {
            continue;
        }
        let Reading::Read(pair) = &namespace.conntrack else { continue };
        let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { continue };
        // Without NAT rules or entries, nothing shows that packets are tracked.
        if !translates(chains) || pair.after.count == 0 {
            continue;
        }
        let port = vxlan.port;
        outcome.add(
            CHECK
                .in_namespace(namespace, format!("UDP port {port}"))
                .evidence("NAT chains, which need connection tracking", "nftables, iptables")
                .evidence(format!("{} entries", pair.after.count), "nf_conntrack_count")
                .cost(Cost::estimated(0.05, "CPU time of the tunnel's packets"))
                .confidence(Confidence::Low)
                .by_hand(
    inside(namespace.path.as_deref(), &format!("nft 'table inet overlane_notrack {{ chain in {{ type filter hook prerouting \
                             priority raw; udp dport {port} notrack; }}; chain out {{ type filter \
                             hook output priority raw; udp dport {port} notrack; }}; }}'")),
    "rules no longer match the tunnel by connection state",
    inside(namespace.path.as_deref(), "nft delete table inet overlane_notrack"),
),
        );
    }
}
