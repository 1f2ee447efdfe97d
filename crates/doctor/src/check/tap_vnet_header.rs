//! OV044: A TAP device without virtio network header.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};
use netstate::namespace::Holder;

pub(super) const CHECK: Check = Check {
    code: "OV044",
    title: "A TAP carries no GSO packets",
    severity: Severity::Warn,
    explanation: "The TAP device was opened without IFF_VNET_HDR, so neither GSO packets nor \
        unfinished checksums can cross it: every packet of at most an MTU costs its own system \
        calls and checksum. The program behind it (QEMU, a tunnel endpoint) has to request the \
        header when it opens the device.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tap in taps(view) {
        let Some(flags) = tap.device.and_then(|device| device.tun_flags) else { continue };
        // OV047 reports Open vSwitch's own ports.
        let held = holder(tap);
        if flags & IFF_VNET_HDR != 0 || held.is_some_and(|held| held.command == "ovs-vswitchd") {
            continue;
        }
        let by = held
            .map_or_else(String::new, |held| format!(", held by {}/{}", held.command, held.pid));
        outcome.add(
            CHECK
                .on(tap)
                .evidence(format!("tun_flags {flags:#x}: no IFF_VNET_HDR{by}"), "/sys/class/net")
                .cost(Cost::estimated(0.8, "throughput of TCP streams through the device")),
        );
    }
}

/// `IFF_VNET_HDR` of linux/if_tun.h.
const IFF_VNET_HDR: u32 = 0x4000;
const IFF_TAP: u32 = 0x0002;

/// TAP devices that are up.
pub(super) fn taps<'a>(view: &View<'a>) -> Vec<DeviceRef<'a>> {
    let is_tap = |spot: &DeviceRef<'a>| {
        let flags = spot.device.and_then(|device| device.tun_flags);
        // Without a program there is no carrier: the device is not in use.
        spot.interface.up
            && spot.interface.carrier
            && flags.is_some_and(|flags| flags & IFF_TAP != 0)
    };
    view.devices().filter(is_tap).collect()
}

/// Returns the process that has a TAP open.
pub(super) fn holder<'a>(tap: DeviceRef<'a>) -> Option<&'a Holder> {
    tap.namespace.holders.iter().find(|holder| holder.device == tap.name())
}
