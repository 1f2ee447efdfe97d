//! OV112: The packet filter rejects connections to a service.

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::Namespace;

pub(super) const CHECK: Check = Check {
    code: "OV112",
    title: "A service has no endpoints",
    severity: Severity::Info,
    explanation: "A map of the packet filter rejects or drops connections to the address and port \
        of a service, as kube-proxy in mode nftables does for a service without ready pods, and \
        connections were refused between the two readings. The pods are not ready, their labels \
        do not match the service's selector, or the proxy has not received them \
        (`kubectl get endpointslices`). It is a remark, because the kernel does not count which \
        service the refused connections were for. In mode iptables the rules have counters, which \
        OV111 reads. doctor cannot make endpoints, so the command only lists them.",
    run,
};

/// Services that are named.
const SHOWN: usize = 3;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        let Some(all) = namespace.translations.get().filter(|all| !all.rejected.is_empty()) else {
            continue;
        };
        let moved = |one: &Namespace| {
            let pair = one.snmp.get()?;
            let moved = pair.after.since(&pair.before);
            // The kernel does not count every refused connection as failed.
            let count = moved.tcp.attempt_fails.max(moved.icmp.in_dest_unreachs);
            (count > 0).then_some(count)
        };
        // The host's own connections, or those of a tenant.
        let here = std::iter::once(namespace).chain(&view.host().namespaces);
        let failed = here
            .filter(|one| one.inode == namespace.inode || one.tunnels.is_empty())
            .find_map(|one| Some((one, moved(one)?)));
        let Some((client, count)) = failed else { continue };
        let services: Vec<String> = all
            .rejected
            .iter()
            .take(SHOWN)
            .map(|one| {
                let protocol = match one.protocol {
                    6 => "TCP".to_owned(),
                    17 => "UDP".to_owned(),
                    other => format!("protocol {other}"),
                };
                format!("{} {protocol} {}", one.to, one.port)
            })
            .collect();
        let more = all.rejected.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let first = &all.rejected[0];
        outcome.add(
            CHECK
                .in_namespace(namespace, format!("{} {} {}", first.family, first.table, first.map))
                .evidence(
                    format!("the map rejects {}{more}", services.join(", ")),
                    "NFT_MSG_GETSETELEM",
                )
                .evidence(
                    format!("Tcp AttemptFails or Icmp InDestUnreachs +{count} in {}", client.label),
                    "/proc/net/snmp",
                )
                .cost(Cost::estimated(0.25, "connections to these services"))
                .confidence(Confidence::Low)
                .by_hand(
                    "kubectl get endpointslices --all-namespaces".to_owned(),
                    "it changes nothing: a service gets endpoints when pods that match its selector \
                     are ready, which only their owner can achieve",
                    "not needed: the command only lists".to_owned(),
                ),
        );
    }
}
