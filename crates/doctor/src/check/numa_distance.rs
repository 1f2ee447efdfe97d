//! OV059: Interrupts are taken on another NUMA node.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

use netstate::cpu::parse_list;

pub(super) const CHECK: Check = Check {
    code: "OV059",
    title: "Interrupts are taken on another NUMA node",
    severity: Severity::Warn,
    explanation: "The NIC is attached to one NUMA node, but CPUs of another node take its \
        interrupts. Each packet crosses the link between the nodes before it is processed. Pin the \
        interrupts, and the programs that receive, to CPUs of the NIC's node.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let nodes = &view.host().machine.nodes;
    for spot in view.devices().filter(|_| nodes.len() > 1) {
        // The firmware names no node for the device.
        let Some(node) = spot.device.and_then(|device| device.numa_node) else { continue };
        let Some(near) = nodes.get(&node).and_then(|list| parse_list(list)) else { continue };
        let mut queues = view.receive_interrupts(spot);
        queues.retain(|queue| queue.moved > 0 && !queue.cpus.is_empty());
        // A node may have memory and no CPUs. Then there is no better CPU.
        if near.is_empty() || queues.is_empty() {
            continue;
        }
        let far: Vec<_> = queues.iter().filter(|queue| queue.cpus.is_disjoint(&near)).collect();
        let Some(first) = far.first() else { continue };
        let file = format!("/proc/irq/{}/smp_affinity_list", first.interrupt.number);
        let (all, cpus) = (queues.len(), &first.interrupt.cpus);
        outcome.add(
            CHECK
                .on(spot)
                .evidence(
                    format!("node {node}, CPUs {}", nodes[&node]),
                    "/sys/class/net/…/device/numa_node",
                )
                .evidence(
                    format!(
                        "{} of {all} receive queues interrupt other CPUs: {} on CPU {cpus}",
                        far.len(),
                        first.interrupt.name
                    ),
                    "/proc/irq/…/effective_affinity_list",
                )
                .cost(Cost::estimated(0.15, "received packets"))
                .confidence(Confidence::Medium)
                .by_hand(
                    format!("echo {} > {file}", nodes[&node]),
                    "irqbalance may move it again",
                    format!("echo {cpus} > {file}"),
                ),
        );
    }
}
