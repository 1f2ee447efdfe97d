//! OV115: Answers of a service cross a bridge without translation.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};
use crate::host::Namespace;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV115",
    title: "A service's answers bypass translation",
    severity: Severity::Error,
    explanation: "A tenant connects to a service, a rule translates the destination to another \
        tenant on the same bridge, and that tenant's answer only crosses the bridge. The rules see \
        bridged frames only with br_netfilter and bridge-nf-call-iptables = 1. Without it the \
        answer keeps the address of the tenant, which the client did not ask, and the connection \
        fails. Endpoints on other nodes answer, because their packets are routed. It is reported \
        if such a connection had no answer.",
    run,
};

const KEY: &str = "net/bridge/bridge-nf-call-iptables";

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        // Only hosts with rules that translate have any.
        let Some(all) = namespace.translations.get() else { continue };
        // Connections of too large a table are not read, which OV109 reports.
        for one in all.stalled.iter().flatten() {
            let (Some(from), Some(to)) = (behind(view, at, one.from), behind(view, at, one.now))
            else {
                continue;
            };
            let is_bridged = from.place == to.place && one.from != one.now;
            if !is_bridged || sees_frames(namespace, from) {
                continue;
            }
            add(outcome, namespace, from, (one.from, one.to, one.now));
            // One connection stands for all of this bridge.
            break;
        }
    }
}

/// The bridge behind which a tenant with an address is.
fn behind<'a>(view: &View<'a>, namespace: usize, address: IpAddr) -> Option<DeviceRef<'a>> {
    let mut tenants = view.with_address(address);
    tenants.find_map(|tenant| {
        let port = view.peer(tenant)?;
        view.bridge(port).filter(|bridge| bridge.place.namespace == namespace)
    })
}

/// Whether rules for IP see the frames of a bridge.
fn sees_frames(namespace: &Namespace, bridge: DeviceRef<'_>) -> bool {
    let of_bridge = bridge.interface.bridge.is_some_and(|settings| settings.call_iptables);
    of_bridge || namespace.sysctls.get(KEY).is_some_and(|on| on == "1")
}

fn add(
    outcome: &mut CheckOutcome,
    namespace: &Namespace,
    bridge: DeviceRef<'_>,
    (from, (service, port), now): (IpAddr, (IpAddr, u16), IpAddr),
) {
    let setting = namespace.sysctls.get(KEY);
    let finding = CHECK
        .on(bridge)
        .evidence(
            match setting {
                Some(off) => format!("{KEY} = {off}"),
                None => "br_netfilter is not loaded".to_owned(),
            },
            "/proc/sys",
        )
        .evidence(
            format!(
                "{from} to {service} port {port} is translated to {now}, on the same bridge {}; \
                 no answer was seen",
                bridge.name()
            ),
            "IPCTNL_MSG_CT_GET",
        )
        .cost(Cost::estimated(0.9, "connections to services with endpoints on this bridge"));
    outcome.add(match setting {
        Some(off) => finding.set(
            Change::sysctl(namespace, KEY, off, "1"),
            "rules then see all frames that cross bridges, which costs CPU time: a policy that \
             drops forwarded packets drops such frames, too. Set it in /etc/sysctl.d",
        ),
        None => finding.by_hand(
            "modprobe br_netfilter".to_owned(),
            "rules then see all frames that cross bridges, which costs CPU time: a policy that \
             drops forwarded packets drops such frames, too. Load it at boot by \
             /etc/modules-load.d",
            "modprobe -r br_netfilter".to_owned(),
        ),
    });
}
