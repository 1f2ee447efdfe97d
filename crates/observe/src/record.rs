//! A journey as `overlane trace` prints it, as a line of JSON or as text.

use serde::{Deserialize, Serialize};

use crate::event::{Checksum, Encapsulation, Event, Flow, Kind};
use crate::explain::explanation;
use crate::journey::{Ending, Journey, Origin, Step};
use crate::suppressed::Suppressed;

/// Names for the kernel's numbers.
pub trait Names {
    /// Returns the name of the network namespace with this inode.
    fn namespace(&self, netns: Option<u32>) -> String;
    /// Returns the name of a drop reason (`enum skb_drop_reason`).
    fn reason(&self, reason: u32) -> String;
    /// Returns the kernel function around an address, if known.
    fn function(&self, location: u64) -> Option<String>;
}

/// A packet's journey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// Counted from 1.
    pub number: u64,
    /// When the packet was first seen: `CLOCK_MONOTONIC`, ns.
    pub begun_ns: u64,
    /// Time from the first step to the last, ns.
    pub took_ns: u64,
    /// When the packet was first seen: UTC, ns since 1970. Left out if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_unix_ns: Option<u64>,
    /// Addresses of the packet when it was first seen; `null`: it is not an IP packet.
    pub flow: Option<Addresses>,
    /// TCP header of the packet when it was first seen; left out for other packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpHeader>,
    /// The packet, and the packets that were segmented, fragmented or copied from it.
    pub legs: Vec<PacketLeg>,
    /// The places where it was seen, in order of time.
    pub steps: Vec<PacketStep>,
    /// With `--drops-only`: drops since the last record that were counted but not reported, because
    /// the rate limit was reached. Left out if there are none.
    #[serde(default, rename = "not_told", skip_serializing_if = "Vec::is_empty")]
    pub suppressed: Vec<Suppressed>,
}

/// Fields of a TCP header (RFC 9293).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TcpHeader {
    /// Flags in the order of the header, lowest first: `FIN`, `SYN`, `RST`, `PSH`, `ACK`, `URG`,
    /// `ECE`, `CWR`.
    pub flags: Vec<String>,
    /// Sequence number.
    pub sequence: u32,
    /// Window as in the header, not scaled.
    pub window: u16,
}

/// Flags of TCP by bit.
const TCP_FLAGS: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

impl TcpHeader {
    fn of(flow: &Flow) -> Option<TcpHeader> {
        // A later fragment has no header.
        if flow.protocol != TCP || flow.fragment.is_some_and(|(offset, _)| offset > 0) {
            return None;
        }
        let is_set = |(bit, _): &(usize, &&str)| flow.tcp_flags >> bit & 1 == 1;
        let flags = TCP_FLAGS.iter().enumerate().filter(is_set).map(|(_, name)| (*name).to_owned());
        Some(TcpHeader { flags: flags.collect(), sequence: flow.sequence, window: flow.window })
    }
}

impl std::fmt::Display for TcpHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flags = if self.flags.is_empty() { "no flag".to_owned() } else { self.flags.join(" ") };
        write!(f, "{flags}, seq {}, win {}", self.sequence, self.window)
    }
}

/// IP protocol number of TCP.
const TCP: u8 = 6;

/// Addresses of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Addresses {
    /// Source address.
    pub source: String,
    /// Destination address.
    pub destination: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, or `protocol` and its number.
    pub protocol: String,
    /// Source port; `null` without ports.
    pub source_port: Option<u16>,
    /// Destination port; `null` without ports.
    pub destination_port: Option<u16>,
}

/// A leg of a journey: the packet itself, a segment, a fragment, or a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PacketLeg {
    /// Index of the leg that this is a segment of.
    pub segment_of: Option<usize>,
    /// Index of the leg that this is a copy of.
    pub copy_of: Option<usize>,
    /// Index of the leg that this is an IP fragment of. If the whole packet was not seen: index of
    /// another fragment of the same packet.
    pub fragment_of: Option<usize>,
    /// Index of the leg of the first fragment that this packet was reassembled from.
    pub reassembled_from: Option<usize>,
    /// How the leg ended.
    pub ending: PacketEnding,
}

/// How a leg ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "how", deny_unknown_fields)]
pub enum PacketEnding {
    /// A process read it.
    Read {
        /// Process ID.
        pid: u32,
        /// Its command, 15 bytes at most.
        command: String,
    },
    /// A socket received it; the read was not seen.
    Received,
    /// The kernel dropped it.
    Dropped {
        /// The kernel's name of the reason, without prefix.
        reason: String,
        /// The kernel function that dropped it; `null` if unknown.
        function: Option<String>,
        /// Meaning of the reason for an overlay; `null` if it does not matter to overlays.
        meaning: Option<String>,
        /// The `doctor` check that looks for the cause.
        check: Option<String>,
        /// The rule, route, neighbour, forwarding entry, device or setting behind the drop, by the
        /// state of the namespace when the packet was reported. Left out if unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// The driver of a device sent it and freed it.
    Left {
        /// Name of the device.
        device: String,
    },
    /// The kernel freed it after use.
    Consumed,
    /// It was cut into segments.
    Cut,
    /// It was cut into IP fragments.
    Fragmented,
    /// It was reassembled with the other fragments of its packet.
    Reassembled,
    /// It was merged into another packet.
    Merged {
        /// Number of that packet.
        into: u64,
    },
    /// It was not seen again.
    Unseen,
}

/// A packet at one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PacketStep {
    /// Index of the leg.
    pub leg: usize,
    /// Time since the packet was seen first, ns.
    pub after_ns: u64,
    /// `queued`, `sent`, `backlog`, `gro`, `received`, `socket`, `read`, `dropped`, `consumed`.
    pub what: String,
    /// Name of the network namespace.
    pub namespace: String,
    /// Name of the device; `null`: the packet is at no device.
    pub device: Option<String>,
    /// The CPU that processed it.
    pub cpu: u32,
    /// Length at this place in bytes, with or without the Ethernet header.
    pub bytes: u32,
    /// For a GSO packet: the number of packets it stands for.
    pub gso_packets: Option<u16>,
    /// For a GSO packet: payload bytes of each of them.
    pub gso_size: Option<u16>,
    /// The kernel's checksum state: `none`, `unnecessary`, `complete` or `partial`.
    pub checksum: String,
    /// Conntrack state of the packet.
    pub conntrack: Option<String>,
    /// The packet's mark.
    pub mark: u32,
    /// The packet's own (inner) addresses.
    pub flow: Option<Addresses>,
    /// Kind of the tunnel around it.
    pub encapsulation: Option<Encapsulation>,
    /// VNI of the tunnel around it, or key of GRE.
    pub vni: Option<u32>,
    /// Outer addresses of the tunnel around it.
    pub tunnel: Option<Addresses>,
    /// Which IP fragment it is; `null`: not a fragment.
    pub fragment: Option<Fragment>,
    /// Which IP fragment the outer packet is. A later fragment is shown with the addresses, ports
    /// and tunnel of the first one.
    pub tunnel_fragment: Option<Fragment>,
}

/// An IP fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fragment {
    /// Identification of the fragmented packet: 16 bits for IPv4, 32 for IPv6.
    pub id: u32,
    /// Offset in the payload of that packet, bytes; 0: the first fragment.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
}

impl Fragment {
    fn of(flow: &Flow) -> Option<Fragment> {
        let (offset, more) = flow.fragment?;
        Some(Fragment { id: flow.id, offset, more })
    }
}

impl std::fmt::Display for Fragment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Fragment { id, offset, more } = self;
        match (offset, more) {
            (0, _) => write!(f, "first fragment of id {id:#06x}"),
            (_, true) => write!(f, "fragment at {offset} of id {id:#06x}"),
            (_, false) => write!(f, "last fragment, at {offset}, of id {id:#06x}"),
        }
    }
}

impl From<&Flow> for Addresses {
    fn from(flow: &Flow) -> Addresses {
        let (from, to) = flow.ports;
        Addresses {
            source: flow.source.to_string(),
            destination: flow.destination.to_string(),
            protocol: flow.protocol_name(),
            source_port: Some(from).filter(|port| *port > 0),
            destination_port: Some(to).filter(|port| *port > 0),
        }
    }
}

impl std::fmt::Display for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = |address: &str, port: Option<u16>| match port {
            None => address.to_owned(),
            Some(port) if address.contains(':') => format!("[{address}]:{port}"),
            Some(port) => format!("{address}:{port}"),
        };
        let from = end(&self.source, self.source_port);
        let to = end(&self.destination, self.destination_port);
        write!(f, "{from} -> {to} {}", self.protocol)
    }
}

fn what(kind: Kind) -> &'static str {
    match kind {
        Kind::Queued => "queued",
        Kind::Sent => "sent",
        Kind::Backlog => "backlog",
        Kind::Gro => "gro",
        Kind::Received => "received",
        Kind::Socket => "socket",
        Kind::Read => "read",
        Kind::Dropped => "dropped",
        Kind::Consumed => "consumed",
    }
}

/// `enum ip_conntrack_info`.
fn conntrack(info: u8) -> &'static str {
    match info {
        0 => "established",
        1 => "related",
        2 => "new",
        3 => "established reply",
        4 => "related reply",
        _ => "untracked",
    }
}

impl Packet {
    /// Describes a journey, with names for the kernel's numbers.
    pub fn of(journey: &Journey, names: &dyn Names) -> Packet {
        let begun_ns = journey.steps.first().map_or(0, |step| step.event.time);
        let steps = journey.steps.iter().map(|step| step_record(step, begun_ns, names)).collect();
        let legs = journey.legs.iter().enumerate().map(|(at, leg)| {
            // The trace may end before the leg does.
            let ending = leg.ending.as_ref().unwrap_or(&Ending::Unseen);
            let bytes = journey.last(at).map_or(0, |event| event.bytes);
            let ending = ending_of(ending, bytes, names);
            let mut leg_record = PacketLeg {
                segment_of: None,
                copy_of: None,
                fragment_of: None,
                reassembled_from: None,
                ending,
            };
            match leg.origin {
                Origin::First => {}
                Origin::SegmentOf(leg) => leg_record.segment_of = Some(leg),
                Origin::CopyOf(leg) => leg_record.copy_of = Some(leg),
                Origin::FragmentOf(leg) => leg_record.fragment_of = Some(leg),
                Origin::ReassembledFrom(leg) => leg_record.reassembled_from = Some(leg),
            }
            leg_record
        });
        Packet {
            number: journey.number,
            begun_ns,
            took_ns: journey.took(),
            begun_unix_ns: None,
            flow: journey.flow().as_ref().map(Addresses::from),
            tcp: journey.flow().as_ref().and_then(TcpHeader::of),
            legs: legs.collect(),
            steps,
            suppressed: Vec::new(),
        }
    }

    pub fn is_dropped(&self) -> bool {
        self.legs.iter().any(|leg| matches!(leg.ending, PacketEnding::Dropped { .. }))
    }
}

fn ending_of(ending: &Ending, bytes: u32, names: &dyn Names) -> PacketEnding {
    match ending {
        Ending::Read(pid, command) => PacketEnding::Read { pid: *pid, command: command.clone() },
        Ending::Received => PacketEnding::Received,
        Ending::Dropped(reason, location) => {
            let (reason, function) = (names.reason(*reason), names.function(*location));
            // The empty packet that ends a stream (FIN) and was never read: no data is lost with
            // it.
            if reason == "QUEUE_PURGE" && bytes == 0 {
                return PacketEnding::Received;
            }
            // A reason without an explanation is shown by its name alone.
            let known = explanation(&reason, function.as_deref());
            PacketEnding::Dropped {
                function,
                meaning: known.map(|known| known.meaning.to_owned()),
                check: known.and_then(|known| known.check.map(str::to_owned)),
                cause: None,
                reason,
            }
        }
        Ending::Left(device) => PacketEnding::Left { device: device.clone() },
        Ending::Consumed => PacketEnding::Consumed,
        Ending::Cut => PacketEnding::Cut,
        Ending::Fragmented => PacketEnding::Fragmented,
        Ending::Reassembled => PacketEnding::Reassembled,
        Ending::MergedInto(into) => PacketEnding::Merged { into: *into },
        Ending::Unseen | Ending::UnderWay => PacketEnding::Unseen,
    }
}

fn step_record(step: &Step, begun_ns: u64, names: &dyn Names) -> PacketStep {
    let event: &Event = &step.event;
    PacketStep {
        leg: step.leg,
        after_ns: event.time.saturating_sub(begun_ns),
        what: what(event.kind).to_owned(),
        namespace: names.namespace(event.netns),
        device: event.device.as_ref().map(|(_, name)| name.clone()),
        cpu: event.cpu,
        bytes: event.bytes,
        gso_packets: event.gso.map(|(_, packets)| packets),
        gso_size: event.gso.map(|(size, _)| size),
        checksum: match event.checksum {
            Checksum::None => "none",
            Checksum::Unnecessary => "unnecessary",
            Checksum::Complete => "complete",
            Checksum::Partial => "partial",
        }
        .to_owned(),
        conntrack: event.conntrack.map(|info| conntrack(info).to_owned()),
        mark: event.mark,
        flow: event.flow.as_ref().map(Addresses::from),
        encapsulation: event.tunnel.map(|tunnel| tunnel.encapsulation),
        vni: event.tunnel.and_then(|tunnel| tunnel.vni),
        tunnel: event.tunnel.as_ref().map(|tunnel| Addresses::from(&tunnel.outer)),
        fragment: event.flow.as_ref().and_then(Fragment::of),
        tunnel_fragment: event.tunnel.as_ref().and_then(|tunnel| Fragment::of(&tunnel.outer)),
    }
}
