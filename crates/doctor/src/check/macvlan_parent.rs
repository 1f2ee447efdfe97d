//! OV119: A host and its own macvlan tenant do not reach each other.

use std::net::IpAddr;

use super::{Check, CheckOutcome, Cost, DeviceRef, Severity, View};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV119",
    title: "A host and its macvlan tenant are apart",
    severity: Severity::Warn,
    explanation: "A tenant has a macvlan device, and the tenant or the host asks for the other's \
        address in vain. The kernel passes no frames between a macvlan device and the device below \
        it, in every mode; other hosts of the network reach both. A second macvlan device in the \
        host's namespace, with a route to the tenant, connects them.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for tenant in view.devices().filter(|device| device.kind() == "macvlan") {
        let Some(parent) = view.link(tenant) else { continue };
        // A macvlan device of the host itself is the remedy.
        if parent.place.namespace == tenant.place.namespace {
            continue;
        }
        let has = |device: DeviceRef<'_>, address: IpAddr| {
            device.addresses().any(|known| known.address == address)
        };
        let to_host = tenant.silent().find(|address| has(parent, *address));
        let to_tenant = parent.silent().find(|address| has(tenant, *address));
        let Some((asking, address)) =
            to_host.map(|to| (tenant, to)).or(to_tenant.map(|to| (parent, to)))
        else {
            continue;
        };
        let own = tenant.addresses().find(|known| known.address.is_ipv4() == address.is_ipv4());
        // The neighbour is asked in the tenant's own network.
        let Some(own) = own else { continue };
        let (name, below) = ("macvlan-host", quote(parent.name()));
        let run = |command: String| inside(parent.namespace.path.as_deref(), &command);
        let command = [
            run(format!("ip link add {name} link {below} type macvlan mode bridge")),
            run(format!("ip link set {name} up")),
            run(format!("{} route add {} dev {name}", super::ip_command(own.address), own.address)),
        ];
        outcome.add(
            CHECK
                .on(tenant)
                .evidence(
                    format!(
                        "{} is a macvlan of {} {}: no frames pass between them",
                        tenant.name(),
                        parent.namespace.label,
                        parent.name()
                    ),
                    "IFLA_INFO_KIND, IFLA_LINK",
                )
                .evidence(
                    format!(
                        "{} {} gets no answer from {address}",
                        asking.namespace.label,
                        asking.name()
                    ),
                    "RTM_GETNEIGH",
                )
                .cost(Cost::estimated(0.5, "packets between the host and this tenant"))
                .by_hand(
                    command.join(" && "),
                    "until the host restarts; each tenant needs a route, or their network one",
                    run(format!("ip link del {name}")),
                ),
        );
    }
}
