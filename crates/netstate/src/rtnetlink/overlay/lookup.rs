//! Unusual routes, and the route to an address.

use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::rule::RuleMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Overlay;
use super::rule::unusual;
use crate::netlink::{Netlink, Result};
use crate::route::{length, look_up};
use crate::route_table::covers;
use crate::rtnetlink::route_fields::RouteFields;

/// `IPPROTO_UDP`.
const UDP: u8 = 17;

/// The fields of a tunnel's outer packets that affect their route: the input of a VXLAN device's
/// lookup (`udp_tunnel_dst_lookup`, `udp_tunnel6_dst_lookup`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Underlay address of the remote end.
    pub to: IpAddr,
    /// Local address, if the device has one.
    pub from: Option<IpAddr>,
    /// Type of service. The two ECN bits are ignored.
    pub tos: u8,
    /// UDP port of the remote end.
    pub port: u16,
    /// Link to which the entry binds the packets (`via`). Do not use the device's own link (`dev`):
    /// the kernel's lookup leaves it out.
    pub link: Option<u32>,
}

/// `INET_DSCP_MASK`.
const DSCP: u8 = 0xfc;

/// Result of a route lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Output link.
    pub link: u32,
    /// Next hop, if it is not the destination.
    pub via: Option<IpAddr>,
    /// Source address that the kernel prefers.
    pub source: Option<IpAddr>,
    /// MTU of the route or path, bytes.
    pub mtu: Option<u32>,
    /// Hop limit of the route.
    pub ttl: Option<u8>,
    /// An unsupported property of the route, described.
    pub unsupported: Option<String>,
    /// The host accepts packets from the remote end on this link (`ip route get … iif`): the
    /// address is local and routed so, and the sender passes `rp_filter`.
    pub comes_back: bool,
}

impl Overlay {
    /// Returns the reason if a route that is more than a single next hop may cover an address.
    pub fn unsupported_route(&self, to: IpAddr) -> Option<&'static str> {
        let mut covering = self
            .unsupported_routes
            .iter()
            .filter(|(network, length, _)| covers((*network, *length), to));
        covering.next().map(|(_, _, why)| *why)
    }
}

impl Netlink {
    /// Reads unusual rules and routes.
    pub(super) fn routing(&self, family: AddressFamily, all: &mut Overlay) -> Result<()> {
        let four = family == AddressFamily::Inet;
        let mut request = RuleMessage::default();
        request.header.family = family;
        let mut rules = Vec::new();
        self.dump(RouteNetlinkMessage::GetRule(request), "list", "rules", |answer| {
            if let RouteNetlinkMessage::NewRule(rule) = answer {
                rules.push(rule);
            }
        })?;
        *if four { &mut all.rules } else { &mut all.rules6 } = unusual(&rules, !four);
        let mut routes = RouteMessage::default();
        routes.header.address_family = family;
        self.dump(RouteNetlinkMessage::GetRoute(routes), "list", "routes", |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            let fields = RouteFields::of(&route);
            all.route_mtus.extend(has_mtu(&route, &fields));
            all.unsupported_routes.extend(unsupported(&route, &fields));
            all.address_types.add(&route, &fields);
        })
    }

    /// Looks up the route of outer packets, and whether replies are accepted. `None` if there is no
    /// unicast route.
    ///
    /// # Errors
    /// If the kernel refuses for another reason.
    pub fn route_to(&self, query: &Query) -> Result<Option<Found>> {
        let Query { to, from, tos, port, link } = *query;
        let mut message = look_up(to);
        message.header.tos = tos & DSCP;
        message.attributes.push(RouteAttribute::IpProto(UDP));
        message.attributes.push(RouteAttribute::Dport(port));
        if let Some(from) = from {
            message.header.source_prefix_length = length(from);
            message.attributes.push(RouteAttribute::Source(from.into()));
        }
        message.attributes.extend(link.map(RouteAttribute::Oif));
        let mut found = self.look_up(message, to)?.and_then(way);
        if let Some(found) = &mut found
            && let Some(local) = from.or(found.source)
        {
            found.comes_back = self.is_taken(to, local, found.link, port)?;
        }
        Ok(found)
    }

    /// Whether the host accepts packets from an address on a link.
    fn is_taken(&self, from: IpAddr, to: IpAddr, link: u32, port: u16) -> Result<bool> {
        let mut message = look_up(to);
        message.header.source_prefix_length = length(from);
        message.attributes.extend([
            RouteAttribute::Source(from.into()),
            RouteAttribute::Iif(link),
            RouteAttribute::IpProto(UDP),
            RouteAttribute::Dport(port),
        ]);
        let answer = self.look_up(message, from)?;
        Ok(answer.is_some_and(|route| route.header.kind == RouteType::Local))
    }

    /// Looks up a route; `None`: there is no route.
    fn look_up(&self, message: RouteMessage, object: IpAddr) -> Result<Option<RouteMessage>> {
        let mut found = None;
        let request = RouteNetlinkMessage::GetRoute(message);
        let answer = self.get(request, "find route to", &object.to_string(), |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                found = Some(route);
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
                    | nix::errno::Errno::EACCES
                    | nix::errno::Errno::EXDEV
                    | nix::errno::Errno::ENETDOWN,
                ) => Ok(None),
                _ => Err(error),
            },
        }
    }
}

fn way(route: RouteMessage) -> Option<Found> {
    // Local, broadcast and prohibiting routes lead to no remote VTEP.
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let RouteFields { link, via, source, mtu, hop_limit, .. } = RouteFields::of(&route);
    let mut found = Found {
        // The answer may name no device.
        link: link?,
        via,
        source,
        mtu,
        ttl: hop_limit.and_then(|limit| u8::try_from(limit).ok()),
        unsupported: None,
        comes_back: false,
    };
    for attribute in &route.attributes {
        match attribute {
            // An IPv4 destination through an IPv6 next hop (RFC 5549) is not supported.
            RouteAttribute::Via(_) => return None,
            RouteAttribute::Metrics(metrics) => {
                let unsupported = metrics.iter().find_map(unsupported_metric);
                found.unsupported = found.unsupported.or(unsupported);
            }
            RouteAttribute::Encap(_) | RouteAttribute::EncapType(_) => {
                found.unsupported = Some("an encapsulation".to_owned());
            }
            RouteAttribute::MultiPath(_) => {
                found.unsupported = Some("several next hops".to_owned())
            }
            // In the result, or properties of the lookup or the route that do not affect packets.
            RouteAttribute::Oif(_)
            | RouteAttribute::Gateway(_)
            | RouteAttribute::PrefSource(_)
            | RouteAttribute::Destination(_)
            | RouteAttribute::NhId(_)
            | RouteAttribute::Source(_)
            | RouteAttribute::Table(_)
            | RouteAttribute::CacheInfo(_)
            | RouteAttribute::Uid(_)
            | RouteAttribute::Iif(_)
            | RouteAttribute::Priority(_)
            | RouteAttribute::Preference(_)
            | RouteAttribute::Expires(_)
            | RouteAttribute::Mark(_)
            | RouteAttribute::IpProto(_)
            | RouteAttribute::Sport(_)
            | RouteAttribute::Dport(_)
            | RouteAttribute::Flowlabel(_) => {}
            // A class for `tc`, which only the slow path sets on packets.
            RouteAttribute::Realm(_) => found.unsupported = Some("a realm".to_owned()),
            other => found.unsupported = Some(format!("unknown attribute {other:?}")),
        }
    }
    Some(found)
}

/// Describes a metric that may affect outer packets, except those in the result. Only TCP
/// connections of the host itself use the other metrics.
fn unsupported_metric(metric: &RouteMetric) -> Option<String> {
    match metric {
        RouteMetric::Lock(_) => Some("a locked metric".to_owned()),
        RouteMetric::Features(_) => Some("a features metric".to_owned()),
        RouteMetric::Mtu(_)
        | RouteMetric::Hoplimit(_)
        | RouteMetric::Window(_)
        | RouteMetric::Rtt(_)
        | RouteMetric::RttVar(_)
        | RouteMetric::SsThresh(_)
        | RouteMetric::Cwnd(_)
        | RouteMetric::Advmss(_)
        | RouteMetric::Reordering(_)
        | RouteMetric::InitCwnd(_)
        | RouteMetric::RtoMin(_)
        | RouteMetric::InitRwnd(_)
        | RouteMetric::QuickAck(_)
        | RouteMetric::CcAlgo(_)
        | RouteMetric::FastopenNoCookie(_) => None,
        other => Some(format!("unknown metric {other:?}")),
    }
}

fn unsupported(
    route: &RouteMessage,
    fields: &RouteFields<'_>,
) -> Option<(IpAddr, u8, &'static str)> {
    let header = &route.header;
    let why = if fields.is_encapsulated {
        "an encapsulation"
    } else if fields.hops.is_some() {
        "several next hops"
    } else if fields.to.is_ipv4() && header.tos != 0 {
        // Received packets may have any type of service.
        "a type of service"
    } else if fields.is_object && fields.link.is_none() && header.kind == RouteType::Unicast {
        // The kernel resolves an object with a single next hop as any other route, for each packet.
        // It does not say how many an object has, if `net.ipv4.nexthop_compat_mode` is off.
        "a next hop object"
    } else {
        return None;
    };
    Some((fields.to, header.destination_prefix_length, why))
}

/// Returns the link of a route whose metrics have an MTU.
fn has_mtu(route: &RouteMessage, fields: &RouteFields<'_>) -> Option<u32> {
    // A learned path MTU is not a route: any tenant can cause one with a forged ICMP message. It
    // affects only its destination, for which bpf_fib_lookup takes it into account.
    if route.header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    fields.link.filter(|_| fields.mtu.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_route_covers_the_addresses_of_its_network() {
        let unsupported = |to: &str, length| (to.parse().unwrap(), length, "several next hops");
        let covered = |routes: Vec<_>, to: &str| {
            let overlay = Overlay { unsupported_routes: routes, ..Overlay::default() };
            overlay.unsupported_route(to.parse().unwrap()).is_some()
        };
        for (route, length, inside, outside) in [
            ("10.8.0.0", 13, "10.15.255.255", "10.16.0.0"),
            ("10.0.0.2", 32, "10.0.0.2", "10.0.0.3"),
            ("0.0.0.0", 0, "255.0.0.1", "fd07::2"),
            ("fd07::", 65, "fd07::7fff:ffff:ffff:ffff", "fd07::8000:0:0:0"),
            ("fd07::2", 128, "fd07::2", "fd07::3"),
            ("::", 0, "fd07::2", "10.0.0.2"),
        ] {
            assert!(
                covered(vec![unsupported(route, length)], inside),
                "{route}/{length}: {inside}"
            );
            assert!(
                !covered(vec![unsupported(route, length)], outside),
                "{route}/{length}: {outside}"
            );
        }
    }
}
