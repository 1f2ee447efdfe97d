//! OV058: Several receive queues interrupt one CPU.

use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV058",
    title: "Several receive queues interrupt one CPU",
    severity: Severity::Warn,
    explanation: "Several receive queues of a NIC raised interrupts between the two readings, and \
        one CPU takes all of them although the machine has more. Additional queues then give no \
        benefit. irqbalance may have stopped, or may have pinned them.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    /// A queue with at least this many interrupts is in use.
    const IN_USE: u64 = 20;
    let cpus = view.host().machine.facts.get().map_or(1, |facts| facts.online_cpus);
    for spot in view.devices().filter(|spot| spot.is_physical() && cpus > 1) {
        let mut queues = view.receive_interrupts(spot);
        queues.retain(|queue| queue.moved >= IN_USE);
        // No queue is in use.
        let [first, others @ ..] = &queues[..] else { continue };
        let one = first.cpus.len() == 1 && others.iter().all(|queue| queue.cpus == first.cpus);
        let (Some(other), true) = (others.first(), one) else { continue };
        let cpu = &first.interrupt.cpus;
        let free = (0..u32::try_from(cpus).unwrap_or(1)).find(|cpu| !first.cpus.contains(cpu));
        let file = format!("/proc/irq/{}/smp_affinity_list", other.interrupt.number);
        let names: Vec<&str> = queues.iter().map(|queue| queue.interrupt.name.as_str()).collect();
        outcome.add(
            CHECK
                .on(spot)
                .evidence(
                    format!("{} interrupt CPU {cpu} only", names.join(", ")),
                    "/proc/irq/…/effective_affinity_list",
                )
                .cost(Cost::estimated(0.4, "packets of several flows"))
                .by_hand(
                    format!("echo {} > {file}", free.unwrap_or_default()),
                    "irqbalance may move it again",
                    format!("echo {cpu} > {file}"),
                ),
        );
    }
}
