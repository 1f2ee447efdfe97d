//! OV045: A TAP device of one queue on a machine with several CPUs.

use super::tap_vnet_header::{holder, taps};
use super::tap_without_vhost::is_qemu;
use super::{Check, Confidence, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV045",
    title: "A TAP has a single queue",
    severity: Severity::Info,
    explanation: "The TAP device has one queue, so that one thread of the program behind it \
        moves all packets, and one CPU at a time takes them. Machines with more CPUs \
        gain from IFF_MULTI_QUEUE and a thread a queue, if several flows are under \
        way. A guest may leave queues unused that its TAP device could have: ethtool -L in \
        the guest takes them.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    /// `IFF_MULTI_QUEUE` of linux/if_tun.h.
    const IFF_MULTI_QUEUE: u32 = 0x0100;
    let cpus = view.host().machine.facts.get().map_or(1, |facts| facts.online_cpus);
    for tap in taps(view) {
        let flags = tap.device.and_then(|device| device.tun_flags).unwrap_or_default();
        // A TAP that nobody holds moves nothing.
        let Some(held) = holder(tap).filter(|_| cpus > 1) else { continue };
        let found = match flags & IFF_MULTI_QUEUE {
            0 => (format!("tun_flags {flags:#x}: no IFF_MULTI_QUEUE"), "/sys/class/net"),
            // What QEMU has not attached, the guest does not use; other programs know how many
            // threads they have.
            _ if held.queues == 1 && is_qemu(&held.command) => {
                let by = format!("{}/{}", held.command, held.pid);
                (format!("IFF_MULTI_QUEUE, and one queue attached by {by}"), "/proc")
            }
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
