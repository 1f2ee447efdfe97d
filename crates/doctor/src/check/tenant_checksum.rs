//! OV011: Transmit checksum offload off at a tenant.

use super::tenant_segmentation::ends;
use super::{Check, Cost, Outcome, Severity, View};
use crate::path::has_userspace_switch;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV011",
    title: "A tenant sums up every packet itself",
    severity: Severity::Warn,
    explanation: "Transmit checksum offload is off at a tenant's veth device: the CPU sums up \
        every packet, though nobody between here and the NIC needs the sum, and super- \
        packets are no longer built (TSO depends on it). Known as a workaround for \
        switches in user space and for broken NICs.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    const FEATURE: &str = "tx-checksum-ip-generic";
    for tenant in ends(view) {
        let Some(off) = outcome.off(tenant, FEATURE) else { continue };
        let finding = CHECK
            .on(tenant)
            .evidence(format!("{FEATURE}: off"), "ETHTOOL_GFEATURES")
            .cost(Cost::estimated(0.5, "CPU time of the tenant's TCP streams"));
        let finding = match off.fixed {
            true => finding,
            false => finding.set(
                Change::feature(tenant, FEATURE, true),
                "where a checksum error made somebody switch it off, it comes back",
            ),
        };
        // Open vSwitch in user space may take finished packets only: then it is off on purpose.
        let switched = view.peer(tenant).is_some_and(|port| has_userspace_switch(port.namespace));
        outcome.add(if switched { finding.severity(Severity::Info) } else { finding });
    }
}
