//! OV087: Receive packet steering names a single CPU.

use super::{Busy, Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV087",
    title: "Steering sends all packets to one CPU",
    severity: Severity::Warn,
    explanation: "Receive packet steering (rps_cpus) of all receive queues of a device names the \
        same single CPU, which spends nearly all its time in softirqs while others idle. Several \
        receive queues then give no benefit. A mask that keeps packets away from other CPUs on \
        purpose (isolated CPUs) needs more than one CPU for this load.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    // One CPU is enough for little traffic.
    let Some(Busy { cpu, cpus }) = outcome.busy_with_softirqs(view) else { return };
    for spot in view.devices() {
        let Some(masks) = spot.device.and_then(|device| device.rps.as_ref()) else { continue };
        let all: Option<Vec<usize>> = masks.iter().map(|mask| only_cpu(mask)).collect();
        let is_it = all.is_some_and(|all| !all.is_empty() && all.iter().all(|one| *one == cpu));
        let received = spot.moved().map_or(0, |moved| moved.rx_packets);
        // A device without packets keeps no CPU busy.
        if !is_it || received == 0 {
            continue;
        }
        let finding = CHECK
            .on(spot)
            .evidence(Busy::evidence(cpu), "/proc/stat")
            .evidence(
                format!("rps_cpus of every receive queue: {}", masks[0]),
                "/sys/class/net/…/rps_cpus",
            )
            .cost(Cost::estimated(0.4, "packets of several flows"))
            .confidence(Confidence::Medium);
        // A mask of one 32-bit word is enough to spread the load.
        let wide = (0..cpus.min(32)).fold(0_u32, |mask, cpu| mask | 1 << cpu);
        outcome.add(match masks.as_slice() {
            [mask] => finding.set(
                Change::rps(spot, mask, &format!("{wide:x}")),
                "CPUs reserved for other work get packets; a single flow gains nothing",
            ),
            // Each queue has a mask of its own.
            _ => finding,
        });
    }
}

/// Returns the CPU of a mask with a single one: 32-bit words in hexadecimal, the highest first.
fn only_cpu(mask: &str) -> Option<usize> {
    let mut found = None;
    for (at, word) in mask.split(',').rev().enumerate() {
        let word = u32::from_str_radix(word, 16).ok()?;
        match (word.count_ones(), found) {
            (0, _) => {}
            (1, None) => found = Some(at * 32 + word.trailing_zeros() as usize),
            // More than one CPU: the mask spreads packets.
            _ => return None,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_with_one_cpu_names_it() {
        for (mask, expected) in [
            ("1", Some(0)),
            ("00000004", Some(2)),
            ("00000001,00000000", Some(32)),
            ("3", None),
            ("1,1", None),
            ("0", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(only_cpu(mask), expected, "{mask}");
        }
    }
}
