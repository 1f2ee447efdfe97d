//! OV032: UDP send buffer errors increase.

use super::{Check, CheckOutcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV032",
    title: "UDP send buffers overflow",
    severity: Severity::Warn,
    explanation: "Datagrams were not sent between the two readings because the send buffer was \
        full, or were dropped at the local queue: a program sends faster than the device. A \
        user-space tunnel endpoint shows it if its NIC is slower than its tenants.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        let (udp, udp6) = (&moved.udp, &moved.udp6);
        let whole = [udp.out_datagrams, udp6.out_datagrams, udp.sndbuf_errors, udp6.sndbuf_errors];
        let finding = CHECK.counted(
            (namespace, "UDP sockets"),
            &[("Udp SndbufErrors", udp.sndbuf_errors), ("Udp6 SndbufErrors", udp6.sndbuf_errors)],
            "/proc/net/snmp, snmp6",
            (whole.into_iter().fold(0, u64::saturating_add), "datagrams"),
        );
        outcome.findings.extend(finding.map(|finding| {
            finding.raise(
                view,
                "net/core/wmem_default",
                |now| now.saturating_mul(4),
                "every new socket may use this much memory; programs that set their own size need \
                 net.core.wmem_max instead",
            )
        }));
    }
}
