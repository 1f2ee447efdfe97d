//! Parsing of route messages: the attributes that the readers of routes share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteNextHop,
};

/// The attributes of a route.
pub(crate) struct RouteFields<'a> {
    /// Destination network; unspecified for a default route.
    pub(crate) to: IpAddr,
    /// Next hop, if the route has a single one.
    pub(crate) via: Option<IpAddr>,
    /// Index of the output link.
    pub(crate) link: Option<u32>,
    /// Routing table.
    pub(crate) table: u32,
    /// Metric: the kernel prefers the least among routes to one network.
    pub(crate) metric: u32,
    /// Source address of the host's own packets (`RTA_PREFSRC`).
    pub(crate) source: Option<IpAddr>,
    /// MTU, bytes.
    pub(crate) mtu: Option<u32>,
    /// Hop limit.
    pub(crate) hop_limit: Option<u32>,
    /// Time until a learned path MTU expires, in ticks of `USER_HZ`, 100 per second; 0: it is the
    /// route's own.
    pub(crate) expires: u32,
    /// Next hops of a multipath route.
    pub(crate) hops: Option<&'a [RouteNextHop]>,
    /// It has a next hop object (`RTA_NH_ID`).
    pub(crate) is_object: bool,
    /// It encapsulates packets (`RTA_ENCAP`).
    pub(crate) is_encapsulated: bool,
}

impl RouteFields<'_> {
    pub(crate) fn of(route: &RouteMessage) -> RouteFields<'_> {
        let to = match route.header.address_family {
            AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
            _ => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut fields = RouteFields {
            to,
            via: None,
            link: None,
            table: route.header.table.into(),
            metric: 0,
            source: None,
            mtu: None,
            hop_limit: None,
            expires: 0,
            hops: None,
            is_object: false,
            is_encapsulated: false,
        };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Destination(to) => fields.to = address(to).unwrap_or(fields.to),
                RouteAttribute::Gateway(via) => fields.via = address(via),
                RouteAttribute::Oif(link) => fields.link = Some(*link),
                RouteAttribute::Table(table) => fields.table = *table,
                RouteAttribute::Priority(metric) => fields.metric = *metric,
                RouteAttribute::PrefSource(source) => fields.source = address(source),
                RouteAttribute::Metrics(metrics) => {
                    for metric in metrics {
                        match metric {
                            RouteMetric::Mtu(mtu) => fields.mtu = Some(*mtu),
                            RouteMetric::Hoplimit(limit) => fields.hop_limit = Some(*limit),
                            _ => {}
                        }
                    }
                }
                RouteAttribute::CacheInfo(cache) => fields.expires = cache.expires,
                RouteAttribute::MultiPath(hops) => fields.hops = Some(hops),
                RouteAttribute::NhId(_) => fields.is_object = true,
                RouteAttribute::Encap(_) => fields.is_encapsulated = true,
                _ => {}
            }
        }
        fields
    }
}

/// Returns the gateway of one next hop of a multipath route.
pub(crate) fn gateway(hop: &RouteNextHop) -> Option<IpAddr> {
    hop.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(via) => address(via),
        _ => None,
    })
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}
