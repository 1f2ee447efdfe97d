//! Routes of a namespace, as serializable values.

use std::net::IpAddr;

use netlink_packet_route::route::{RouteHeader, RouteMessage, RouteNextHop, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Result};
use crate::rtnetlink::route_fields::{RouteFields, gateway};

/// A configured route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteEntry {
    /// Destination network; unspecified for a default route.
    pub to: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
    /// Effect of the route.
    pub kind: RouteKind,
    /// Next hop of a route with one.
    pub via: Option<IpAddr>,
    /// Index of the output link of a route with one.
    pub link: Option<u32>,
    /// Table (`RT_TABLE_MAIN`: 254).
    pub table: u32,
    /// Origin (`RTPROT_*`; 9: a router advertisement).
    pub protocol: u8,
    /// Metric: the kernel prefers the least among routes to one network.
    #[serde(default)]
    pub metric: u32,
    /// Source address that the host's own packets get (`src`, `RTA_PREFSRC`), if it is set.
    #[serde(default)]
    pub source: Option<IpAddr>,
}

/// Effect of a route (`RTN_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// Forwards packets.
    Unicast,
    /// Drops packets silently.
    Blackhole,
    /// Drops packets with an ICMP answer.
    Unreachable,
    /// Drops packets with an ICMP answer.
    Prohibit,
}

impl RouteKind {
    /// Name, as `ip route` prints it.
    pub fn name(self) -> &'static str {
        match self {
            RouteKind::Unicast => "unicast",
            RouteKind::Blackhole => "blackhole",
            RouteKind::Unreachable => "unreachable",
            RouteKind::Prohibit => "prohibit",
        }
    }
}

impl RouteEntry {
    /// Whether the destination network contains an address.
    pub fn covers(&self, address: IpAddr) -> bool {
        covers((self.to, self.prefix), address)
    }
}

/// Whether a network, of a prefix length in bits, contains an address.
pub fn covers((network, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differ = u32::from(network) ^ u32::from(address);
            differ.checked_shr(32_u32.saturating_sub(prefix.into())).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differ = u128::from(network) ^ u128::from(address);
            differ.checked_shr(128_u32.saturating_sub(prefix.into())).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The route of the table `main` that the kernel takes to an address: the longest, and of those of
/// one length that of the least metric. Other tables are left out.
pub fn best_route(routes: &[RouteEntry], to: IpAddr) -> Option<&RouteEntry> {
    let main = routes.iter().filter(|route| route.table == u32::from(RouteHeader::RT_TABLE_MAIN));
    let covering = main.filter(|route| route.covers(to));
    covering.min_by_key(|route| (std::cmp::Reverse(route.prefix), route.metric))
}

impl Netlink {
    /// Lists the routes of the namespace that forward or drop packets, at most `most`.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn routes(&self, most: usize) -> Result<Vec<RouteEntry>> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            self.dump(RouteNetlinkMessage::GetRoute(message), "list", "routes", |answer| {
                if let RouteNetlinkMessage::NewRoute(route) = answer
                    && all.len() < most
                {
                    all.extend(entries(&route));
                }
            })?;
        }
        Ok(all)
    }
}

/// One entry for each next hop.
fn entries(route: &RouteMessage) -> Vec<RouteEntry> {
    let fields = RouteFields::of(route);
    let Some(entry) = entry(route, &fields) else { return Vec::new() };
    let Some(hops) = fields.hops.filter(|hops| !hops.is_empty()) else { return vec![entry] };
    let through = |hop: &RouteNextHop| RouteEntry {
        via: gateway(hop),
        link: Some(hop.interface_index),
        ..entry.clone()
    };
    hops.iter().map(through).collect()
}

fn entry(route: &RouteMessage, fields: &RouteFields<'_>) -> Option<RouteEntry> {
    let kind = match route.header.kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        // Local, broadcast and multicast routes follow from addresses.
        _ => return None,
    };
    let RouteFields { to, via, link, table, metric, source, .. } = *fields;
    let (prefix, protocol) = (route.header.destination_prefix_length, route.header.protocol.into());
    Some(RouteEntry { to, prefix, kind, via, link, table, protocol, metric, source })
}
