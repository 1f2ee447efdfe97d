//! The underlay between the hosts of a pair: IPv4 or IPv6.

use std::net::{IpAddr, Ipv6Addr};

use testbed::{Host, NIC, Offload, Wire};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Underlay {
    V4,
    V6,
}

/// An underlay, a profile of the NICs, and whether tunnels send outer checksums.
pub type Path = (Underlay, Offload, bool);

/// Each underlay with and without checksums, and each profile.
pub const SOME: [Path; 4] = [
    (Underlay::V4, Offload::Full, false),
    (Underlay::V6, Offload::Full, true),
    (Underlay::V6, Offload::NoTunnel, false),
    (Underlay::V4, Offload::None, true),
];

/// The other combinations, for the nightly tests.
pub fn others() -> Vec<Path> {
    let all = Underlay::BOTH.into_iter().flat_map(|underlay| {
        Offload::ALL
            .into_iter()
            .flat_map(move |offload| [false, true].map(|udp_csum| (underlay, offload, udp_csum)))
    });
    all.filter(|path| !SOME.contains(path)).collect()
}

impl Underlay {
    pub const BOTH: [Underlay; 2] = [Underlay::V4, Underlay::V6];

    /// Addresses of the first and the second host.
    pub fn addresses(self) -> [IpAddr; 2] {
        match self {
            Underlay::V4 => [Wire::A.into(), Wire::B.into()],
            Underlay::V6 => [Wire::A6.into(), Wire::B6.into()],
        }
    }

    /// An unused address in the same network.
    pub fn nobody(self) -> IpAddr {
        match self {
            Underlay::V4 => [10, 0, 0, 99].into(),
            Underlay::V6 => Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 99).into(),
        }
    }

    /// MTU inside the tunnel, if the NICs have 1500.
    pub fn mtu(self) -> u32 {
        match self {
            Underlay::V4 => 1450,
            Underlay::V6 => 1430,
        }
    }

    /// Length of the outer Ethernet and IP header.
    pub fn udp(self) -> usize {
        match self {
            Underlay::V4 => 34,
            Underlay::V6 => 54,
        }
    }

    /// Offset of the inner Ethernet header in a VXLAN frame.
    pub fn inner(self, frame: &[u8]) -> Option<usize> {
        let (kind, next) = match self {
            Underlay::V4 => ([8, 0], 23),
            Underlay::V6 => ([0x86, 0xdd], 20),
        };
        let udp = self.udp();
        let ours = frame.get(12..14) == Some(&kind)
            && frame.get(next) == Some(&17)
            && frame.get(udp + 2..udp + 4) == Some(&4789u16.to_be_bytes());
        ours.then_some(udp + 16)
    }

    /// Options of a VXLAN device that sends outer checksums, or neither sends nor requires them.
    pub fn options(self, checksum: bool) -> &'static str {
        match (self, checksum) {
            (Underlay::V4, true) => "udpcsum",
            (Underlay::V4, false) => "noudpcsum",
            (Underlay::V6, true) => "noudp6zerocsumtx noudp6zerocsumrx flowlabel 0xabcde",
            (Underlay::V6, false) => "udp6zerocsumtx udp6zerocsumrx flowlabel 0xabcde",
        }
    }

    /// Joins two hosts. Devices that are added later have no IPv6 unless `speaks`.
    pub fn join(self, a: &Host, b: &Host, offload: Offload, speaks: bool) {
        self.join_at(a, b, offload, speaks, self.addresses());
    }

    /// The same, with these addresses.
    pub fn join_at(
        self,
        a: &Host,
        b: &Host,
        offload: Offload,
        speaks: bool,
        addresses: [IpAddr; 2],
    ) {
        let wire = Wire { mtu: 1500, offload };
        let ipv6 = |off| {
            for host in [a, b] {
                host.sysctl("net/ipv6/conf/default/disable_ipv6", off).unwrap();
            }
        };
        if self == Underlay::V6 {
            for host in [a, b] {
                host.sysctl("net/ipv6/conf/all/disable_ipv6", "0").unwrap();
            }
            ipv6("0");
        }
        wire.join(a, b).unwrap();
        if !speaks {
            ipv6("1");
        }
        for (host, address) in [a, b].into_iter().zip(addresses) {
            host.address(NIC, address, if address.is_ipv4() { 24 } else { 64 }).unwrap();
        }
    }
}
