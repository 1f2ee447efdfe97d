//! OV109: Address translation changes packets that must keep their address, or leads to nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::packet_filter::{Accept, commands, delete_rule, named_rule, rules_source, source};
use super::{Check, CheckOutcome, Cost, Severity, View};
use crate::host::{Filtered, Namespace, PassageKind, Translations};
use crate::view::DeviceRef;
use settings::command::inside;

pub(super) const CHECK: Check = Check {
    code: "OV109",
    title: "Packets are translated to a wrong address",
    severity: Severity::Error,
    explanation: "A NAT rule for a published port matches the tunnel's incoming datagrams and \
        redirects them, or a NAT rule gives its outgoing datagrams a source address that is not \
        the tunnel's, which the other hosts then learn. Or a rule translates to an address that \
        does not answer, so a service or a published port does not work. Or a UDP connection in \
        use still leads to an address that no rule has any more, because rules apply only to the \
        first packet. doctor reads rules of nftables, iptables-nft and iptables-legacy, in \
        namespaces with at most 2,000 chains of nftables, and connections if at most 20,000 are tracked.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let silent = silent(view);
    for namespace in &view.host().namespaces {
        of_tunnels(outcome, namespace);
        // Only hosts with rules that translate have any.
        let Some(all) = namespace.translations.get() else { continue };
        if let Some(reason) = &all.stalled_unread {
            outcome.skip(&namespace.label, reason);
        }
        dead(outcome, &silent, namespace, all);
        stale(outcome, namespace, all);
    }
}

/// Addresses that do not answer, with the devices at which they were asked for. A node has thousands
/// of rules and hundreds of devices.
fn silent<'a>(view: &View<'a>) -> BTreeMap<IpAddr, Vec<DeviceRef<'a>>> {
    let mut all: BTreeMap<IpAddr, Vec<DeviceRef<'a>>> = BTreeMap::new();
    for device in view.devices() {
        for address in device.silent() {
            all.entry(address).or_default().push(device);
        }
    }
    all
}

/// Rules that take a tunnel's packets.
fn of_tunnels(outcome: &mut CheckOutcome, namespace: &Namespace) {
    let mut reported = BTreeSet::new();
    for passage in namespace.passages.get().into_iter().flatten() {
        let Filtered::Translated { family, table, chain, handle, to } = &passage.verdict else {
            continue;
        };
        let (packets, end) = match passage.kind {
            PassageKind::TunnelOut => ("outgoing", "source"),
            PassageKind::TunnelIn => ("incoming", "destination"),
            // A tenant's packets to the outside may get any source.
            _ => continue,
        };
        // One rule concerns all remote ends.
        if !reported.insert((family, table, chain, handle)) {
            continue;
        }
        let new = to.map_or_else(|| "another address".to_owned(), |to| to.to_string());
        let object = format!("{family} {table} {chain}");
        let accept = Accept {
            nft: format!("udp dport {} accept", passage.port),
            iptables: format!("-p udp --dport {}", passage.port),
        };
        let (insert, delete) = commands(namespace, (family, table, chain), &accept);
        outcome.add(
            CHECK
                .in_namespace(namespace, &object)
                .evidence(
                    format!(
                        "{} sets the {end} of {packets} UDP {} from {} to {}: {new}",
                        named_rule(family, &object, *handle),
                        passage.port,
                        passage.from,
                        passage.to
                    ),
                    source(family),
                )
                .cost(Cost::estimated(1.0, "all packets of the tunnel"))
                .by_hand(
                    insert,
                    "connections that exist keep their translation until they expire: flush them \
                     with conntrack -D; a program that manages the rules may remove the rule",
                    delete,
                ),
        );
    }
}

/// Rules whose address does not answer.
fn dead(
    outcome: &mut CheckOutcome,
    silent: &BTreeMap<IpAddr, Vec<DeviceRef<'_>>>,
    namespace: &Namespace,
    all: &Translations,
) {
    for one in &all.rules {
        let asked = silent.get(&one.to).into_iter().flatten();
        // A tenant's network may use the address for another purpose.
        let is_right = |device: &&DeviceRef<'_>| {
            device.namespace.inode == namespace.inode || !device.namespace.tunnels.is_empty()
        };
        let Some(device) = asked.copied().find(|device| is_right(&device)) else { continue };
        let object = format!("{} {} {}", one.family, one.table, one.chain);
        let place = (one.family.as_str(), one.table.as_str(), one.chain.as_str());
        let commands = one.handle.map(|handle| delete_rule(namespace, place, handle));
        let finding = CHECK
            .in_namespace(namespace, &object)
            .evidence(
                format!(
                    "{} sets the destination {}",
                    named_rule(&one.family, &object, one.handle),
                    one.to
                ),
                rules_source(&one.family),
            )
            .evidence(
                format!(
                    "{} does not answer at {} {}",
                    one.to,
                    device.namespace.label,
                    device.name()
                ),
                "RTM_GETNEIGH: NUD_FAILED, or NUD_INCOMPLETE twice",
            )
            .cost(Cost::estimated(0.9, "packets that the rule translates"));
        outcome.add(match commands {
            Some((delete, restore)) => finding.by_hand(
                delete,
                "connections then reach another endpoint, or fail at once. The program that set the \
                 rule (kube-proxy, a container engine) still has the address in its records, and may \
                 set the rule again",
                restore,
            ),
            None => finding,
        });
    }
}

/// Connections that lead to an address of an earlier rule.
fn stale(outcome: &mut CheckOutcome, namespace: &Namespace, all: &Translations) {
    /// `IPPROTO_UDP`. TCP starts again by itself.
    const UDP: u8 = 17;
    // A map may lead to any address.
    if !all.all_constant {
        return;
    }
    let mut reported = BTreeSet::new();
    for one in all.stalled.iter().flatten().filter(|one| one.protocol == UDP) {
        let is_current = all.rules.iter().any(|rule| rule.to == one.now);
        // The rules that translated to a service are all gone: the connection ends by itself.
        if is_current || all.rules.is_empty() || !reported.insert((one.to, one.now)) {
            continue;
        }
        let (service, port) = one.to;
        let delete = format!("conntrack -D -p udp --orig-dst {service} --reply-src {}", one.now);
        outcome.add(
            CHECK
                .in_namespace(namespace, "conntrack")
                .evidence(
                    format!(
                        "UDP from {} to {service} port {port} leads to {}, which no rule sets; \
                         nothing has answered",
                        one.from, one.now
                    ),
                    "IPCTNL_MSG_CT_GET, NFT_MSG_GETRULE",
                )
                .cost(Cost::estimated(0.9, "packets of this connection"))
                .by_hand(
                    inside(namespace.path.as_deref(), &delete),
                    "the next packet makes a new entry by the current rules",
                    "not needed: the kernel makes entries again".to_owned(),
                ),
        );
    }
}
