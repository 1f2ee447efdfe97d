//! OV066: Reassembly memory is nearly full.

use super::{Check, CheckOutcome, Cost, Severity, View};
use crate::host::{Namespace, Reading};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV066",
    title: "The memory for fragments is nearly full",
    severity: Severity::Error,
    explanation: "More than 85% of the namespace's memory for incomplete fragmented packets is in \
        use (net.ipv4.ipfrag_high_thresh, net.ipv6.ip6frag_high_thresh; FRAG in \
        /proc/net/sockstat). When it is full, no fragmented packet is reassembled, not even if all \
        its fragments arrive. The memory holds packets that lost a fragment, each for \
        net.ipv4.ipfrag_time (30 s). The cause is large datagrams sent faster than the path \
        carries them, or an attacker who sends fragments. First find the sender of packets larger \
        than an MTU (OV013, OV016) and the place where fragments are lost. More memory helps \
        against bursts only.",
    run,
};

/// Share of the memory in use from which it counts as nearly full.
const NEARLY: f64 = 0.85;

/// Whether the memory of one of the address families is nearly full.
pub(super) fn is_nearly_full(namespace: &Namespace) -> bool {
    let Reading::Read(memory) = &namespace.reassembly else { return false };
    let families = [Some(memory.v4), memory.v6].into_iter().flatten();
    families.filter(|memory| memory.limit > 0).any(|memory| memory.share() >= NEARLY)
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        // Hosts saved by older versions lack it. Otherwise the namespace itself could not be read.
        let Reading::Read(memory) = &namespace.reassembly else { continue };
        let failed = namespace.snmp.get().map(|pair| {
            let moved = pair.after.since(&pair.before);
            [moved.ip.reasm_fails, moved.ip6.reasm_fails]
        });
        let versions = [
            ("IPv4", "net/ipv4/ipfrag_high_thresh", Some(memory.v4), "Ip ReasmFails"),
            ("IPv6", "net/ipv6/ip6frag_high_thresh", memory.v6, "Ip6 ReasmFails"),
        ];
        for (at, (version, key, memory, counter)) in versions.into_iter().enumerate() {
            // A limit of 0 switches reassembly off.
            let Some(memory) = memory.filter(|memory| memory.limit > 0) else { continue };
            // Some incomplete packets are usual: each stays for ipfrag_time.
            if memory.share() < NEARLY {
                continue;
            }
            let used = format!(
                "{} of {} bytes, {} incomplete packets",
                memory.used, memory.limit, memory.packets
            );
            let mut finding = CHECK
                .in_namespace(namespace, format!("{version} fragments"))
                .evidence(used, "/proc/net/sockstat, /proc/sys")
                .cost(Cost::estimated(0.9, "fragmented packets"));
            if let Some(count) = failed.map(|failed| failed[at]).filter(|count| *count > 0) {
                finding = finding.evidence(format!("{counter} +{count}"), "/proc/net/snmp, snmp6");
            }
            let (from, to) = (memory.limit.to_string(), memory.limit.saturating_mul(4).to_string());
            outcome.add(finding.set(
                Change::sysctl(namespace, key, &from, &to),
                "a sender of incomplete packets can occupy that much more memory",
            ));
        }
    }
}
