//! OV067: QEMU moves a guest's packets itself, not the kernel.

use super::tap_vnet_header::{holder, taps};
use super::{Check, Confidence, Cost, Outcome, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV067",
    title: "A guest's packets go through QEMU",
    severity: Severity::Info,
    explanation: "QEMU holds the TAP device and not /dev/vhost-net: it reads and writes each \
        packet by system calls of its main thread, which also runs its emulated devices. With \
        vhost=on a thread of the kernel does it. That takes a virtio NIC; libvirt asks for it \
        by itself where QEMU may open the device. Right for other NICs, and where the kernel \
        has no vhost_net.",
    run,
};

fn run(view: &View<'_>, outcome: &mut Outcome) {
    let in_kernel = view.host().machine.kernel_vhost_net;
    for tap in taps(view) {
        let Some(held) = holder(tap) else { continue };
        // Other programs behind a TAP (Open vSwitch, overlane, a VPN) are no guests, and other
        // VMMs know no vhost_net.
        if held.vhost || !is_qemu(&held.command) {
            continue;
        }
        let finding = CHECK.on(tap).evidence(
            format!("held by {}/{}, which has no /dev/vhost-net", held.command, held.pid),
            "/proc",
        );
        outcome.add(match in_kernel {
            // How the guest is started is not ours to change.
            true => finding
                .evidence("/dev/vhost-net is there", "/dev")
                .severity(Severity::Warn)
                .cost(Cost::estimated(0.4, "throughput and latency of the guest"))
                .confidence(Confidence::Medium),
            false => finding
                .evidence("/dev/vhost-net is not there", "/dev")
                .cost(Cost::estimated(0.4, "throughput of the guest; not to be helped here"))
                .confidence(Confidence::Medium),
        });
    }
}

/// By the name that a process goes by: QEMU's binaries (`qemu-system-x86`, `qemu-kvm`), what
/// Proxmox calls it (`kvm`), and `-name …,process=qemu:…` as OpenStack's has it.
pub(super) fn is_qemu(command: &str) -> bool {
    command.starts_with("qemu") || command == "kvm"
}
