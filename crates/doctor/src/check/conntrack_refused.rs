//! OV029: Conntrack counts failed inserts, drops or early drops.

use super::{Check, CheckOutcome, Severity, View};
use crate::host::Reading;

pub(super) const CHECK: Check = Check {
    code: "OV029",
    title: "Connection tracking drops packets",
    severity: Severity::Error,
    explanation: "Connection tracking dropped packets between the two readings. Either the table \
        was full (early_drop, drop), or two packets of one new connection raced (insert_failed, \
        known from DNS over UDP through DNAT).",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        // Without connection tracking, a namespace drops nothing for it.
        let Reading::Read(pair) = &namespace.conntrack else { continue };
        // This kernel does not count drops by connection tracking.
        let Some(moved) = pair.after.since(&pair.before) else { continue };
        let counts = [
            ("insert_failed", moved.insert_failed),
            ("drop", moved.drop),
            ("early_drop", moved.early_drop),
        ];
        let received =
            namespace.snmp.get().map_or(0, |pair| pair.after.since(&pair.before).ip.in_receives);
        outcome.findings.extend(CHECK.counted(
            (namespace, "conntrack"),
            &counts,
            "/proc/net/stat/nf_conntrack",
            (received, "packets"),
        ));
    }
}
