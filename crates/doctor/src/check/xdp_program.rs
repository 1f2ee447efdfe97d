//! OV106: An XDP program handles a tunnel's packets first.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV106",
    title: "An XDP program handles a tunnel's packets first",
    severity: Severity::Info,
    explanation: "An XDP program runs for each packet that a tunnel's NIC receives, before the \
        network stack. It may drop or redirect packets, and no counter of the stack shows it. Load \
        balancers and filters use such programs on purpose; one may also be left over from a \
        program that has ended. `overlane trace` shows packets that it drops in generic mode.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for nic in view.underlay_nics() {
        let Some(id) = nic.interface.xdp else { continue };
        let received = nic.moved().map_or(0, |moved| moved.rx_packets);
        // Detaching it would need its owner to attach it again, so there is no fix that undoes.
        outcome.add(
            CHECK
                .on(nic)
                .evidence(
                    format!("XDP program {id}; it saw rx_packets +{received}"),
                    format!("IFLA_XDP; bpftool prog show id {id}"),
                )
                .cost(Cost::estimated(0.2, "received packets, if it drops them"))
                .confidence(Confidence::Low),
        );
    }
}
