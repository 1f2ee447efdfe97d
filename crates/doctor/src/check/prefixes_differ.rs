//! OV096: Two devices of one network have different prefix lengths.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::leads_on::far_ends;
use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};
use crate::view::DeviceKey;
use netstate::entry::Knowledge;

pub(super) const CHECK: Check = Check {
    code: "OV096",
    title: "Devices of one network differ in their prefix",
    severity: Severity::Error,
    explanation: "Two devices of one layer-2 network have IPv4 addresses of one network with \
        different prefix lengths. The device with the shorter prefix treats remote hosts as \
        neighbours, and its ARP requests for them get no answer. The device with the longer prefix \
        treats neighbours as remote hosts, and needs a route to them. It is a remark while no \
        packets are known to be lost. Prefixes /31 and /32, and two prefixes on one device, are \
        assumed to be intended.",
    run,
};

/// A network and its prefix length.
type Network = (u32, u8);
/// Devices with an address of a network.
type Owners<'a> = Vec<(DeviceRef<'a>, Ipv4Addr)>;

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for networks in segments(view).values() {
        for (narrow, of_narrow) in networks {
            for prefix in 1..narrow.1 {
                let wide = network(narrow.0, prefix);
                let Some(of_wide) = networks.get(&wide) else { continue };
                judge(outcome, (*narrow, of_narrow), (wide, of_wide));
            }
        }
    }
}

fn network(address: u32, prefix: u8) -> Network {
    let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
    (address & mask, prefix)
}

fn is_in(address: Ipv4Addr, (of, prefix): Network) -> bool {
    network(address.into(), prefix) == (of, prefix)
}

/// Networks of each layer-2 segment, with segments that tunnels join taken as one.
fn segments<'a>(view: &View<'a>) -> BTreeMap<DeviceKey, BTreeMap<Network, Owners<'a>>> {
    let mut joined: BTreeMap<DeviceKey, DeviceKey> = BTreeMap::new();
    for (tunnel, vxlan) in view.fixed_tunnels().filter(|(spot, _)| view.bridge(*spot).is_some()) {
        for end in far_ends(view, tunnel, vxlan) {
            let (a, b) = (view.segment(tunnel), view.segment(end));
            // Both directions give the same pair.
            joined.insert(a.max(b), a.min(b));
        }
    }
    let mut all: BTreeMap<DeviceKey, BTreeMap<Network, Owners<'a>>> = BTreeMap::new();
    for (at, namespace) in view.host().namespaces.iter().enumerate() {
        for known in namespace.addresses.get().into_iter().flatten() {
            let IpAddr::V4(address) = known.address else { continue };
            let place = DeviceKey { namespace: at, index: known.link };
            let Some(spot) = view.spot(place) else { continue };
            let is_network = (1..31).contains(&known.prefix) && !address.is_link_local();
            // Networks of one or two addresses, and of all, have no neighbours.
            if spot.interface.loopback || !spot.interface.up || !is_network {
                continue;
            }
            let own = view.segment(spot);
            let segment = joined.get(&own).copied().unwrap_or(own);
            let of = network(address.into(), known.prefix);
            all.entry(segment).or_default().entry(of).or_default().push((spot, address));
        }
    }
    all
}

fn judge(
    outcome: &mut CheckOutcome,
    (narrow, of_narrow): (Network, &Owners<'_>),
    (wide, of_wide): (Network, &Owners<'_>),
) {
    // Both prefixes must be in use for a difference.
    let (Some(first_narrow), Some(first_wide)) = (of_narrow.first(), of_wide.first()) else {
        return;
    };
    // One device with both is set so on purpose.
    let namespace = |owner: &(DeviceRef<'_>, Ipv4Addr)| owner.0.place.namespace;
    if of_wide
        .iter()
        .take(MOST)
        .any(|wide| of_narrow.iter().take(MOST).any(|narrow| namespace(wide) == namespace(narrow)))
    {
        return;
    }
    let has_router = |owners: &Owners<'_>| owners.iter().any(|(spot, _)| spot.kind() == "bridge");
    // The prefix of most devices is right; of two, that of the tenants' router.
    let is_wide_wrong = match of_wide.len().cmp(&of_narrow.len()) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Greater => false,
        std::cmp::Ordering::Equal if has_router(of_wide) => false,
        std::cmp::Ordering::Equal => {
            has_router(of_narrow) || sought(of_wide, wide, narrow).is_some()
        }
    };
    let (wrong, right) = match is_wide_wrong {
        true => ((first_wide, wide.1), (first_narrow, narrow.1)),
        false => ((first_narrow, narrow.1), (first_wide, wide.1)),
    };
    let lost = match is_wide_wrong {
        true => sought(of_wide, wide, narrow)
            .map(|address| format!("takes {address} for a neighbour, which does not answer")),
        false => without_route(of_narrow, of_wide, narrow)
            .map(|address| format!("has no route to its neighbour {address}")),
    };
    let text = |((spot, address), prefix): (&(DeviceRef<'_>, Ipv4Addr), u8)| {
        format!("{} {} has {address}/{prefix}", spot.namespace.label, spot.name())
    };
    let spot = wrong.0.0;
    let finding = CHECK
        .on(spot)
        .evidence(format!("{}; {}", text(wrong), text(right)), "RTM_GETADDR")
        .confidence(Confidence::Medium);
    outcome.add(match lost {
        Some(lost) => finding
            .evidence(format!("{} {lost}", spot.name()), "RTM_GETNEIGH, RTM_GETROUTE")
            .cost(Cost::estimated(0.9, "packets to hosts outside the common prefix")),
        None => finding
            .severity(Severity::Info)
            .cost(Cost::estimated(0.02, "packets to hosts outside the common prefix")),
    });
}

/// Owners of a network that are compared: a saved host may have any number.
const MOST: usize = 100;

/// An address of the wide network only that an owner asks for in vain.
fn sought(owners: &Owners<'_>, wide: Network, narrow: Network) -> Option<Ipv4Addr> {
    owners.iter().take(MOST).find_map(|(spot, _)| {
        let known = spot.namespace.neighbours.get().into_iter().flatten();
        let failed = known.filter(|known| {
            known.link == spot.interface.index && known.knowledge == Knowledge::Failed
        });
        let mut addresses = failed.filter_map(|known| match known.address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        addresses.find(|address| is_in(*address, wide) && !is_in(*address, narrow))
    })
}

/// An address of another device to which an owner of the narrow network has no route.
fn without_route(owners: &Owners<'_>, others: &Owners<'_>, narrow: Network) -> Option<Ipv4Addr> {
    let outside: Vec<Ipv4Addr> = others
        .iter()
        .map(|(_, address)| *address)
        .filter(|address| !is_in(*address, narrow))
        .take(MOST)
        .collect();
    owners.iter().take(MOST).find_map(|(spot, _)| {
        // Unread routes prove nothing.
        let routes = spot.namespace.routes.get()?;
        let mut outside = outside.iter();
        let is_routed =
            |address: Ipv4Addr| routes.iter().any(|route| route.covers(IpAddr::V4(address)));
        outside.find(|address| !is_routed(**address)).copied()
    })
}
