//! OV019: A namespace forwards from a larger to a smaller MTU behind NAT.

use super::leads_on::{tunnel, underlays};
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::{Chain, Namespace};
use crate::view::DeviceRef;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV019",
    title: "NAT between different MTUs without MSS clamp",
    severity: Severity::Warn,
    explanation: "Packets are forwarded behind address translation from devices with a larger MTU \
        to a device with a smaller one. The sender learns the smaller MTU by ICMP only, which must \
        pass the translation and every firewall on its way back. If it does not, connections \
        stall. Clamp the TCP MSS (tcp option maxseg size set rt mtu, or TCPMSS), or use one MTU. \
        There is no problem if all hosts behind the smaller device have its MTU, such as pods on a \
        bridge: they announce an MSS that fits.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        // A host that does not forward has no packets of others.
        if !forwards(namespace) {
            continue;
        }
        let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { continue };
        // Without NAT, OV064 checks it.
        if !translates(chains) {
            continue;
        }
        let routed = routed(view, at);
        let small = routed.iter().filter(|spot| !announces(view, **spot));
        let Some(least) = small.min_by_key(|spot| spot.interface.mtu) else { continue };
        // A device that only carries a tunnel brings no packets into it; nor does a bridge without
        // ports.
        let carry = tunnel(view, *least).map(|tunnel| underlays(view, tunnel)).unwrap_or_default();
        let senders = routed.iter().filter(|spot| {
            !carry.contains(&spot.place)
                && (spot.kind() != "bridge" || view.ports(**spot).next().is_some())
        });
        let Some(most) = senders.max_by_key(|spot| spot.interface.mtu) else { continue };
        // The smaller MTU is the sender's own, or a rule clamps.
        if most.interface.mtu <= least.interface.mtu || !unclamped(outcome, *least) {
            continue;
        }
        let (clamp, undo) = clamp(*least);
        outcome.add(
            CHECK
                .on(*most)
                .evidence(format!("MTU of {}: {}", most.name(), most.interface.mtu), "IFLA_MTU")
                .evidence(format!("MTU of {}: {}", least.name(), least.interface.mtu), "IFLA_MTU")
                .evidence("the namespace forwards and has NAT chains", "ip_forward, nftables")
                .evidence(no_clamp(*least), "nftables, iptables")
                .cost(Cost::estimated(0.3, "connections whose ICMP is lost"))
                .confidence(Confidence::Low)
                .by_hand(clamp, CLAMP_RISK, undo),
        );
    }
}

/// Whether the hosts behind a device have at most its MTU, and so announce an MSS that fits: it is
/// a bridge whose ports all lead to end hosts (pods, containers). The other ends of an overlay's
/// segment have the same MTU as this one.
fn announces(view: &View<'_>, spot: DeviceRef<'_>) -> bool {
    let is_end = |port: DeviceRef<'_>| {
        let most = spot.interface.mtu;
        match view.peer(port) {
            Some(end) => end.interface.mtu <= most && !forwards(end.namespace),
            // The peer was not read. Both ends of a pair are created with the same MTU.
            None => port.kind() == "veth" && port.interface.mtu <= most,
        }
    };
    spot.kind() == "bridge" && view.ports(spot).all(|port| port.vxlan().is_some() || is_end(port))
}

/// Risk of an MSS clamp.
pub(super) const CLAMP_RISK: &str =
    "each connection request through the device passes one more rule";

/// Returns the command that clamps the MSS of packets forwarded by a device, and its undo.
pub(super) fn clamp(small: DeviceRef<'_>) -> (String, String) {
    let (name, path) = (small.name(), small.namespace.path.as_deref());
    let (out, into) = leaves_and_enters(name, small.interface.index);
    let rules = format!(
        "table inet overlane_mss {{ chain forward {{ type filter hook forward priority \
         mangle; {out} tcp flags syn tcp option maxseg size set rt mtu; {into} tcp flags syn tcp \
         option maxseg size set rt mtu; }}; }}"
    );
    let undo = inside(path, "nft delete table inet overlane_mss");
    (inside(path, &format!("nft {}", quote(&rules))), undo)
}

/// Returns nft's matches of packets that leave and that enter by a device.
fn leaves_and_enters(name: &str, index: u32) -> (String, String) {
    // nft has no way to write a quote inside a string, so such a name would end it, and an asterisk at
    // the end means all names that begin so. The number means the same device until it is removed.
    if name.contains(['"', '\\', '*']) || name.chars().any(char::is_control) {
        return (format!("oif {index}"), format!("iif {index}"));
    }
    (format!("oifname \"{name}\""), format!("iifname \"{name}\""))
}

/// Whether a namespace forwards IPv4.
pub(super) fn forwards(namespace: &Namespace) -> bool {
    namespace.sysctls.get("net/ipv4/ip_forward").is_some_and(|on| on != "0")
}

/// Whether a namespace translates addresses, judged by the names of its tables.
pub(super) fn translates(chains: &[Chain]) -> bool {
    chains
        .iter()
        .any(|chain| chain.table.to_ascii_lowercase().contains("nat") && chain.family != "bridge")
}

/// Returns the devices of a namespace that are up and have an IPv4 address. Packets are routed
/// between them.
pub(super) fn routed<'a>(view: &View<'a>, at: usize) -> Vec<DeviceRef<'a>> {
    let namespace = view.host().namespaces.get(at);
    let addresses = namespace.and_then(|namespace| namespace.addresses.get());
    // Every device that is up has an IPv6 address, so IPv6 proves nothing.
    let addresses = addresses.into_iter().flatten().filter(|known| known.address.is_ipv4());
    let addressed: std::collections::BTreeSet<u32> = addresses.map(|known| known.link).collect();
    view.devices_of(at)
        .filter(|spot| spot.interface.up && addressed.contains(&spot.interface.index))
        .collect()
}

/// Whether no rule clamps the MSS of packets forwarded by a device to its MTU. If the rules could
/// not be read, adds a note and returns false.
///
/// One direction is enough. The MSS in a SYN limits the packets of the opposite sender, which are
/// the ones that do not fit. Towards the small device, this host is the first hop and sends the
/// ICMP itself.
pub(super) fn unclamped(outcome: &mut CheckOutcome, small: DeviceRef<'_>) -> bool {
    /// IPv4 and TCP header.
    const HEADERS: u32 = 40;
    let namespace = small.namespace;
    let Some(clamps) = outcome.need(&namespace.label, &namespace.clamps) else { return false };
    !clamps.iter().any(|clamp| {
        let of = |device: &Option<ruleset::Match>| {
            let device = device.as_ref();
            device.map(|device| device.is(small.name(), small.interface.index))
        };
        let matches = match (of(&clamp.input), of(&clamp.output)) {
            // A rule without devices matches all packets.
            (None, None) => true,
            (input, output) => input == Some(true) || output == Some(true),
        };
        // A fixed MSS fits only if its packets fit the MTU.
        let fits = clamp.mss.is_none_or(|mss| u32::from(mss) + HEADERS <= small.interface.mtu);
        matches && fits && !clamp.family.starts_with("ip6")
    })
}

/// Evidence that [`unclamped`] holds.
pub(super) fn no_clamp(small: DeviceRef<'_>) -> String {
    format!("no rule clamps the MSS on {}", small.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_means_more_to_nft_is_replaced_by_the_number() {
        assert_eq!(leaves_and_enters("eth0.1", 7).0, "oifname \"eth0.1\"");
        assert_eq!(leaves_and_enters("a$(id)'", 7).1, "iifname \"a$(id)'\"");
        for name in ["e\"", "a;\"drop", "e\\", "eth*", "*", "e\u{1b}"] {
            let numbers = ("oif 7".to_owned(), "iif 7".to_owned());
            assert_eq!(leaves_and_enters(name, 7), numbers, "{name:?}");
        }
    }
}
