//! OV056: Tunnel packets all go to one receive queue.

use super::{Check, CheckOutcome, Cost, Severity, View};

use sys::ethtool::HASH_PORTS;

use super::queues_uneven::uneven;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV056",
    title: "Tunnel packets all go to one receive queue",
    severity: Severity::Warn,
    explanation: "The NIC chooses a receive queue for UDP by IP addresses alone, so all VXLAN \
        packets between two hosts use one queue and one CPU. VXLAN carries a hash of the inner \
        flow in its source port (RFC 7348, section 5): hash the ports, too. Fragments of one \
        datagram may then be received out of order.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for nic in view.underlay_nics() {
        // The driver does not report its hash.
        let Some(fields) = nic.device.and_then(|device| device.udp4_hash) else { continue };
        if fields & HASH_PORTS == HASH_PORTS {
            continue;
        }
        // The hash only matters if one queue takes nearly all packets.
        let Some((most, all)) = uneven(&view.receive_interrupts(nic)) else { continue };
        let command = |fields: &str| {
            let command = format!("ethtool -N {} rx-flow-hash udp4 {fields}", quote(nic.name()));
            inside(nic.namespace.path.as_deref(), &command)
        };
        outcome.add(
            CHECK
                .on(nic)
                .evidence(
                    format!("UDP over IPv4 is hashed by 0x{fields:x}, without ports"),
                    "ETHTOOL_GRXFH",
                )
                .evidence(format!("one queue has {most} of {all} interrupts"), "/proc/interrupts")
                .cost(Cost::estimated(0.5, "tunnel packets between two hosts"))
                .by_hand(
                    command("sdfn"),
                    "fragments of one datagram may be received out of order",
                    command("sd"),
                ),
        );
    }
}
