//! OV085: A CPU quota stops programs that receive.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::{Namespace, Pair};

pub(super) const CHECK: Check = Check {
    code: "OV085",
    title: "A CPU quota stops the receiving program",
    severity: Severity::Warn,
    explanation: "The control group of a process in the namespace, or one above it, used up its \
        CPU quota, and the kernel stopped it for a part of the time between the two readings. \
        Packets then wait in its sockets: latency grows to the length of a period (100 ms), and \
        datagrams are lost when the socket's buffer is full. The symptoms are the same as \
        with a slow network. Raise the limit of the container (cpu.max, in Kubernetes \
        limits.cpu), or use fewer threads. It is a remark while nothing waits in a UDP \
        socket and no buffer is full.",
    run,
};

/// Share of the time from which a finding is reported.
const MUCH: f64 = 0.1;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let interval = view.host().interval_s.max(0.001);
    for namespace in &view.host().namespaces {
        // Not read for a saved host of an earlier version, nor without a control group.
        let Some(pair) = namespace.throttled.get() else { continue };
        let Some(stopped) = stopped(pair) else { continue };
        let share = stopped / interval;
        // A short stop delays packets by less than a period.
        if share < MUCH {
            continue;
        }
        let of = namespace.members.first().map_or_else(String::new, |member| {
            format!(" ({}, PID {})", member.command, member.pid)
        });
        let finding = CHECK
            .in_namespace(namespace, "processes")
            .evidence(
                format!(
                    "stopped by a CPU quota for {:.0} of {:.0} ms{of}",
                    stopped * 1000.0,
                    interval * 1000.0
                ),
                "cpu.stat",
            )
            .cost(Cost::estimated(share.min(0.95), "the time of these processes"))
            .confidence(Confidence::Medium);
        outcome.add(match waiting(namespace) {
            Some(waiting) => finding.evidence(waiting, "/proc/net/udp, /proc/net/snmp"),
            None => finding.severity(Severity::Info),
        });
    }
}

/// Time that the most stopped group was stopped, s. Groups above a group stop at the same time.
/// `None`: a process ended or started meanwhile, so the groups are others.
fn stopped(pair: &Pair<Vec<u64>>) -> Option<f64> {
    if pair.before.len() != pair.after.len() {
        return None;
    }
    let both = pair.after.iter().zip(&pair.before);
    let most = both.map(|(after, before)| after.saturating_sub(*before)).max()?;
    Some(most as f64 / 1_000_000.0)
}

/// Packets that wait for a program, or that were lost because none took them.
fn waiting(namespace: &Namespace) -> Option<String> {
    let sockets = namespace.udp_sockets.get().into_iter().flatten();
    let bytes = sockets.map(|socket| socket.queued).max().unwrap_or(0);
    let lost = namespace.snmp.get().map_or(0, |pair| {
        let moved = pair.after.since(&pair.before);
        let tcp = moved.tcp_ext.rcv_q_drop.saturating_add(moved.tcp_ext.backlog_drop);
        tcp.saturating_add(moved.udp.rcvbuf_errors).saturating_add(moved.udp6.rcvbuf_errors)
    });
    match (bytes, lost) {
        (0, 0) => None,
        (bytes, 0) => Some(format!("{bytes} bytes wait in a UDP socket")),
        (bytes, lost) => {
            Some(format!("{bytes} bytes wait in a UDP socket; sockets lost {lost} packets"))
        }
    }
}
