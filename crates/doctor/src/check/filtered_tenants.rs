//! OV073: A packet filter drops tenants' packets.

use super::packet_filter::{Accept, add, dropped};
use super::{Check, CheckOutcome, Severity, View};
use crate::host::{Filtered, Namespace, Passage, PassageKind};
use crate::view::DeviceKey;
use settings::command::quote;

pub(super) const CHECK: Check = Check {
    code: "OV073",
    title: "A packet filter drops tenants' packets",
    severity: Severity::Error,
    explanation: "The rules of nftables, iptables-nft or iptables-legacy drop packets that are \
        forwarded between a bridge of tenants and a tunnel or the uplink, DHCP or DNS from tenants \
        to a server of the host, ARP or other frames that only cross a bridge, or the host's ICMP \
        \"fragmentation needed\" to tenants whose packets are too large for the tunnel. With \
        bridge-nf-call-iptables such frames pass the FORWARD chain, whose policy Docker sets to \
        drop: guests on another bridge of the host are then cut off. Network policies drop packets \
        on purpose, Docker's icc=false names the bridge in its rule, and a firewall may accept \
        connections from one side only; such drops are remarks. These are remarks, too: a rule \
        that names the bridge of an isolated network, a closed path to the uplink beside an open \
        tunnel, drops of ICMP echo requests only, and drops of connections to single ports on \
        which a tenant listens. doctor evaluates the rules for the first packet of a connection; \
        where a rule depends on more than that, it reports nothing.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    let all = dropped(view, outcome);
    for (namespace, passage) in &all {
        // A host's own packet has no input device.
        let name = |index| {
            if index == 0 {
                return Some(String::new());
            }
            let at = view.namespace(namespace.inode)?;
            Some(view.spot(DeviceKey { namespace: at, index })?.name().to_owned())
        };
        let (Some(input), Some(output)) = (name(passage.input), name(passage.output)) else {
            continue;
        };
        // Swarm's way out of the host: Docker forbids traffic between its containers by design.
        if input == output && input == "docker_gwbridge" {
            continue;
        }
        let (text, rule) = match passage.kind {
            PassageKind::Bridged => {
                (format!("frames that only cross {input}"), accept(&input, &input))
            }
            PassageKind::Forward => (
                format!(
                    "packets from {input} to {output}, for example {} to {}",
                    passage.from, passage.to
                ),
                accept(&input, &output),
            ),
            PassageKind::ForwardEcho => (
                format!("ICMP echo requests from {input} to {output}"),
                Accept {
                    nft: format!(
                        "iifname \"{input}\" oifname \"{output}\" icmp type echo-request accept"
                    ),
                    iptables: format!(
                        "-i {} -o {} -p icmp --icmp-type echo-request",
                        quote(&input),
                        quote(&output)
                    ),
                },
            ),
            PassageKind::ForwardService => (
                format!("TCP {} from {input} to {}, which listens there", passage.port, passage.to),
                Accept {
                    nft: format!("ip daddr {} tcp dport {} accept", passage.to, passage.port),
                    iptables: format!("-d {} -p tcp --dport {}", passage.to, passage.port),
                },
            ),
            PassageKind::BridgedArp => (
                format!("ARP requests that only cross {input}, for example from {}", passage.from),
                Accept { nft: "ether type arp accept".to_owned(), iptables: "-p ARP".to_owned() },
            ),
            PassageKind::Outside => (
                format!(
                    "packets of tenants from {input} to {output}, for example of {}",
                    passage.from
                ),
                accept(&input, &output),
            ),
            PassageKind::OutsideReply => (
                format!("answers from {input} to {output}, for example to {}", passage.to),
                Accept {
                    nft: format!(
                        "iifname \"{input}\" oifname \"{output}\" ct state established,related accept"
                    ),
                    iptables: format!(
                        "-i {} -o {} -m conntrack --ctstate ESTABLISHED,RELATED",
                        quote(&input),
                        quote(&output)
                    ),
                },
            ),
            PassageKind::HostService => {
                let served = if passage.port == 67 { "DHCP" } else { "DNS" };
                (
                    format!(
                        "{served} (UDP {}) from {input}, where a program of the host serves it",
                        passage.port
                    ),
                    Accept {
                        nft: format!("iifname \"{input}\" udp dport {} accept", passage.port),
                        iptables: format!("-i {} -p udp --dport {}", quote(&input), passage.port),
                    },
                )
            }
            PassageKind::FragmentationNeededOut => (
                format!(
                    "ICMP \"fragmentation needed\" of this host to tenants behind {output}, whose \
                     packets are too large for the tunnel"
                ),
                Accept {
                    nft: format!("oifname \"{output}\" icmp type destination-unreachable accept"),
                    iptables: format!(
                        "-o {} -p icmp --icmp-type destination-unreachable",
                        quote(&output)
                    ),
                },
            ),
            // Other passages belong to tunnels and services, which have checks of their own.
            _ => continue,
        };
        // A rule that drops all packets is reported for them.
        let whole = match passage.kind {
            PassageKind::ForwardEcho | PassageKind::ForwardService => Some(PassageKind::Forward),
            PassageKind::BridgedArp => Some(PassageKind::Bridged),
            _ => None,
        };
        let is_reported = all.iter().any(|(other, one)| {
            other.inode == namespace.inode
                && Some(one.kind) == whole
                && (one.input, one.output) == (passage.input, passage.output)
        });
        if is_reported {
            continue;
        }
        // Several tenants were asked about; the first stands for all.
        if !is_first(&all, namespace, passage) {
            continue;
        }
        // Both directions are asked about on a bridge, not several tenants.
        let is_routed = passage.input != passage.output;
        let some_pass = is_routed
            && namespace
                .passages
                .get()
                .into_iter()
                .flatten()
                .any(|other| is_alike(other, passage) && other.verdict == Filtered::Passed);
        let is_part =
            matches!(passage.kind, PassageKind::ForwardEcho | PassageKind::ForwardService);
        let is_meant = matches!(
            passage.kind,
            PassageKind::Bridged
                | PassageKind::Forward
                | PassageKind::Outside
                | PassageKind::OutsideReply
        ) && matches!(passage.verdict, Filtered::Dropped { is_meant: true, .. });
        let how = match some_pass || is_policy(passage) || is_meant {
            true => (Severity::Info, 0.1),
            // A firewall may close single protocols and ports on purpose.
            false if is_part => (Severity::Info, 0.4),
            // A firewall may leave the tunnel as the only way on purpose.
            false if is_outside(passage) && has_tunnel(namespace, passage) => (Severity::Info, 0.3),
            // It matters when a tenant sends such packets.
            false if passage.kind == PassageKind::FragmentationNeededOut => {
                let fails = namespace.snmp.get().map(|pair| pair.after.since(&pair.before));
                match fails.is_some_and(|moved| moved.ip.frag_fails > 0) {
                    true => (Severity::Error, 1.0),
                    false => (Severity::Info, 0.2),
                }
            }
            // The program may serve another network.
            false if passage.kind == PassageKind::HostService => (Severity::Warn, 0.5),
            false => (Severity::Error, 1.0),
        };
        add(&CHECK, outcome, namespace, passage, &text, how, &rule);
    }
}

/// A rule that accepts packets between two devices.
fn accept(input: &str, output: &str) -> Accept {
    Accept {
        nft: format!("iifname \"{input}\" oifname \"{output}\" accept"),
        iptables: format!("-i {} -o {}", quote(input), quote(output)),
    }
}

fn is_outside(passage: &Passage) -> bool {
    matches!(passage.kind, PassageKind::Outside | PassageKind::OutsideReply)
}

/// Whether packets pass between the tenants' bridge and a tunnel, in a direction at least.
fn has_tunnel(namespace: &Namespace, passage: &Passage) -> bool {
    let bridge = match passage.kind {
        PassageKind::Outside => passage.input,
        _ => passage.output,
    };
    namespace.passages.get().into_iter().flatten().any(|other| {
        other.kind == PassageKind::Forward
            && [other.input, other.output].contains(&bridge)
            && other.verdict == Filtered::Passed
    })
}

fn is_first(all: &[(&Namespace, &Passage)], namespace: &Namespace, passage: &Passage) -> bool {
    let mut same = all.iter().filter(|(other, _)| other.inode == namespace.inode);
    let first = same.find(|(_, first)| is_alike(first, passage));
    first.is_some_and(|(_, first)| std::ptr::eq(*first, passage))
}

/// Whether two questions differ in the tenant only.
fn is_alike(one: &Passage, other: &Passage) -> bool {
    let key = |passage: &Passage| {
        // DHCP and DNS are two services, a tenant's own ports stand for each other.
        let port = (passage.kind == PassageKind::HostService).then_some(passage.port);
        (passage.kind, passage.input, passage.output, port)
    };
    key(one) == key(other)
}

/// Whether a chain belongs to network policies, which drop on purpose.
fn is_policy(passage: &Passage) -> bool {
    /// Calico's endpoints and policies, kube-router's, kube-proxy's services without endpoints.
    const CHAINS: [&str; 7] =
        ["cali-tw", "cali-fw", "cali-pi", "cali-po", "KUBE-POD-FW", "KUBE-NWPLCY", "KUBE-"];
    /// Ends of the names of a Proxmox guest's chains; the device's name comes first.
    const DIRECTIONS: [&str; 2] = ["-IN", "-OUT"];
    let Filtered::Dropped { chain, .. } = &passage.verdict else { return false };
    let is_of_guest = (chain.starts_with("tap") || chain.starts_with("veth"))
        && DIRECTIONS.iter().any(|end| chain.ends_with(end));
    is_of_guest || CHAINS.iter().any(|begin| chain.starts_with(begin))
}
