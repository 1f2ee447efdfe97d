//! IPv6 between the ends of a network: addresses of a further subnet on the NICs that join them.
//!
//! Possible where both ends share one layer 2, which carries IPv6 like IPv4. Hosts that route or
//! translate between the ends do so for IPv4 only.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use netstate::entry::Address;
use testbed::Host;

use crate::{Network, Unsupported};

/// Addresses of the ends, in a /64.
const CLIENT: Ipv6Addr = Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, 1);
const SERVER: Ipv6Addr = Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, 2);
/// Smallest MTU of a link with IPv6 (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;

impl Network {
    /// Gives both ends IPv6 addresses, which clients and server then use.
    ///
    /// # Errors
    /// The reason why this network cannot carry IPv6 between its ends.
    pub fn over_ipv6(mut self) -> Result<Network, Unsupported> {
        let [target, listen] = [self.address.target, self.address.listen].map(|at| at.ip());
        // The address is an argument of the guest's kernel, of IPv4 only.
        if self.guests().is_some() {
            return Err(refused("the lab gives virtual machines IPv4 addresses only"));
        }
        if target != listen {
            return Err(refused("its server is published at an IPv4 address, by translation"));
        }
        let (client, server) = (self.client().clone(), self.server().clone());
        // Packets to an own address do not cross the path.
        if client.name() == server.name() {
            return Err(refused("both ends are the same host"));
        }
        // IPv6 refuses to run on a link with a smaller MTU (RFC 8200, section 5).
        if self.tenant_mtu < LEAST_MTU {
            let mtu = self.tenant_mtu;
            return Err(refused(&format!("IPv6 needs an MTU of {LEAST_MTU}, its ends have {mtu}")));
        }
        let routed = || {
            refused("other hosts route between its ends, IPv4 only: IPv6 needs a common layer 2")
        };
        let to = nic(&client, |own| is_on_link(own, listen))?.ok_or_else(routed)?;
        let at = nic(&server, |own| own.address == listen)?.ok_or_else(routed)?;
        for (host, nic, address) in [(&client, to, CLIENT), (&server, at, SERVER)] {
            enable(host, &nic, address).map_err(|error| refused(&error.to_string()))?;
        }
        let at = SocketAddr::new(IpAddr::V6(SERVER), self.address.listen.port());
        (self.address.target, self.address.listen) = (at, at);
        Ok(self.noting(format!("over IPv6: the server is {at}")))
    }
}

fn refused(reason: &str) -> Unsupported {
    Unsupported::new(reason, "measure this mode over IPv4")
}

/// Returns whether an address reaches another one without a router.
fn is_on_link(own: &Address, other: IpAddr) -> bool {
    let (IpAddr::V4(own_address), IpAddr::V4(other)) = (own.address, other) else { return false };
    let mask = u32::MAX.checked_shl(32 - u32::from(own.prefix.min(32))).unwrap_or(0);
    (own_address.to_bits() ^ other.to_bits()) & mask == 0
}

/// Returns the name of the first device with such an address.
fn nic(host: &Host, has: impl Fn(&Address) -> bool) -> Result<Option<String>, Unsupported> {
    let read = || {
        let addresses = host.netlink().addresses()?;
        let links = host.netlink().links()?;
        let own = addresses.iter().find(|own| has(own));
        Ok(own.and_then(|own| links.into_iter().find(|link| link.index == own.link)))
    };
    let link = read().map_err(|error: netstate::Error| refused(&error.to_string()))?;
    Ok(link.map(|link| link.name))
}

/// Enables IPv6 on a device, without router discovery and duplicate address detection.
fn enable(host: &Host, nic: &str, address: Ipv6Addr) -> crate::Result<()> {
    // `disable_ipv6` comes last: it sends router solicitations at once.
    for (setting, value) in [("accept_ra", "0"), ("accept_dad", "0"), ("disable_ipv6", "0")] {
        host.sysctl(&format!("net/ipv6/conf/{nic}/{setting}"), value)?;
    }
    host.address(nic, address, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_router_is_between_addresses_of_different_networks() {
        let own = |address: &str, prefix| Address {
            link: 1,
            address: address.parse().unwrap(),
            prefix,
            duplicate: false,
        };
        let reaches = |own: &Address, other: &str| is_on_link(own, other.parse().unwrap());
        assert!(reaches(&own("10.1.0.11", 24), "10.1.0.12"));
        assert!(!reaches(&own("10.1.0.11", 24), "10.1.1.12"));
        assert!(!reaches(&own("10.1.0.11", 32), "10.1.0.12"));
        assert!(reaches(&own("10.1.0.11", 0), "192.0.2.1"));
        assert!(!reaches(&own("fd00::1", 64), "10.1.0.12"));
    }
}
