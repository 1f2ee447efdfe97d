//! Writes journeys to a capture file for Wireshark and other tools (`overlane trace --pcapng`).
//!
//! Each place is an interface of the file, and each step of a journey is a packet, in time order.
//! Comments describe its position in the journey. A journey is complete only when it has ended, so
//! steps wait until no earlier step of another journey can follow.

use std::collections::BTreeMap;
use std::fmt::Write;

use foreign::plain;

use crate::event::{Event, Kind, Link};
use crate::journey::Journey;
use crate::journey_text::{ending_words, fragments, within, words};
use crate::pcapng::{Direction, EnhancedPacket, LinkType, interface, section};
use crate::record::{Packet, PacketStep};

/// Maximum number of waiting steps; beyond it, the oldest is written, even if out of order.
const MOST_WAITING: usize = 1 << 16;

/// Maximum number of interfaces in a file. Tenants choose the names of their devices, so further
/// places share two more interfaces, one per link type.
const MOST_HOPS: usize = 4096;

/// A place: inode of the namespace, names of namespace and device, and the link type there.
type Hop = (Option<u32>, String, LinkType);

/// A step that waits for earlier ones.
#[derive(Debug)]
struct Waiting {
    hop: Hop,
    bytes: Vec<u8>,
    length: u32,
    direction: Direction,
    comments: Vec<String>,
}

/// A capture file that is being written.
#[derive(Debug)]
pub struct Capture {
    /// Offset to add to the times of events, ns.
    epoch_ns: u64,
    hops: BTreeMap<Hop, u32>,
    /// Steps by time, number of the journey, and index of the step.
    waiting: BTreeMap<(u64, u64, usize), Waiting>,
    /// Complete blocks, ready to be written.
    ready: Vec<u8>,
}

impl Capture {
    /// Starts a file. `epoch_ns` is added to `CLOCK_MONOTONIC` to get the time since 1970; `system`
    /// and `program` name the capturing system.
    pub fn new(epoch_ns: u64, system: &str, program: &str) -> Capture {
        let ready = section(&plain(system), &plain(program));
        Capture { epoch_ns, hops: BTreeMap::new(), waiting: BTreeMap::new(), ready }
    }

    /// Adds the steps of a journey, of which `packet` is the description.
    pub fn add(&mut self, journey: &Journey, packet: &Packet) {
        let steps = journey.steps.iter().zip(&packet.steps);
        for (at, (step, record)) in steps.enumerate() {
            let event = &step.event;
            let place = match &record.device {
                Some(device) => format!("{}/{device}", record.namespace),
                None => record.namespace.clone(),
            };
            let (link, bytes, length) = match &event.headers {
                Some(headers) => (headers.link, headers.bytes.clone(), headers.length),
                // The packet's bytes could not be read any more: write the step without them.
                None => (Link::Ip, Vec::new(), event.bytes),
            };
            let link = match link {
                Link::Ethernet => LinkType::Ethernet,
                Link::Ip => LinkType::Raw,
            };
            let waiting = Waiting {
                hop: (event.netns, plain(&place).into_owned(), link),
                bytes,
                length,
                direction: direction(event),
                comments: comments(packet, at),
            };
            self.waiting.insert((event.time, journey.number, at), waiting);
        }
        // Journeys that end late must not keep all steps in memory.
        while self.waiting.len() > MOST_WAITING {
            self.write_first();
        }
    }

    /// Returns complete blocks to append to the file, with all steps before this time.
    pub fn take(&mut self, before: u64) -> Vec<u8> {
        while self.waiting.first_key_value().is_some_and(|((time, ..), _)| *time < before) {
            self.write_first();
        }
        std::mem::take(&mut self.ready)
    }

    fn write_first(&mut self) {
        let Some(((time, ..), mut step)) = self.waiting.pop_first() else { return };
        if self.hops.len() >= MOST_HOPS && !self.hops.contains_key(&step.hop) {
            step.hop = (None, "elsewhere".to_owned(), step.hop.2);
        }
        let next = self.hops.len() as u32;
        let (netns, name, link) = &step.hop;
        let interface = *self.hops.entry(step.hop.clone()).or_insert_with(|| {
            let header = match link {
                LinkType::Ethernet => "Ethernet",
                LinkType::Raw => "IP",
            };
            let netns = netns.map_or("?".to_owned(), |inode| format!("net:[{inode}]"));
            let description = format!("{netns}, starting with the {header} header");
            self.ready.extend(interface(*link, name, &description));
            next
        });
        let packet = EnhancedPacket {
            interface,
            time_ns: self.epoch_ns.saturating_add(time),
            bytes: &step.bytes,
            length: step.length,
            direction: step.direction,
            comments: &step.comments,
        };
        self.ready.extend(packet.block());
    }
}

fn direction(event: &Event) -> Direction {
    match event.kind {
        Kind::Queued | Kind::Sent => Direction::Outbound,
        Kind::Backlog | Kind::Gro | Kind::Received => Direction::Inbound,
        Kind::Socket | Kind::Read | Kind::Dropped | Kind::Consumed => Direction::Unknown,
    }
}

/// Returns the comments of a step: its position in the journey, the packet's state, and the ending
/// if it is the last step of its leg.
fn comments(packet: &Packet, at: usize) -> Vec<String> {
    let (Some(step), all) = (packet.steps.get(at), packet.steps.len()) else { return Vec::new() };
    let Some(leg) = packet.legs.get(step.leg) else { return Vec::new() };
    let mut place = format!("packet {}", packet.number);
    // Writing to a String cannot fail.
    let lineage = [
        ("a segment of", leg.segment_of),
        ("a copy of", leg.copy_of),
        ("a fragment of", leg.fragment_of),
        ("reassembled from", leg.reassembled_from),
    ];
    for (word, of) in lineage.into_iter().filter_map(|(word, of)| Some((word, of?))) {
        let _ = write!(place, ", leg {} ({word} leg {})", step.leg + 1, of + 1);
    }
    let _ = write!(place, ", step {} of {all}: {}", at + 1, words(&step.what));
    let of_leg = |other: &usize| packet.steps[*other].leg == step.leg;
    // The first step of a leg follows those of the packet that it was made from.
    let before = (0..at).rev().find(of_leg).or(at.checked_sub(1));
    if let Some(before) = before {
        let ns = step.after_ns.saturating_sub(packet.steps[before].after_ns);
        let _ = write!(place, ", {:.1} µs after step {}", ns as f64 / 1000.0, before + 1);
    }
    let _ = write!(place, ", cpu {}", step.cpu);
    let mut comments = vec![place, state(step)];
    if !packet.steps[at + 1..].iter().any(|later| later.leg == step.leg) {
        let ending = ending_words(&leg.ending);
        let lines: Vec<&str> = ending.lines().map(str::trim).collect();
        comments.push(format!("end: {}", lines.join("; ")));
    }
    comments.iter().map(|comment| plain(comment).into_owned()).collect()
}

/// Describes the packet's state at a step.
fn state(step: &PacketStep) -> String {
    let mut state = format!("{} bytes", step.bytes);
    if let Some((packets, size)) = step.gso_packets.zip(step.gso_size) {
        let _ = write!(state, ", GSO {packets} x {size}");
    }
    let _ = write!(state, ", checksum {}", step.checksum);
    if let Some(conntrack) = &step.conntrack {
        let _ = write!(state, ", conntrack {conntrack}");
    }
    if step.mark > 0 {
        let _ = write!(state, ", mark {:#x}", step.mark);
    }
    if let Some(within) = within(step) {
        let _ = write!(state, ", {within}");
    }
    for (outer, fragment) in fragments(step) {
        let _ = write!(state, ", {}{fragment}", if outer { "outer " } else { "" });
    }
    state
}
