//! OV054: An offload is known to be broken here.

use super::{Check, Confidence, Cost, Outcome, Severity, Spot, View};
use std::collections::BTreeSet;

use netstate::machine::MachineFacts;

use crate::defects::{Case, DEFECTS, Defect, DefectiveDevice, kernel_version};
use crate::finding::Finding;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV054",
    title: "An offload is known to be broken here",
    severity: Severity::Warn,
    explanation: "This combination of driver, kernel or hypervisor is in a small list of reported \
        defects: an offload that is announced and done wrong, or that costs more than it \
        saves. Each entry says where it was reported and when it was last looked at. A \
        report is not a proof: overlane try measures it here.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
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

fn finding(spot: Spot<'_>, defect: &Defect, facts: &MachineFacts) -> Finding {
    let driver = spot.device.and_then(|device| device.driver.as_deref()).unwrap_or("none");
    CHECK
        .on(spot)
        .severity(defect.severity)
        .evidence(
            format!("{}: on; driver {driver}, kernel {}", defect.feature, facts.kernel_release),
            "ETHTOOL_GFEATURES, uname",
        )
        .evidence(defect.symptom, format!("{} (as of {})", defect.source, defect.as_of))
        .cost(Cost::estimated(defect.cost, "packets of this tunnel, by the report"))
        .confidence(Confidence::Low)
        .set(
            Change::feature(spot, defect.feature, false),
            "where the defect is mended it costs CPU time; overlane try tells",
        )
}
