//! OV108: The kernel does not use an IPv6 address, because another host has it.

use super::{Check, CheckOutcome, Cost, Severity, View, is_link_local};
use crate::view::DeviceKey;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV108",
    title: "Duplicate address detection has failed",
    severity: Severity::Error,
    explanation: "When an IPv6 address was added, another host of the link answered for it, or the \
        link returned the question to its sender (hairpin mode of a bridge port). The kernel shows \
        the address and does not use it (dadfailed): packets to it are lost. For a link-local \
        address it is a remark.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for known in namespace.addresses.get().into_iter().flatten() {
            let place = DeviceKey { namespace: at, index: known.link };
            let Some(device) = view.spot(place).filter(|_| known.duplicate) else { continue };
            let address =
                format!("{}/{} dev {}", known.address, known.prefix, quote(device.name()));
            // Bridges and tunnels have one by default that no tenant needs.
            let (severity, share) = match is_link_local(known.address) {
                true => (Severity::Info, 0.1),
                false => (Severity::Error, 1.0),
            };
            let run = |words: &str| inside(namespace.path.as_deref(), words);
            outcome.add(
                CHECK
                    .on(device)
                    .evidence(format!("{}: dadfailed", known.address), "IFA_FLAGS")
                    .severity(severity)
                    .cost(Cost::estimated(share, "packets to this address"))
                    .by_hand(
                        run(&format!("ip addr del {address} && ip addr add {address}")),
                        "the detection runs again, and fails again while another host has the \
                         address",
                        run(&format!("ip addr replace {address}")),
                    ),
            );
        }
    }
}
