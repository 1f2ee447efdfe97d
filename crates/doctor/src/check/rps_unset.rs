//! OV023: A CPU is busy with softirqs while receive packet steering is off.

use super::{Busy, Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV023",
    title: "One CPU does all receiving",
    severity: Severity::Warn,
    explanation: "One CPU spends nearly all its time in softirqs while others idle, and a device \
        with a single receive queue (veth, TAP, a small virtio NIC) has no receive packet \
        steering, so one CPU processes everything it receives. Steering (rps_cpus) spreads flows \
        over CPUs.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    // Steering costs CPU time, so suggest it only if a CPU is saturated.
    let Some(Busy { cpu, cpus }) = outcome.busy_with_softirqs(view) else { return };
    // Choose the device that receives most without steering. If several see the same packets,
    // prefer the NIC, which comes first.
    let unsteered = view.devices().filter_map(|spot| {
        let rps = spot.device?.rps.as_ref()?;
        let none = |mask: &String| mask.chars().all(|digit| "0,".contains(digit));
        let single = rps.len() == 1 && none(&rps[0]);
        single.then(|| Some((spot.moved()?.rx_packets, spot)))?
    });
    let unsteered: Vec<(u64, DeviceRef<'_>)> =
        unsteered.filter(|(packets, _)| *packets > 0).collect();
    let most = unsteered.iter().map(|(packets, _)| *packets).max().unwrap_or(0);
    let nics = view.underlay_nics();
    let is_nic = |spot: DeviceRef<'_>| nics.iter().any(|nic| nic.place == spot.place);
    let about_as_many = unsteered.into_iter().filter(|(packets, _)| *packets >= most - most / 10);
    let first = about_as_many.max_by_key(|(packets, spot)| (is_nic(*spot), *packets));
    let Some((_, spot)) = first else { return };
    // A mask of one 32-bit word is enough to spread the load.
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
