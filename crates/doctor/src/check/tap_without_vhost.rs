//! OV067: QEMU, not the kernel, moves a guest's packets.

use super::tap_vnet_header::{holder, taps};
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV067",
    title: "A guest's packets pass through QEMU",
    severity: Severity::Info,
    explanation: "QEMU has the TAP device open but not /dev/vhost-net. It reads and writes each \
        packet by system calls of its main thread, which also runs its emulated devices. With \
        vhost=on a kernel thread does it. That requires a virtio NIC; libvirt requests it \
        automatically if QEMU may open the device. Correct for other NICs, and if the kernel has \
        no vhost_net.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let in_kernel = view.host().machine.kernel_vhost_net;
    for tap in taps(view) {
        let Some(held) = holder(tap) else { continue };
        // Other programs behind a TAP (Open vSwitch, overlane, a VPN) are no guests, and other VMMs
        // do not use vhost_net.
        if held.vhost || !is_qemu(&held.command) {
            continue;
        }
        let finding = CHECK.on(tap).evidence(
            format!("held by {}/{}, which has no /dev/vhost-net", held.command, held.pid),
            "/proc",
        );
        outcome.add(match in_kernel {
            // No fix: doctor does not change how a guest is started.
            true => finding
                .evidence("/dev/vhost-net exists", "/dev")
                .severity(Severity::Warn)
                .cost(Cost::estimated(0.4, "throughput and latency of the guest"))
                .confidence(Confidence::Medium),
            false => finding
                .evidence("/dev/vhost-net does not exist", "/dev")
                .cost(Cost::estimated(0.4, "throughput of the guest; no remedy on this kernel"))
                .confidence(Confidence::Medium),
        });
    }
}

/// Whether a process is QEMU, by its name: QEMU's binaries (`qemu-system-x86`, `qemu-kvm`),
/// Proxmox's name (`kvm`), and OpenStack's `-name …,process=qemu:…`.
pub(super) fn is_qemu(command: &str) -> bool {
    command.starts_with("qemu") || command == "kvm"
}
