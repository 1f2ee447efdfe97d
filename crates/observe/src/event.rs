//! Events of the BPF programs: `struct event` and `struct snapshot` of `bpf/event.h`.

use std::net::{IpAddr, Ipv6Addr};

use netstate::MacAddr;
use serde::{Deserialize, Serialize};

/// Bytes of `struct flow` and of `struct event`.
const FLOW_BYTES: usize = 52;
pub(crate) const EVENT_BYTES: usize = 200;
/// Bytes of `struct snapshot` before the packet's bytes.
const SNAPSHOT_HEAD: usize = 208;

/// Where in the kernel a packet was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Given to a device, before its queueing discipline.
    Queued,
    /// Given to a device's driver.
    Sent,
    /// Put into a CPU's backlog.
    Backlog,
    /// About to enter GRO.
    Gro,
    /// Passed to the protocol handlers of a device.
    Received,
    Socket,
    Read,
    /// Freed as dropped (`kfree_skb`).
    Dropped,
    /// Freed after use (`consume_skb`).
    Consumed,
}

impl Kind {
    /// By value of `enum kind`.
    const ALL: [Kind; 9] = [
        Kind::Queued,
        Kind::Sent,
        Kind::Backlog,
        Kind::Gro,
        Kind::Received,
        Kind::Socket,
        Kind::Read,
        Kind::Dropped,
        Kind::Consumed,
    ];
}

/// State of a packet's checksum (`ip_summed`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksum {
    /// Not verified: the checksum is in the packet and must be verified by the receiver.
    None,
    /// Verified, or needs no verification.
    Unnecessary,
    /// The sum over the packet is known, but not yet compared.
    Complete,
    /// Still to be computed, by hardware or in software at the last moment.
    Partial,
}

/// Flow and IP headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port of TCP and UDP; 0 if there are none.
    pub ports: (u16, u16),
    pub tcp_flags: u8,
    /// TCP sequence number.
    pub sequence: u32,
    /// TCP window as in the header, not scaled.
    pub window: u16,
    /// Identification of the IPv4 header, or of IPv6's fragment header; 0 if there is none.
    pub id: u32,
    /// Offset of a fragment in bytes, and whether more follow; `None`: not a fragment. A later
    /// fragment has the ports of the first one, if that was seen.
    pub fragment: Option<(u16, bool)>,
    /// Length of the IP packet as its header states it; 0 if it is longer than the field allows.
    pub length: u16,
}

impl Flow {
    fn parse(bytes: &[u8; FLOW_BYTES]) -> Option<Flow> {
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&bytes[at..at + 16]);
            Ipv6Addr::from(octets).to_canonical()
        };
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (source, destination) = (address(0), address(16));
        // No IP headers: a tunnel carries another protocol.
        if bytes[..32] == [0; 32] {
            return None;
        }
        let long = |at: usize| u32::from(word(at)) << 16 | u32::from(word(at + 2));
        let (offset, more) = ((word(38) & 0x1fff) * 8, word(38) & 0x2000 != 0);
        Some(Flow {
            source,
            destination,
            protocol: bytes[36],
            ports: (word(32), word(34)),
            tcp_flags: bytes[37],
            sequence: long(40),
            window: word(50),
            id: long(44),
            fragment: (more || offset > 0).then_some((offset, more)),
            length: word(48),
        })
    }

    pub fn protocol_name(&self) -> String {
        match self.protocol {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            58 => "icmpv6".to_owned(),
            other => format!("protocol {other}"),
        }
    }
}

impl std::fmt::Display for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |address: IpAddr, port: u16| match (address, port) {
            (address, 0) => address.to_string(),
            (IpAddr::V4(address), port) => format!("{address}:{port}"),
            (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
        };
        let (from, to) = self.ports;
        let name = self.protocol_name();
        write!(f, "{} -> {} {name}", end(self.source, from), end(self.destination, to))
    }
}

/// Encapsulation of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Encapsulation {
    /// RFC 7348.
    Vxlan,
    /// RFC 8926.
    Geneve,
    /// RFC 2784 and 2890.
    Gre,
}

impl Encapsulation {
    /// Describes the encapsulation, with the VNI or key if there is one.
    pub fn within(self, vni: Option<u32>) -> String {
        let name = match self {
            Encapsulation::Vxlan => "VXLAN",
            Encapsulation::Geneve => "Geneve",
            Encapsulation::Gre => "GRE",
        };
        vni.map_or(name.to_owned(), |vni| format!("{name} {vni}"))
    }

    /// Returns the value of `enum tunnel` of an encapsulation that has a port.
    pub(crate) fn number(self) -> u16 {
        match self {
            Encapsulation::Vxlan => 1,
            Encapsulation::Geneve => 2,
            Encapsulation::Gre => 3,
        }
    }

    /// Parses `enum tunnel`; the second value tells whether an identifier is present.
    pub(crate) fn parse(number: u8) -> Option<(Encapsulation, bool)> {
        match number {
            1 => Some((Encapsulation::Vxlan, true)),
            2 => Some((Encapsulation::Geneve, true)),
            3 => Some((Encapsulation::Gre, false)),
            4 => Some((Encapsulation::Gre, true)),
            // No tunnel, or one that the program does not parse.
            _ => None,
        }
    }
}

/// The outer headers of a packet in a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    pub encapsulation: Encapsulation,
    /// VNI of VXLAN or Geneve, 24 bits; key of GRE, if it has one.
    pub vni: Option<u32>,
    pub outer: Flow,
}

/// The first header of a packet's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    Ethernet,
    Ip,
}

/// A packet's headers, with the requested payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    pub link: Link,
    pub bytes: Vec<u8>,
    /// Length of the whole packet from the first header on; at least the length of `bytes`.
    pub length: u32,
}

impl Headers {
    fn parse(bytes: &[u8]) -> Option<Headers> {
        let head = bytes.get(EVENT_BYTES..SNAPSHOT_HEAD)?;
        let begin = usize::from(u16::from_ne_bytes([head[2], head[3]]));
        let length = u32::from_ne_bytes([head[4], head[5], head[6], head[7]]);
        let bytes = bytes[SNAPSHOT_HEAD..].get(begin..)?;
        Some(Headers {
            // Without an Ethernet header the bytes start later.
            link: if begin == 0 { Link::Ethernet } else { Link::Ip },
            bytes: bytes.to_vec(),
            length: length.max(u32::try_from(bytes.len()).ok()?),
        })
    }
}

/// A packet at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, ns.
    pub time: u64,
    /// The kernel's address of the packet (skb); unchanged while it is the same packet.
    pub skb: u64,
    /// For a drop: address in the kernel's code.
    pub location: u64,
    /// Inode of the network namespace; `None`: unknown at this place.
    pub netns: Option<u32>,
    /// Index and name of the device; `None`: at no device, as in a socket.
    pub device: Option<(u32, String)>,
    /// Length at this place in bytes, with or without the Ethernet header.
    pub bytes: u32,
    /// `enum skb_drop_reason`.
    pub reason: u32,
    /// For a GSO packet: payload bytes of each packet that it stands for, and their number; `None`:
    /// not a GSO packet.
    pub gso: Option<(u16, u16)>,
    pub kind: Kind,
    pub checksum: Checksum,
    /// Conntrack state (`enum ip_conntrack_info`).
    pub conntrack: Option<u8>,
    pub mark: u32,
    pub cpu: u32,
    pub process: Option<(u32, String)>,
    /// Destination and source of a dropped packet's Ethernet header; `None`: it has none.
    pub macs: Option<(MacAddr, MacAddr)>,
    /// The packet's own (inner) addresses; `None` if a tunnel carries something other than IP.
    pub flow: Option<Flow>,
    pub tunnel: Option<Tunnel>,
    /// Its headers, if they are wanted and readable.
    pub headers: Option<Headers>,
}

impl Event {
    /// Parses an event of [`EVENT_BYTES`], or a longer one with headers; `None`: not an event of
    /// this version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Event> {
        let headers = match bytes.len() {
            EVENT_BYTES => None,
            // Longer events carry headers; an event with broken ones is not used at all.
            _ => Some(Headers::parse(bytes)?),
        };
        let bytes: &[u8; EVENT_BYTES] = bytes.get(..EVENT_BYTES)?.try_into().ok()?;
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let long = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
        let wide = |at: usize| u64::from(long(at)) | u64::from(long(at + 4)) << 32;
        let text = |at: usize| {
            // Names of the kernel end with a zero byte.
            let name = bytes[at..at + 16].split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        };
        let flow = |at: usize| Flow::parse(bytes[at..at + FLOW_BYTES].try_into().ok()?);
        let (inner, outer) = (flow(96), flow(148));
        let tunnel = match bytes[63] {
            0 => None,
            number => {
                let (encapsulation, is_known) = Encapsulation::parse(number)?;
                // A GRE tunnel may have no key.
                let vni = Some(long(76)).filter(|_| is_known);
                Some(Tunnel { encapsulation, vni, outer: outer? })
            }
        };
        let gso = (word(56), word(58));
        let kind = *Kind::ALL.get(usize::from(bytes[60]))?;
        let mac = |at: usize| bytes[at..at + 6].try_into().map(MacAddr).ok();
        let macs = mac(80).zip(mac(86)).filter(|_| bytes[80..92] != [0; 12]);
        let pid = long(72);
        Some(Event {
            time: wide(0),
            skb: wide(8),
            location: wide(16),
            // 0 means that the program could not read it here.
            netns: Some(long(24)).filter(|netns| *netns > 0),
            device: Some((long(28), text(32))).filter(|(index, _)| *index > 0),
            bytes: long(48),
            reason: long(52),
            // A GSO packet with one segment is an ordinary packet.
            gso: Some(gso).filter(|(size, segments)| *size > 0 && *segments > 1),
            kind,
            checksum: match bytes[61] {
                0 => Checksum::None,
                1 => Checksum::Unnecessary,
                2 => Checksum::Complete,
                _ => Checksum::Partial,
            },
            // The program adds 1, so that 0 means no conntrack entry.
            conntrack: bytes[62].checked_sub(1),
            mark: long(64),
            cpu: long(68),
            process: Some((pid, text(80))).filter(|(pid, _)| *pid > 0),
            macs: macs.filter(|_| kind == Kind::Dropped),
            flow: inner,
            tunnel,
            headers,
        })
    }

    /// Returns the number of packets that it stands for.
    pub fn packets(&self) -> u16 {
        self.gso.map_or(1, |(_, segments)| segments)
    }
}
