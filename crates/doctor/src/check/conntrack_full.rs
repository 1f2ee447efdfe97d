//! OV028: Conntrack uses more than 85% of its maximum.

use super::{Check, CheckOutcome, Cost, Severity, View};
use crate::host::Reading;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV028",
    title: "The connection table is nearly full",
    severity: Severity::Error,
    explanation: "The namespace's connection tracking table is close to nf_conntrack_max. When it \
        is full, packets of new connections are dropped. Each namespace has its own table. The \
        limit of the first namespace applies to all of them.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    const NEARLY: f64 = 0.85;
    for namespace in &view.host().namespaces {
        // A namespace without connection tracking has no table that could be full.
        let Reading::Read(pair) = &namespace.conntrack else { continue };
        let (count, max) = (pair.after.count, pair.after.max);
        // 0: no limit.
        if max == 0 || (count as f64) < NEARLY * max as f64 {
            continue;
        }
        const KEY: &str = "net/netfilter/nf_conntrack_max";
        let share = count as f64 / max as f64;
        outcome.add(
            CHECK
                .in_namespace(namespace, "conntrack")
                .evidence(format!("{count} of {max} entries"), "nf_conntrack_count, _max")
                .cost(Cost::estimated(0.9 * share, "new connections, once the table is full"))
                .set(
                    Change::machine(KEY, max, max.saturating_mul(4)),
                    "an entry takes about 300 bytes; the setting applies to the whole machine",
                ),
        );
    }
}
