//! OV045: A TAP device of one queue on a machine with several CPUs.

use super::tap_vnet_header::{holder, taps};
use super::tap_without_vhost::is_qemu;
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV045",
    title: "A TAP has a single queue",
    severity: Severity::Info,
    explanation: "The TAP device has one queue, so one thread of the program behind it moves all \
        packets, on one CPU at a time. With several CPUs and several flows, IFF_MULTI_QUEUE with a \
        thread per queue is faster. If the TAP device has several queues but the guest uses one, \
        enable them with ethtool -L in the guest.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// `IFF_MULTI_QUEUE` of linux/if_tun.h.
    const IFF_MULTI_QUEUE: u32 = 0x0100;
    let cpus = view.host().machine.facts.get().map_or(1, |facts| facts.online_cpus);
    for tap in taps(view) {
        let flags = tap.device.and_then(|device| device.tun_flags).unwrap_or_default();
        // A TAP that no process has open carries no packets.
        let Some(held) = holder(tap).filter(|_| cpus > 1) else { continue };
        let found = match flags & IFF_MULTI_QUEUE {
            0 => (format!("tun_flags {flags:#x}: no IFF_MULTI_QUEUE"), "/sys/class/net"),
            // A queue that QEMU has not attached is unused by the guest. Other programs choose
            // their number of threads themselves.
            _ if held.queues == 1 && is_qemu(&held.command) => {
                let by = format!("{}/{}", held.command, held.pid);
                (format!("IFF_MULTI_QUEUE, and one queue attached by {by}"), "/proc")
            }
            // Several queues are attached, or the program is not QEMU.
            _ => continue,
        };
        outcome.add(
            CHECK
                .on(tap)
                .evidence(found.0, found.1)
                .evidence(format!("{cpus} CPUs"), "/proc/stat")
                .cost(Cost::estimated(0.1, "throughput of several flows"))
                .confidence(Confidence::Low),
        );
    }
}
