//! OV023: A CPU is busy with softirqs while receive packet steering is off.

use super::{Busy, Check, Confidence, Cost, Outcome, Severity, View};
use crate::change::Change;

pub(super) const CHECK: Check = Check {
    code: "OV023",
    title: "One CPU does all receiving",
    severity: Severity::Warn,
    explanation: "One CPU spends nearly all its time in softirqs while others idle, and a device \
        with a single receive queue (veth, TAP, a small virtio) has no receive packet \
        steering: everything it receives stays on one CPU. Steering (rps_cpus) spreads \
        flows over CPUs.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    let Some(Busy { cpu, cpus }) = outcome.busy_with_softirqs(view) else { return };
    // The device that receives most without steering.
    let unsteered = view.devices().filter_map(|spot| {
        let rps = spot.device?.rps.as_ref()?;
        let none = |mask: &String| mask.chars().all(|digit| "0,".contains(digit));
        let single = rps.len() == 1 && none(&rps[0]);
        single.then(|| Some((spot.moved()?.rx_packets, spot)))?
    });
    let Some((packets, spot)) = unsteered.max_by_key(|(packets, _)| *packets) else { return };
    if packets == 0 {
        return;
    }
    let mask = (0..cpus.min(32)).fold(0_u32, |mask, cpu| mask | 1 << cpu);
    outcome.add(
        CHECK
            .on(spot)
            .evidence(Busy::evidence(cpu), "/proc/stat")
            .evidence("rps_cpus of its only receive queue is 0", "/sys/class/net/…/rps_cpus")
            .cost(Cost::estimated(0.4, "packets of several flows"))
            .confidence(Confidence::Medium)
            .set(Change::rps(spot, "0", &format!("{mask:x}")), "a single flow gains nothing"),
    );
}
