//! OpenStack's network node as Neutron's agents build it: compute hosts, a host with the
//! router's namespace, and the outside.
//!
//! Devices, bridges, chains and flow tables have Neutron's names. Where Neutron uses the first
//! characters of the UUID of a port or network, this module uses `net1`, `net2` and `ext`.

pub(crate) mod keepalived;
pub(crate) mod l3_agent;
pub(crate) mod linuxbridge;
pub(crate) mod openvswitch;

use std::net::{IpAddr, Ipv4Addr};

use netstate::route::Route;
use testbed::{Host, NIC, SECOND_NIC};

use crate::network::VXLAN_OVERHEAD;
use crate::{Params, Result};

/// Name of the router's host.
pub(crate) const NODE: &str = "network";
/// Name of the router's namespace. Neutron appends the router's UUID.
pub(crate) const ROUTER: &str = "qrouter";
/// A tenant's device.
pub(crate) const TENANT_NIC: &str = "eth0";
/// The tenant's port in its host.
pub(crate) const TENANT_PORT: &str = "tap0";

/// Floating IP address that leads to a tenant.
pub(crate) const FLOATING: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);

/// A network with a port on the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    /// The first tenant network.
    One,
    /// The second tenant network.
    Two,
    /// The provider network: flat, untagged, not tunnelled.
    Outside,
    /// The network by which two instances of a router exchange VRRP.
    Ha,
}

impl Net {
    /// Name that replaces part of a UUID.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Net::One => "net1",
            Net::Two => "net2",
            Net::Outside => "ext",
            Net::Ha => "ha",
        }
    }

    /// Number of the network, also Open vSwitch's local VLAN.
    const fn number(self) -> u8 {
        match self {
            Net::One => 1,
            Net::Two => 2,
            Net::Outside => 3,
            Net::Ha => 4,
        }
    }

    /// VXLAN network identifier or VLAN ID.
    pub(crate) const fn segment(self) -> u16 {
        100 + self.number() as u16
    }

    /// Returns an address of its subnet: a /24, or a /18 between routers (`l3_ha_net_cidr`).
    pub(crate) const fn address(self, last: u8) -> Ipv4Addr {
        match self {
            Net::Outside => Ipv4Addr::new(203, 0, 113, last),
            Net::Ha => Ipv4Addr::new(169, 254, 192, last),
            _ => Ipv4Addr::new(10, self.number(), 0, last),
        }
    }

    /// Returns the router's address on it.
    pub(crate) const fn router(self) -> Ipv4Addr {
        match self {
            Net::Outside => self.address(2),
            _ => self.address(1),
        }
    }

    /// Returns the address of its end: a tenant, or the outside host, which acts as the
    /// provider's router.
    pub(crate) const fn end(self) -> Ipv4Addr {
        match self {
            Net::Outside => self.address(1),
            _ => self.address(11),
        }
    }

    /// Returns the router's device (`INTERNAL_DEV_PREFIX`, `EXTERNAL_DEV_PREFIX` and
    /// `HA_DEV_PREFIX` in `neutron/agent/l3`).
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
            // Encapsulated networks have a smaller MTU.
            (Net::One | Net::Two | Net::Ha, NetworkType::Vxlan) => params.mtu - VXLAN_OVERHEAD,
            _ => params.mtu,
        }
    }
}

/// Encapsulation of tenant networks between hosts (`provider:network_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkType {
    Vxlan,
    Vlan,
}

/// A host, its end of the traffic, and its cable to the network node.
pub(crate) struct Leg {
    /// A compute host, or the outside host.
    pub(crate) host: Host,
    /// The tenant, unless the host itself is the end.
    pub(crate) tenant: Option<Host>,
    pub(crate) net: Net,
    /// The network node's device of the cable. The host's device is [`NIC`].
    pub(crate) nic: &'static str,
    /// Tunnel endpoints: the host's and the network node's address.
    pub(crate) underlay: [Ipv4Addr; 2],
}

impl Leg {
    /// Returns the namespace that sends or receives.
    pub(crate) fn end(&self) -> &Host {
        self.tenant.as_ref().unwrap_or(&self.host)
    }
}

/// Hosts, cables, and the ends of the traffic.
pub(crate) struct Site {
    /// The client's and the server's.
    pub(crate) legs: [Leg; 2],
    pub(crate) node: Host,
    /// The router's namespace.
    pub(crate) router: Host,
}

impl Site {
    /// Creates hosts, cables without underlay addresses, and tenants behind a veth pair. All ends
    /// have an address and a route to the router. The client is on the first of `nets`.
    pub(crate) fn new(params: &Params, kind: NetworkType, nets: [Net; 2]) -> Result<Site> {
        let node = Host::new(NODE)?;
        let leg = |name: &str, nic, subnet, net: Net| {
            let host = Host::new(name)?;
            host.connect(NIC, &node, nic, params.mtu)?;
            host.set_offload(NIC, params.offload)?;
            // The profile applies to both ends of each cable.
            node.set_offload(nic, params.offload)?;
            let tenant = end(&host, net, net.mtu(params, kind))?;
            let underlay = [1, 254].map(|last| Ipv4Addr::new(10, 0, subnet, last));
            Result::Ok(Leg { host, tenant, net, nic, underlay })
        };
        let legs = [leg("a", NIC, 0, nets[0])?, leg("b", SECOND_NIC, 1, nets[1])?];
        Ok(Site { legs, node, router: Host::new(ROUTER)? })
    }

    /// Returns the networks, the client's first.
    pub(crate) fn nets(&self) -> [Net; 2] {
        [self.legs[0].net, self.legs[1].net]
    }
}

/// Creates the end on a network: a tenant, or outside the host itself (`None`).
pub(crate) fn end(host: &Host, net: Net, mtu: u32) -> Result<Option<Host>> {
    // The outside host itself is the end.
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

fn default_route(via: Ipv4Addr, link: &str) -> Route<'_> {
    Route {
        to: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        prefix: 0,
        via: Some(IpAddr::V4(via)),
        link,
        onlink: false,
    }
}
