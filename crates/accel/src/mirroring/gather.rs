//! Reads the snapshot from which a plan is made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netstate::interface::{Counters, Interface, Vxlan};
use netstate::netfilter;
use netstate::overlay::{Found, Overlay, Query, VxlanEntry};
use netstate::packet_diag::PacketDiag;
use netstate::{Error, Netlink};
use ruleset::Ruleset;
use sys::ethtool::Ethtool;

use crate::model::{DeviceId, Forwarding, NetnsSnapshot, OtherFilter};

/// Sysctls of the timeouts that conntrack gives to the entries of flows on the fast path.
const TIMEOUTS: [&str; 5] = [
    "tcp_timeout_established",
    "tcp_timeout_max_retrans",
    "tcp_timeout_unacknowledged",
    "udp_timeout",
    "udp_timeout_stream",
];

/// How much of a namespace's state to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The whole state.
    Whole,
    /// Everything except forwarding entries and neighbours.
    ButEntries,
}

/// Reads the state of the calling thread's namespace. `netlink` must be in the same namespace.
pub(crate) fn gather(
    netlink: &Netlink,
    rules: Arc<Ruleset>,
    occupied: &BTreeSet<u32>,
    extent: Extent,
) -> netstate::Result<NetnsSnapshot> {
    let overlay = match extent {
        Extent::Whole => netlink.overlay()?,
        Extent::ButEntries => netlink.overlay_but_entries()?,
    };
    let tables = netfilter::flowtables()?;
    let hooks = netfilter::hooks()?;
    let mut snapshot = NetnsSnapshot {
        ruleset: rules,
        filters: filters(tables),
        // A kernel without the list may track connections.
        tracks: hooks.as_ref().is_none_or(|hooks| hooks.tracks),
        hooks: hooks.map(|hooks| hooks.unexplained.iter().map(ToString::to_string).collect()),
        bridge_netfilter: netfilter::BridgeCalls::default().are_made(),
        occupied: occupied.clone(),
        local_ports: local_ports(),
        ipsec: netstate::xfrm::has_policies()?,
        // `ip6_forward` checks the setting of all devices, the BPF lookup that of the single
        // device.
        ipv6_forwarding_off: !is("net/ipv6/conf/all/forwarding", "1"),
        neighbour_proxy: !is("net/ipv6/conf/all/proxy_ndp", "0"),
        big_tunnels: sysctl("kernel/osrelease").is_some_and(|release| has_big_tunnels(&release)),
        // Without the module there is no such file.
        counts_packets: sysctl("net/netfilter/nf_conntrack_acct").is_some_and(|value| value != "0"),
        timeouts: TIMEOUTS.iter().map(|name| sysctl(&timeout_path(name))).collect(),
        default_ttl: sysctl("net/ipv4/ip_default_ttl").and_then(|t| t.parse().ok()).unwrap_or(64),
        ..NetnsSnapshot::default()
    };
    for (index, link) in &overlay.links {
        if link.kind.as_deref() == Some("veth")
            && let (Some(peer), Some(netns)) = (link.link, link.link_netns)
        {
            // If the peer is unknown, frames are delivered to the port, as the bridge does.
            match netlink.link_in(netns, peer) {
                // Counters change with each packet, and are no change of the state.
                Ok(device) => {
                    snapshot.peers.extend(device.map(|device| {
                        (*index, Interface { counters: Counters::default(), ..device })
                    }))
                }
                Err(Error::Kernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    let tunnels = overlay.links.iter().filter(|(_, link)| link.vxlan.is_some());
    snapshot.merging = merging(tunnels);
    snapshot.promiscuous = promiscuous(&overlay);
    // Read these only if there is a routed VXLAN device: three files per device.
    let is_routed = |link: &Interface| link.vxlan.is_some() && link.master.is_none();
    if overlay.links.values().any(is_routed) {
        for (index, link) in &overlay.links {
            let kind = link.kind.as_deref().unwrap_or_default();
            if link.master.is_none() && ["bridge", "veth", "vxlan"].contains(&kind) {
                snapshot.forwarding.insert(*index, forwarding(&link.name));
            }
        }
    }
    snapshot.overlay = overlay;
    Ok(snapshot)
}

/// Returns those of `links` that merge received segments (GRO). The calling thread must be in their
/// namespace. A device that does not say, as it is removed meanwhile, does not count.
fn merging<'a>(links: impl Iterator<Item = (&'a u32, &'a Interface)>) -> BTreeSet<u32> {
    let Ok(ethtool) = Ethtool::open() else { return BTreeSet::new() };
    let is_on = |(_, link): &(&u32, &Interface)| ethtool.merges(&link.name).unwrap_or(false);
    links.filter(is_on).map(|(index, _)| *index).collect()
}

/// Returns the links without a master whose promiscuity nothing in this namespace explains. A macvlan
/// device in mode `passthru` may be in any namespace, but makes the device below it promiscuous.
fn promiscuous(overlay: &Overlay) -> BTreeSet<u32> {
    let suspects = |of_sockets: &BTreeMap<u32, u32>| {
        let is_unexplained = |(index, link): &(&u32, &Interface)| {
            // VLAN and macvlan devices pass the request on.
            let passes_on = |above: &&Interface| {
                let kind = above.kind.as_deref().unwrap_or_default();
                above.link == Some(**index)
                    && above.link_netns.is_none()
                    && above.detail.promiscuity > 0
                    && ["vlan", "macvlan", "macvtap"].contains(&kind)
            };
            let above = overlay.links.values().filter(passes_on).count() as u32;
            let sockets = of_sockets.get(index).copied().unwrap_or(0);
            let explained = u32::from(link.detail.promiscuous) + sockets + above;
            link.master.is_none() && link.detail.promiscuity > explained
        };
        let found = overlay.links.iter().filter(is_unexplained);
        found.map(|(index, _)| *index).collect::<BTreeSet<u32>>()
    };
    let all = suspects(&BTreeMap::new());
    if all.is_empty() {
        return all;
    }
    // Without the list, the sockets of a packet capture are unexplained, too.
    let sockets = PacketDiag::open().ok().and_then(|diag| diag.promiscuous().ok());
    sockets.map_or(all, |sockets| suspects(&sockets))
}

/// Adds to `underlay` its routes to the remote VTEPs of the VXLAN devices of namespace `number`.
/// `netlink` is in the namespace of `underlay`.
pub(crate) fn add_routes(
    netlink: &Netlink,
    underlay: &mut NetnsSnapshot,
    number: u16,
    overlay: &Overlay,
) -> netstate::Result<()> {
    for ((index, _), entries) in &overlay.vxlan_fdb {
        if let Some(vxlan) = overlay.links.get(index).and_then(|link| link.vxlan.as_ref()) {
            let id = DeviceId { netns: number, index: *index };
            add_routes_of(netlink, &mut underlay.routes, id, vxlan, entries)?;
        }
    }
    Ok(())
}

/// Adds the underlay NICs that merge received segments. The calling thread must be in the namespace
/// of `underlay`.
pub(crate) fn add_merging(underlay: &mut NetnsSnapshot) {
    let nics: BTreeSet<u32> = underlay.routes.values().flatten().map(|found| found.link).collect();
    let found = merging(underlay.overlay.links.iter().filter(|(index, _)| nics.contains(index)));
    underlay.merging.extend(found);
}

/// Adds the routes to the destinations of one address.
pub(crate) fn add_routes_of(
    netlink: &Netlink,
    routes: &mut BTreeMap<(DeviceId, IpAddr), Option<Found>>,
    id: DeviceId,
    vxlan: &Vxlan,
    entries: &[VxlanEntry],
) -> netstate::Result<()> {
    for remote in entries.iter().filter_map(|entry| entry.remote) {
        // Groups and addresses of the other family have no route to look up.
        let asked = remote.is_ipv6() == vxlan.is_ipv6() && !remote.is_multicast();
        if asked && !routes.contains_key(&(id, remote)) {
            let query = Query {
                to: remote,
                from: vxlan.local,
                tos: vxlan.detail.tos,
                port: vxlan.port,
                // Entries with a link take the slow path (`planning::underlay_route`).
                link: None,
            };
            routes.insert((id, remote), netlink.route_to(&query)?);
        }
    }
    Ok(())
}

/// Lists packet filters whose rules are not read.
fn filters(flowtables: Vec<String>) -> Vec<OtherFilter> {
    let services = netfilter::has_virtual_services().then_some(OtherFilter::Ipvs);
    let legacy = netfilter::legacy_tables().into_iter().map(OtherFilter::Legacy);
    let ebtables = netfilter::ebtables().into_iter().map(OtherFilter::Ebtables);
    let flowtables = flowtables.into_iter().map(OtherFilter::Flowtable);
    legacy.chain(ebtables).chain(services).chain(flowtables).collect()
}

fn forwarding(device: &str) -> Forwarding {
    Forwarding {
        ipv4: is(&format!("net/ipv4/conf/{device}/forwarding"), "1"),
        ipv6: is(&format!("net/ipv6/conf/{device}/forwarding"), "1")
            && is(&format!("net/ipv6/conf/{device}/disable_ipv6"), "0"),
    }
}

/// Whether a sysctl of the calling thread's namespace has this value.
fn is(path: &str, value: &str) -> bool {
    sysctl(path).as_deref() == Some(value)
}

/// Whether a kernel encapsulates packets above 64 KiB by VXLAN devices. Linux 7.3 has a rule for their
/// length fields; nothing but the release tells.
fn has_big_tunnels(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (7, 3))
}

fn sysctl(path: &str) -> Option<String> {
    // /proc/sys/net shows the namespace of the thread that opens it.
    std::fs::read_to_string(format!("/proc/sys/{path}")).ok().map(|text| text.trim().to_owned())
}

fn timeout_path(name: &str) -> String {
    format!("net/netfilter/nf_conntrack_{name}")
}

/// Returns the first and last local port, as `udp_flow_src_port` uses them.
fn local_ports() -> (u16, u16) {
    let text = sysctl("net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().filter_map(|word| word.parse().ok());
    match (words.next(), words.next()) {
        (Some(first), Some(last)) => (first, last),
        // Defaults of `inet_init_net`.
        _ => (32768, 60999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_tunnels_come_with_linux_7_3() {
        for (release, is_possible) in [
            ("6.18.44", false),
            ("7.2.9-cloud-amd64", false),
            ("7.3.0-rc1", true),
            ("7.10-custom", true),
            ("8.0.1", true),
            ("7", false),
            ("", false),
        ] {
            assert_eq!(has_big_tunnels(release), is_possible, "{release}");
        }
    }
}
