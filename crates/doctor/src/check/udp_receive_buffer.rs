//! OV031: UDP receive buffer errors increase.

use super::{Check, CheckOutcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV031",
    title: "UDP receive buffers overflow",
    severity: Severity::Warn,
    explanation: "Datagrams were dropped between the two readings because a socket's receive \
        buffer was full: the program does not read bursts fast enough. A larger buffer helps \
        against bursts, not if the program is too slow on average.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        let (udp, udp6) = (&moved.udp, &moved.udp6);
        let whole = [udp.in_datagrams, udp6.in_datagrams, udp.rcvbuf_errors, udp6.rcvbuf_errors];
        let finding = CHECK.counted(
            (namespace, "UDP sockets"),
            &[("Udp RcvbufErrors", udp.rcvbuf_errors), ("Udp6 RcvbufErrors", udp6.rcvbuf_errors)],
            "/proc/net/snmp, snmp6",
            (whole.into_iter().fold(0, u64::saturating_add), "datagrams"),
        );
        outcome.findings.extend(finding.map(|finding| {
            finding.raise(
                view,
                "net/core/rmem_default",
                |now| now.saturating_mul(4),
                "every new socket may use this much memory; programs that set their own size need \
                 net.core.rmem_max instead",
            )
        }));
    }
}
