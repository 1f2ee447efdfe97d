//! OV088: Multicast snooping holds neighbour discovery back from a tenant.

use std::net::{IpAddr, Ipv6Addr};

use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use settings::command::{inside, quote};

pub(super) const CHECK: Check = Check {
    code: "OV088",
    title: "Multicast snooping cuts a tenant off",
    severity: Severity::Warn,
    explanation: "A bridge with multicast snooping knows a querier, and sends a multicast packet \
        only to ports with a member of its group. The tenant behind this port has an IPv6 address, \
        but the bridge knows no member of the group to which neighbour solicitations for it are \
        sent. Other hosts cannot resolve the address, so IPv6 to the tenant fails after a while. \
        The tenant's reports (MLD) are filtered, or the querier's queries do not reach it. Without \
        a querier a bridge sends multicast to all ports.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for port in view.devices() {
        let Some(bridge) = view.bridge(port) else { continue };
        let settings = bridge.interface.bridge.unwrap_or_default();
        // Without a querier the bridge sends multicast to all ports.
        if !settings.mcast_snooping || !(settings.mcast_querier || settings.other_querier) {
            continue;
        }
        // A bridge behind the port has tenants of its own.
        let Some(tenant) = view.peer(port).filter(|tenant| view.bridge(*tenant).is_none()) else {
            continue;
        };
        // A device that is down joins no group.
        if !port.interface.up || !tenant.interface.up {
            continue;
        }
        let namespace = port.namespace;
        let Some(multicast) = outcome.need(&namespace.label, &namespace.multicast) else {
            continue;
        };
        let index = port.interface.index;
        // A router's port gets all groups.
        if multicast.routers.contains(&index) {
            continue;
        }
        let addresses = tenant.namespace.addresses.get().into_iter().flatten();
        let own = addresses.filter(|known| known.link == tenant.interface.index);
        let lacking = own.filter_map(|known| {
            // IPv4 tenants need no membership: ARP is broadcast.
            let IpAddr::V6(address) = known.address else { return None };
            let group = solicited(address);
            let is_member = multicast
                .members
                .iter()
                .any(|member| member.port == index && member.group == IpAddr::V6(group));
            // Every device has an address of its link, used or not.
            (!address.is_unicast_link_local() && !is_member).then_some((address, group))
        });
        let lacking: Vec<(Ipv6Addr, Ipv6Addr)> = lacking.collect();
        let Some((address, group)) = lacking.first() else { continue };
        let path = bridge.namespace.path.as_deref();
        let set = |on: u8| {
            let bridge = quote(bridge.name());
            inside(path, &format!("ip link set {bridge} type bridge mcast_snooping {on}"))
        };
        outcome.add(
            CHECK
                .on(port)
                .evidence(
                    format!(
                        "{} {} has {address}; no member of {group} at {} of {}",
                        tenant.namespace.label,
                        tenant.name(),
                        port.name(),
                        bridge.name()
                    ),
                    "RTM_GETADDR, RTM_GETMDB",
                )
                .evidence(
                    match settings.mcast_querier {
                        true => "mcast_snooping 1, mcast_querier 1",
                        false => "mcast_snooping 1, another querier is known",
                    },
                    "IFLA_INFO_DATA",
                )
                .cost(Cost::estimated(0.8, "IPv6 packets to this tenant"))
                .confidence(Confidence::Medium)
                .by_hand(set(0), "multicast then goes to all ports of the bridge", set(1)),
        );
    }
}

/// Returns the solicited-node group of an address (RFC 4291, section 2.7.1).
fn solicited(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_has_the_last_three_bytes() {
        let of = |text: &str| solicited(text.parse().unwrap()).to_string();
        assert_eq!(of("fd00::2"), "ff02::1:ff00:2");
        assert_eq!(of("2001:db8::0102:0304:0506"), "ff02::1:ff04:506");
    }
}
