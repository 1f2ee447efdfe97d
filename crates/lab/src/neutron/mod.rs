//! OpenStack's network node, as the agents of Neutron build it: compute hosts, a host with
//! the router's namespace, and the outside.
//!
//! Names of devices, bridges, chains and flow tables are Neutron's. Where Neutron has the
//! first characters of a port's or a network's UUID, we have `net1`, `net2` and `ext`.

pub(crate) mod keepalived;
pub(crate) mod l3_agent;
pub(crate) mod linuxbridge;
pub(crate) mod openvswitch;

use std::net::{IpAddr, Ipv4Addr};

use netstate::route::Route;
use testbed::{Host, NIC, SECOND_NIC};

use crate::network::VXLAN_OVERHEAD;
use crate::{Params, Result};

/// Name of the host that the router is in.
pub(crate) const NODE: &str = "network";
/// The router's namespace; Neutron's has the router's UUID behind it.
pub(crate) const ROUTER: &str = "qrouter";
/// A tenant's device.
pub(crate) const TENANT_NIC: &str = "eth0";
/// The other end of it, in the tenant's host.
pub(crate) const TENANT_PORT: &str = "tap0";

/// Address of the outside that leads to a tenant.
pub(crate) const FLOATING: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);

/// A network that the router has a port on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    /// The tenants' first.
    One,
    /// The tenants' second.
    Two,
    /// The provider's: flat, without a tunnel or a tag.
    Outside,
    /// What two instances of a router watch each other by.
    Ha,
}

impl Net {
    /// Where Neutron has a part of a UUID.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Net::One => "net1",
            Net::Two => "net2",
            Net::Outside => "ext",
            Net::Ha => "ha",
        }
    }

    /// Its number: Open vSwitch's local VLAN.
    const fn number(self) -> u8 {
        match self {
            Net::One => 1,
            Net::Two => 2,
            Net::Outside => 3,
            Net::Ha => 4,
        }
    }

    /// VXLAN network identifier or VLAN tag.
    pub(crate) const fn segment(self) -> u16 {
        100 + self.number() as u16
    }

    /// An address of its subnet: a /24, but a /18 between routers (`l3_ha_net_cidr`).
    pub(crate) const fn address(self, last: u8) -> Ipv4Addr {
        match self {
            Net::Outside => Ipv4Addr::new(203, 0, 113, last),
            Net::Ha => Ipv4Addr::new(169, 254, 192, last),
            _ => Ipv4Addr::new(10, self.number(), 0, last),
        }
    }

    /// The router's address on it.
    pub(crate) const fn router(self) -> Ipv4Addr {
        match self {
            Net::Outside => self.address(2),
            _ => self.address(1),
        }
    }

    /// Address of what talks: a tenant, or the host outside, which is the provider's router.
    pub(crate) const fn end(self) -> Ipv4Addr {
        match self {
            Net::Outside => self.address(1),
            _ => self.address(11),
        }
    }

    /// The router's device (`INTERNAL_DEV_PREFIX`, `EXTERNAL_DEV_PREFIX`, `HA_DEV_PREFIX` in
    /// `neutron/agent/l3`).
    pub(crate) fn router_device(self) -> String {
        let prefix = match self {
            Net::Outside => "qg-",
            Net::Ha => "ha-",
            _ => "qr-",
        };
        format!("{prefix}{}", self.name())
    }

    /// MTU of its devices, bytes.
    pub(crate) fn mtu(self, params: &Params, kind: NetworkType) -> u32 {
        match (self, kind) {
            (Net::One | Net::Two | Net::Ha, NetworkType::Vxlan) => params.mtu - VXLAN_OVERHEAD,
            _ => params.mtu,
        }
    }
}

/// What carries tenants' networks between hosts (`provider:network_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkType {
    Vxlan,
    Vlan,
}

/// A host with what talks there, and its cable to the network node.
pub(crate) struct Leg {
    /// A compute host, or the host outside.
    pub(crate) host: Host,
    /// Where the host is not itself what talks.
    pub(crate) tenant: Option<Host>,
    pub(crate) net: Net,
    /// The network node's device of the cable; the host's is [`NIC`].
    pub(crate) nic: &'static str,
    /// Addresses of a tunnel's ends: the host's and the network node's.
    pub(crate) underlay: [Ipv4Addr; 2],
}

impl Leg {
    /// What talks.
    pub(crate) fn end(&self) -> &Host {
        self.tenant.as_ref().unwrap_or(&self.host)
    }
}

/// Hosts and cables, with what talks at either end.
pub(crate) struct Site {
    /// Of the client and of the server.
    pub(crate) legs: [Leg; 2],
    /// The network node.
    pub(crate) node: Host,
    /// The router's namespace in it.
    pub(crate) router: Host,
}

impl Site {
    /// Makes them: cables without underlay addresses, tenants behind a veth pair, everybody
    /// with an address and the route to the router. The client is on the first of `nets`.
    pub(crate) fn new(params: &Params, kind: NetworkType, nets: [Net; 2]) -> Result<Site> {
        let node = Host::new(NODE)?;
        let leg = |name: &str, nic, subnet, net: Net| {
            let host = Host::new(name)?;
            host.connect(NIC, &node, nic, params.mtu)?;
            host.set_offload(NIC, params.offload)?;
            node.set_offload(nic, params.offload)?;
            let tenant = end(&host, net, net.mtu(params, kind))?;
            let underlay = [1, 254].map(|last| Ipv4Addr::new(10, 0, subnet, last));
            Result::Ok(Leg { host, tenant, net, nic, underlay })
        };
        let legs = [leg("a", NIC, 0, nets[0])?, leg("b", SECOND_NIC, 1, nets[1])?];
        Ok(Site { legs, node, router: Host::new(ROUTER)? })
    }

    /// The networks, the client's first.
    pub(crate) fn nets(&self) -> [Net; 2] {
        [self.legs[0].net, self.legs[1].net]
    }
}

/// What talks on a network: the tenant that it makes, or `host` itself, which is outside.
pub(crate) fn end(host: &Host, net: Net, mtu: u32) -> Result<Option<Host>> {
    if net == Net::Outside {
        host.address(NIC, net.end(), 24)?;
        return Ok(None);
    }
    let tenant = Host::new(&format!("tenant-{}", host.name()))?;
    host.connect(TENANT_PORT, &tenant, TENANT_NIC, mtu)?;
    tenant.address(TENANT_NIC, net.end(), 24)?;
    tenant.netlink().add_route(&default_route(net.router(), TENANT_NIC))?;
    Ok(Some(tenant))
}

/// A default route.
fn default_route(via: Ipv4Addr, link: &str) -> Route<'_> {
    Route {
        to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix: 0,
        via: Some(IpAddr::V4(via)),
        link,
        onlink: false,
    }
}
