//! OV065: A datapath of Open vSwitch counts lost upcalls.

use super::{Check, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV065",
    title: "Open vSwitch loses packets of new flows",
    severity: Severity::Error,
    explanation: "Between the two readings a datapath of Open vSwitch dropped packets that it \
        knew no flow for, as it could not ask the daemon about them (an upcall): \
        ovs-vswitchd stands still, has too few threads for the rate of new flows, or \
        has a port in the datapath that no bridge has. New connections begin late or \
        not at all, established ones go on. Look at its log, at ovs-appctl \
        upcall/show and coverage/show, and at what makes so many new flows: rules \
        that match ports or addresses which nothing needs.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.need(&namespace.label, &namespace.datapaths) else { continue };
        for reason in &pair.after.unanswered {
            outcome.skip(&namespace.label, reason);
        }
        for after in &pair.after.known {
            let before = pair.before.known.iter().find(|before| before.name == after.name);
            // A datapath that was made meanwhile has no first reading.
            let Some(before) = before else { continue };
            let [hit, missed, lost] = [
                after.hit.saturating_sub(before.hit),
                after.missed.saturating_sub(before.missed),
                after.lost.saturating_sub(before.lost),
            ];
            outcome.findings.extend(CHECK.counted(
                (namespace, &after.name),
                &[("lost", lost)],
                "lookups of ovs-appctl dpctl/show",
                (hit.saturating_add(missed), "packets"),
            ));
        }
    }
}
