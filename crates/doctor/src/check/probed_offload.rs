//! OV090: a probe has found that an offload damages or loses packets.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::finding::Finding;
use crate::probed::Probed;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV090",
    title: "A probe found packets damaged or lost",
    severity: Severity::Error,
    explanation: "overlane probe --yes has sent packets between this device and another machine in \
        this boot, and found some damaged or lost. If it names a feature, the packets arrived \
        intact with that feature off and were damaged or lost again with it on, so the fix \
        switches it off; run overlane probe again to verify the repair. Without a feature, no \
        setting of this device explains the fault: run overlane probe --yes at the other end. A \
        later probe that finds the path clean, with the feature on, removes the finding.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for probed in &view.host().probed {
        let Some(spot) = spot(view, probed) else { continue };
        if probed.features.is_empty() {
            outcome.add(
                finding(spot, probed)
                    .severity(Severity::Warn)
                    .confidence(Confidence::Medium)
                    .evidence("no setting of this device is known as the cause", "overlane probe"),
            );
            continue;
        }
        let object = format!("{} {}", spot.namespace.label, spot.name());
        let mut on = Vec::new();
        for name in &probed.features {
            match outcome.need_result(&object, spot.feature(name)) {
                Some(Some(state)) if state.is_on() => on.push(name),
                // Off, or unknown to this kernel.
                _ => {}
            }
        }
        // One that is off is enough: they cause damage only together.
        if on.len() < probed.features.len() {
            continue;
        }
        let changes = on.iter().map(|name| Change::feature(spot, name, false)).collect();
        let names = probed.features.join(", ");
        outcome.add(
            finding(spot, probed)
                .evidence(format!("{names}: on"), "ETHTOOL_GFEATURES")
                .evidence("with it off, the packets arrived unchanged", "overlane probe")
                .set_all(changes, "the kernel does this work instead, which costs CPU time"),
        );
    }
}

fn finding(spot: DeviceRef<'_>, probed: &Probed) -> Finding {
    let way = if probed.outgoing { "to" } else { "from" };
    CHECK
        .on(spot)
        .evidence(
            format!(
                "{} classes of packets {way} {}: {}, {}",
                probed.classes, probed.peer, probed.verdict, probed.detail
            ),
            "overlane probe",
        )
        .cost(Cost::estimated(0.95, "packets of these classes on this path, by overlane probe"))
}

/// Returns the device, if it is still the same.
fn spot<'a>(view: &View<'a>, probed: &Probed) -> Option<DeviceRef<'a>> {
    let namespace = view.namespace(probed.namespace)?;
    let mut devices = view.devices_of(namespace);
    devices.find(|spot| {
        let same = match (spot.namespace.cookie, probed.cookie) {
            (Some(a), Some(b)) => a == b,
            // Unknown: the inode number must do.
            _ => true,
        };
        same && spot.interface.index == probed.index && spot.name() == probed.device
    })
}
