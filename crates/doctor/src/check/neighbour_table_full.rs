//! OV040: The neighbour table is at its limit, or was.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV040",
    title: "The neighbour table overflows",
    severity: Severity::Error,
    explanation: "The kernel's IPv4 neighbour table, shared by all namespaces, had no room for a \
        new entry, or is within a tenth of net.ipv4.neigh.default.gc_thresh3. Hosts without an \
        entry cannot be reached (\"Neighbour table overflow\" in the log). Hosts with many \
        containers or remotes need a larger limit.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const KEY: &str = "net/ipv4/neigh/default/gc_thresh3";
    let machine = &view.host().machine;
    let Some(pair) = outcome.need("machine", &machine.arp) else { return };
    let fulls = pair.after.fulls.saturating_sub(pair.before.fulls);
    let limit = machine.sysctls.get(KEY).and_then(|value| value.get()?.parse::<u64>().ok());
    let near =
        limit.is_some_and(|limit| pair.after.entries.saturating_mul(10) > limit.saturating_mul(9));
    if fulls == 0 && !near {
        return;
    }
    let mut finding = CHECK
        .on_machine("IPv4 neighbour table")
        .evidence(
            format!("{} entries, table_fulls +{fulls}", pair.after.entries),
            "/proc/net/stat/arp_cache",
        )
        .cost(Cost::estimated(0.7, "packets to hosts without an entry"));
    if let Some(limit) = limit {
        finding = finding.evidence(format!("{KEY} = {limit}"), "/proc/sys");
    }
    outcome.add(finding.raise(
        view,
        KEY,
        |limit| limit.saturating_mul(4),
        "an entry takes about 400 bytes; raise gc_thresh2, too",
    ));
}
