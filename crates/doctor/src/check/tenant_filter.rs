//! OV098: A tenant's own packet filter drops packets.

use super::packet_filter::{Accept, add};
use super::{Check, CheckOutcome, Severity, View};
use crate::host::PassageKind;

pub(super) const CHECK: Check = Check {
    code: "OV098",
    title: "A tenant's own packet filter drops packets",
    severity: Severity::Info,
    explanation: "The rules inside a tenant's network namespace drop ICMP echo requests, or TCP \
        connections to a port on which a program of the tenant listens. Other hosts take the tenant \
        for unreachable, although every device and route is right. A firewall inside a tenant may \
        be meant; so it is a remark.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
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
