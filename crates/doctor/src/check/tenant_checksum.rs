//! OV011: transmit checksum offload is off on a tenant's device.

use super::tenant_segmentation::ends;
use super::{Check, CheckOutcome, Cost, Severity, View};
use crate::path::has_userspace_switch;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV011",
    title: "A tenant computes all checksums in software",
    severity: Severity::Warn,
    explanation: "Transmit checksum offload is off on a tenant's veth device. The CPU computes a \
        checksum for every packet, although nothing before the NIC needs it, and no GSO packets \
        are built, because TSO depends on checksum offload. It is a known workaround for switches \
        in user space and for broken NICs.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
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
                "a checksum error may reappear, if it was the reason for switching it off",
            ),
        };
        // Open vSwitch in user space may accept only packets with finished checksums. Then it is
        // off on purpose.
        let switched = view.peer(tenant).is_some_and(|port| has_userspace_switch(port.namespace));
        outcome.add(if switched { finding.severity(Severity::Info) } else { finding });
    }
}
