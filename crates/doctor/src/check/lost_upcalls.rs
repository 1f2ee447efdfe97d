//! OV065: A datapath of Open vSwitch counts lost upcalls.

use super::{Check, CheckOutcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV065",
    title: "Open vSwitch loses packets of new flows",
    severity: Severity::Error,
    explanation: "Between the two readings an Open vSwitch datapath dropped packets without a flow \
        because it could not pass them to the daemon (an upcall). ovs-vswitchd hangs, has too few \
        threads for the rate of new flows, or has a datapath port that belongs to no bridge. New \
        connections start late or not at all; established ones continue. Check its log, ovs-appctl \
        upcall/show and coverage/show. Check also why so many new flows appear: rules may match \
        ports or addresses unnecessarily.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        let Some(pair) = outcome.need(&namespace.label, &namespace.datapaths) else { continue };
        for reason in &pair.after.unanswered {
            outcome.skip(&namespace.label, reason);
        }
        for after in &pair.after.known {
            let before = pair.before.known.iter().find(|before| before.name == after.name);
            // A datapath created between the readings has no first reading.
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
