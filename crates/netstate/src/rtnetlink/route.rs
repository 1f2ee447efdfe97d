//! Unicast routes: adding them, and looking them up in the kernel.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::addr::family;
use crate::netlink::{Error, Netlink, Result};
use crate::rtnetlink::route_fields::RouteFields;

/// A unicast route in the main table.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// Address of the destination network.
    pub to: IpAddr,
    /// Prefix length, bits; 0: the default route.
    pub prefix: u8,
    /// Next hop; none: directly on the link.
    pub via: Option<IpAddr>,
    /// Output link.
    pub link: &'a str,
    /// The next hop is on the link, whatever the addresses are.
    pub onlink: bool,
}

impl<'a> Route<'a> {
    /// The IPv4 default route through a next hop on `link`.
    pub fn default_by(via: Ipv4Addr, link: &'a str) -> Route<'a> {
        let (to, via) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), Some(IpAddr::V4(via)));
        Route { to, prefix: 0, via, link, onlink: false }
    }
}

/// Result of a route lookup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    /// Index of the output link.
    pub link: u32,
    /// Next hop, if it is not the destination.
    pub via: Option<IpAddr>,
    /// MTU of the route or the learned path MTU, bytes, if any.
    pub mtu: Option<u32>,
    /// Seconds until a learned path MTU expires; `None`: the MTU is the route's own.
    #[serde(default)]
    pub expires_s: Option<u32>,
}

/// Destination of a forwarded packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Routed {
    /// It goes to a program of this host.
    Here,
    /// It leaves by the link with this index.
    Out(u32),
}

/// The route that matches an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Prefix length of the destination network, bits.
    pub prefix: u8,
    /// Next hop, if there is one.
    pub via: Option<IpAddr>,
    /// Origin of the route (`RTPROT_*` of `linux/rtnetlink.h`).
    pub protocol: u8,
}

impl Netlink {
    /// Adds a route, replacing one to the same destination.
    ///
    /// # Errors
    /// `ENODEV`, `ENETUNREACH` if the next hop is not reachable on the link.
    pub fn add_route(&self, route: &Route<'_>) -> Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(route.to);
        message.header.destination_prefix_length = route.prefix;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope =
            if route.via.is_some() { RouteScope::Universe } else { RouteScope::Link };
        if route.onlink {
            message.header.flags |= RouteFlags::Onlink;
        }
        if route.prefix > 0 {
            message.attributes.push(RouteAttribute::Destination(route.to.into()));
        }
        message.attributes.extend(route.via.map(|via| RouteAttribute::Gateway(via.into())));
        message.attributes.push(RouteAttribute::Oif(self.link(route.link)?.index));
        let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        self.change(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            "add route",
            &format!("{}/{}{via} dev {}", route.to, route.prefix, route.link),
        )
    }

    /// Returns the device through which the kernel would now send packets to `address` (`ip route
    /// get`).
    ///
    /// # Errors
    /// As [`Netlink::way_to`].
    pub fn device_to(&self, address: IpAddr) -> Result<String> {
        let index = self.device_index_to(address)?;
        let link = self.links()?.into_iter().find(|link| link.index == index);
        link.map(|link| link.name).ok_or_else(|| no_device(address))
    }

    /// [`Netlink::device_to`] as an index, without listing the links.
    ///
    /// # Errors
    /// As [`Netlink::way_to`].
    pub fn device_index_to(&self, address: IpAddr) -> Result<u32> {
        Ok(self.way_to(address, None)?.link)
    }

    /// Returns the route that the kernel would now use for packets to `address`.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`; `EACCES` or `EINVAL` of a prohibiting route or blackhole;
    /// `ENODEV` if the answer names no link.
    pub fn way_to(&self, address: IpAddr, from: Option<IpAddr>) -> Result<NextHop> {
        let address = address.to_canonical();
        let object = address.to_string();
        let mut message = look_up(address);
        if let Some(from) = from {
            message.header.source_prefix_length = length(from);
            message.attributes.push(RouteAttribute::Source(from.into()));
        }
        let mut found = None;
        self.get(RouteNetlinkMessage::GetRoute(message), "find route", &object, |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            let RouteFields { link, via, mtu, expires, .. } = RouteFields::of(&route);
            let expires_s = (expires != 0).then_some(expires / 100);
            found = link.map(|link| NextHop { link, via, mtu, expires_s });
        })?;
        // The answer names no output link.
        found.ok_or_else(|| no_device(address))
    }

    /// Returns the destination that the kernel would now choose for a forwarded packet that came in by
    /// the link with index `input` and has a mark (`ip route get … from … iif … mark …`).
    ///
    /// # Errors
    /// As [`Netlink::way_to`]. `EINVAL` also if the kernel refuses the source on this link.
    pub fn routed(&self, (from, to): (IpAddr, IpAddr), input: u32, mark: u32) -> Result<Routed> {
        let mut message = look_up(to);
        message.header.source_prefix_length = length(from);
        message.attributes.extend([
            RouteAttribute::Source(from.into()),
            RouteAttribute::Iif(input),
            RouteAttribute::Mark(mark),
        ]);
        let mut routed = None;
        self.get(
            RouteNetlinkMessage::GetRoute(message),
            "find route",
            &to.to_string(),
            |answer| {
                let RouteNetlinkMessage::NewRoute(route) = answer else { return };
                routed = match route.header.kind {
                    RouteType::Local => Some(Routed::Here),
                    _ => RouteFields::of(&route).link.map(Routed::Out),
                };
            },
        )?;
        routed.ok_or_else(|| no_device(to))
    }

    /// Returns the configured route that packets to `address` match now (`ip route get fibmatch`);
    /// none if no route forwards them.
    ///
    /// # Errors
    /// If the kernel refuses the lookup.
    pub fn matched(&self, address: IpAddr) -> Result<Option<Match>> {
        self.matched_by(address, None)
    }

    /// The same for packets in the VRF with this device index.
    ///
    /// # Errors
    /// As [`Netlink::matched`].
    pub fn matched_by(&self, address: IpAddr, vrf: Option<u32>) -> Result<Option<Match>> {
        let mut message = look_up(address);
        message.header.flags |= RouteFlags::FibMatch;
        message.attributes.extend(vrf.map(RouteAttribute::Oif));
        let mut matched = None;
        let request = RouteNetlinkMessage::GetRoute(message);
        let asked = self.get(request, "find route", &address.to_string(), |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            let via = RouteFields::of(&route).via;
            let prefix = route.header.destination_prefix_length;
            matched = Some(Match { prefix, via, protocol: route.header.protocol.into() });
        });
        match asked {
            // EINVAL is the answer for a blackhole.
            Err(Error::Kernel {
                errno: Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EINVAL,
                ..
            }) => Ok(None),
            asked => asked.map(|()| matched),
        }
    }

    /// Whether an address of the link with this index is already local to the host.
    ///
    /// For IPv6 this takes some time after the kernel has acknowledged [`Netlink::add_address`], or
    /// has set up a link with existing addresses. A single work queue of the machine joins the
    /// address's multicast group and then adds its local route. Each step waits for RTNL, the lock
    /// of all changes in all namespaces.
    ///
    /// The route may never appear if the link is set down meanwhile and keeps the address
    /// (`keep_addr_on_down`). Source: `addrconf_dad_work`, `addrconf_ifdown` in
    /// net/ipv6/addrconf.c; observed on Linux 6.18.
    ///
    /// # Errors
    /// If the kernel refuses the lookup.
    pub fn is_own(&self, link: u32, address: IpAddr) -> Result<bool> {
        let mut message = look_up(address);
        message.attributes.push(RouteAttribute::Oif(link));
        let mut own = false;
        let request = RouteNetlinkMessage::GetRoute(message);
        let asked = self.get(request, "find route", &address.to_string(), |answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                own = route.header.kind == RouteType::Local;
            }
        });
        match asked {
            // No route at all, so the address is not local yet.
            Err(Error::Kernel { errno: Errno::ENETUNREACH | Errno::EHOSTUNREACH, .. }) => Ok(false),
            asked => asked.map(|()| own),
        }
    }
}

/// Builds a request for the route to an address.
pub(crate) fn look_up(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(address);
    message.header.destination_prefix_length = length(address);
    message.attributes.push(RouteAttribute::Destination(address.into()));
    message
}

/// Returns the prefix length of a host route, bits.
pub(crate) fn length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn no_device(address: IpAddr) -> Error {
    let (operation, object) = ("find route", address.to_string());
    Error::Kernel { operation, object, errno: Errno::ENODEV }
}
