//! Hosts on a switch, so that one can be rebuilt while the others' NICs stay.

use std::net::IpAddr;

use netstate::link::Vxlan;
use packet::vxlan::{PORT, Vni};
use testbed::{Host, NIC, mac};

pub const VNI: u32 = 10;

/// Underlay addresses: the endpoint, its peers b and c, a sender of malformed packets with the
/// address of a remote end, and one with an unknown address.
#[derive(Debug, Clone, Copy)]
pub enum End {
    A = 1,
    B = 2,
    C = 3,
    Known = 4,
    Unknown = 5,
}

impl End {
    pub fn underlay(self, v6: bool) -> IpAddr {
        let last = self as u8;
        if v6 { format!("fd00::{last}").parse().unwrap() } else { [10, 0, 0, last].into() }
    }

    /// Address of the tenant behind this end.
    pub fn inner(self, v6: bool) -> String {
        let last = self as u8;
        if v6 { format!("fd01::{last}") } else { format!("10.1.0.{last}") }
    }
}

/// Sets an address that survives setting the device down.
pub fn address(host: &Host, device: &str, address: IpAddr) {
    host.sysctl(&format!("net/ipv6/conf/{device}/keep_addr_on_down"), "1").unwrap();
    host.address(device, address, if address.is_ipv4() { 24 } else { 64 }).unwrap();
}

pub fn join(switch: &Host, name: &str, ends: &[End]) -> Host {
    let host = Host::with_ipv6(name).unwrap();
    host.connect(NIC, switch, name, 1500).unwrap();
    switch.netlink().set_master(name, "br0").unwrap();
    for v6 in [true, false] {
        for end in ends {
            address(&host, NIC, end.underlay(v6));
        }
    }
    host
}

pub fn switch() -> Host {
    let switch = Host::new("switch").unwrap();
    switch.bridge("br0", 1500, &[]).unwrap();
    switch
}

/// A host whose tenant is its VXLAN device, which floods to `flood`.
pub fn peer(switch: &Host, name: &str, end: End, flood: IpAddr, checksum: bool) -> Host {
    let v6 = flood.is_ipv6();
    let host = join(switch, name, &[end]);
    let device = Vxlan {
        name: "vxlan0",
        vni: Some(Vni::new(VNI).unwrap()),
        local: end.underlay(v6),
        remote: Some(flood),
        underlay: NIC,
        port: PORT,
        learning: true,
        udp_csum: checksum,
    };
    let mtu = if v6 { 1430 } else { 1450 };
    host.netlink().add_vxlan(&device, mac(name, "vxlan0"), mtu).unwrap();
    for v6 in [true, false] {
        address(&host, "vxlan0", end.inner(v6).parse().unwrap());
    }
    host
}
