//! Gathers what a plan is made from.

use std::collections::BTreeSet;

use netstate::netfilter;
use netstate::{Error, Netlink};

use crate::plan::Facts;

/// Reads the state of the calling thread's namespace, in which `netlink` is.
pub(crate) fn gather(netlink: &Netlink, occupied: &BTreeSet<u32>) -> netstate::Result<Facts> {
    let overlay = netlink.overlay()?;
    let mut filters: Vec<String> = netfilter::base_chains()?
        .into_iter()
        .map(|chain| format!("nftables {} {} {}", chain.family, chain.table, chain.chain))
        .collect();
    filters.extend(netfilter::legacy_tables());
    let mut facts = Facts {
        filters,
        occupied: occupied.clone(),
        local_ports: local_ports(),
        default_ttl: sysctl("net/ipv4/ip_default_ttl").and_then(|t| t.parse().ok()).unwrap_or(64),
        ..Facts::default()
    };
    for (index, link) in &overlay.links {
        if link.master.is_some()
            && let (Some(peer), Some(netns)) = (link.link, link.link_netns)
        {
            // Without it the port is served as the bridge would.
            match netlink.device_in(netns, peer) {
                Ok(device) => facts.peers.extend(device.map(|device| (*index, device))),
                Err(Error::Kernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    for ((index, _), entries) in &overlay.vxlan_fdb {
        let Some(vxlan) = overlay.links.get(index).and_then(|link| link.vxlan.as_ref()) else {
            continue;
        };
        for remote in entries.iter().filter_map(|entry| entry.remote) {
            if remote.is_multicast() || facts.routes.contains_key(&(*index, remote)) {
                continue;
            }
            let found = netlink.route_to(remote, vxlan.local, vxlan.link)?;
            facts.routes.insert((*index, remote), found);
        }
    }
    facts.overlay = overlay;
    Ok(facts)
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
