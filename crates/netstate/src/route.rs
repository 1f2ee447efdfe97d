//! Unicast routes: adding them, and asking which one the kernel would take.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric,
    RouteProtocol, RouteScope, RouteType,
};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::addr::family;
use crate::netlink::{Error, Netlink, Result};

/// A unicast route of the main table.
#[derive(Debug, Clone, Copy)]
pub struct Route<'a> {
    /// Address of the destination network.
    pub to: IpAddr,
    /// Its prefix length, bits; 0: the default route.
    pub prefix: u8,
    /// Next hop; none: on the link.
    pub via: Option<IpAddr>,
    /// Link to leave by.
    pub link: &'a str,
    /// The next hop is on the link, whatever the addresses say.
    pub onlink: bool,
}

impl<'a> Route<'a> {
    /// To all of IPv4 that no other route leads to, by a next hop on `link`.
    pub fn default_by(via: Ipv4Addr, link: &'a str) -> Route<'a> {
        let (to, via) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), Some(IpAddr::V4(via)));
        Route { to, prefix: 0, via, link, onlink: false }
    }
}

/// What a route look-up answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Index of the link to leave by.
    pub link: u32,
    /// Next hop, where it is not the destination.
    pub via: Option<IpAddr>,
    /// MTU of the route or learned of the path, bytes, where there is one.
    pub mtu: Option<u32>,
}

/// The route that an address matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Prefix length of the destination network, bits.
    pub prefix: u8,
    /// Next hop, where there is one.
    pub via: Option<IpAddr>,
    /// Who has written the route (`RTPROT_*` of `linux/rtnetlink.h`).
    pub protocol: u8,
}

impl Netlink {
    /// Adds a route, replacing one to the same destination.
    ///
    /// # Errors
    /// `ENODEV`, `ENETUNREACH` when the next hop is not reachable on the link.
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
            message.attributes.push(RouteAttribute::Destination(route_address(route.to)));
        }
        message.attributes.extend(route.via.map(|via| RouteAttribute::Gateway(route_address(via))));
        message.attributes.push(RouteAttribute::Oif(self.link(route.link)?.index));
        let via = route.via.map(|via| format!(" via {via}")).unwrap_or_default();
        self.change(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            "add route",
            &format!("{}/{}{via} dev {}", route.to, route.prefix, route.link),
        )
    }

    /// The device by which packets to `address` leave, as the kernel would route
    /// them now (`ip route get`).
    ///
    /// # Errors
    /// As [`Netlink::way_to`].
    pub fn device_to(&self, address: IpAddr) -> Result<String> {
        let index = self.device_index_to(address)?;
        let link = self.links()?.into_iter().find(|link| link.index == index);
        link.map(|link| link.name).ok_or_else(|| no_device(address))
    }

    /// [`Netlink::device_to`], the index only, without a look at the links.
    ///
    /// # Errors
    /// As [`Netlink::way_to`].
    pub fn device_index_to(&self, address: IpAddr) -> Result<u32> {
        Ok(self.way_to(address, None)?.link)
    }

    /// The way that packets to `address` take, as the kernel would route them now.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH`; what a route forbids (`EACCES`, `EINVAL`
    /// of a blackhole); `ENODEV` where the answer names no link.
    pub fn way_to(&self, address: IpAddr, from: Option<IpAddr>) -> Result<Way> {
        let address = address.to_canonical();
        let object = address.to_string();
        let mut message = look_up(address);
        if let Some(from) = from {
            message.header.source_prefix_length = length(from);
            message.attributes.push(RouteAttribute::Source(route_address(from)));
        }
        let mut way = Way { link: 0, via: None, mtu: None };
        self.get(RouteNetlinkMessage::GetRoute(message), "find route", &object, |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            for attribute in route.attributes {
                match attribute {
                    RouteAttribute::Oif(index) => way.link = index,
                    RouteAttribute::Gateway(RouteAddress::Inet(via)) => way.via = Some(via.into()),
                    RouteAttribute::Gateway(RouteAddress::Inet6(via)) => way.via = Some(via.into()),
                    RouteAttribute::Metrics(metrics) => {
                        way.mtu = metrics.into_iter().find_map(|metric| match metric {
                            RouteMetric::Mtu(mtu) => Some(mtu),
                            _ => None,
                        });
                    }
                    _ => {}
                }
            }
        })?;
        match way.link {
            0 => Err(no_device(address)),
            _ => Ok(way),
        }
    }

    /// The route that packets to `address` take now, as it was written
    /// (`ip route get fibmatch`); none where no route forwards them.
    ///
    /// # Errors
    /// When the kernel refuses the look-up.
    pub fn matched(&self, address: IpAddr) -> Result<Option<Match>> {
        self.matched_by(address, None)
    }

    /// The same for packets in the VRF whose device has this index.
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
            let via = route.attributes.into_iter().find_map(|attribute| match attribute {
                RouteAttribute::Gateway(RouteAddress::Inet(via)) => Some(via.into()),
                RouteAttribute::Gateway(RouteAddress::Inet6(via)) => Some(via.into()),
                _ => None,
            });
            let prefix = route.header.destination_prefix_length;
            matched = Some(Match { prefix, via, protocol: route.header.protocol.into() });
        });
        match asked {
            // The last is a blackhole's.
            Err(Error::Kernel {
                errno: Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EINVAL,
                ..
            }) => Ok(None),
            asked => asked.map(|()| matched),
        }
    }

    /// Whether packets to an address of the link with this index are the host's own by now.
    ///
    /// For IPv6 that takes some time after the kernel has answered [`Netlink::add_address`],
    /// or has set up a link that had kept its addresses. One queue for the whole machine
    /// joins the address's multicast group, and then adds its local route. Each step waits
    /// for RTNL, the lock of all changes in all namespaces.
    ///
    /// The route may never come if the link is set down meanwhile and keeps the address
    /// (`keep_addr_on_down`). Source: `addrconf_dad_work`, `addrconf_ifdown` in
    /// net/ipv6/addrconf.c; seen in Linux 6.18.
    ///
    /// # Errors
    /// When the kernel refuses the look-up.
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
            Err(Error::Kernel { errno: Errno::ENETUNREACH | Errno::EHOSTUNREACH, .. }) => Ok(false),
            asked => asked.map(|()| own),
        }
    }
}

/// The question for the route to an address.
fn look_up(address: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(address);
    message.header.destination_prefix_length = length(address);
    message.attributes.push(RouteAttribute::Destination(route_address(address)));
    message
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

/// Of an address as a prefix, bits.
fn length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn no_device(address: IpAddr) -> Error {
    let (operation, object) = ("find route", address.to_string());
    Error::Kernel { operation, object, errno: Errno::ENODEV }
}
