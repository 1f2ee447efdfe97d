//! OV083: A bridged tunnel has no remote end for broadcasts.

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use netstate::MacAddr;
use netstate::entry::Knowledge;
use netstate::interface::Vxlan;

pub(super) const CHECK: Check = Check {
    code: "OV083",
    title: "A tunnel has no destination for broadcasts",
    severity: Severity::Error,
    explanation: "A VXLAN device in a bridge has neither a default remote nor a forwarding entry \
        for 00:00:00:00:00:00, and drops packets. Broadcast, multicast and frames to unknown \
        addresses reach no other host, so ARP and neighbour discovery fail between hosts, although \
        entries for single addresses may exist. The control plane did not add the other hosts \
        (with EVPN: routes of type 3). It is a remark if no tenant lacks an answer, because \
        tenants may need no broadcast and the overlay may have only this host. It is also a remark \
        if the bridge answers for known neighbours (neigh_suppress). A device that answers ARP \
        itself (proxy) needs no such entry. Or two devices of one overlay send broadcasts to \
        different multicast groups.",
    run,
};

/// Devices of one overlay that send broadcasts to different groups.
fn groups(view: &View<'_>, outcome: &mut CheckOutcome) {
    let group = |vxlan: &Vxlan| vxlan.remote.filter(std::net::IpAddr::is_multicast);
    for (tunnel, vxlan) in view.fixed_tunnels() {
        let Some(own) = group(vxlan).filter(|_| tunnel.interface.up) else { continue };
        let other = view.fixed_tunnels().find_map(|(other, settings)| {
            let is_same = (settings.vni, settings.port) == (vxlan.vni, vxlan.port)
                && other.place.namespace != tunnel.place.namespace
                && share_underlay(view, tunnel, other);
            let group = group(settings).filter(|group| *group != own);
            group.filter(|_| is_same).map(|group| (other, group))
        });
        let Some((other, theirs)) = other else { continue };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(
                    format!(
                        "VNI {}: group {own}; {} {} has group {theirs}",
                        vxlan.vni,
                        other.namespace.label,
                        other.name()
                    ),
                    "IFLA_VXLAN_GROUP",
                )
                .cost(Cost::estimated(1.0, "broadcasts, and all packets that need them")),
        );
    }
}

/// Whether the NICs of two devices are on one segment. Machines for tests have several overlays
/// with the same VNI that never meet.
fn share_underlay<'a>(view: &View<'a>, tunnel: DeviceRef<'a>, other: DeviceRef<'a>) -> bool {
    let segment = |device| view.tunnel_nic(device).map(|nic| view.segment(nic));
    segment(tunnel).is_some_and(|own| Some(own) == segment(other))
}

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    groups(view, outcome);
    for (tunnel, vxlan) in view.fixed_tunnels() {
        // Unknown for a host that an earlier version saved.
        let answers = vxlan.proxy.unwrap_or(true);
        // With proxy or a default remote the device needs no entry for broadcasts.
        if answers || vxlan.remote.is_some() || !tunnel.interface.up {
            continue;
        }
        // A routed tunnel needs no broadcasts.
        let Some(bridge) = view.bridge(tunnel) else { continue };
        // The bridge of an EVPN tenant's routers has no tenants: the host routes, and needs no
        // broadcasts either.
        if view.ports(bridge).all(|port| port.vxlan().is_some()) {
            continue;
        }
        let namespace = tunnel.namespace;
        let Some(fdb) = outcome.need(&namespace.label, &namespace.fdb) else { continue };
        let own = fdb.iter().filter(|entry| entry.link == tunnel.interface.index);
        let remotes: Vec<_> = own.filter(|entry| entry.remote.is_some()).collect();
        if remotes.iter().any(|entry| entry.mac == Some(MacAddr::default())) {
            continue;
        }
        let dropped = tunnel.moved().map_or(0, |moved| moved.tx_dropped);
        // No frame needs another host now.
        if dropped == 0 {
            continue;
        }
        let entries = match remotes.len() {
            0 => "no forwarding entry leads to another host".to_owned(),
            some => format!("forwarding entries: {some}, none for 00:00:00:00:00:00"),
        };
        let other = other_end(view, tunnel, vxlan);
        let seeking = seeking(view, bridge);
        let suppresses = tunnel.interface.port.is_some_and(|port| port.neigh_suppress);
        let severity = match (remotes.is_empty(), other.is_some(), seeking.is_some()) {
            _ if suppresses => Severity::Info,
            (true, true, _) | (false, _, true) => Severity::Error,
            (true, false, true) => Severity::Warn,
            // Tenants may need no broadcast, and a host may be the only one.
            (_, _, false) => Severity::Info,
        };
        let share = if severity == Severity::Info { 0.1 } else { 1.0 };
        let name = tunnel.name();
        let mut finding = CHECK
            .on(tunnel)
            .severity(severity)
            .evidence(format!("no default remote; {entries}"), "RTM_GETNEIGH")
            .evidence(
                format!("{name}, a port of {}, dropped +{dropped}", bridge.name()),
                "IFLA_STATS64",
            )
            .cost(Cost::estimated(share, "broadcasts, and all packets that need them"))
            .confidence(Confidence::Medium);
        for text in other.into_iter().chain(seeking) {
            finding = finding.evidence(text, "RTM_GETNEIGH");
        }
        outcome.add(finding);
    }
}

/// An address that a tenant of the bridge, or the bridge itself, asks for in vain.
fn seeking(view: &View<'_>, bridge: DeviceRef<'_>) -> Option<String> {
    let tenants = view.ports(bridge).filter_map(|port| view.peer(port));
    tenants.chain([bridge]).find_map(|spot| {
        let known = spot.namespace.neighbours.get().into_iter().flatten();
        let mut own = known.filter(|known| known.link == spot.interface.index);
        let failed = own.find(|known| known.knowledge == Knowledge::Failed)?;
        let address = failed.address;
        Some(format!("{} {} gets no answer from {address}", spot.namespace.label, spot.name()))
    })
}

/// Names a device of another host with the same VNI that sends to this tunnel's host.
fn other_end<'a>(view: &View<'a>, tunnel: DeviceRef<'a>, vxlan: &Vxlan) -> Option<String> {
    let here = view.ways(tunnel)?.underlay;
    let is_same = |other: &Vxlan| (other.vni, other.port) == (vxlan.vni, vxlan.port);
    let leads_here = |other: DeviceRef<'a>| {
        let ways = view.ways(other).filter(|ways| ways.underlay != here);
        let remotes = ways.into_iter().flat_map(|ways| &ways.ways);
        let mut ends = remotes.flat_map(|(remote, _)| view.with_address(*remote));
        ends.any(|end| end.namespace.inode == here)
    };
    let mut others = view.tunnels().filter(|(_, other)| is_same(other)).map(|(spot, _)| spot);
    let other = others.find(|other| leads_here(*other))?;
    Some(format!("{} {} sends to this host", other.namespace.label, other.name()))
}
