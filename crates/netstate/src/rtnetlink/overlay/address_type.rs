//! Types of addresses in the routing tables, as packet filters match them (nftables' `fib … type`,
//! iptables' `addrtype`).
//!
//! For IPv4, the kernel looks up table `local` alone (`inet_addr_type`). Until the first routing
//! rule is added, that table shares its tree with table `main`, and a more specific route of `main`
//! decides. Nothing reports whether the trees are shared, so a type is known only if both lookups
//! agree. For IPv6, the kernel does a full lookup (`nft_fib6_eval_type`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_route::route::{RouteFlags, RouteHeader, RouteMessage};

use crate::rtnetlink::route_fields::RouteFields;

/// `RTN_*` (include/uapi/linux/rtnetlink.h).
const UNICAST: u8 = 1;
const BROADCAST: u8 = 3;
const MULTICAST: u8 = 5;
const BLACKHOLE: u8 = 6;
const UNREACHABLE: u8 = 7;

/// Types by destination network and prefix length. `None`: unknown.
type Table = BTreeMap<(IpAddr, u8), Option<u8>>;

/// Routes that decide the types of addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressTypes {
    local: Table,
    main: Table,
    /// IPv6 has routing rules beyond the default ones.
    has_rules6: bool,
}

impl AddressTypes {
    /// Returns the type of an address (`RTN_*`); `None` if it cannot be derived from the routes.
    pub fn of(&self, address: IpAddr) -> Option<u8> {
        let local = longest(&self.local, address);
        let main = longest(&self.main, address);
        match address {
            IpAddr::V4(ipv4) if ipv4.octets()[0] == 0 || ipv4.is_broadcast() => Some(BROADCAST),
            IpAddr::V4(ipv4) if ipv4.is_multicast() => Some(MULTICAST),
            IpAddr::V4(_) => {
                let unicast = (0, Some(UNICAST));
                let alone = local.unwrap_or(unicast);
                // At equal length, table `local` comes first (`fib_find_alias`).
                let shared = main.filter(|main| local.is_none_or(|local| main.0 > local.0));
                (shared.unwrap_or(alone).1 == alone.1).then_some(alone.1?)
            }
            IpAddr::V6(ipv6) => {
                // Their types depend on a device, or are no types of routes.
                let special = ipv6.is_multicast() || ipv6.is_unspecified() || ipv6.is_loopback();
                if special || ipv6.is_unicast_link_local() || self.has_rules6 {
                    return None;
                }
                // No route at all: `ip6_null_entry`.
                local.or(main).unwrap_or((0, Some(UNREACHABLE))).1
            }
        }
    }

    /// Adds a route. Only tables `local` and `main` count: without routing rules of its own, the
    /// kernel looks up no other but the empty `default`.
    pub(super) fn add(&mut self, route: &RouteMessage, fields: &RouteFields<'_>) {
        let header = &route.header;
        // A learned path MTU is not a route.
        if header.flags.contains(RouteFlags::Cloned) {
            return;
        }
        let table = match fields.table {
            LOCAL_TABLE => &mut self.local,
            MAIN_TABLE => &mut self.main,
            // Other tables are used by rules only.
            _ => return,
        };
        let entry = table.entry((fields.to, header.destination_prefix_length));
        let kind = kind(route, fields.to.is_ipv4());
        // Which of several routes the kernel takes depends on priorities and the type of service.
        entry.and_modify(|known| *known = known.filter(|_| *known == kind)).or_insert(kind);
    }

    /// Ends the list: drops routes that decide no type.
    pub(super) fn finish(&mut self, has_rules6: bool) {
        self.has_rules6 = has_rules6;
        let local = &self.local;
        // There may be a million of them. Without a shorter network in table `local`, the type is
        // unicast in any case.
        self.main.retain(|(to, length), kind| {
            to.is_ipv6()
                || *kind != Some(UNICAST)
                || longest(local, *to).is_some_and(|(wider, _)| wider < *length)
        });
    }
}

/// `RT_TABLE_LOCAL`.
const LOCAL_TABLE: u32 = 255;
const MAIN_TABLE: u32 = RouteHeader::RT_TABLE_MAIN as u32;

/// Returns the type that a route gives to addresses.
fn kind(route: &RouteMessage, is_ipv4: bool) -> Option<u8> {
    let header = &route.header;
    // The kernel may pass over such a route.
    let inactive = RouteFlags::Dead | RouteFlags::Linkdown;
    if header.flags.intersects(inactive) || header.source_prefix_length > 0 || header.tos != 0 {
        return None;
    }
    match (u8::from(header.kind), is_ipv4) {
        // The lookup fails, which leaves the initial value (`__inet_dev_addr_type`).
        (BLACKHOLE.., true) => Some(UNICAST),
        // `fib` and `addrtype` disagree.
        (BLACKHOLE, false) => None,
        (kind, false) if kind > UNREACHABLE => None,
        (kind, _) => Some(kind),
    }
}

/// Returns prefix length and type of the most specific route to an address.
fn longest(table: &Table, address: IpAddr) -> Option<(u8, Option<u8>)> {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let find = |length| Some((length, *table.get(&(masked(address, length), length))?));
    (0..=bits).rev().find_map(find)
}

/// Returns the network of this prefix length that contains an address.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(ipv4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((u32::from(ipv4) & mask).into())
        }
        IpAddr::V6(ipv6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((u128::from(ipv6) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::{RouteAttribute, RouteType};

    use super::*;
    use crate::addr::family;

    const LOCAL: u8 = 2;
    const ANYCAST: u8 = 4;

    /// The types by a list of routes: table, network/length, type.
    fn types(routes: &[(u8, &str, RouteType)]) -> AddressTypes {
        let mut types = AddressTypes::default();
        for (table, network, kind) in routes {
            let (to, length) = network.split_once('/').unwrap();
            let to: IpAddr = to.parse().unwrap();
            let mut route = RouteMessage::default();
            route.header.table = *table;
            route.header.kind = *kind;
            route.header.destination_prefix_length = length.parse().unwrap();
            route.header.address_family = family(to);
            route.attributes.push(RouteAttribute::Destination(to.into()));
            types.add(&route, &RouteFields::of(&route));
        }
        types.finish(false);
        types
    }

    #[test]
    fn ipv4_addresses_have_the_type_of_table_local() {
        let types = types(&[
            (255, "127.0.0.0/8", RouteType::Local),
            (255, "10.0.0.1/32", RouteType::Local),
            (255, "10.0.0.255/32", RouteType::Broadcast),
            (255, "10.9.0.0/16", RouteType::Local),
            (254, "0.0.0.0/0", RouteType::Unicast),
            (254, "10.0.0.0/24", RouteType::Unicast),
            (254, "10.9.1.0/24", RouteType::Unicast),
            (254, "10.8.0.0/16", RouteType::BlackHole),
            (254, "10.7.0.1/32", RouteType::Broadcast),
        ]);
        for (address, kind) in [
            ("127.1.2.3", Some(LOCAL)),
            ("10.0.0.1", Some(LOCAL)),
            ("10.0.0.255", Some(BROADCAST)),
            ("10.0.0.2", Some(UNICAST)),
            ("192.0.2.1", Some(UNICAST)),
            ("10.8.0.1", Some(UNICAST)),
            ("10.9.2.1", Some(LOCAL)),
            ("0.1.2.3", Some(BROADCAST)),
            ("255.255.255.255", Some(BROADCAST)),
            ("224.0.0.1", Some(MULTICAST)),
            // These depend on whether the tables share a tree.
            ("10.9.1.1", None),
            ("10.7.0.1", None),
        ] {
            assert_eq!(types.of(address.parse().unwrap()), kind, "{address}");
        }
        assert_eq!(types.main.len(), 2, "{:?}", types.main);
    }

    #[test]
    fn ipv6_addresses_have_the_type_of_their_route() {
        let mut types = types(&[
            (255, "fd00::1/128", RouteType::Local),
            (255, "fd00::/128", RouteType::Anycast),
            (254, "fd00::/64", RouteType::Unicast),
            (254, "fd01::/64", RouteType::BlackHole),
            (254, "fd02::/64", RouteType::Unreachable),
            (254, "fd03::/64", RouteType::Unicast),
            (254, "fd03::/64", RouteType::Unreachable),
            (7, "fd04::/64", RouteType::Local),
        ]);
        for (address, kind) in [
            ("fd00::1", Some(LOCAL)),
            ("fd00::", Some(ANYCAST)),
            ("fd00::2", Some(UNICAST)),
            ("fd01::1", None),
            ("fd02::1", Some(UNREACHABLE)),
            ("fd03::1", None),
            ("fd04::1", Some(UNREACHABLE)),
            ("fe80::1", None),
            ("ff02::1", None),
            ("::1", None),
        ] {
            assert_eq!(types.of(address.parse().unwrap()), kind, "{address}");
        }
        types.finish(true);
        assert_eq!(types.of("fd00::1".parse().unwrap()), None);
    }

    #[test]
    fn routes_that_the_kernel_may_pass_over_decide_nothing() {
        let mut types = AddressTypes::default();
        let to: IpAddr = [10, 0, 0, 1].into();
        let mut route = RouteMessage::default();
        route.header.table = 255;
        route.header.kind = RouteType::Local;
        route.header.destination_prefix_length = 32;
        route.header.flags = RouteFlags::Dead;
        route.header.address_family = family(to);
        route.attributes.push(RouteAttribute::Destination(to.into()));
        types.add(&route, &RouteFields::of(&route));
        assert_eq!(types.of(to), None);
        route.header.flags = RouteFlags::Cloned;
        let mut types = AddressTypes::default();
        types.add(&route, &RouteFields::of(&route));
        assert_eq!(types, AddressTypes::default());
    }
}
