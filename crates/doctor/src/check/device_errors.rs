//! OV050: receive or transmit errors of a device increase.

use netstate::interface::Counters;

use super::tunnel_extensions::{extensions, other_end};
use super::{Check, CheckOutcome, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV050",
    title: "A device counts errors",
    severity: Severity::Warn,
    explanation: "A device counted errors between the two readings. On hardware, suspect cable, \
        optics or duplex. On a VXLAN device, rx_errors are packets with reserved bits or options \
        that the device does not accept, and tx_errors are packets that it could not route.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for spot in view.devices() {
        // Without a second reading, current errors are unknown.
        let Some(moved) = spot.moved() else { continue };
        let errors = moved.rx_errors.saturating_add(moved.tx_errors);
        // OV022 reports drops at a full ring.
        let missed = moved.rx_missed.saturating_add(moved.rx_fifo);
        if errors.saturating_sub(missed) == 0 {
            continue;
        }
        // OV121 reports them with their cause.
        if spot.vxlan().is_some_and(|vxlan| other_end(view, spot, vxlan).is_some()) {
            continue;
        }
        let all = moved.rx_packets.saturating_add(moved.tx_packets).saturating_add(errors);
        let mut finding = CHECK
            .on(spot)
            .evidence(text(&moved), "IFLA_STATS64")
            .cost(Cost::of_packets(errors, all, "packets"));
        if let Some(vxlan) = spot.vxlan().filter(|_| moved.rx_frame > 0) {
            finding = finding.evidence(
                format!(
                    "headers with flags that {} does not take: it has {}, other ends may have another \
                     extension",
                    spot.name(),
                    extensions(vxlan)
                ),
                "IFLA_VXLAN_GBP, IFLA_VXLAN_GPE",
            );
        }
        outcome.add(finding);
    }
}

/// Lists the counters that increased.
fn text(moved: &Counters) -> String {
    let side = |name: &str, errors: u64, kind: &str, of_kind: u64| match (errors, of_kind) {
        (0, _) => None,
        (_, 0) => Some(format!("{name} +{errors}")),
        _ => Some(format!("{name} +{errors} ({kind} +{of_kind})")),
    };
    let (kind, of_kind) = match moved.rx_crc {
        0 => ("frame", moved.rx_frame),
        crc => ("crc", crc),
    };
    let sides = [
        side("rx_errors", moved.rx_errors, kind, of_kind),
        side("tx_errors", moved.tx_errors, "carrier", moved.tx_carrier),
    ];
    sides.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
