//! A packet's journey as text.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::record::{Fragment, Packet, PacketEnding, PacketLeg, PacketStep};

/// Columns for namespaces and devices are as wide as their longest name, up to this many
/// characters.
const WIDEST: usize = 24;

impl Packet {
    /// Renders the journey as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let flow = self.flow.as_ref().map_or("not an IP packet".to_owned(), ToString::to_string);
        // Writing to a String cannot fail.
        for drops in &self.suppressed {
            let _ = writeln!(text, "not reported: {drops}");
        }
        let tcp = self.tcp.as_ref().map_or(String::new(), |tcp| format!(", {tcp}"));
        let at = self.begun_unix_ns.map_or(String::new(), |ns| format!(", at {} UTC", clock(ns)));
        let _ = writeln!(text, "packet {}: {flow}{tcp}{at}", self.number);
        for group in self.groups() {
            let Some((first, leg)) = group.first().and_then(|at| Some((*at, self.legs.get(*at)?)))
            else {
                continue;
            };
            let of = leg.fragment_of.and_then(|of| self.legs.get(of));
            let is_whole_known = of.is_some_and(|of| of.ending == PacketEnding::Fragmented);
            if let Some(line) = origin(leg, is_whole_known, group.len()) {
                let _ = writeln!(text, "  {line}");
            }
            self.put_steps(first, &mut text);
            let _ = writeln!(text, "  {}", ending_words(&leg.ending));
        }
        text
    }

    /// Groups legs that have the same origin, path and ending, in order.
    fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, leg) in self.legs.iter().enumerate() {
            let place =
                |step: &PacketStep| format!("{} {} {:?}", step.what, step.namespace, step.device);
            let way: Vec<String> = self.of_leg(at).map(place).collect();
            groups.entry(format!("{leg:?} {way:?}")).or_default().push(at);
        }
        let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
        groups.sort_unstable();
        groups
    }

    fn put_steps(&self, leg: usize, text: &mut String) {
        // Columns are as wide as their longest entry, within limits.
        let width = |of: &dyn Fn(&PacketStep) -> usize, least: usize| {
            self.steps.iter().map(of).max().unwrap_or(0).clamp(least, WIDEST)
        };
        let namespaces = width(&|step| step.namespace.chars().count(), 9);
        let devices = width(&|step| step.device.as_deref().unwrap_or("").chars().count(), 6);
        let mut before: Option<&PacketStep> = None;
        for step in self.of_leg(leg) {
            let us = step.after_ns as f64 / 1000.0;
            let (namespace, cpu) = (&step.namespace, step.cpu);
            let device = step.device.as_deref().unwrap_or("-");
            let (what, news) = (words(&step.what), news(step, before));
            let _ = writeln!(
                text,
                "  {us:>9.1} µs  {namespace:<namespaces$}  {device:<devices$}  cpu {cpu:<2} \
                 {what}{news}"
            );
            before = Some(step);
        }
    }

    fn of_leg(&self, leg: usize) -> impl Iterator<Item = &PacketStep> {
        self.steps.iter().filter(move |step| step.leg == leg)
    }
}

/// Formats the time of day, ns since 1970, with microseconds.
fn clock(ns: u64) -> String {
    let (seconds, micros) = (ns / 1_000_000_000, ns / 1000 % 1_000_000);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{micros:06}", seconds % 60)
}

/// Returns the heading for `count` equal legs; `None` for the packet that the journey began with.
fn origin(leg: &PacketLeg, is_whole_known: bool, count: usize) -> Option<String> {
    let (one, many) = match leg {
        PacketLeg { segment_of: Some(_), .. } => ("one segment of it", "segments of it"),
        PacketLeg { copy_of: Some(_), .. } => ("a copy of it", "copies of it"),
        PacketLeg { fragment_of: Some(_), .. } if is_whole_known => {
            ("one fragment of it", "fragments of it")
        }
        PacketLeg { fragment_of: Some(_), .. } => {
            ("another fragment of its datagram", "other fragments of its datagram")
        }
        PacketLeg { reassembled_from: Some(_), .. } => {
            ("the datagram, reassembled", "datagrams, reassembled")
        }
        _ => return None,
    };
    Some(if count == 1 { format!("{one}:") } else { format!("{count} {many}, the first:") })
}

/// Describes the kind of a step.
pub(crate) fn words(what: &str) -> &str {
    match what {
        "backlog" => "in the CPU backlog",
        "gro" => "before GRO",
        "socket" => "in the socket",
        "consumed" => "freed",
        other => other,
    }
}

/// Describes what changed since the step before.
fn news(step: &PacketStep, before: Option<&PacketStep>) -> String {
    // At the free, the header offsets are no longer valid: the headers cannot be compared.
    if step.what == "consumed" {
        return String::new();
    }
    let mut news = Vec::new();
    if before.is_none_or(|before| before.bytes != step.bytes) {
        news.push(format!("{} bytes", step.bytes));
    }
    let gso = |step: &PacketStep| step.gso_packets.zip(step.gso_size);
    if before.map_or(gso(step).is_some(), |before| gso(before) != gso(step)) {
        news.push(match gso(step) {
            Some((packets, size)) => format!("GSO {packets} x {size}"),
            None => "no longer GSO".to_owned(),
        });
    }
    if before.map_or(step.checksum == "partial", |before| before.checksum != step.checksum) {
        news.push(format!("checksum {}", step.checksum));
    }
    if before.is_some_and(|before| before.flow != step.flow)
        && let Some(flow) = &step.flow
    {
        news.push(flow.to_string());
    }
    if before.map_or(step.encapsulation.is_some(), |before| {
        (before.vni, &before.tunnel) != (step.vni, &step.tunnel)
    }) {
        news.push(within(step).unwrap_or_else(|| "decapsulated".to_owned()));
    }
    for (outer, fragment) in fragments(step) {
        let known = before.map(fragments);
        if !known.is_some_and(|known| known.contains(&(outer, fragment))) {
            news.push(format!("{}{fragment}", if outer { "outer " } else { "" }));
        }
    }
    if before.is_some_and(|before| before.conntrack != step.conntrack) {
        let conntrack = step.conntrack.as_deref().unwrap_or("none");
        news.push(format!("conntrack {conntrack}"));
    }
    if before.map_or(step.mark > 0, |before| before.mark != step.mark) {
        news.push(format!("mark {:#x}", step.mark));
    }
    if news.is_empty() { String::new() } else { format!(": {}", news.join(", ")) }
}

/// Describes how a leg ended.
pub(crate) fn ending_words(ending: &PacketEnding) -> String {
    match ending {
        PacketEnding::Read { pid, command } => format!("read by {command} ({pid})"),
        PacketEnding::Received => "received by the socket".to_owned(),
        PacketEnding::Dropped { reason, function, meaning, check, cause } => {
            let mut text = format!("DROPPED: {reason}");
            if let Some(function) = function {
                let _ = write!(text, " in {function}");
            }
            if let Some(cause) = cause {
                let _ = write!(text, "\n    {cause}");
            }
            if let Some(meaning) = meaning {
                let _ = write!(text, "\n    {meaning}");
            }
            if let Some(check) = check {
                let _ = write!(text, "\n    overlane doctor explain {check}");
            }
            text
        }
        PacketEnding::Left { device } => format!("left through {device}"),
        PacketEnding::Consumed => "consumed".to_owned(),
        PacketEnding::Cut => "segmented".to_owned(),
        PacketEnding::Fragmented => "fragmented".to_owned(),
        PacketEnding::Reassembled => "reassembled with the other fragments".to_owned(),
        PacketEnding::Merged { into } => format!("merged into packet {into}"),
        PacketEnding::Unseen => "not seen again".to_owned(),
    }
}

/// Returns the fragments that a packet is: `true` marks the outer packet of the tunnel.
pub(crate) fn fragments(step: &PacketStep) -> Vec<(bool, Fragment)> {
    let outer = step.tunnel_fragment.map(|fragment| (true, fragment));
    outer.into_iter().chain(step.fragment.map(|fragment| (false, fragment))).collect()
}

/// Describes the tunnel around a packet.
pub(crate) fn within(step: &PacketStep) -> Option<String> {
    let (encapsulation, tunnel) = step.encapsulation.zip(step.tunnel.as_ref())?;
    Some(format!("in {} {tunnel}", encapsulation.within(step.vni)))
}
