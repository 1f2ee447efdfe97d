//! OV023: A CPU is busy with softirqs while receive packet steering is off.

use super::{Check, Confidence, Cost, Outcome, Severity, View};
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
    /// Share of a CPU's time in softirqs from which it is the bottleneck.
    const BUSY: f64 = 0.9;
    const IDLE: f64 = 0.5;
    let Some(pair) = outcome.need("machine", &view.host().machine.cpu) else { return };
    let mut busy = None;
    let mut idle = 0;
    for (number, after) in &pair.after.cpus {
        let Some(before) = pair.before.cpus.get(number) else { continue };
        let moved = after.since(before);
        // Below 20 ticks a share means nothing.
        if moved.total() < 20 {
            continue;
        }
        let share = |ticks: u64| ticks as f64 / moved.total() as f64;
        if share(moved.softirq.saturating_add(moved.irq)) >= BUSY {
            busy = Some(*number);
        }
        idle += usize::from(share(moved.idle.saturating_add(moved.iowait)) >= IDLE);
    }
    let Some(cpu) = busy.filter(|_| idle > 0) else { return };
    let cpus = pair.after.cpus.len();
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
            .evidence(format!("CPU {cpu} is in softirqs at least {BUSY} of the time"), "/proc/stat")
            .evidence("rps_cpus of its only receive queue is 0", "/sys/class/net/…/rps_cpus")
            .cost(Cost::estimated(0.4, "packets of several flows"))
            .confidence(Confidence::Medium)
            .set(Change::rps(spot, "0", &format!("{mask:x}")), "a single flow gains nothing"),
    );
}
