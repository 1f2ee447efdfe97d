//! OV055: A NIC uses fewer queues than there are CPUs.

use super::{Busy, Check, CheckOutcome, Confidence, Cost, Severity, View};

use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV055",
    title: "A NIC uses fewer queues than there are CPUs",
    severity: Severity::Info,
    explanation: "The NIC uses fewer queues than it could, and some CPUs have none, so fewer CPUs \
        share the work of receiving. It is a warning if one CPU spends nearly all its time in \
        softirqs while others idle. More queues cost memory and interrupts, and do not help a \
        machine with few flows.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    // Without the number of CPUs there is no target.
    let Some(facts) = view.host().machine.facts.get() else { return };
    let cpus = u32::try_from(facts.online_cpus).unwrap_or(u32::MAX);
    let busy = outcome.busy_with_softirqs(view);
    for spot in view.devices().filter(|spot| spot.is_physical() && spot.interface.up) {
        // The driver does not report its queues.
        let Some(channels) = spot.device.and_then(|device| device.channels) else { continue };
        // A driver has either combined queues or separate receive queues.
        let (count, word) = if channels.combined.most > 0 {
            (channels.combined, "combined")
        } else {
            (channels.rx, "rx")
        };
        let wanted = count.most.min(cpus);
        // More queues than CPUs would not help.
        if count.now >= wanted {
            continue;
        }
        let mut finding = CHECK
            .on(spot)
            .evidence(
                format!("{word} queues {}, at most {}; {cpus} CPUs", count.now, count.most),
                "ETHTOOL_GCHANNELS",
            )
            .cost(Cost::estimated(0.1, "packets of several flows"))
            .confidence(Confidence::Medium);
        if let Some(busy) = busy {
            finding = finding
                .severity(Severity::Warn)
                .evidence(Busy::evidence(busy.cpu), "/proc/stat")
                .cost(Cost::estimated(0.4, "packets of several flows"));
        }
        let command = |queues: u32| {
            let command = format!("ethtool -L {} {word} {queues}", quote(spot.name()));
            inside(spot.namespace.path.as_deref(), &command)
        };
        outcome.add(finding.by_hand(
            command(wanted),
            "most drivers briefly take the link down",
            command(count.now),
        ));
    }
}
