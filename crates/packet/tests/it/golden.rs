//! The formats against frames of a real kernel (`tests/golden/README.md`).

use packet::arp::{Arp, Operation};
use packet::checksum::Sum;
use packet::coalesce::{Coalescer, Options};
use packet::decap::{self, Decapsulated};
use packet::ecn::Ingress;
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, Tunnel};
use packet::ethernet::{EtherType, Ethernet, EthernetHeader, MacAddr};
use packet::icmp::{self, Icmp};
use packet::icmpv6::{self, Icmpv6};
use packet::ipv4::{Ipv4, Ipv4Header, Protocol};
use packet::ipv6::{Ipv6, Ipv6Header};
use packet::segment::Segmenter;
use packet::tcp::{Flags, Tcp, TcpHeader};
use packet::udp::{Udp, UdpHeader};
use packet::vnet_hdr::VnetHdr;
use packet::vxlan::{self, Vni};

/// The frames of a little-endian classic pcap file.
fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/tests/golden/{name}.pcap", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).unwrap();
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    let (mut frames, mut rest) = (Vec::new(), &file[24..]);
    while let Some((header, data)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        frames.push(data[..len].to_vec());
        rest = &data[len..];
    }
    assert!(!frames.is_empty(), "{name}");
    frames
}

fn decapsulate(frame: &[u8]) -> Decapsulated<'_> {
    decap::frame(frame, &VnetHdr::default(), vxlan::PORT).unwrap()
}

/// Description of a frame, from the innermost relevant layer. Verifies checksums, and emits every
/// header again from its fields.
fn retell(frame: &[u8]) -> String {
    let link = Ethernet::parse(frame).unwrap();
    let header = EthernetHeader {
        destination: link.destination(),
        source: link.source(),
        ether_type: link.ether_type(),
    };
    assert_eq!(header.to_bytes(), frame[..14]);
    match link.ether_type() {
        EtherType::ARP => {
            let arp = Arp::parse(link.payload()).unwrap();
            assert_eq!(arp.fields().to_bytes(), link.payload()[..28]);
            match arp.operation() {
                Operation::REQUEST => format!("who has {}", arp.target_ip()),
                _ => format!("{} is at {}", arp.sender_ip(), arp.sender_mac()),
            }
        }
        EtherType::IPV4 => retell_ipv4(link.payload()),
        EtherType::IPV6 => retell_ipv6(link.payload()),
        other => panic!("{other:?}"),
    }
}

fn retell_ipv4(bytes: &[u8]) -> String {
    let ip = Ipv4::parse(bytes).unwrap();
    assert!(ip.checksum_is_valid() && !ip.is_fragment());
    let header = Ipv4Header {
        tos: ip.tos(),
        id: ip.id(),
        dont_fragment: ip.dont_fragment(),
        ttl: ip.ttl(),
        protocol: ip.protocol(),
        source: ip.source(),
        destination: ip.destination(),
    };
    assert_eq!(header.to_bytes(ip.payload().len()).unwrap(), bytes[..20]);
    match ip.protocol() {
        Protocol::ICMP => {
            let icmp = Icmp::parse(ip.payload()).unwrap();
            assert!(icmp.checksum_is_valid());
            match icmp.message() {
                icmp::Message::EchoRequest { sequence, .. } => format!("echo request {sequence}"),
                icmp::Message::EchoReply { sequence, .. } => format!("echo reply {sequence}"),
                icmp::Message::FragmentationNeeded { mtu } => format!("too big for {mtu}"),
                other => format!("{other:?}"),
            }
        }
        protocol => retell_transport(protocol, ip.payload(), ip.pseudo_header()),
    }
}

fn retell_ipv6(bytes: &[u8]) -> String {
    let ip = Ipv6::parse(bytes).unwrap();
    let header = Ipv6Header {
        traffic_class: ip.traffic_class(),
        flow_label: ip.flow_label(),
        next_header: ip.next_header(),
        hop_limit: ip.hop_limit(),
        source: ip.source(),
        destination: ip.destination(),
    };
    assert_eq!(header.to_bytes(ip.payload().len()).unwrap(), bytes[..40]);
    let upper = ip.upper_layer().unwrap();
    if upper.protocol == Protocol::ICMPV6 {
        let icmp = Icmpv6::parse(upper.payload).unwrap();
        assert!(icmp.checksum_is_valid(&ip));
        return match icmp.message() {
            icmpv6::Message::EchoRequest { sequence, .. } => format!("echo request {sequence}"),
            icmpv6::Message::EchoReply { sequence, .. } => format!("echo reply {sequence}"),
            icmpv6::Message::PacketTooBig { mtu } => format!("too big for {mtu}"),
            icmpv6::Message::NeighborSolicitation { target, source } => {
                format!("who has {target}, asks {}", source.unwrap())
            }
            icmpv6::Message::NeighborAdvertisement { target, link, .. } => {
                format!("{target} is at {}", link.unwrap())
            }
            other => format!("{other:?}"),
        };
    }
    let length = upper.payload.len() as u32;
    let pseudo = packet::ipv6::pseudo_header(&ip, upper.protocol, length);
    retell_transport(upper.protocol, upper.payload, pseudo)
}

fn retell_transport(protocol: Protocol, bytes: &[u8], pseudo: Sum) -> String {
    match protocol {
        Protocol::TCP => {
            assert!(pseudo.plus_bytes(bytes).is_valid());
            let tcp = Tcp::parse(bytes).unwrap();
            let header = TcpHeader {
                source_port: tcp.source_port(),
                destination_port: tcp.destination_port(),
                sequence: tcp.sequence(),
                acknowledgement: tcp.acknowledgement(),
                flags: tcp.flags(),
                window: tcp.window(),
                urgent: tcp.urgent(),
            };
            let mut out = [0; 60];
            let len = header.emit(tcp.options(), tcp.checksum(), &mut out).unwrap();
            assert_eq!(&out[..len], &bytes[..len]);
            let names =
                [(Flags::SYN, "S"), (Flags::FIN, "F"), (Flags::PSH, "P"), (Flags::ACK, ".")];
            let flags = names.iter().filter(|(flag, _)| tcp.flags().intersects(*flag));
            format!(
                "TCP {} {}",
                flags.map(|(_, name)| *name).collect::<String>(),
                tcp.payload().len()
            )
        }
        Protocol::UDP => {
            let udp = Udp::parse(bytes).unwrap();
            assert!(udp.checksum() == 0 || pseudo.plus_bytes(bytes).is_valid());
            let (source_port, destination_port) = (udp.source_port(), udp.destination_port());
            let header = UdpHeader { source_port, destination_port };
            assert_eq!(header.to_bytes(udp.payload().len(), udp.checksum()).unwrap(), bytes[..8]);
            format!("UDP to {destination_port} {}", udp.payload().len())
        }
        other => panic!("{other:?}"),
    }
}

fn story(name: &str) -> Vec<String> {
    frames(name).iter().map(|frame| retell(frame)).collect()
}

fn inner_story(name: &str) -> Vec<String> {
    frames(name).iter().map(|frame| retell(decapsulate(frame).frame)).collect()
}

#[test]
fn pings() {
    assert_eq!(story("ping4"), ["echo request 1", "echo reply 1"]);
    assert_eq!(story("ping6"), ["echo request 1", "echo reply 1"]);
    let wanted = ["who has 192.168.4.2", "192.168.4.2 is at 02:00:00:04:00:0b"];
    assert_eq!(inner_story("vxlan4-ping")[..2], wanted);
    assert_eq!(inner_story("vxlan4-ping")[2..], ["echo request 1", "echo reply 1"]);
    let wanted = ["who has 192.168.6.2", "192.168.6.2 is at 02:00:00:06:00:0b"];
    assert_eq!(inner_story("vxlan6-ping")[..2], wanted);
    let wanted = ["who has fd06::2, asks 02:00:00:06:00:0a", "fd06::2 is at 02:00:00:06:00:0b"];
    assert_eq!(inner_story("vxlan6-ping6")[..2], wanted);
}

#[test]
fn tcp_connections() {
    for (name, mss) in [("tcp4", 1448), ("tcp6", 1428)] {
        let story = story(name);
        assert_eq!(story[..3], ["TCP S 0", "TCP S. 0", "TCP . 0"], "{name}");
        assert!(story.contains(&format!("TCP . {mss}")), "{story:?}");
        assert!(story.contains(&"UDP to 9 8".to_owned()), "{story:?}");
    }
    for (name, mss) in [("vxlan4-tcp", 1398), ("vxlan6-tcp6", 1358)] {
        let story = inner_story(name);
        assert!(story.contains(&format!("TCP . {mss}")), "{name} {story:?}");
        assert!(story.contains(&"UDP to 9 8".to_owned()), "{name} {story:?}");
    }
}

/// Outer headers for the kernel's inner frames equal the kernel's byte by byte; the kernel's free
/// choices (ID, source port, flow label) are copied.
#[test]
fn outer_headers_are_the_kernels() {
    let mut compared = 0;
    for name in ["vxlan4-ping", "vxlan4-tcp", "vxlan6-ping", "vxlan6-ping6", "vxlan6-tcp6"] {
        for frame in frames(name) {
            let link = Ethernet::parse(&frame).unwrap();
            let out = decapsulate(&frame);
            assert!(out.reserved_bits_are_zero && out.vnet == VnetHdr::default());
            let (addresses, id, flow_label, checksum, vni) = match link.ether_type() {
                EtherType::IPV4 => {
                    let ip = Ipv4::parse(link.payload()).unwrap();
                    let (source, destination) = (ip.source(), ip.destination());
                    let addresses = Addresses::V4 { source, destination };
                    (addresses, ip.id(), 0, OuterChecksum::Full, Vni::new(100).unwrap())
                }
                _ => {
                    let ip = Ipv6::parse(link.payload()).unwrap();
                    let (source, destination) = (ip.source(), ip.destination());
                    let addresses = Addresses::V6 { source, destination };
                    (addresses, 0, ip.flow_label(), OuterChecksum::Zero, Vni::MAX)
                }
            };
            assert_eq!(out.vni, vni);
            let encap = Encap::new(&Tunnel {
                link: (link.destination(), link.source()),
                addresses,
                vni,
                port: vxlan::PORT,
                source_ports: out.source_port..=out.source_port,
                ttl: 64,
                dscp: Dscp::Fixed(0),
                ecn: Ingress::Linux,
                dont_fragment: false,
                flow_label,
                checksum,
            });
            let ours = encap.headers(out.frame, &out.vnet, 0, id).unwrap();
            assert_eq!(ours.bytes(), &frame[..encap.header_len()], "{name}");
            compared += 1;
        }
    }
    assert!(compared >= 36, "{compared}");
}

/// The kernel's segments are merged, and segmented again into the same bytes.
#[test]
fn merged_and_cut_again() {
    for name in ["tcp4", "tcp6", "vxlan4-tcp", "vxlan6-tcp6"] {
        let all = frames(name);
        let vxlan_port = name.starts_with("vxlan").then_some(vxlan::PORT);
        let mut coalescer = Coalescer::new(Options { vxlan_port, ..Options::default() });
        let (mut back, mut merged) = (Vec::new(), 0);
        let mut take = |d: packet::coalesce::Delivery<'_>| {
            let segmenter = Segmenter::new(d.frame, &d.vnet).unwrap();
            assert_eq!(segmenter.count(), d.segments);
            merged = merged.max(d.segments);
            let mut buffer = vec![0; segmenter.total_len(0)];
            let written = segmenter.write_all(&[], &mut buffer).unwrap();
            back.extend(written.segments(&buffer).map(<[u8]>::to_vec));
        };
        for frame in &all {
            coalescer.push(frame, &VnetHdr::default(), &mut take);
        }
        coalescer.flush(&mut take);
        assert_eq!(merged, 3, "{name}: 3072 bytes in three packets");
        // Both directions are separate flows; the order within each is unchanged.
        let from = |frames: &[Vec<u8>], mac: u8| -> Vec<Vec<u8>> {
            frames.iter().filter(|f| f[11] == mac).cloned().collect()
        };
        for mac in [0x0a, 0x0b] {
            let (mut sent, mut got) = (from(&all, mac), from(&back, mac));
            // UDP, ARP and neighbour discovery are other flows.
            sent.sort();
            got.sort();
            assert_eq!(sent, got, "{name}");
        }
    }
}

/// Emits the same errors for the same packets as the kernel.
#[test]
fn errors_are_the_kernels() {
    let all = frames("too-big");
    let packet = |index: usize| Ethernet::parse(&all[index]).unwrap().payload();
    assert_eq!(story("too-big")[1], "too big for 1300");

    let (original, theirs) = (Ipv4::parse(packet(0)).unwrap(), Ipv4::parse(packet(1)).unwrap());
    assert!(icmp::may_answer_with_error(&original));
    let mut ours = [0; icmp::MAX_ERROR_LEN];
    let router = theirs.source();
    let quoted = forwarded_v4(packet(0));
    let len = icmp::fragmentation_needed(&original, &quoted, router, 1300, &mut ours).unwrap();
    let view = Ipv4::parse(&ours[..len]).unwrap();
    assert_eq!(
        (view.tos(), view.ttl(), view.total_len()),
        (theirs.tos(), theirs.ttl(), theirs.total_len())
    );
    assert_eq!(view.payload(), theirs.payload());

    let (original, theirs) = (Ipv6::parse(packet(2)).unwrap(), Ipv6::parse(packet(3)).unwrap());
    assert!(icmpv6::may_answer_with_error(&original, true));
    let mut ours = [0; icmpv6::MAX_ERROR_LEN];
    let mut quoted = packet(2).to_vec();
    quoted[7] = Icmpv6::parse(theirs.payload()).unwrap().payload()[7];
    let len = icmpv6::packet_too_big(&original, &quoted, theirs.source(), 1300, &mut ours).unwrap();
    let view = Ipv6::parse(&ours[..len]).unwrap();
    assert_eq!((view.hop_limit(), view.destination()), (theirs.hop_limit(), theirs.destination()));
    assert_eq!(view.payload(), theirs.payload());
}

/// The packet as the kernel quotes it: unchanged or with a decremented TTL.
fn forwarded_v4(packet: &[u8]) -> Vec<u8> {
    let theirs = frames("too-big");
    let theirs =
        Ipv4::parse(Ethernet::parse(&theirs[1]).unwrap().payload()).unwrap().payload().to_vec();
    let mut packet = packet.to_vec();
    // TTL and header checksum as quoted; everything else must be equal.
    packet[8] = theirs[8 + 8];
    packet[10..12].copy_from_slice(&theirs[8 + 10..8 + 12]);
    packet
}

#[test]
fn hardware_addresses() {
    let frame = &frames("ping4")[0];
    let link = Ethernet::parse(frame).unwrap();
    assert_eq!(link.source(), MacAddr([2, 0, 0, 0, 0, 0xa]));
    assert_eq!(link.destination().to_string(), "02:00:00:00:00:0b");
}
