//! OV031: UDP receive buffer errors move.

use super::{Check, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV031",
    title: "UDP receive buffers overflow",
    severity: Severity::Warn,
    explanation: "Datagrams were dropped between the two readings because a socket's receive \
        buffer was full: the program does not read fast enough for the bursts it gets. \
        A larger buffer helps against bursts, not against a program that is too slow \
        on average.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.moving(namespace, &namespace.snmp) else { continue };
        let moved = pair.after.since(&pair.before);
        let lost = moved.udp.rcvbuf_errors.saturating_add(moved.udp6.rcvbuf_errors);
        if lost == 0 {
            continue;
        }
        let whole =
            moved.udp.in_datagrams.saturating_add(moved.udp6.in_datagrams).saturating_add(lost);
        let finding = CHECK
            .in_namespace(namespace, "UDP sockets")
            .evidence(format!("Udp RcvbufErrors +{lost}"), "/proc/net/snmp, snmp6")
            .cost(Cost::of_packets(lost, whole, "datagrams"));
        let setting = view.host().machine.sysctls.get("net/core/rmem_default");
        let now = setting.and_then(|value| value.get()?.parse::<u64>().ok());
        outcome.add(match now {
            Some(now) => finding.set(
                Change::machine("net/core/rmem_default", now, now.saturating_mul(4)),
                "every new socket may use as much memory; programs that set their own size need \
                 net.core.rmem_max instead",
            ),
            None => finding,
        });
    }
}
