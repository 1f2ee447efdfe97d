//! Addresses of links.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::{Netlink, Result};

/// The netlink family of an address.
pub(crate) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

impl Netlink {
    /// Adds an address to a link. Duplicate address detection is off (`nodad`), because test
    /// networks have no other hosts. The kernel acknowledges an IPv6 address before it is usable;
    /// [`Netlink::is_own`] reports when it is.
    ///
    /// # Errors
    /// `EEXIST` if the link has the address, `ENODEV` if there is no such link.
    pub fn add_address(&self, link: &str, address: IpAddr, prefix: u8) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix;
        message.header.index = self.link(link)?.index;
        if address.is_ipv6() {
            message.header.flags |= AddressHeaderFlags::Nodad;
        }
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        self.change(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
            "add address",
            &format!("{address}/{prefix} to {link}"),
        )
    }
}
