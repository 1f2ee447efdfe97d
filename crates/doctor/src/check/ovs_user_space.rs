//! OV047: Open vSwitch's datapath is in user space.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::command;

pub(super) const CHECK: Check = Check {
    code: "OV047",
    title: "Open vSwitch forwards in user space",
    severity: Severity::Info,
    explanation: "Open vSwitch passes every packet through its daemon (datapath_type netdev). \
        Without DPDK that is several times slower than its datapath in the kernel. Correct if the \
        kernel has no such datapath; probably a mistake if its module is loaded.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let in_kernel = view.host().machine.kernel_openvswitch;
    for namespace in &view.host().namespaces {
        let held: Vec<&str> = namespace
            .holders
            .iter()
            .filter(|holder| holder.command == "ovs-vswitchd")
            .map(|holder| holder.device.as_str())
            .collect();
        let links = namespace.interfaces.get().into_iter().flatten();
        let bridges: Vec<&str> =
            links.map(|link| link.name.as_str()).filter(|name| held.contains(name)).collect();
        // No daemon holds a TAP here, so the datapath is in the kernel or there is none.
        let Some(first) = bridges.first() else { continue };
        let finding = CHECK
            .in_namespace(namespace, *first)
            .evidence(format!("TAP devices held by ovs-vswitchd: {}", bridges.join(", ")), "/proc");
        outcome.add(match in_kernel {
            true => finding
                .evidence("module openvswitch is loaded", "/sys/module")
                .severity(Severity::Warn)
                .cost(Cost::estimated(0.8, "throughput of all ports"))
                .confidence(Confidence::Medium)
                .by_hand(
                    format!("ovs-vsctl set bridge {} datapath_type=system", command::quote(first)),
                    "the bridge is created again: its traffic stops briefly",
                    format!("ovs-vsctl set bridge {} datapath_type=netdev", command::quote(first)),
                ),
            false => finding
                .evidence("the kernel has no openvswitch", "/sys/module")
                .cost(Cost::estimated(0.8, "throughput of all ports; no remedy on this kernel")),
        });
    }
}
