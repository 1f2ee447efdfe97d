//! The events of one packet put together: its journey.
//!
//! The kernel's address of a packet stays the same through devices, bridges, tunnels and
//! namespaces, until it is copied, cut into segments or fragments, or merged into another one.
//! Those are other packets at other addresses, and become legs of the same journey: a segment is
//! known by the device that was just about to send the packet that it was cut from, a copy by its
//! headers, a fragment by its identification. The fragment that comes last gives its address to
//! the packet that is put together.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::event::{Event, Flow, Kind};
use crate::journey::{Ending, Journey, Leg, Origin, Step};
use crate::pieces::{Change, Datagram, Pieces, change};

/// What is waited for after a connection received a packet: its reader.
const READER: Duration = Duration::from_millis(50);
/// How long a packet may be seen nowhere, as in a queue.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a fragment may wait for the others: IPv6 gives them 60 s, IPv4 30 s
/// (`net.ipv4.ipfrag_time`, `net.ipv6.ip6frag_time`).
const REASSEMBLY: Duration = Duration::from_secs(65);
/// Most journeys at a time; the oldest ends where there are more.
const MOST: usize = 65_536;
/// So many journeys at a time are looked at in some ms.
const CROWD: usize = 8192;

/// A leg that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Under {
    journey: u64,
    leg: usize,
}

/// What stays the same of a packet, whoever has it: protocol, sequence number, identification,
/// and which fragment it is.
type Identity = (u8, u32, u32, u16, Pieces);

fn identity(event: &Event) -> Option<Identity> {
    let flow = event.flow.as_ref()?;
    Some((flow.protocol, flow.sequence, flow.id, flow.length, Pieces::of(event)))
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

/// Whether packets are at the same place.
fn is_same_place(one: &Event, other: &Event) -> bool {
    (one.kind, one.netns, &one.device) == (other.kind, other.netns, &other.device)
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
    /// The leg that fragments are of, or the first of them where that was not seen.
    by_datagram: HashMap<Datagram, Under>,
    /// The leg that a CPU was last seen with: fragments of it may come next.
    newest: HashMap<u32, Under>,
    /// What was put together on journeys that ended, and when they did: the kernel frees its
    /// fragments afterwards.
    put_together: HashMap<Datagram, u64>,
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
            ended.extend(self.settle_when_due(time));
        }
        ended
    }

    /// As [`Journeys::settle`], unless it was done a moment ago. That is a look at all that is
    /// under way: where much is, as after a loss of events, it comes less often.
    pub fn settle_when_due(&mut self, now: u64) -> Vec<Journey> {
        let pause = READER.as_nanos() as u64 * (1 + (self.open.len() / CROWD) as u64);
        if now.saturating_sub(self.settled) <= pause {
            return Vec::new();
        }
        self.settled = now;
        self.settle(now)
    }

    /// Ends what waits for nothing but time; `now` as in events.
    pub fn settle(&mut self, now: u64) -> Vec<Journey> {
        let mut overdue = Vec::new();
        for (skb, under) in &self.under_way {
            let waited = now.saturating_sub(self.seen.get(skb).copied().unwrap_or(0));
            let Some(journey) = self.open.get(&under.journey) else { continue };
            let last = journey.last(under.leg);
            let is_received = last.is_some_and(|e| e.kind == Kind::Socket);
            let is_waiting = last.is_some_and(|event| {
                event.kind == Kind::Received && Pieces::of(event).outermost().is_some()
            });
            let limit = match (is_received, is_waiting) {
                (true, _) => READER,
                (_, true) => REASSEMBLY,
                _ => PATIENCE,
            };
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
        self.newest.retain(|_, under| self.open.contains_key(&under.journey));
        self.put_together
            .retain(|_, ended| u128::from(now.saturating_sub(*ended)) < READER.as_nanos());
        ended.sort_by_key(|journey| journey.number);
        ended
    }

    /// When the oldest journey began that has not ended; `None`: none is under way.
    pub fn oldest(&self) -> Option<u64> {
        // They are counted as they begin.
        let (_, journey) = self.open.first_key_value()?;
        journey.steps.first().map(|step| step.event.time)
    }

    /// Whether a packet is followed that may be seen again: not in its socket yet.
    pub(crate) fn is_under_way(&self) -> bool {
        let is = |under: &Under| {
            let journey = self.open.get(&under.journey);
            let last = journey.and_then(|journey| journey.last(under.leg));
            last.is_some_and(|event| event.kind != Kind::Socket)
        };
        self.under_way.values().any(is)
    }

    /// Ends everything.
    pub fn finish(self) -> Vec<Journey> {
        self.ended_by(&Ending::Unseen)
    }

    /// Ends everything where nobody looks any more: what is under way need not be lost.
    pub(crate) fn cut_off(self) -> Vec<Journey> {
        self.ended_by(&Ending::UnderWay)
    }

    fn ended_by(mut self, otherwise: &Ending) -> Vec<Journey> {
        for under in self.under_way.into_values() {
            if let Some(journey) = self.open.get_mut(&under.journey) {
                let last = journey.last(under.leg).map(|event| event.kind);
                let is_received = last == Some(Kind::Socket);
                let ending = if is_received { Ending::Received } else { otherwise.clone() };
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
            Some(under) if !self.is_stale(under, &event) => self.changed(under, &event)?,
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
        self.newest.insert(event.cpu, under);
        if let Some(identity) = identity(&event) {
            self.by_identity.insert(identity, skb);
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
        // What a socket has goes nowhere else. Headers alone do not tell: datagrams of one flow
        // look the same where none has an identification.
        let is_at_its_end =
            matches!(event.kind, Kind::Socket | Kind::Read | Kind::Dropped | Kind::Consumed);
        if last.kind == Kind::Socket && !is_at_its_end {
            return true;
        }
        let change = change(last, event);
        match (&last.flow, &event.flow, change) {
            (.., Change::Other) => true,
            // IPv6 has another identification then.
            (Some(earlier), Some(later), Change::Refragmented(_)) => {
                earlier.protocol != later.protocol
            }
            (Some(earlier), Some(later), _) => !is_same(earlier, later),
            _ => false,
        }
    }

    /// The leg of a packet that is known, where it was put together or cut since.
    fn changed(&mut self, under: Under, event: &Event) -> Option<Under> {
        let journey = self.open.get(&under.journey)?;
        let change = change(journey.last(under.leg)?, event);
        let netns = journey.last_place(under.leg).and_then(|last| last.netns);
        match change {
            Change::None | Change::Other => Some(under),
            Change::Reassembled(outer, inner) => {
                let mut of = outer.into_iter().chain(inner);
                of.try_fold(under, |under, of| self.reassembled(under, of, netns, event.skb))
            }
            Change::Fragmented => self.fragmented(under, event),
            Change::Refragmented(of) => {
                let whole = self.reassembled(under, of, netns, event.skb)?;
                self.fragmented(whole, event)
            }
        }
    }

    /// The fragments that wait where this one was last are one packet, which has its address.
    fn reassembled(
        &mut self,
        under: Under,
        of: Datagram,
        netns: Option<u32>,
        skb: u64,
    ) -> Option<Under> {
        let journey = self.open.get_mut(&under.journey)?;
        let parts = journey.waiting_with(under.leg, &of, netns);
        let first = journey.first_of(&parts, &of)?;
        for part in parts {
            let last = journey.last_place(part).map(|event| event.skb);
            journey.legs[part].ending = Some(Ending::Reassembled);
            let leg = Under { leg: part, ..under };
            if let Some(skb) = last.filter(|skb| self.under_way.get(skb) == Some(&leg)) {
                self.under_way.remove(&skb);
                self.seen.remove(&skb);
            }
        }
        journey.legs.push(Leg { origin: Origin::ReassembledFrom(first), ending: None });
        let whole = Under { leg: journey.legs.len() - 1, ..under };
        self.under_way.insert(skb, whole);
        self.by_datagram.insert(of, whole);
        Some(whole)
    }

    /// A packet became its own first fragment.
    fn fragmented(&mut self, under: Under, event: &Event) -> Option<Under> {
        let piece = Pieces::of(event).outermost()?;
        let journey = self.open.get_mut(&under.journey)?;
        journey.legs[under.leg].ending = Some(Ending::Fragmented);
        journey.legs.push(Leg { origin: Origin::FragmentOf(under.leg), ending: None });
        let first = Under { leg: journey.legs.len() - 1, ..under };
        self.under_way.insert(event.skb, first);
        self.by_datagram.insert(piece.of, under);
        Some(first)
    }

    /// The leg that this is a fragment of.
    fn fragment_of(&self, event: &Event) -> Option<(usize, u64)> {
        // Its end alone, where it was not seen before, says nothing of the packet.
        let pieces = Pieces::of(event);
        let piece = pieces.outermost().filter(|_| event.kind != Kind::Consumed)?;
        if let Some(under) = self.by_datagram.get(&piece.of) {
            // Where it was before, another one comes: an identification is used again.
            let was_there = |step: &Step| {
                is_same_place(&step.event, event)
                    && Pieces::of(&step.event).outermost() == Some(piece)
            };
            let journey = self.open.get(&under.journey)?;
            let is_another = journey.steps.iter().any(was_there);
            return (!is_another).then_some((under.leg, under.journey));
        }
        let known = || {
            // What is in a tunnel is a fragment itself, of a packet that was seen.
            let under = self.by_datagram.get(&pieces.of_whole().outermost()?.of)?;
            Some((under.leg, under.journey))
        };
        self.cut_on_cpu(event, pieces).or_else(known)
    }

    /// The leg that its CPU was last seen with, where this is the first fragment of it: the kernel
    /// sends the fragments of a packet before it is done with that.
    fn cut_on_cpu(&self, event: &Event, pieces: Pieces) -> Option<(usize, u64)> {
        let is_first = pieces.outermost()?.offset == 0;
        let under = *self.newest.get(&event.cpu).filter(|_| is_first)?;
        let whole = self.open.get(&under.journey)?.last(under.leg)?;
        let (of, flow) = (whole.flow.as_ref()?, event.flow.as_ref()?);
        let is_of =
            is_same_flow(of, flow) && is_same(of, flow) && Pieces::of(whole) == pieces.of_whole();
        is_of.then_some((under.leg, under.journey))
    }

    /// Whether it is a fragment that was freed with the packet that it had become a part of: the
    /// kernel tells of each by itself.
    fn is_freed_with_whole(&self, event: &Event) -> bool {
        let Some(piece) = Pieces::of(event).outermost() else { return false };
        let is_whole = |under: &Under| {
            let journey = self.open.get(&under.journey);
            let leg = journey.and_then(|journey| journey.legs.get(under.leg));
            leg.is_some_and(|leg| matches!(leg.origin, Origin::ReassembledFrom(_)))
        };
        matches!(event.kind, Kind::Dropped | Kind::Consumed)
            && (self.put_together.contains_key(&piece.of)
                || self.by_datagram.get(&piece.of).is_some_and(is_whole))
    }

    /// A leg for a packet of a new address.
    fn begin(&mut self, event: &Event) -> Option<Under> {
        if self.is_freed_with_whole(event) {
            return None;
        }
        let cut = self.cut_from(event).map(|(leg, number)| (Origin::SegmentOf(leg), number));
        let parent = cut
            .or_else(|| self.copied_from(event).map(|(leg, number)| (Origin::CopyOf(leg), number)))
            .or_else(|| {
                self.fragment_of(event).map(|(leg, number)| (Origin::FragmentOf(leg), number))
            });
        let under = match parent {
            Some((origin, number)) => {
                let journey = self.open.get_mut(&number)?;
                journey.legs.push(Leg { origin, ending: None });
                if let (Origin::FragmentOf(leg), Some(piece)) =
                    (origin, Pieces::of(event).outermost())
                {
                    self.by_datagram.insert(piece.of, Under { journey: number, leg });
                }
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
                let under = Under { journey: self.count, leg: 0 };
                let of = Pieces::of(event).iter().map(|piece| (piece.of, under));
                self.by_datagram.extend(of);
                under
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
        let known = self.by_identity.get(&identity(event)?)?;
        let under = self.under_way.get(known)?;
        let journey = self.open.get(&under.journey)?;
        let last = journey.last(under.leg)?;
        // Where it was before, another one comes: datagrams of one length look the same.
        let is_of = is_same_flow(last.flow.as_ref()?, event.flow.as_ref()?)
            && !journey.steps.iter().any(|step| is_same_place(&step.event, event));
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
                if journey.is_fragmented(under.leg) {
                    return Some(Ending::Fragmented);
                }
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
        let ended = journey.steps.last().map_or(0, |step| step.event.time);
        for event in journey.steps.iter().map(|step| &step.event) {
            if let Some(identity) = identity(event) {
                self.by_identity.remove(&identity);
            }
            for piece in Pieces::of(event).iter() {
                let Some(under) = self.by_datagram.get(&piece.of) else { continue };
                if under.journey != number {
                    continue;
                }
                if matches!(journey.legs[under.leg].origin, Origin::ReassembledFrom(_)) {
                    self.put_together.insert(piece.of, ended);
                }
                self.by_datagram.remove(&piece.of);
            }
        }
        Some(journey)
    }

    fn give_up_oldest(&mut self) -> Option<Journey> {
        let (number, journey) = self.open.first_key_value()?;
        let number = *number;
        // Its own addresses: a look through all that is under way, for each new packet, would be
        // slower than packets come.
        let addresses: Vec<u64> = journey.steps.iter().map(|step| step.event.skb).collect();
        for skb in addresses {
            let of_it = self.under_way.get(&skb).filter(|under| under.journey == number);
            if let Some(ending) = of_it.map(|under| self.without_end(*under)) {
                self.close(skb, ending);
            }
        }
        self.remove(number)
    }
}
