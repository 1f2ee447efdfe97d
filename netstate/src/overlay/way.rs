//! Routes and rules of routing, as far as they are unusual, and the way to an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Overlay;
use crate::addr::family;
use crate::netlink::{Netlink, Result};

/// What a route look-up answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Link to leave by.
    pub link: u32,
    /// Next hop, where it is not the destination.
    pub via: Option<IpAddr>,
    /// Source address that the kernel prefers.
    pub source: Option<IpAddr>,
    /// MTU of the route or path, bytes.
    pub mtu: Option<u32>,
    /// Hop limit of the route.
    pub ttl: Option<u8>,
}

impl Overlay {
    /// Why no single next hop tells the way to an address, where a route may cover it
    /// of which that is so.
    pub fn odd_route(&self, to: IpAddr) -> Option<&'static str> {
        let covers = |network: IpAddr, length: u8| match (network, to) {
            (IpAddr::V4(network), IpAddr::V4(to)) => {
                let differ = u32::from(network) ^ u32::from(to);
                differ.checked_shr(32 - u32::from(length)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(to)) => {
                let differ = u128::from(network) ^ u128::from(to);
                differ.checked_shr(128 - u32::from(length)).unwrap_or(0) == 0
            }
            _ => false,
        };
        let mut covering = self.odd_routes.iter().filter(|(to, length, _)| covers(*to, *length));
        covering.next().map(|(_, _, why)| *why)
    }
}

impl Netlink {
    /// Rules and routes, as far as they are unusual.
    pub(super) fn routing(&self, family: AddressFamily, all: &mut Overlay) -> Result<()> {
        let four = family == AddressFamily::Inet;
        let mut rules = RuleMessage::default();
        rules.header.family = family;
        self.dump(RouteNetlinkMessage::GetRule(rules), "list", "rules", |answer| {
            if let RouteNetlinkMessage::NewRule(rule) = answer {
                if four { &mut all.rules } else { &mut all.rules6 }.extend(unusual(&rule));
            }
        })?;
        let mut routes = RouteMessage::default();
        routes.header.address_family = family;
        self.dump(RouteNetlinkMessage::GetRoute(routes), "list", "routes", |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            all.route_mtus.extend(has_mtu(&route));
            all.odd_routes.extend(odd(&route));
        })
    }

    /// Asks the kernel for the way to an address: `None` where it is not unicast
    /// or there is none.
    ///
    /// # Errors
    /// When the kernel refuses for another reason.
    pub fn route_to(
        &self,
        to: IpAddr,
        from: Option<IpAddr>,
        link: Option<u32>,
    ) -> Result<Option<Found>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = bits(to);
        message.attributes.push(RouteAttribute::Destination(to.into()));
        if let Some(from) = from {
            message.header.source_prefix_length = bits(from);
            message.attributes.push(RouteAttribute::Source(from.into()));
        }
        message.attributes.extend(link.map(RouteAttribute::Oif));
        let mut found = None;
        let request = RouteNetlinkMessage::GetRoute(message);
        let answer = self.get(request, "find route to", &to.to_string(), |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                found = way(route);
            }
        });
        match answer {
            Ok(()) => Ok(found),
            Err(error) => match error.errno() {
                Some(
                    nix::errno::Errno::ENETUNREACH
                    | nix::errno::Errno::EHOSTUNREACH
                    | nix::errno::Errno::EINVAL
                    | nix::errno::Errno::ENODEV
                    | nix::errno::Errno::EACCES,
                ) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

fn way(route: RouteMessage) -> Option<Found> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let mut found = Found { link: 0, via: None, source: None, mtu: None, ttl: None };
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => found.link = index,
            RouteAttribute::Gateway(via) => found.via = address(&via),
            RouteAttribute::PrefSource(source) => found.source = address(&source),
            // An IPv4 destination by way of an IPv6 neighbour (RFC 5549).
            RouteAttribute::Via(_) => return None,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    match metric {
                        RouteMetric::Mtu(mtu) => found.mtu = Some(mtu),
                        RouteMetric::Hoplimit(ttl) => found.ttl = u8::try_from(ttl).ok(),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (found.link != 0).then_some(found)
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// Of a whole address.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// A rule that is none of the three of a new namespace (`fib_default_rules_init`).
fn unusual(rule: &RuleMessage) -> Option<String> {
    let (mut priority, mut table) = (0, u32::from(rule.header.table));
    let mut selects = rule.header.dst_len > 0 || rule.header.src_len > 0 || rule.header.tos > 0;
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Priority(value) => priority = *value,
            RuleAttribute::Table(value) => table = *value,
            RuleAttribute::SuppressPrefixLen(u32::MAX) | RuleAttribute::Protocol(_) => {}
            RuleAttribute::Other(_) => {}
            _ => selects = true,
        }
    }
    let usual = !selects && [(0, 255), (32766, 254), (32767, 253)].contains(&(priority, table));
    (!usual).then(|| format!("rule {priority} (table {table})"))
}

fn odd(route: &RouteMessage) -> Option<(IpAddr, u8, &'static str)> {
    let four = route.header.address_family == AddressFamily::Inet;
    let mut to: IpAddr =
        if four { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let mut why = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(network) => to = address(network).unwrap_or(to),
            RouteAttribute::MultiPath(_) => why = Some("several next hops"),
            RouteAttribute::NhId(_) => why = Some("a next hop object"),
            RouteAttribute::Encap(_) => why = Some("an encapsulation"),
            _ => {}
        }
    }
    Some((to, route.header.destination_prefix_length, why?))
}

/// The link of a route whose metrics have an MTU.
fn has_mtu(route: &RouteMessage) -> Option<u32> {
    let (mut link, mut has) = (None, false);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Metrics(metrics) => {
                has = metrics.iter().any(|metric| matches!(metric, RouteMetric::Mtu(_)));
            }
            _ => {}
        }
    }
    link.filter(|_| has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_route_is_one_for_the_addresses_of_its_network() {
        let odd = |to: &str, length| (to.parse().unwrap(), length, "several next hops");
        let covered = |routes: Vec<_>, to: &str| {
            let overlay = Overlay { odd_routes: routes, ..Overlay::default() };
            overlay.odd_route(to.parse().unwrap()).is_some()
        };
        for (route, length, inside, outside) in [
            ("10.8.0.0", 13, "10.15.255.255", "10.16.0.0"),
            ("10.0.0.2", 32, "10.0.0.2", "10.0.0.3"),
            ("0.0.0.0", 0, "255.0.0.1", "fd07::2"),
            ("fd07::", 65, "fd07::7fff:ffff:ffff:ffff", "fd07::8000:0:0:0"),
            ("fd07::2", 128, "fd07::2", "fd07::3"),
            ("::", 0, "fd07::2", "10.0.0.2"),
        ] {
            assert!(covered(vec![odd(route, length)], inside), "{route}/{length}: {inside}");
            assert!(!covered(vec![odd(route, length)], outside), "{route}/{length}: {outside}");
        }
    }
}
