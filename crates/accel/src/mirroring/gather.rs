//! Gathers what a plan is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netstate::netfilter;
use netstate::overlay::{Device, Found, Overlay, Query, VxlanDevice, VxlanEntry};
use netstate::{Error, Netlink};
use ruleset::Ruleset;

use crate::model::{DeviceId, Forwarding, NetnsSnapshot, OtherFilter};

/// How much of a namespace's state is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All.
    Whole,
    /// All but forwarding entries and neighbours.
    ButEntries,
}

/// Reads the state of the calling thread's namespace, in which `netlink` is.
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
    let mut snapshot = NetnsSnapshot {
        ruleset: rules,
        filters: filters(tables),
        hooks: netfilter::unexplained_hooks()?
            .map(|hooks| hooks.iter().map(ToString::to_string).collect()),
        bridge_netfilter: netfilter::BridgeCalls::default().are_made(),
        occupied: occupied.clone(),
        local_ports: local_ports(),
        ipsec: netstate::xfrm::has_policies()?,
        // ip6_forward asks for all devices' setting, the look-up for each one's.
        ipv6_forwarding_off: !is("net/ipv6/conf/all/forwarding", "1"),
        neighbour_proxy: !is("net/ipv6/conf/all/proxy_ndp", "0"),
        default_ttl: sysctl("net/ipv4/ip_default_ttl").and_then(|t| t.parse().ok()).unwrap_or(64),
        ..NetnsSnapshot::default()
    };
    for (index, link) in &overlay.links {
        if link.kind.as_deref() == Some("veth")
            && let (Some(peer), Some(netns)) = (link.link, link.link_netns)
        {
            // Without it the port is served as the bridge would.
            match netlink.device_in(netns, peer) {
                Ok(device) => snapshot.peers.extend(device.map(|device| (*index, device))),
                Err(Error::Kernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    // Only where something is routed to a VXLAN device: each is three files.
    let is_routed = |link: &Device| link.vxlan.is_some() && link.master.is_none();
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

/// Adds to `underlay`, the snapshot of the namespace that `netlink` is in, its ways to the
/// remote VTEPs of the VXLAN devices of namespace `number`.
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

/// The same for the destinations of one address.
pub(crate) fn add_routes_of(
    netlink: &Netlink,
    routes: &mut BTreeMap<(DeviceId, IpAddr), Option<Found>>,
    id: DeviceId,
    vxlan: &VxlanDevice,
    entries: &[VxlanEntry],
) -> netstate::Result<()> {
    for remote in entries.iter().filter_map(|entry| entry.remote) {
        // Of a group's or of the other family's address there is nothing to ask.
        let asked = remote.is_ipv6() == vxlan.ipv6 && !remote.is_multicast();
        if asked && !routes.contains_key(&(id, remote)) {
            let query = Query {
                to: remote,
                from: vxlan.local,
                tos: vxlan.tos,
                port: vxlan.port,
                // Entries with another than none stay slow (`planning::underlay_route`).
                link: None,
            };
            routes.insert((id, remote), netlink.route_to(&query)?);
        }
    }
    Ok(())
}

/// Packet filters whose rules are not read.
fn filters(flowtables: Vec<String>) -> Vec<OtherFilter> {
    let services = netfilter::has_virtual_services().then_some(OtherFilter::Ipvs);
    let legacy = netfilter::legacy_tables().into_iter().map(OtherFilter::Legacy);
    let ebtables = netfilter::ebtables().into_iter().map(OtherFilter::Ebtables);
    let flowtables = flowtables.into_iter().map(OtherFilter::Flowtable);
    legacy.chain(ebtables).chain(services).chain(flowtables).collect()
}

/// Active security modules that look at packets on their way through a host: by functions
/// at netfilter's hooks. The others ask about sockets, files and processes only; AppArmor
/// lets pass what has no socket.
pub(crate) fn security() -> Vec<String> {
    const HARMLESS: [&str; 13] = [
        "capability",
        "tomoyo",
        "apparmor",
        "yama",
        "loadpin",
        "safesetid",
        "lockdown",
        "bpf",
        "landlock",
        "ima",
        "evm",
        "ipe",
        "integrity",
    ];
    match sys::lsm::active() {
        Ok(active) => {
            active.into_iter().filter(|name| !HARMLESS.contains(&name.as_str())).collect()
        }
        Err(error) => vec![format!("unknown: {error}")],
    }
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

fn sysctl(path: &str) -> Option<String> {
    // The tree under /proc/sys/net is that of the thread that opens it.
    std::fs::read_to_string(format!("/proc/sys/{path}")).ok().map(|text| text.trim().to_owned())
}

/// First and last, as `udp_flow_src_port` takes them.
fn local_ports() -> (u16, u16) {
    let text = sysctl("net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = text.split_whitespace().filter_map(|word| word.parse().ok());
    match (words.next(), words.next()) {
        (Some(first), Some(last)) => (first, last),
        // inet_init_net's.
        _ => (32768, 60999),
    }
}
