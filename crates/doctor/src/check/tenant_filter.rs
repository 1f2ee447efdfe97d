//! OV098: A tenant's own packet filter drops packets.

use super::packet_filter::{Accept, add};
use super::{Check, CheckOutcome, Cost, Severity, View};
use crate::host::PassageKind;
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV098",
    title: "A tenant's own packet filter drops packets",
    severity: Severity::Info,
    explanation: "The rules inside a tenant's network namespace drop ICMP echo requests, or TCP \
        connections to a port on which a program of the tenant listens. To other hosts the tenant \
        appears unreachable, although all devices and routes are correct. It is a remark, because \
        a firewall inside a tenant may be intended. The setting icmp_echo_ignore_all has the same \
        effect for echo requests.",
    run,
};

/// Tenants that ignore echo requests.
fn ignores_echo(view: &View<'_>, outcome: &mut CheckOutcome) {
    const SETTING: &str = "net/ipv4/icmp_echo_ignore_all";
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        let is_set = namespace.sysctls.get(SETTING).is_some_and(|value| value == "1");
        let is_host =
            view.devices_of(at).any(|device| device.kind() == "bridge" || device.vxlan().is_some());
        let is_tenant = view.devices_of(at).any(|device| view.peer(device).is_some());
        let moved = namespace.snmp.get().map(|pair| pair.after.since(&pair.before));
        // Nobody asks, or it is no tenant.
        let asked = moved.filter(|_| is_set && is_tenant && !is_host);
        let Some(asked) = asked.filter(|moved| moved.icmp.in_echos > 0) else { continue };
        let name = SETTING.replace('/', ".");
        let set = |value| inside(namespace.path.as_deref(), &format!("sysctl -w {name}={value}"));
        outcome.add(
            CHECK
                .in_namespace(namespace, name.clone())
                .evidence(
                    format!("{name} = 1; Icmp InEchos +{}", asked.icmp.in_echos),
                    "/proc/sys, /proc/net/snmp",
                )
                .cost(Cost::estimated(0.4, "ICMP echo requests"))
                .by_hand(set(0), "the tenant answers pings", set(1)),
        );
    }
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    ignores_echo(view, outcome);
    // OV073 notes namespaces whose rules could not be read.
    let all = view.host().namespaces.iter().flat_map(|namespace| {
        namespace.passages.get().into_iter().flatten().map(move |passage| (namespace, passage))
    });
    for (namespace, passage) in all {
        let (to, port) = (passage.to, passage.port);
        let text = match (passage.kind, passage.input) {
            (PassageKind::TenantEcho, 0) => "outgoing ICMP echo requests".to_owned(),
            (PassageKind::TenantEcho, _) => format!("incoming ICMP echo requests to {to}"),
            (PassageKind::TenantService, _) => {
                format!("incoming TCP {port} to {to}, where a program listens")
            }
            _ => continue,
        };
        let accept = match passage.kind {
            PassageKind::TenantService => Accept {
                nft: format!("tcp dport {port} accept"),
                iptables: format!("-p tcp --dport {port}"),
            },
            _ => Accept {
                nft: "icmp type echo-request accept".to_owned(),
                iptables: "-p icmp --icmp-type echo-request".to_owned(),
            },
        };
        add(&CHECK, outcome, namespace, passage, &text, (Severity::Info, 0.4), &accept);
    }
}
