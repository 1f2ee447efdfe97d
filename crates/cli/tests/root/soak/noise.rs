//! Malformed packets.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use packet::arp::{ArpPacket, Operation};
use packet::ethernet::{EtherType, EthernetHeader, MacAddr};
use packet::ipv4::{Ipv4Header, Protocol};
use packet::ipv6::Ipv6Header;
use packet::udp::UdpHeader;
use packet::vxlan::{self, PORT, Vni};
use sys::netns::NetNs;
use testbed::Host;

use super::underlay::{End, VNI};

/// Datagrams in a burst, and the time until the next burst.
const BURST: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// Seeded random numbers (xorshift).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) % limit as u64) as usize
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// A frame with some bytes changed, doubled or lost. Its addresses are not the tenants', so that it
/// misleads no bridge.
pub fn frame(random: &mut Random) -> Vec<u8> {
    let most = [30, 300, 2000][random.below(3)];
    let length = random.below(most);
    let payload = random.bytes(length);
    let source = MacAddr([2, 0, 9, 9, random.below(8) as u8, random.below(256) as u8]);
    let kinds = [EtherType::IPV4, EtherType::IPV6, EtherType::ARP, EtherType(0x88b5)];
    let ether_type = kinds[random.below(4)];
    let destination = if random.below(2) == 0 { MacAddr::BROADCAST } else { MacAddr::ZERO };
    let protocol = [Protocol::UDP, Protocol::TCP, Protocol(99)][random.below(3)];
    let packet = match ether_type {
        EtherType::IPV4 => {
            let ip = Ipv4Header {
                tos: random.below(256) as u8,
                id: 1,
                dont_fragment: random.below(2) == 0,
                ttl: 64,
                protocol,
                source: [172, 31, 99, 1].into(),
                destination: [172, 31, 99, 2].into(),
            };
            let udp = UdpHeader { source_port: 1, destination_port: 2 };
            let udp = udp.to_bytes(payload.len(), 0).unwrap();
            [&ip.to_bytes(8 + payload.len()).unwrap()[..], &udp, &payload].concat()
        }
        EtherType::IPV6 => {
            let ip = Ipv6Header {
                traffic_class: random.below(256) as u8,
                flow_label: 7,
                next_header: [protocol, Protocol::ICMPV6][random.below(2)],
                hop_limit: 255,
                source: "fd99::1".parse().unwrap(),
                destination: "fd99::2".parse().unwrap(),
            };
            [&ip.to_bytes(payload.len()).unwrap()[..], &payload].concat()
        }
        EtherType::ARP => {
            let arp = ArpPacket {
                operation: Operation(random.below(4) as u16),
                sender_mac: source,
                sender_ip: [172, 31, 99, 1].into(),
                target_mac: MacAddr::ZERO,
                target_ip: [172, 31, 99, random.below(256) as u8].into(),
            };
            arp.to_bytes().to_vec()
        }
        _ => payload,
    };
    let link = EthernetHeader { destination, source, ether_type };
    let mut frame = [&link.to_bytes()[..], &packet].concat();
    // Most datagrams pass the first checks.
    for _ in 0..random.below(4) {
        let at = random.below(frame.len().max(1));
        match random.below(4) {
            0 if at < frame.len() => frame[at] = random.below(256) as u8,
            1 => frame.insert(at, 0xff),
            2 if at < frame.len() => drop(frame.remove(at)),
            3 if random.below(4) == 0 => frame.truncate(at),
            _ => {}
        }
    }
    frame
}

/// A datagram to the tunnel's port.
fn datagram(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => {
            let length = [0, 1, 7, 8, 21, 22, 60, 1400, 9000, 60_000][random.below(10)];
            random.bytes(length)
        }
        kind => {
            let vni = if kind == 1 { random.below(1 << 24) as u32 } else { VNI };
            let mut bytes = vxlan::header(Vni::new(vni).unwrap()).to_vec();
            if kind == 2 {
                bytes[random.below(8)] ^= 1 << random.below(8);
            }
            bytes.extend(frame(random));
            bytes
        }
    }
}

/// Sends such datagrams to the endpoint until `stop`, from a configured and from an unknown remote
/// end. Returns the number sent.
pub fn datagrams(host: &Host, v6: bool, mut random: Random, stop: &AtomicBool) -> u64 {
    let socket = |end: End| {
        let at = SocketAddr::new(end.underlay(v6), 0);
        host.netns().run(|| UdpSocket::bind(at)).unwrap().unwrap()
    };
    let (known, unknown) = (socket(End::Known), socket(End::Unknown));
    let to = SocketAddr::new(End::A.underlay(v6), PORT);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            let socket = if random.below(8) == 0 { &unknown } else { &known };
            // A path that is down loses packets, too.
            sent += u64::from(socket.send_to(&datagram(&mut random), to).is_ok());
        }
        std::thread::sleep(PAUSE);
    }
    sent
}

/// Sends small and large datagrams of a tenant to a peer's tenant until `stop`, regardless of loss.
/// Returns the number sent.
pub fn trickle(tenant: &NetNs, to: End, mut random: Random, stop: &AtomicBool) -> u64 {
    let socket = |v6: bool| {
        let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
        tenant.run(|| UdpSocket::bind(any)).unwrap().unwrap()
    };
    let sockets = [false, true].map(|v6| (socket(v6), to.inner(v6).parse().unwrap()));
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for (socket, address) in &sockets {
            let length = [1, 64, 1400, 8000][random.below(4)];
            let to = SocketAddr::new(*address, 9);
            sent += u64::from(socket.send_to(&vec![7; length], to).is_ok());
        }
        std::thread::sleep(PAUSE / 2);
    }
    sent
}
