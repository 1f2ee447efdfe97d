//! OV019: A namespace forwards from a larger to a smaller MTU behind NAT.

use super::{Check, Confidence, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV019",
    title: "NAT between different MTUs without MSS clamp",
    severity: Severity::Warn,
    explanation: "Packets are forwarded behind address translation from devices with a larger \
        MTU to one with a smaller. The sender learns of the smaller MTU by ICMP only, \
        which must find its way back through the translation and every firewall; where \
        it does not, connections stall. Clamping the TCP MSS (tcp option maxseg size \
        set rt mtu) or an equal MTU avoids it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let forwards = namespace.sysctls.get("net/ipv4/ip_forward").is_some_and(|on| on != "0");
        let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { continue };
        let translates = chains.iter().any(|chain| {
            chain.table.to_ascii_lowercase().contains("nat") && chain.family != "bridge"
        });
        if !forwards || !translates {
            continue;
        }
        let addressed: std::collections::BTreeSet<u32> =
            namespace.addresses.get().into_iter().flatten().map(|known| known.link).collect();
        let routed: Vec<_> = view
            .devices_of(at)
            .filter(|spot| spot.interface.up)
            .filter(|spot| addressed.contains(&spot.interface.index))
            .collect();
        let Some(least) = routed.iter().min_by_key(|spot| spot.interface.mtu) else { continue };
        let Some(most) = routed.iter().max_by_key(|spot| spot.interface.mtu) else { continue };
        if most.interface.mtu == least.interface.mtu {
            continue;
        }
        outcome.add(
            CHECK
                .on(*most)
                .evidence(format!("MTU of {}: {}", most.name(), most.interface.mtu), "IFLA_MTU")
                .evidence(format!("MTU of {}: {}", least.name(), least.interface.mtu), "IFLA_MTU")
                .evidence("the namespace forwards and has NAT chains", "ip_forward, nftables")
                .cost(Cost::estimated(0.3, "connections whose ICMP is lost"))
                .confidence(Confidence::Low)
                .set(
                    Change::mtu(*most, least.interface.mtu),
                    "devices behind it need the same MTU",
                ),
        );
    }
}
