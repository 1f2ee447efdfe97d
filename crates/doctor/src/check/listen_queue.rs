//! OV116: The queue of a listening socket is full.

use super::{Check, CheckOutcome, Confidence, Severity, View};
use netstate::inet_diag::TcpListener;

pub(super) const CHECK: Check = Check {
    code: "OV116",
    title: "A server does not accept connections in time",
    severity: Severity::Warn,
    explanation: "Connections were dropped at a listening socket, because as many as its limit were \
        waiting to be accepted. The client repeats its segments after a second and more, so a few \
        connections are slow and others fail. The network is not the cause: the program accepts too \
        slowly, or its limit is too small. The limit is the smaller of the program's own (`listen`) \
        and net.core.somaxconn when it began to listen; after a change the program must be started \
        again, so doctor changes nothing.",
    run,
};

/// Sockets that are named.
const SHOWN: usize = 3;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        let dropped = moved.tcp_ext.listen_overflows;
        let whole = (dropped.saturating_add(moved.tcp.passive_opens), "connections");
        let counts = [("TcpExt ListenOverflows", dropped)];
        let at = (namespace, "TCP sockets");
        let Some(mut finding) = CHECK.counted(at, &counts, "/proc/net/netstat", whole) else {
            continue;
        };
        let listeners = outcome.need(&namespace.label, &namespace.listeners);
        // The kernel accepts one connection more than the limit.
        let full = |one: &&TcpListener| one.waiting > one.limit;
        let full: Vec<_> = listeners.into_iter().flatten().filter(full).take(SHOWN).collect();
        if full.is_empty() {
            // The program has accepted them since.
            finding = finding.confidence(Confidence::Medium);
        }
        for one in full {
            finding = finding.evidence(
                format!("port {}: {} connections wait, limit {}", one.port, one.waiting, one.limit),
                "INET_DIAG: idiag_rqueue, idiag_wqueue",
            );
        }
        outcome.add(finding);
    }
}
