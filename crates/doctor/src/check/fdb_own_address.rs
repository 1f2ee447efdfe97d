//! OV037: A VXLAN device's remote is an address of its own underlay namespace.

use super::{Check, CheckOutcome, Cost, Severity, View, ip_command};
use crate::view::DeviceKey;
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV037",
    title: "A forwarding entry points back to this host",
    severity: Severity::Warn,
    explanation: "A forwarding entry of the VXLAN device sends to an address of this host. Frames \
        come back, or reach the wrong device. A control plane took this host for a remote one, a host \
        was cloned, or a device beside the NIC has the remote's address: kube-proxy in mode ipvs gives \
        kube-ipvs0 the externalIPs of services.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.tunnels() {
        let Some(ways) = view.ways(tunnel) else { continue };
        // The underlay's namespace was not read.
        let Some(at) = view.namespace(ways.underlay) else { continue };
        let Some(namespace) = view.host().namespaces.get(at) else { continue };
        let Some(own) = outcome.need(&namespace.label, &namespace.addresses) else { continue };
        for (remote, _) in &ways.ways {
            let is_own = own.iter().any(|known| known.address == *remote);
            if !is_own && vxlan.local != Some(*remote) {
                continue;
            }
            let finding = CHECK
                .on(tunnel)
                .evidence(format!("remote {remote}"), "RTM_GETNEIGH (PF_BRIDGE)")
                .cost(Cost::estimated(0.5, "packets to this remote"));
            let known = own.iter().find(|known| known.address == *remote);
            let device = known.and_then(|known| {
                let device = view.spot(DeviceKey { namespace: at, index: known.link })?;
                Some((device, known.prefix))
            });
            let Some((device, prefix)) = device else {
                outcome.add(finding.evidence(
                    format!("{remote} is an address of {}", namespace.label),
                    "RTM_GETADDR",
                ));
                continue;
            };
            let finding = finding.evidence(
                format!("{remote} is an address of {} {}", namespace.label, device.name()),
                "RTM_GETADDR",
            );
            // The tunnel's own address is right: then the entry is wrong.
            if vxlan.local == Some(*remote) || device.is_nic() {
                outcome.add(finding);
                continue;
            }
            let set = |verb: &str| {
                let (ip, name) = (ip_command(*remote), quote(device.name()));
                let command = format!("{ip} addr {verb} {remote}/{prefix} dev {name}");
                inside(namespace.path.as_deref(), &command)
            };
            outcome.add(finding.by_hand(
                set("del"),
                "the program that gave the device the address may set it again: kube-proxy in mode \
                 ipvs takes it from the externalIPs of a service, which must not be a node's address",
                set("add"),
            ));
        }
    }
}
