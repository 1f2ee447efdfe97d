//! OV006: TSO or GSO is off on a tenant's device.

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};
use crate::path::has_userspace_switch;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV006",
    title: "A tenant sends no GSO packets",
    severity: Severity::Warn,
    explanation: "TCP segmentation offload or GSO is off on a tenant's device. Its kernel cuts \
        everything into wire-size packets at once, and veth, bridge and tunnel process each of \
        them. It is often left over from a workaround for a checksum error. Correct if a switch in \
        user space cannot handle GSO packets.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tenant in ends(view) {
        // Without checksum offload there is no TSO either. OV011 reports it.
        let sums = tenant.feature("tx-checksum-ip-generic").ok().flatten();
        if sums.is_some_and(|sums| !sums.is_on()) {
            continue;
        }
        for feature in ["tx-generic-segmentation", "tx-tcp-segmentation"] {
            let Some(off) = outcome.off(tenant, feature) else { continue };
            let finding = CHECK
                .on(tenant)
                .evidence(format!("{feature}: off"), "ETHTOOL_GFEATURES")
                .cost(Cost::estimated(0.5, "CPU time of the tenant's TCP streams"));
            let finding = match off.fixed {
                true => finding,
                false => finding.set(
                    Change::feature(tenant, feature, true),
                    "a checksum error may reappear, if it was the reason for switching it off",
                ),
            };
            let switched =
                view.peer(tenant).is_some_and(|port| has_userspace_switch(port.namespace));
            outcome.add(match switched {
                // Open vSwitch in user space drops GSO packets without userspace-tso.
                true => finding.severity(Severity::Info),
                false => finding,
            });
        }
    }
}

/// Returns the tenants' ends of veth pairs: the other end is a bridge or switch port.
pub(super) fn ends<'a>(view: &View<'a>) -> Vec<DeviceRef<'a>> {
    let walks = view.devices().filter(|spot| {
        spot.kind() == "veth" && spot.interface.master.is_none() && spot.interface.up
    });
    let nics = view.underlay_nics();
    let is_end = |spot: &DeviceRef<'a>| {
        let Some(peer) = view.peer(*spot) else { return false };
        let joined = view.bridge(peer).is_some() || has_userspace_switch(peer.namespace);
        // A veth under a tunnel is the NIC of a host that is a namespace, not a tenant's device.
        joined && nics.iter().all(|nic| nic.place != spot.place)
    };
    walks.filter(is_end).collect()
}
