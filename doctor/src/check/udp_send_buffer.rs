//! OV032: UDP send buffer errors move.

use super::{Check, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV032",
    title: "UDP send buffers overflow",
    severity: Severity::Warn,
    explanation: "Datagrams were not sent between the two readings for want of send buffer, or \
        dropped at the local queue: a program sends faster than the device takes. A \
        user-space tunnel endpoint shows it when its NIC is slower than its tenants.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.moving(namespace, &namespace.snmp) else { continue };
        let moved = pair.after.since(&pair.before);
        let lost = moved.udp.sndbuf_errors.saturating_add(moved.udp6.sndbuf_errors);
        if lost == 0 {
            continue;
        }
        let whole =
            moved.udp.out_datagrams.saturating_add(moved.udp6.out_datagrams).saturating_add(lost);
        let finding = CHECK
            .in_namespace(namespace, "UDP sockets")
            .evidence(format!("Udp SndbufErrors +{lost}"), "/proc/net/snmp, snmp6")
            .cost(Cost::of_packets(lost, whole, "datagrams"));
        let setting = view.host().machine.sysctls.get("net/core/wmem_default");
        let now = setting.and_then(|value| value.get()?.parse::<u64>().ok());
        outcome.add(match now {
            Some(now) => finding.set(
                Change::machine("net/core/wmem_default", now, now.saturating_mul(4)),
                "every new socket may use as much memory; programs that set their own size need \
                 net.core.wmem_max instead",
            ),
            None => finding,
        });
    }
}
