//! OV019: A namespace forwards from a larger to a smaller MTU behind NAT.

use super::{Check, Confidence, Cost, Outcome, Severity, View};
use crate::change::Change;
use crate::host::{Chain, Namespace};
use crate::view::Spot;

pub(super) const CHECK: Check = Check {
    code: "OV019",
    title: "NAT between different MTUs without MSS clamp",
    severity: Severity::Warn,
    explanation: "Packets are forwarded behind address translation from devices with a larger \
        MTU to one with a smaller. The sender learns of the smaller MTU by ICMP only, \
        which must find its way back through the translation and every firewall; where \
        it does not, connections stall. Clamping the TCP MSS (tcp option maxseg size \
        set rt mtu, or TCPMSS) or an equal MTU avoids it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        if !forwards(namespace) {
            continue;
        }
        let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { continue };
        if !translates(chains) {
            continue;
        }
        let routed = routed(view, at);
        let Some(least) = routed.iter().min_by_key(|spot| spot.interface.mtu) else { continue };
        let Some(most) = routed.iter().max_by_key(|spot| spot.interface.mtu) else { continue };
        if most.interface.mtu == least.interface.mtu || !unclamped(outcome, *least) {
            continue;
        }
        outcome.add(
            CHECK
                .on(*most)
                .evidence(format!("MTU of {}: {}", most.name(), most.interface.mtu), "IFLA_MTU")
                .evidence(format!("MTU of {}: {}", least.name(), least.interface.mtu), "IFLA_MTU")
                .evidence("the namespace forwards and has NAT chains", "ip_forward, nftables")
                .evidence(no_clamp(*least), "nftables, iptables")
                .cost(Cost::estimated(0.3, "connections whose ICMP is lost"))
                .confidence(Confidence::Low)
                .set(
                    Change::mtu(*most, least.interface.mtu),
                    "devices behind it need the same MTU",
                ),
        );
    }
}

/// Whether a namespace forwards IPv4.
pub(super) fn forwards(namespace: &Namespace) -> bool {
    namespace.sysctls.get("net/ipv4/ip_forward").is_some_and(|on| on != "0")
}

/// Whether a namespace translates addresses, by the names of its tables.
pub(super) fn translates(chains: &[Chain]) -> bool {
    chains
        .iter()
        .any(|chain| chain.table.to_ascii_lowercase().contains("nat") && chain.family != "bridge")
}

/// Devices of a namespace that are up and have an IPv4 address: packets are routed
/// between them.
pub(super) fn routed<'a>(view: &View<'a>, at: usize) -> Vec<Spot<'a>> {
    let namespace = view.host().namespaces.get(at);
    let addresses = namespace.and_then(|namespace| namespace.addresses.get());
    // Every device that is up has one of IPv6.
    let addresses = addresses.into_iter().flatten().filter(|known| known.address.is_ipv4());
    let addressed: std::collections::BTreeSet<u32> = addresses.map(|known| known.link).collect();
    view.devices_of(at)
        .filter(|spot| spot.interface.up && addressed.contains(&spot.interface.index))
        .collect()
}

/// Whether no rule clamps the MSS of what is forwarded by a device to what fits
/// its MTU. Where rules could not be read that is noted, and nothing claimed.
///
/// A rule for packets in one direction is enough: what it is written into tells
/// the sender of the other, whose packets are the ones that do not fit; the first
/// hop of this direction is this host, whose ICMP nothing lies before.
pub(super) fn unclamped(outcome: &mut Outcome, small: Spot<'_>) -> bool {
    /// IPv4 and TCP header.
    const HEADERS: u32 = 40;
    let namespace = small.namespace;
    let Some(clamps) = outcome.need(&namespace.label, &namespace.clamps) else { return false };
    !clamps.iter().any(|clamp| {
        let of = |device: &Option<netstate::netfilter::Match>| {
            let device = device.as_ref();
            device.map(|device| device.is(small.name(), small.interface.index))
        };
        let matches = match (of(&clamp.input), of(&clamp.output)) {
            (None, None) => true,
            (input, output) => input == Some(true) || output == Some(true),
        };
        let fits = clamp.mss.is_none_or(|mss| u32::from(mss) + HEADERS <= small.interface.mtu);
        matches && fits && !clamp.family.starts_with("ip6")
    })
}

/// The evidence of it.
pub(super) fn no_clamp(small: Spot<'_>) -> String {
    format!("no rule clamps the MSS on {}", small.name())
}
