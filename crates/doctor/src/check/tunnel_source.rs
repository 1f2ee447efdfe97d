//! OV091: a VXLAN device without a local address, whose packets can get several source addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Check, CheckOutcome, Confidence, Cost, DeviceRef, Severity, View};

pub(super) const CHECK: Check = Check {
    code: "OV091",
    title: "A tunnel's packets can get another source address",
    severity: Severity::Warn,
    explanation: "The VXLAN device has fixed forwarding entries but no local address, so the route \
        to each remote chooses the source address. Remotes with fixed entries and learning drop \
        frames whose outer source differs from the entry (VXLAN_ENTRY_EXISTS; \
        moby/moby#53004). Here, several addresses are possible: remotes are reached by different \
        devices, or the loopback device has an address for the tunnel. Set local when the device \
        is made. Correct if all remotes learn addresses, or accept any source.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for (tunnel, vxlan) in view.fixed_tunnels() {
        // A fixed source cannot change.
        if vxlan.local.is_some() {
            continue;
        }
        let object = format!("{} {}", tunnel.namespace.label, tunnel.name());
        let Some(entries) = outcome.need(&object, &tunnel.namespace.fdb) else { continue };
        let fixed = entries.iter().filter(|entry| {
            let is_default = entry.mac.is_none_or(|mac| mac.0 == [0; 6]);
            entry.link == tunnel.interface.index
                && entry.fixed
                && entry.remote.is_some()
                && !is_default
        });
        let fixed = fixed.count();
        if fixed == 0 {
            continue;
        }
        let Some(why) = several(view, tunnel) else { continue };
        outcome.add(
            CHECK
                .on(tunnel)
                .evidence(
                    format!("no local address, {fixed} fixed entries"),
                    "RTM_GETLINK, RTM_GETNEIGH",
                )
                .evidence(why, "RTM_GETROUTE, RTM_GETADDR")
                .cost(Cost::estimated(0.5, "packets to remotes that know another address"))
                .confidence(Confidence::Low),
        );
    }
}

/// Returns why packets of the tunnel can get different source addresses.
fn several(view: &View<'_>, tunnel: DeviceRef<'_>) -> Option<String> {
    let underlays = view.underlays(tunnel);
    let first = underlays.first()?;
    let nics: BTreeSet<&str> = underlays.iter().map(|underlay| underlay.nic.name()).collect();
    if nics.len() > 1 {
        let names: Vec<&str> = nics.into_iter().collect();
        return Some(format!("remotes are reached by {}", names.join(", ")));
    }
    let namespace = first.nic.namespace;
    let links = namespace.interfaces.get()?;
    let loopback = links.iter().find(|link| link.loopback)?;
    let is_own = |address: &IpAddr| {
        let plain = match address {
            IpAddr::V4(address) => !address.is_loopback(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        };
        plain && address.is_ipv4() == first.remote.is_ipv4()
    };
    let mut own = namespace.addresses.get()?.iter().filter(|one| one.link == loopback.index);
    let address = own.find(|one| is_own(&one.address))?.address;
    Some(format!("{} has {address}, packets leave by {}", loopback.name, first.nic.name()))
}
