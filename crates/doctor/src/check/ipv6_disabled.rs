//! OV118: IPv6 is disabled on a tenant's device in a network with IPv6.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View, is_link_local};
use netstate::route_table::covers;
use settings::Change;

pub(super) const CHECK: Check = Check {
    code: "OV118",
    title: "IPv6 is disabled on a tenant's device",
    severity: Severity::Info,
    explanation: "net.ipv6.conf.DEVICE.disable_ipv6 is 1 on a tenant's device, so the kernel has \
        removed its addresses of IPv6, and the bridge or device in front of it has one. In a network \
        with both families, names lead to addresses that do not answer. It is a warning if such an \
        address was asked for, and a remark otherwise: a tenant may have IPv4 only. The addresses do \
        not come back with the setting; the container must be made again, or get them by hand.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tenant in view.devices() {
        let key = format!("net/ipv6/conf/{}/disable_ipv6", tenant.name());
        let is_off = tenant.namespace.sysctls.get(&key).is_some_and(|off| off == "1");
        let Some(port) = view.peer(tenant).filter(|_| is_off && tenant.interface.up) else {
            continue;
        };
        // A port of a bridge has no address of its own, and a host's two veth ends are no tenant.
        if tenant.interface.master.is_some() || port.place.namespace == tenant.place.namespace {
            continue;
        }
        let gateway = view.bridge(port).unwrap_or(port);
        let Some((own, prefix)) = network(gateway) else { continue };
        let asked = gateway.silent().find(|address| covers((own, prefix), *address));
        let finding = CHECK
            .on(tenant)
            .evidence(format!("{key} = 1"), "/proc/sys")
            .evidence(
                format!("{} {} has {own}/{prefix}", gateway.namespace.label, gateway.name()),
                "RTM_GETADDR",
            )
            .confidence(Confidence::Medium);
        outcome.add(match asked {
            Some(address) => finding
                .severity(Severity::Warn)
                .evidence(format!("{address} does not answer there"), "RTM_GETNEIGH")
                .cost(Cost::estimated(0.5, "the tenant's packets of IPv6"))
                .set(
                    Change::sysctl(tenant.namespace, &key, "1", "0"),
                    "the tenant's former addresses are not restored; it gets those of router \
                     advertisements. Packet filters for IPv4 alone do not hold for them",
                ),
            // It may be meant: a filter for IPv4 alone would be passed by.
            None => finding.cost(Cost::estimated(0.02, "the tenant's packets of IPv6")),
        });
    }
}

/// The first address of IPv6 that others can use.
fn network(gateway: DeviceRef<'_>) -> Option<(IpAddr, u8)> {
    let mut all = gateway.addresses().map(|known| (known.address, known.prefix));
    all.find(|(address, _)| address.is_ipv6() && !is_link_local(*address))
}
