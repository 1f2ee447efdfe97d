//! OV076: A TAP with a virtio header, whose program asked for no offload.

use super::tap_vnet_header::{holder, taps};
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV076",
    title: "A TAP's program enabled no offloads",
    severity: Severity::Warn,
    explanation: "The TAP device has a virtio network header (IFF_VNET_HDR), but its program \
        never enabled offloads (TUNSETOFFLOAD), so the kernel cuts each large packet and computes \
        each checksum before the program gets it. Streams to the guest take two to three times the \
        CPU time. QEMU enables the offloads that the guest's driver negotiates: host_tso4, \
        guest_tso4 and guest_csum of virtio-net must be on, and the driver must support them.",
    run,
};

/// `IFF_VNET_HDR` of linux/if_tun.h.
const IFF_VNET_HDR: u32 = 0x4000;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tap in taps(view) {
        let flags = tap.device.and_then(|device| device.tun_flags).unwrap_or(0);
        // Without a program, no process can accept offloads; OV044 reports a missing header.
        if flags & IFF_VNET_HDR == 0 || !tap.interface.carrier {
            continue;
        }
        let off = |name| matches!(tap.feature(name), Ok(Some(feature)) if !feature.is_on());
        // One of them is on, so the program has enabled offloads.
        if !off("tx-checksum-ip-generic") || !off("tx-tcp-segmentation") {
            continue;
        }
        let held = holder(tap);
        // OV047 reports Open vSwitch's own ports.
        if held.is_some_and(|held| held.command == "ovs-vswitchd") {
            continue;
        }
        let by = held.map_or_else(
            || "its program".to_owned(),
            |held| format!("its program ({}, PID {})", held.command, held.pid),
        );
        // An idle guest loses nothing now.
        let busy = tap.moved().is_some_and(|moved| moved.tx_packets > 0);
        outcome.add(
            CHECK
                .on(tap)
                .severity(if busy { Severity::Warn } else { Severity::Info })
                .evidence(
                    format!(
                        "tx-checksum-ip-generic and tx-tcp-segmentation off; {by} did not \
                             enable them"
                    ),
                    "ETHTOOL_GFEATURES",
                )
                .evidence(format!("tun_flags {flags:#x}: IFF_VNET_HDR"), "/sys/class/net")
                .cost(Cost::estimated(0.6, "throughput of TCP streams to the guest"))
                .confidence(Confidence::High),
        );
    }
}
