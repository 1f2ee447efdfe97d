//! Journeys as a capture file, for Wireshark and others: what `overlane trace --pcapng` writes.
//!
//! Each place where packets are seen is an interface, each step of a journey a packet of the
//! file, in order of time; its journey is told in its comments. A journey is known when it has
//! ended, so that steps wait for those of others that began earlier.

use std::collections::BTreeMap;
use std::fmt::Write;

use foreign::plain;

use crate::diary::{ending_words, fragments, within, words};
use crate::event::{Event, Kind, Link};
use crate::journey::Journey;
use crate::pcapng::{Direction, EnhancedPacket, LinkType, interface, section};
use crate::told::{Packet, PacketStep};

/// Most steps that wait; the oldest is written, in order or not, where there are more.
const MOST_WAITING: usize = 1 << 16;

/// Most interfaces of a file. Tenants choose their devices' names: what is seen elsewhere has one
/// of two more, by what packets begin with.
const MOST_HOPS: usize = 4096;

/// A place: inode of the namespace, its and the device's name, and what packets begin with there.
type Hop = (Option<u32>, String, LinkType);

/// A step that waits for those before it.
#[derive(Debug)]
struct Waiting {
    hop: Hop,
    bytes: Vec<u8>,
    length: u32,
    direction: Direction,
    comments: Vec<String>,
}

/// A capture file in the making.
#[derive(Debug)]
pub struct Capture {
    /// Added to the times of events, ns.
    epoch_ns: u64,
    hops: BTreeMap<Hop, u32>,
    /// By time, number of the journey, and index of the step.
    waiting: BTreeMap<(u64, u64, usize), Waiting>,
    /// Whole blocks.
    ready: Vec<u8>,
}

impl Capture {
    /// A file that begins; `epoch_ns` is what to add to `CLOCK_MONOTONIC` for the time since
    /// 1970, `system` and `program` say who captures.
    pub fn new(epoch_ns: u64, system: &str, program: &str) -> Capture {
        let ready = section(&plain(system), &plain(program));
        Capture { epoch_ns, hops: BTreeMap::new(), waiting: BTreeMap::new(), ready }
    }

    /// Adds the steps of a journey, which is `packet` in words.
    pub fn add(&mut self, journey: &Journey, packet: &Packet) {
        let steps = journey.steps.iter().zip(&packet.steps);
        for (at, (step, told)) in steps.enumerate() {
            let event = &step.event;
            let place = match &told.device {
                Some(device) => format!("{}/{device}", told.namespace),
                None => told.namespace.clone(),
            };
            let (link, bytes, length) = match &event.headers {
                Some(headers) => (headers.link, headers.bytes.clone(), headers.length),
                // It has gone from where it could be read: the step is told all the same.
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
        while self.waiting.len() > MOST_WAITING {
            self.write_first();
        }
    }

    /// What is to be appended to the file: whole blocks, of the steps before this time.
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
            let description = format!("{netns}, from the {header} header on");
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

/// What is told of a step: where in which journey it is, what the packet is there, and how its
/// leg ended, if it is the last of it.
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
    // The first of a leg comes after those of the packet that it was cut or copied from.
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

/// What the packet is at a step.
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
