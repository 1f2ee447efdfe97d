//! A journey in words: what `overlane trace` prints, as lines of JSON or as text.

use serde::{Deserialize, Serialize};

use crate::event::{Checksum, Encapsulation, Event, Flow, Kind};
use crate::explain::explanation;
use crate::journey::{Ending, Journey, Origin, Step};
use crate::not_told::NotTold;

/// What numbers of the kernel are called.
pub trait Names {
    /// The network namespace of this inode.
    fn namespace(&self, netns: Option<u32>) -> String;
    /// A reason for a drop (`enum skb_drop_reason`).
    fn reason(&self, reason: u32) -> String;
    /// The function of the kernel around an address, where it tells.
    fn function(&self, location: u64) -> Option<String>;
}

/// A packet's journey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Packet {
    /// Counted from 1.
    pub number: u64,
    /// When it was seen first: `CLOCK_MONOTONIC`, ns.
    pub begun_ns: u64,
    /// From its first step to its last, ns.
    pub took_ns: u64,
    /// Its addresses where it was seen first; `null`: a tunnel carries something else than IP.
    pub flow: Option<Addresses>,
    /// The packet, and what was cut or copied from it.
    pub legs: Vec<PacketLeg>,
    /// Where it was, in order of time.
    pub steps: Vec<PacketStep>,
    /// Where only drops are told: those that were counted since, and found no room to be told;
    /// left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_told: Vec<NotTold>,
}

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

/// The packet, a segment of it, a fragment, or a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PacketLeg {
    /// Index of the leg that it is a segment of.
    pub segment_of: Option<usize>,
    /// Index of the leg that it is a copy of.
    pub copy_of: Option<usize>,
    /// Index of the leg that it is an IP fragment of, or, where the whole packet was not seen, of
    /// a fragment of the same packet.
    pub fragment_of: Option<usize>,
    /// Index of the leg of the first fragment that it was put together from.
    pub reassembled_from: Option<usize>,
    /// How it ended.
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
    /// A socket received it; its reader was not seen.
    Received,
    /// The kernel dropped it.
    Dropped {
        /// The kernel's name of the reason, without prefix.
        reason: String,
        /// The kernel's function that did it; `null` where the kernel does not tell.
        function: Option<String>,
        /// What the reason means to an overlay; `null` where it means nothing to one.
        meaning: Option<String>,
        /// The check of `doctor` that looks for its cause.
        check: Option<String>,
    },
    /// A device's driver had it last, and is done with it.
    Left {
        /// Name of the device.
        device: String,
    },
    /// The kernel was done with it.
    Consumed,
    /// It was cut into segments.
    Cut,
    /// It was cut into IP fragments.
    Fragmented,
    /// It was put together with the other fragments of its packet.
    Reassembled,
    /// It was merged into another packet.
    Merged {
        /// Number of that packet.
        into: u64,
    },
    /// It was not seen any more.
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
    /// Name of the device; `null`: it is at none.
    pub device: Option<String>,
    /// CPU that had it.
    pub cpu: u32,
    /// Bytes as it lies there, with or without Ethernet header.
    pub bytes: u32,
    /// Of a GSO packet: packets that it stands for.
    pub gso_packets: Option<u16>,
    /// Of a GSO packet: payload bytes of each of them.
    pub gso_size: Option<u16>,
    /// `none`, `unnecessary`, `complete`, `partial`: as the kernel calls it.
    pub checksum: String,
    /// What conntrack takes it for.
    pub conntrack: Option<String>,
    /// Its mark.
    pub mark: u32,
    /// Its own addresses.
    pub flow: Option<Addresses>,
    /// What the tunnel around it is.
    pub encapsulation: Option<Encapsulation>,
    /// Network identifier of the tunnel around it, or key of GRE.
    pub vni: Option<u32>,
    /// Addresses of the tunnel around it.
    pub tunnel: Option<Addresses>,
    /// Which IP fragment it is; `null`: it is none.
    pub fragment: Option<Fragment>,
    /// Which IP fragment the tunnel's packet around it is. Of a later one, addresses, ports and
    /// the tunnel are those that its first one has.
    pub tunnel_fragment: Option<Fragment>,
}

/// An IP fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Fragment {
    /// Identification of the packet that it is of: 16 bits of IPv4, 32 of IPv6.
    pub id: u32,
    /// Where it begins in the payload of that packet, bytes; 0: it is the first.
    pub offset: u16,
    /// Whether others come after it.
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
    /// In words.
    pub fn of(journey: &Journey, names: &dyn Names) -> Packet {
        let begun_ns = journey.steps.first().map_or(0, |step| step.event.time);
        let steps = journey.steps.iter().map(|step| told(step, begun_ns, names)).collect();
        let legs = journey.legs.iter().enumerate().map(|(at, leg)| {
            let ending = leg.ending.as_ref().unwrap_or(&Ending::Unseen);
            let bytes = journey.last(at).map_or(0, |event| event.bytes);
            let ending = ending_of(ending, bytes, names);
            let mut told = PacketLeg {
                segment_of: None,
                copy_of: None,
                fragment_of: None,
                reassembled_from: None,
                ending,
            };
            match leg.origin {
                Origin::First => {}
                Origin::SegmentOf(leg) => told.segment_of = Some(leg),
                Origin::CopyOf(leg) => told.copy_of = Some(leg),
                Origin::FragmentOf(leg) => told.fragment_of = Some(leg),
                Origin::ReassembledFrom(leg) => told.reassembled_from = Some(leg),
            }
            told
        });
        Packet {
            number: journey.number,
            begun_ns,
            took_ns: journey.took(),
            flow: journey.flow().as_ref().map(Addresses::from),
            legs: legs.collect(),
            steps,
            not_told: Vec::new(),
        }
    }

    /// Whether any leg of it was dropped.
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
            // The end of a stream that nobody read: nothing is lost with it.
            if reason == "QUEUE_PURGE" && bytes == 0 {
                return PacketEnding::Received;
            }
            let known = explanation(&reason, function.as_deref());
            PacketEnding::Dropped {
                function,
                meaning: known.map(|known| known.meaning.to_owned()),
                check: known.and_then(|known| known.check.map(str::to_owned)),
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

fn told(step: &Step, begun_ns: u64, names: &dyn Names) -> PacketStep {
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
