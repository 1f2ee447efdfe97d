//! OV117: No socket takes packets that a rule or a client means for a program.

use std::net::{IpAddr, Ipv4Addr};

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::host::Namespace;

pub(super) const CHECK: Check = Check {
    code: "OV117",
    title: "A program listens at another address",
    severity: Severity::Info,
    explanation: "Connections to a tenant were refused, and a program of the tenant listens at a \
        loopback address only: other hosts cannot reach it. Many programs have an option for the \
        address; 0.0.0.0 or :: takes connections from everywhere. It is a remark, because the kernel \
        does not count the port of refused connections, and a program may be meant for its own host. \
        Or datagrams found no socket in a container whose resolver, that of dockerd, listens at a \
        port of 127.0.0.11, and the rules that lead there from port 53 are gone: a firewall in the \
        container has flushed them. Only a restart of the container sets them again, which doctor \
        does not do.",
    run,
};

/// Address of dockerd's resolver in each container.
const RESOLVER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 11));
/// Ports that are named.
const SHOWN: usize = 3;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (namespace, moved) in outcome.moved(view) {
        if !is_tenant(namespace) {
            continue;
        }
        if moved.udp.no_ports > 0 {
            resolver(outcome, namespace, moved.udp.no_ports);
        }
        if moved.tcp.out_rsts > 0 {
            refused(outcome, namespace, moved.tcp.out_rsts);
        }
    }
}

/// A namespace with a device of its own, without bridge and tunnel: hosts have many programs that are
/// for themselves.
fn is_tenant(namespace: &Namespace) -> bool {
    let links = namespace.interfaces.get().map_or(&[][..], Vec::as_slice);
    links.iter().any(|link| !link.loopback && link.link_netns.is_some())
        && links.iter().all(|link| link.bridge.is_none() && link.vxlan.is_none())
}

fn refused(outcome: &mut CheckOutcome, namespace: &Namespace, resets: u64) {
    let Some(all) = outcome.need(&namespace.label, &namespace.listeners) else { return };
    let is_open = |port: u16| all.iter().any(|one| one.port == port && !one.address.is_loopback());
    let closed = all.iter().filter(|one| one.address.is_loopback() && !is_open(one.port));
    let named: Vec<String> =
        closed.take(SHOWN).map(|one| format!("{} port {}", one.address, one.port)).collect();
    // Every reset for another reason would be a remark.
    if named.is_empty() {
        return;
    }
    outcome.add(
        CHECK
            .in_namespace(namespace, "TCP sockets")
            .evidence(format!("Tcp OutRsts +{resets}"), "/proc/net/snmp")
            .evidence(
                format!("a program listens at {} only", named.join(", ")),
                "INET_DIAG: TCP_LISTEN",
            )
            .cost(Cost::estimated(0.25, "connections to these ports"))
            .confidence(Confidence::Low),
    );
}

fn resolver(outcome: &mut CheckOutcome, namespace: &Namespace, lost: u64) {
    let mut sockets = namespace.udp_sockets.get().into_iter().flatten();
    let Some(socket) = sockets.find(|one| one.address == RESOLVER && one.port != 53) else {
        return;
    };
    let Some(chains) = outcome.need(&namespace.label, &namespace.chains) else { return };
    // Any table may have the rules.
    if !chains.is_empty() {
        return;
    }
    outcome.add(
        CHECK
            .in_namespace(namespace, "127.0.0.11 port 53")
            .severity(Severity::Warn)
            .evidence(format!("Udp NoPorts +{lost}"), "/proc/net/snmp")
            .evidence(
                format!(
                    "the container's resolver listens at {RESOLVER} port {}, and no rule leads there \
                     from port 53",
                    socket.port
                ),
                "/proc/net/udp, nftables, /proc/net/ip_tables_names",
            )
            .cost(Cost::estimated(0.9, "queries for names")),
    );
}
