//! OV045: A TAP device of one queue on a machine with several CPUs.

use super::tap_vnet_header::{holder, taps};
use super::{Check, Confidence, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV045",
    title: "A TAP has a single queue",
    severity: Severity::Info,
    explanation: "The TAP device has one queue, so that one thread of the program behind it \
        moves all packets, and one CPU at a time takes them. Machines with more CPUs \
        gain from IFF_MULTI_QUEUE and a thread a queue, if several flows are under \
        way.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    /// `IFF_MULTI_QUEUE` of linux/if_tun.h.
    const IFF_MULTI_QUEUE: u32 = 0x0100;
    let cpus = view.host().machine.facts.get().map_or(1, |facts| facts.online_cpus);
    for tap in taps(view) {
        let flags = tap.device.and_then(|device| device.tun_flags).unwrap_or_default();
        // A TAP that nobody holds moves nothing.
        if cpus < 2 || flags & IFF_MULTI_QUEUE != 0 || holder(tap).is_none() {
            continue;
        }
        outcome.add(
            CHECK
                .on(tap)
                .evidence(format!("tun_flags {flags:#x}: no IFF_MULTI_QUEUE"), "/sys/class/net")
                .evidence(format!("{cpus} CPUs"), "/proc/stat")
                .cost(Cost::estimated(0.1, "throughput of several flows"))
                .confidence(Confidence::Low),
        );
    }
}
