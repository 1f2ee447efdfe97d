//! Builds packets and GSO packets for the tests of this crate, the differential test against the
//! kernel and the benchmark.

#![allow(dead_code)] // each of them uses a part

use packet::checksum::{Sum, pseudo_header_v4, pseudo_header_v6};
use packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use packet::ipv4::{Ipv4Header, Protocol};
use packet::ipv6::Ipv6Header;
use packet::tcp::{Flags, TcpHeader};
use packet::udp::UdpHeader;
use packet::vlan::{VlanId, VlanTag};
use packet::vnet_hdr::{VnetHdr, flags, gso_type};
use packet::vxlan::{self, Vni};

/// A reproducible sequence of numbers (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The tunnel around a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelSpec {
    pub v6: bool,
    pub checksum: bool,
    pub id: u16,
    pub tos: u8,
    pub source_port: u16,
}

/// A TCP or UDP GSO packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub v6: bool,
    pub udp: bool,
    pub payload: usize,
    pub gso_size: u16,
    pub flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub tcp_options: usize,
    pub id: u16,
    pub dont_fragment: bool,
    pub tos: u8,
    pub ttl: u8,
    pub flow_label: u32,
    pub vlan: Option<u16>,
    /// Bytes of IPv4 options, or of an IPv6 destination options header.
    pub ip_options: usize,
    pub tunnel: Option<TunnelSpec>,
    /// Seed of payload bytes and ports.
    pub seed: u64,
}

impl Spec {
    pub const PLAIN: Spec = Spec {
        v6: false,
        udp: false,
        payload: 4000,
        gso_size: 1448,
        flags: 0x10,
        sequence: 1,
        acknowledgement: 2,
        tcp_options: 12,
        id: 7,
        dont_fragment: true,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        vlan: None,
        ip_options: 0,
        tunnel: None,
        seed: 1,
    };

    /// A random packet that the kernel can segment, up to the largest size.
    pub fn random(random: &mut Random, tunnels: bool) -> Spec {
        let udp = random.once_in(3);
        let gso_size = match random.below(4) {
            0 => 1448,
            1 => 1398,
            2 => 536 + random.below(8000),
            _ => 200 + random.below(1300),
        };
        let segments = 1 + random.below(46);
        let rest = if random.once_in(3) { 0 } else { random.below(gso_size) };
        let payload = (gso_size * segments + rest).min(65_535 - 250).max(gso_size + 1);
        let v6 = random.once_in(2);
        let tunnel = (tunnels && random.once_in(2)).then(|| TunnelSpec {
            v6: random.once_in(2),
            checksum: random.once_in(2),
            id: random.next() as u16,
            tos: random.next() as u8,
            source_port: 49152 + random.below(16384) as u16,
        });
        Spec {
            v6,
            udp,
            payload,
            gso_size: gso_size as u16,
            // Any flags except SYN, RST and URG.
            flags: 0x10 | random.next() as u8 & 0xc9,
            sequence: if random.once_in(4) { u32::MAX - 3000 } else { random.next() as u32 },
            acknowledgement: random.next() as u32,
            tcp_options: [0, 12, 12, 40][random.below(4)],
            id: if random.once_in(4) { 0xffff } else { random.next() as u16 },
            dont_fragment: random.once_in(2),
            tos: random.next() as u8,
            ttl: 1 + random.below(255) as u8,
            flow_label: random.next() as u32 & 0xfffff,
            vlan: random.once_in(8).then(|| random.next() as u16 & 0xfff),
            ip_options: if random.once_in(8) { 8 * (1 + random.below(3)) } else { 0 },
            tunnel,
            seed: random.next(),
        }
    }

    fn transport_header_len(&self) -> usize {
        if self.udp { 8 } else { 20 + self.tcp_options }
    }

    /// The GSO packet with its vnet header.
    pub fn build(&self) -> (VnetHdr, Vec<u8>) {
        let (mut vnet, mut frame) = self.build_inner();
        let Some(tunnel) = &self.tunnel else { return (vnet, frame) };
        let link = EthernetHeader {
            destination: MacAddr([2, 0, 0, 0, 0xee, 2]),
            source: MacAddr([2, 0, 0, 0, 0xee, 1]),
            ether_type: if tunnel.v6 { EtherType::IPV6 } else { EtherType::IPV4 },
        };
        let mut outer = link.to_bytes().to_vec();
        let length = 8 + 8 + frame.len();
        network(&mut outer, tunnel.v6, 17, length, 0, tunnel.id, true, tunnel.tos, 64, 0, 9);
        let th = outer.len();
        let check = if tunnel.checksum { pseudo(tunnel.v6, 17, length, 9).value() } else { 0 };
        let udp = UdpHeader { source_port: tunnel.source_port, destination_port: vxlan::PORT };
        outer.extend(udp.to_bytes(length - 8, check).unwrap());
        outer.extend(vxlan::header(Vni::new(0x12345).unwrap()));
        let shift = outer.len() as u16;
        vnet.gso_type |=
            if tunnel.v6 { gso_type::UDP_TUNNEL_IPV6 } else { gso_type::UDP_TUNNEL_IPV4 };
        vnet.flags |= if tunnel.checksum { flags::UDP_TUNNEL_CSUM } else { 0 };
        vnet.hdr_len += shift;
        vnet.csum_start += shift;
        vnet.outer_th_offset = th as u16;
        vnet.inner_nh_offset = shift + 14 + if self.vlan.is_some() { 4 } else { 0 };
        outer.append(&mut frame);
        (vnet, outer)
    }

    fn build_inner(&self) -> (VnetHdr, Vec<u8>) {
        let mut random = Random(self.seed);
        let ether_type = if self.v6 { EtherType::IPV6 } else { EtherType::IPV4 };
        let link = EthernetHeader {
            destination: MacAddr([2, 0, 0, 0, 0, 2]),
            source: MacAddr([2, 0, 0, 0, 0, 1]),
            ether_type: if self.vlan.is_some() { EtherType::VLAN } else { ether_type },
        };
        let mut frame = link.to_bytes().to_vec();
        if let Some(id) = self.vlan {
            let id = VlanId::new(id).unwrap();
            let tag = VlanTag { id, priority: 3, drop_eligible: false, ether_type };
            frame.extend(tag.to_bytes());
        }
        let length = self.transport_header_len() + self.payload;
        let protocol = if self.udp { 17 } else { 6 };
        network(
            &mut frame,
            self.v6,
            protocol,
            length,
            self.ip_options,
            self.id,
            self.dont_fragment,
            self.tos,
            self.ttl,
            self.flow_label,
            0,
        );
        let th = frame.len();
        let check = pseudo(self.v6, protocol, length, 0).value();
        let (source_port, destination_port) = (random.next() as u16 | 1024, 5201);
        if self.udp {
            let udp = UdpHeader { source_port, destination_port };
            frame.extend(udp.to_bytes(self.payload, check).unwrap());
        } else {
            let tcp = TcpHeader {
                source_port,
                destination_port,
                sequence: self.sequence,
                acknowledgement: self.acknowledgement,
                flags: Flags(self.flags),
                window: 502,
                urgent: 0,
            };
            let mut options = vec![1; self.tcp_options];
            if self.tcp_options >= 12 {
                options[2..4].copy_from_slice(&[8, 10]);
                random.fill(&mut options[4..12]);
            }
            let mut header = [0; 60];
            let len = tcp.emit(&options, check, &mut header).unwrap();
            frame.extend_from_slice(&header[..len]);
        }
        let at = frame.len();
        frame.resize(at + self.payload, 0);
        random.fill(&mut frame[at..]);
        let ecn = if !self.udp && self.flags & Flags::CWR.0 != 0 { gso_type::ECN } else { 0 };
        let kind = match (self.udp, self.v6) {
            (true, _) => gso_type::UDP_L4,
            (false, false) => gso_type::TCPV4 | ecn,
            (false, true) => gso_type::TCPV6 | ecn,
        };
        let vnet = VnetHdr {
            flags: flags::NEEDS_CSUM,
            gso_type: kind,
            hdr_len: at as u16,
            gso_size: self.gso_size,
            csum_start: th as u16,
            csum_offset: if self.udp { 6 } else { 16 },
            ..VnetHdr::default()
        };
        (vnet, frame)
    }
}

#[allow(clippy::too_many_arguments)] // a header's fields
fn network(
    frame: &mut Vec<u8>,
    v6: bool,
    protocol: u8,
    length: usize,
    options: usize,
    id: u16,
    dont_fragment: bool,
    tos: u8,
    ttl: u8,
    flow_label: u32,
    net: u8,
) {
    if v6 {
        let header = Ipv6Header {
            traffic_class: tos,
            flow_label,
            next_header: Protocol(if options > 0 { 60 } else { protocol }),
            hop_limit: ttl,
            source: address_v6(net, 1),
            destination: address_v6(net, 2),
        };
        frame.extend(header.to_bytes(options + length).unwrap());
        if options > 0 {
            // Destination options, filled by one PadN.
            let mut extension = vec![0; options];
            extension[..4].copy_from_slice(&[
                protocol,
                (options / 8 - 1) as u8,
                1,
                (options - 4) as u8,
            ]);
            frame.extend(extension);
        }
    } else {
        let header = Ipv4Header {
            tos,
            id,
            dont_fragment,
            ttl,
            protocol: Protocol(protocol),
            source: [10, net, 0, 1].into(),
            destination: [10, net, 0, 2].into(),
        };
        let mut bytes = [0; 60];
        let len = header.emit(&vec![1; options], length, &mut bytes).unwrap();
        frame.extend_from_slice(&bytes[..len]);
    }
}

fn address_v6(net: u8, host: u16) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::new(0xfd00, u16::from(net), 0, 0, 0, 0, 0, host)
}

fn pseudo(v6: bool, protocol: u8, length: usize, net: u8) -> Sum {
    if v6 {
        pseudo_header_v6(address_v6(net, 1), address_v6(net, 2), protocol, length as u32)
    } else {
        pseudo_header_v4([10, net, 0, 1].into(), [10, net, 0, 2].into(), protocol, length as u32)
    }
}
