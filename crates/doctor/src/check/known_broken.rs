//! OV054: an offload has a reported defect with this driver, kernel or hypervisor.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use std::collections::BTreeSet;

use netstate::machine::MachineFacts;

use crate::defects::{Case, DEFECTS, Defect, DefectiveDevice, kernel_version};
use crate::finding::Finding;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV054",
    title: "An offload is known to be broken here",
    severity: Severity::Warn,
    explanation: "This combination of driver, kernel or hypervisor is in a short list of reported \
        defects: an offload that works incorrectly, or that costs more than it saves. Each entry \
        names the report and the date it was last checked. A report is no proof for this machine; \
        overlane try measures it here.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    // Defects are bound to kernel and hypervisor.
    let Some(facts) = view.host().machine.facts.get() else { return };
    let kernel = kernel_version(&facts.kernel_release);
    let mut seen = BTreeSet::new();
    for (tunnel, vxlan) in view.tunnels() {
        for underlay in view.underlays(tunnel) {
            let case = Case {
                vxlan,
                nic: underlay.nic,
                driver: underlay.nic.device.and_then(|device| device.driver.as_deref()),
                kernel,
                hypervisor: facts.hypervisor.as_deref().unwrap_or_default(),
            };
            for (number, defect) in DEFECTS.iter().enumerate() {
                let spot = match defect.device {
                    DefectiveDevice::Tunnel => tunnel,
                    DefectiveDevice::Nic => underlay.nic,
                };
                let on = spot.feature(defect.feature).ok().flatten();
                let met = on.is_some_and(|on| on.is_on()) && (defect.applies)(&case);
                if met && seen.insert((number, spot.place)) {
                    outcome.add(finding(spot, defect, facts));
                }
            }
        }
    }
}

fn finding(spot: DeviceRef<'_>, defect: &Defect, facts: &MachineFacts) -> Finding {
    let driver = spot.device.and_then(|device| device.driver.as_deref()).unwrap_or("none");
    CHECK
        .on(spot)
        .severity(defect.severity)
        .evidence(
            format!("{}: on; driver {driver}, kernel {}", defect.feature, facts.kernel_release),
            "ETHTOOL_GFEATURES, uname",
        )
        .evidence(defect.symptom, format!("{} (as of {})", defect.source, defect.as_of))
        .cost(Cost::estimated(defect.cost, "packets of this tunnel, according to the report"))
        .confidence(Confidence::Low)
        .set(
            Change::feature(spot, defect.feature, false),
            "if the defect is fixed here, this costs CPU time; measure it with overlane try",
        )
}
