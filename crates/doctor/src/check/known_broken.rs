//! OV054: an offload has a reported defect with this driver, kernel or hypervisor.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use std::collections::BTreeSet;

use netstate::defects::{Circumstances, DEFECTS, Defect, DefectiveDevice, Effect, kernel_version};
use netstate::machine::MachineFacts;

use crate::finding::Finding;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV054",
    title: "An offload is known to be broken here",
    severity: Severity::Warn,
    explanation: "This combination of driver, kernel or hypervisor is in a short list of reported \
        defects: an offload that works incorrectly, or that costs more than it saves. Each entry \
        names the report and the date it was last checked. A report is no proof for this machine; \
        overlane probe tests it here, and overlane try measures it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    // Defects are bound to kernel and hypervisor.
    let Some(facts) = view.host().machine.facts.get() else { return };
    let mut seen = BTreeSet::new();
    for (tunnel, vxlan) in view.tunnels() {
        for underlay in view.underlays(tunnel) {
            let case = Circumstances { vxlan: Some(vxlan), ..of_nic(underlay.nic, facts) };
            for (number, defect) in applying(&case) {
                let spot = match defect.device {
                    DefectiveDevice::Tunnel => tunnel,
                    DefectiveDevice::Nic => underlay.nic,
                };
                if is_on(spot, defect) && seen.insert((number, spot.place)) {
                    outcome.add(finding(spot, defect, facts));
                }
            }
        }
    }
    // Tunnels in user space send through NICs, too.
    for nic in view.devices().filter(DeviceRef::is_physical) {
        for (number, defect) in applying(&of_nic(nic, facts)) {
            if is_on(nic, defect) && seen.insert((number, nic.place)) {
                outcome.add(finding(nic, defect, facts));
            }
        }
    }
}

fn of_nic<'a>(nic: DeviceRef<'a>, facts: &'a MachineFacts) -> Circumstances<'a> {
    let chains = nic.namespace.chains.get().map(Vec::as_slice).unwrap_or_default();
    Circumstances {
        kernel: kernel_version(&facts.kernel_release),
        hypervisor: facts.hypervisor.as_deref().unwrap_or_default(),
        driver: nic.device.and_then(|device| device.driver.as_deref()),
        kind: nic.interface.kind.as_deref(),
        vxlan: None,
        translates: chains.iter().any(|chain| chain.table.to_ascii_lowercase().contains("nat")),
    }
}

fn applying<'a>(
    case: &'a Circumstances<'a>,
) -> impl Iterator<Item = (usize, &'static Defect)> + 'a {
    DEFECTS.iter().enumerate().filter(|(_, defect)| (defect.applies)(case))
}

fn is_on(spot: DeviceRef<'_>, defect: &Defect) -> bool {
    spot.feature(defect.feature).ok().flatten().is_some_and(|on| on.is_on())
}

fn finding(spot: DeviceRef<'_>, defect: &Defect, facts: &MachineFacts) -> Finding {
    let driver = spot.device.and_then(|device| device.driver.as_deref()).unwrap_or("none");
    let severity = match defect.effect {
        Effect::Slow => Severity::Info,
        Effect::Lossy => Severity::Warn,
        Effect::Lost => Severity::Error,
    };
    CHECK
        .on(spot)
        .severity(severity)
        .evidence(
            format!("{}: on; driver {driver}, kernel {}", defect.feature, facts.kernel_release),
            "ETHTOOL_GFEATURES, uname",
        )
        .evidence(defect.symptom, format!("{} (as of {})", defect.reports(), defect.as_of))
        .cost(Cost::estimated(defect.cost, "packets that use it, according to the report"))
        .confidence(Confidence::Low)
        .set(
            Change::feature(spot, defect.feature, false),
            "if the defect is fixed here, this costs CPU time; test it with overlane probe, and \
             measure it with overlane try",
        )
}
