//! The events of one packet put together: its journey.
//!
//! The kernel's address of a packet stays the same through devices, bridges, tunnels and
//! namespaces, until it is copied, cut into segments, or merged into another one. Those are
//! other packets at other addresses, and become legs of the same journey: a segment is known by
//! the device that was just about to send the packet that it was cut from, a copy by its
//! headers.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::event::{Event, Flow, Kind};

/// What is waited for after a connection received a packet: its reader.
const READER: Duration = Duration::from_millis(50);
/// How long a packet may be seen nowhere, as in a queue.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most journeys at a time; the oldest ends where there are more.
const MOST: usize = 65_536;

/// A packet at one place on its journey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Index of the leg in the journey.
    pub leg: usize,
    /// What was seen.
    pub event: Event,
}

/// Where a leg comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The packet that the journey began with.
    First,
    /// A segment of the packet of another leg.
    SegmentOf(usize),
    /// A copy of the packet of another leg.
    CopyOf(usize),
}

/// How a leg ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ending {
    /// A process read it: process ID and command.
    Read(u32, String),
    /// A connection received it; who read it was not seen.
    Received,
    /// The kernel dropped it: `enum skb_drop_reason`, and an address of its code.
    Dropped(u32, u64),
    /// A device's driver had it last, and is done with it.
    Left(String),
    /// The kernel was done with it.
    Consumed,
    /// It was cut into segments.
    Cut,
    /// It was merged into the packet of this journey.
    MergedInto(u64),
    /// It was not seen any more.
    Unseen,
}

/// A packet on its journey, or what became of it on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leg {
    /// Where it comes from.
    pub origin: Origin,
    /// How it ended; `None`: it is under way.
    pub ending: Option<Ending>,
}

/// All that was seen of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journey {
    /// Counted from 1.
    pub number: u64,
    /// The packet, and what was cut or copied from it.
    pub legs: Vec<Leg>,
    /// In order of time.
    pub steps: Vec<Step>,
}

impl Journey {
    /// Headers of the packet as it was seen first.
    pub fn flow(&self) -> Option<Flow> {
        self.steps.iter().find_map(|step| step.event.flow)
    }

    /// From its first step to its last, ns.
    pub fn took(&self) -> u64 {
        let time = |step: Option<&Step>| step.map_or(0, |step| step.event.time);
        time(self.steps.last()).saturating_sub(time(self.steps.first()))
    }

    /// Segments of a leg that were seen.
    fn segments_of(&self, leg: usize) -> usize {
        self.legs.iter().filter(|other| other.origin == Origin::SegmentOf(leg)).count()
    }

    /// Whether nothing more is to come.
    fn is_over(&self) -> bool {
        let is_over = |(at, leg): (usize, &Leg)| match leg.ending {
            None => false,
            // Its segments are sent after it has ended.
            Some(Ending::Cut) => {
                let whole = self.last(at).map_or(1, |event| usize::from(event.packets()));
                self.segments_of(at) >= whole
            }
            Some(_) => true,
        };
        self.legs.iter().enumerate().all(is_over)
    }

    /// The last step of a leg.
    pub(crate) fn last(&self, leg: usize) -> Option<&Event> {
        self.steps.iter().rev().find(|step| step.leg == leg).map(|step| &step.event)
    }
}

/// A leg that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Under {
    journey: u64,
    leg: usize,
}

/// What stays the same of a packet, whoever has it: protocol, sequence number, identification.
type Identity = (u8, u32, u16, u16);

fn identity(flow: &Flow) -> Identity {
    (flow.protocol, flow.sequence, flow.id, flow.length)
}

/// Whether two packets of the same address may be the same one at two moments.
fn is_same(earlier: &Flow, later: &Flow) -> bool {
    const TCP: u8 = 6;
    earlier.protocol == later.protocol
        && (earlier.protocol != TCP || earlier.sequence == later.sequence)
        && (earlier.id == later.id || earlier.id == 0 || later.id == 0)
}

/// Whether the ports of two packets are those of one connection in one direction.
fn is_same_flow(one: &Flow, other: &Flow) -> bool {
    one.protocol == other.protocol
        && one.source == other.source
        && one.destination == other.destination
        && one.ports == other.ports
}

/// Whether a packet may be a segment of another one.
fn is_part(whole: &Event, part: &Event) -> bool {
    const TCP: u8 = 6;
    let (Some(of), Some(flow)) = (&whole.flow, &part.flow) else { return false };
    let bytes = whole.gso.map_or(0, |(size, packets)| u32::from(size) * u32::from(packets));
    is_same_flow(of, flow)
        && (of.protocol != TCP || flow.sequence.wrapping_sub(of.sequence) < bytes)
}

/// Puts events together.
#[derive(Debug, Default)]
pub struct Journeys {
    count: u64,
    open: BTreeMap<u64, Journey>,
    /// Legs under way, by the kernel's address.
    under_way: HashMap<u64, Under>,
    /// The leg that was last given to a device, and may be cut there: by namespace, device and
    /// CPU.
    queued: HashMap<(Option<u32>, u32, u32), Under>,
    /// The newest leg by what stays the same.
    by_identity: HashMap<Identity, u64>,
    /// When a leg was last seen.
    seen: HashMap<u64, u64>,
    /// Packets that are about to be merged, by namespace and device.
    merging: HashMap<(Option<u32>, u32), Vec<u64>>,
    /// Journeys that ended beside the one that an event was of.
    ended: Vec<Journey>,
    /// When it was last looked for what waits for nothing but time.
    settled: u64,
}

impl Journeys {
    /// Takes events in order of time; answers which journeys have ended.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Journey> {
        let mut ended = Vec::new();
        for event in events {
            let time = event.time;
            if let Some(number) = self.put(event) {
                ended.extend(self.end_of(number));
            }
            ended.append(&mut self.ended);
            if self.open.len() > MOST {
                ended.extend(self.give_up_oldest());
            }
            if time.saturating_sub(self.settled) > READER.as_nanos() as u64 {
                self.settled = time;
                ended.extend(self.settle(time));
            }
        }
        ended
    }

    /// Ends what waits for nothing but time; `now` as in events.
    pub fn settle(&mut self, now: u64) -> Vec<Journey> {
        let mut overdue = Vec::new();
        for (skb, under) in &self.under_way {
            let waited = now.saturating_sub(self.seen.get(skb).copied().unwrap_or(0));
            let Some(journey) = self.open.get(&under.journey) else { continue };
            let is_received = journey.last(under.leg).is_some_and(|e| e.kind == Kind::Socket);
            let limit = if is_received { READER } else { PATIENCE };
            if u128::from(waited) >= limit.as_nanos() {
                overdue.push((*skb, if is_received { Ending::Received } else { Ending::Unseen }));
            }
        }
        let mut ended = Vec::new();
        for (skb, ending) in overdue {
            if let Some(number) = self.close(skb, ending) {
                ended.extend(self.end_of(number));
            }
        }
        // Segments that did not come, as where they left by another way.
        let is_late = |journey: &&Journey| {
            let last = journey.steps.last().map_or(0, |step| step.event.time);
            journey.legs.iter().all(|leg| leg.ending.is_some())
                && u128::from(now.saturating_sub(last)) >= READER.as_nanos()
        };
        let late: Vec<u64> = self.open.values().filter(is_late).map(|j| j.number).collect();
        ended.extend(late.into_iter().filter_map(|number| self.remove(number)));
        // What is no longer under way is waited for no longer.
        self.merging.retain(|_, waiting| {
            waiting.retain(|skb| self.under_way.contains_key(skb));
            !waiting.is_empty()
        });
        self.queued.retain(|_, under| self.open.contains_key(&under.journey));
        ended.sort_by_key(|journey| journey.number);
        ended
    }

    /// When the oldest journey began that has not ended; `None`: none is under way.
    pub fn oldest(&self) -> Option<u64> {
        // They are counted as they begin.
        let (_, journey) = self.open.first_key_value()?;
        journey.steps.first().map(|step| step.event.time)
    }

    /// Ends everything.
    pub fn finish(mut self) -> Vec<Journey> {
        for under in self.under_way.into_values() {
            if let Some(journey) = self.open.get_mut(&under.journey) {
                let last = journey.last(under.leg).map(|event| event.kind);
                let is_received = last == Some(Kind::Socket);
                let ending = if is_received { Ending::Received } else { Ending::Unseen };
                journey.legs[under.leg].ending.get_or_insert(ending);
            }
        }
        self.open.into_values().collect()
    }

    /// The journey that may have ended with this event.
    fn put(&mut self, event: Event) -> Option<u64> {
        let skb = event.skb;
        let known = self.under_way.get(&skb).copied();
        let under = match known {
            Some(under) if !self.is_stale(under, &event) => under,
            _ => {
                // Its end was not seen, and the kernel uses its memory for another packet.
                let ending = known.map(|under| self.without_end(under));
                if let Some(number) = ending.and_then(|ending| self.close(skb, ending)) {
                    let ended = self.end_of(number);
                    self.ended.extend(ended);
                }
                self.begin(&event)?
            }
        };
        let at = event.device.as_ref().map(|(index, _)| (event.netns, *index));
        if let Some(place) = at {
            match event.kind {
                Kind::Queued => {
                    self.queued.insert((place.0, place.1, event.cpu), under);
                }
                Kind::Gro => self.merging.entry(place).or_default().push(skb),
                Kind::Received => self.merge(place, &event, under.journey),
                _ => {}
            }
        }
        let ending = self.ending(&event, under);
        self.seen.insert(skb, event.time);
        if let Some(flow) = &event.flow {
            self.by_identity.insert(identity(flow), skb);
        }
        let journey = self.open.get_mut(&under.journey)?;
        // Where it is at no device the kernel does not tell: it is where it was.
        let netns = event.netns.or_else(|| {
            let of_it = journey.steps.iter().rev().filter(|step| step.leg == under.leg);
            of_it.map(|step| step.event.netns).find(Option::is_some).flatten()
        });
        journey.steps.push(Step { leg: under.leg, event: Event { netns, ..event } });
        ending.and_then(|ending| self.close(skb, ending))
    }

    /// How a leg ended that was not seen to end.
    fn without_end(&self, under: Under) -> Ending {
        let journey = self.open.get(&under.journey);
        match journey.and_then(|journey| journey.last(under.leg)).map(|event| event.kind) {
            // The kernel frees it without a word.
            Some(Kind::Socket) => Ending::Received,
            _ => Ending::Unseen,
        }
    }

    fn is_stale(&self, under: Under, event: &Event) -> bool {
        let Some(journey) = self.open.get(&under.journey) else { return true };
        let last = journey.steps.iter().rev().find(|step| step.leg == under.leg);
        let Some(last) = last.map(|step| &step.event) else { return true };
        match (&last.flow, &event.flow) {
            (Some(earlier), Some(later)) => !is_same(earlier, later),
            _ => false,
        }
    }

    /// A leg for a packet of a new address.
    fn begin(&mut self, event: &Event) -> Option<Under> {
        let parent = self.cut_from(event).map(|(parent, number)| (parent, number, true));
        let parent = parent.or_else(|| self.copied_from(event).map(|(leg, n)| (leg, n, false)));
        let under = match parent {
            Some((leg, number, is_cut)) => {
                let journey = self.open.get_mut(&number)?;
                let origin = if is_cut { Origin::SegmentOf(leg) } else { Origin::CopyOf(leg) };
                journey.legs.push(Leg { origin, ending: None });
                Under { journey: number, leg: journey.legs.len() - 1 }
            }
            // It was not seen to begin: every packet is queued before it is sent.
            None if !matches!(
                event.kind,
                Kind::Queued | Kind::Backlog | Kind::Gro | Kind::Received | Kind::Dropped
            ) =>
            {
                return None;
            }
            None => {
                self.count += 1;
                let first = Leg { origin: Origin::First, ending: None };
                let journey = Journey { number: self.count, legs: vec![first], steps: Vec::new() };
                self.open.insert(self.count, journey);
                Under { journey: self.count, leg: 0 }
            }
        };
        self.under_way.insert(event.skb, under);
        Some(under)
    }

    /// The leg that the device was just given, where this is a segment of it.
    fn cut_from(&self, event: &Event) -> Option<(usize, u64)> {
        if event.kind != Kind::Sent {
            return None;
        }
        let (index, _) = event.device.as_ref()?;
        let under = self.queued.get(&(event.netns, *index, event.cpu))?;
        let journey = self.open.get(&under.journey)?;
        // The kernel is done with the packet before it sends the segments.
        let of_it = journey.steps.iter().rev().filter(|step| step.leg == under.leg);
        let whole = of_it.map(|step| &step.event).find(|event| event.kind == Kind::Queued)?;
        let is_of = match journey.legs[under.leg].ending {
            None | Some(Ending::Cut) => {
                journey.segments_of(under.leg) < usize::from(whole.packets())
                    && is_part(whole, event)
            }
            _ => false,
        };
        is_of.then_some((under.leg, under.journey))
    }

    /// The leg that has the same headers.
    fn copied_from(&self, event: &Event) -> Option<(usize, u64)> {
        let known = self.by_identity.get(&identity(event.flow.as_ref()?))?;
        let under = self.under_way.get(known)?;
        let journey = self.open.get(&under.journey)?;
        let last = journey.last(under.leg)?;
        // Where it was before, another one comes: datagrams of one length look the same.
        let was_there = |step: &Step| {
            let earlier = &step.event;
            (earlier.kind, earlier.netns, &earlier.device)
                == (event.kind, event.netns, &event.device)
        };
        let is_of = is_same_flow(last.flow.as_ref()?, event.flow.as_ref()?)
            && !journey.steps.iter().any(was_there);
        is_of.then_some((under.leg, under.journey))
    }

    /// A packet came out of merging: those that were in it before and are missing went into it.
    fn merge(&mut self, place: (Option<u32>, u32), event: &Event, into: u64) {
        let Some(waiting) = self.merging.get_mut(&place) else { return };
        waiting.retain(|skb| *skb != event.skb);
        let (Some(flow), true) = (&event.flow, event.packets() > 1) else { return };
        let is_of = |skb: &u64| {
            let under = self.under_way.get(skb)?;
            let last = self.open.get(&under.journey)?.last(under.leg)?;
            (last.kind == Kind::Gro && is_same_flow(last.flow.as_ref()?, flow)).then_some(())
        };
        let mut merged: Vec<u64> =
            waiting.iter().copied().filter(|skb| is_of(skb).is_some()).collect();
        merged.truncate(usize::from(event.packets()) - 1);
        waiting.retain(|skb| !merged.contains(skb));
        for skb in merged {
            if let Some(number) = self.close(skb, Ending::MergedInto(into)) {
                let ended = self.end_of(number);
                self.ended.extend(ended);
            }
        }
    }

    /// How the leg ends with this event, if it does.
    fn ending(&self, event: &Event, under: Under) -> Option<Ending> {
        match event.kind {
            Kind::Dropped => Some(Ending::Dropped(event.reason, event.location)),
            Kind::Read => {
                let (pid, command) = event.process.clone()?;
                Some(Ending::Read(pid, command))
            }
            Kind::Consumed => {
                let journey = self.open.get(&under.journey)?;
                let last = journey.last(under.leg)?;
                Some(match (last.kind, &last.device) {
                    (Kind::Queued, Some(_)) if last.packets() > 1 => Ending::Cut,
                    (Kind::Sent, Some((_, device))) => Ending::Left(device.clone()),
                    (Kind::Socket, _) => Ending::Received,
                    _ => Ending::Consumed,
                })
            }
            _ => None,
        }
    }

    /// Ends a leg; answers the journey that it was of.
    fn close(&mut self, skb: u64, ending: Ending) -> Option<u64> {
        let under = self.under_way.remove(&skb)?;
        self.seen.remove(&skb);
        let journey = self.open.get_mut(&under.journey)?;
        journey.legs[under.leg].ending.get_or_insert(ending);
        Some(under.journey)
    }

    /// The journey, where all its legs have ended.
    fn end_of(&mut self, number: u64) -> Option<Journey> {
        let journey = self.open.get(&number)?;
        if !journey.is_over() {
            return None;
        }
        self.remove(number)
    }

    fn remove(&mut self, number: u64) -> Option<Journey> {
        let journey = self.open.remove(&number)?;
        for flow in journey.steps.iter().filter_map(|step| step.event.flow.as_ref()) {
            self.by_identity.remove(&identity(flow));
        }
        Some(journey)
    }

    fn give_up_oldest(&mut self) -> Option<Journey> {
        let number = *self.open.first_key_value()?.0;
        let of_it: Vec<u64> =
            self.under_way.iter().filter(|(_, u)| u.journey == number).map(|(s, _)| *s).collect();
        for skb in of_it {
            self.close(skb, Ending::Unseen);
        }
        self.remove(number)
    }
}
