//! Assembles the events of one packet into its journey.
//!
//! The kernel's address of a packet stays the same through devices, bridges, tunnels and
//! namespaces, until the packet is copied, segmented, fragmented, or merged into another one. The
//! results have other addresses and become further legs of the same journey. A segment is matched
//! by the device that was about to send the whole packet, a copy by its headers, a fragment by its
//! identification. A reassembled packet has the address of the fragment that arrived last.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::event::{Event, Flow, Kind};
use crate::fragments::{Change, Datagram, Fragments, change};
use crate::journey::{Ending, Journey, Leg, Origin, Step};

/// How long to wait for the reader after a socket received a packet.
const READER: Duration = Duration::from_millis(50);
/// How long a packet may go unseen, for example in a queue.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a fragment may wait for the others: IPv6 allows 60 s, IPv4 30 s
/// (`net.ipv4.ipfrag_time`, `net.ipv6.ip6frag_time`).
const REASSEMBLY: Duration = Duration::from_secs(65);
/// Maximum number of open journeys; beyond it, the oldest one is ended.
const MOST: usize = 65_536;
/// Checking this many open journeys takes some ms.
const CROWD: usize = 8192;

/// A leg that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Under {
    journey: u64,
    leg: usize,
}

/// Headers that identify a packet at any address: protocol, sequence number, identification,
/// length, and which fragment it is.
type Identity = (u8, u32, u32, u16, Fragments);

fn identity(event: &Event) -> Option<Identity> {
    let flow = event.flow.as_ref()?;
    Some((flow.protocol, flow.sequence, flow.id, flow.length, Fragments::of(event)))
}

/// Returns whether two events with the same packet address may show the same packet.
fn is_same(earlier: &Flow, later: &Flow) -> bool {
    const TCP: u8 = 6;
    earlier.protocol == later.protocol
        && (earlier.protocol != TCP || earlier.sequence == later.sequence)
        // IPv6 headers and atomic IPv4 packets may have no identification.
        && (earlier.id == later.id || earlier.id == 0 || later.id == 0)
}

/// Returns whether two packets belong to one direction of one connection.
fn is_same_flow(one: &Flow, other: &Flow) -> bool {
    one.protocol == other.protocol
        && one.source == other.source
        && one.destination == other.destination
        && one.ports == other.ports
}

/// Returns whether two events happened at the same place.
fn is_same_place(one: &Event, other: &Event) -> bool {
    (one.kind, one.netns, &one.device) == (other.kind, other.netns, &other.device)
}

/// Returns whether a packet may be a segment of another one.
fn is_part(whole: &Event, part: &Event) -> bool {
    const TCP: u8 = 6;
    // Without headers nothing shows that they belong together.
    let (Some(of), Some(flow)) = (&whole.flow, &part.flow) else { return false };
    let bytes = whole.gso.map_or(0, |(size, packets)| u32::from(size) * u32::from(packets));
    is_same_flow(of, flow)
        // A TCP segment must be within the sequence numbers of the whole packet.
        && (of.protocol != TCP || flow.sequence.wrapping_sub(of.sequence) < bytes)
}

/// Assembles events into journeys.
#[derive(Debug, Default)]
pub struct Journeys {
    count: u64,
    open: BTreeMap<u64, Journey>,
    /// Legs that have not ended, by the kernel's address of the packet.
    under_way: HashMap<u64, Under>,
    /// The leg that was last queued at a device and may be segmented there, by namespace, device
    /// and CPU.
    queued: HashMap<(Option<u32>, u32, u32), Under>,
    /// The newest leg, by identifying headers.
    by_identity: HashMap<Identity, u64>,
    /// The leg that fragments belong to, or the leg of their first fragment if the whole packet was
    /// not seen.
    by_datagram: HashMap<Datagram, Under>,
    /// The leg that each CPU processed last: its fragments may follow.
    newest: HashMap<u32, Under>,
    /// Reassembled datagrams of ended journeys, with the end time: the kernel frees the fragments
    /// later.
    put_together: HashMap<Datagram, u64>,
    /// When each leg was last seen.
    seen: HashMap<u64, u64>,
    /// Packets that entered GRO, by namespace and device.
    merging: HashMap<(Option<u32>, u32), Vec<u64>>,
    /// Journeys that ended besides the one that the current event belongs to.
    ended: Vec<Journey>,
    /// When [`Journeys::settle`] last ran.
    settled: u64,
}

impl Journeys {
    /// Takes events in order of time; returns the journeys that ended.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Journey> {
        let mut ended = Vec::new();
        for event in events {
            let time = event.time;
            if let Some(number) = self.put(event) {
                ended.extend(self.end_of(number));
            }
            ended.append(&mut self.ended);
            // Under a flood the oldest journeys are given up, so that memory is bounded.
            if self.open.len() > MOST {
                ended.extend(self.give_up_oldest());
            }
            ended.extend(self.settle_when_due(time));
        }
        ended
    }

    /// Runs [`Journeys::settle`] unless it ran a moment ago. It checks all legs that have not
    /// ended, so it runs less often when there are many, as after a loss of events.
    pub fn settle_when_due(&mut self, now: u64) -> Vec<Journey> {
        // The check visits all open journeys, so it runs less often if there are many.
        let pause = READER.as_nanos() as u64 * (1 + (self.open.len() / CROWD) as u64);
        if now.saturating_sub(self.settled) <= pause {
            return Vec::new();
        }
        self.settled = now;
        self.settle(now)
    }

    /// Ends all legs whose time limit has expired; `now` in the clock of the events.
    pub fn settle(&mut self, now: u64) -> Vec<Journey> {
        let mut overdue = Vec::new();
        for (skb, under) in &self.under_way {
            let waited = now.saturating_sub(self.seen.get(skb).copied().unwrap_or(0));
            let Some(journey) = self.open.get(&under.journey) else { continue };
            let last = journey.last(under.leg);
            let is_received = last.is_some_and(|e| e.kind == Kind::Socket);
            let is_waiting = last.is_some_and(|event| {
                event.kind == Kind::Received && Fragments::of(event).outermost().is_some()
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
        // Some segments were not seen, for example because they left by another path.
        let is_late = |journey: &&Journey| {
            let last = journey.steps.last().map_or(0, |step| step.event.time);
            journey.legs.iter().all(|leg| leg.ending.is_some())
                && u128::from(now.saturating_sub(last)) >= READER.as_nanos()
        };
        let late: Vec<u64> = self.open.values().filter(is_late).map(|j| j.number).collect();
        ended.extend(late.into_iter().filter_map(|number| self.remove(number)));
        // Forget state of packets that have ended.
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

    /// Returns when the oldest open journey began; `None`: no journey is open.
    pub fn oldest(&self) -> Option<u64> {
        // Journeys are numbered in the order in which they begin.
        let (_, journey) = self.open.first_key_value()?;
        journey.steps.first().map(|step| step.event.time)
    }

    /// Returns whether any followed packet may still be seen, that is, has not reached its socket.
    pub(crate) fn is_under_way(&self) -> bool {
        let is = |under: &Under| {
            let journey = self.open.get(&under.journey);
            let last = journey.and_then(|journey| journey.last(under.leg));
            last.is_some_and(|event| event.kind != Kind::Socket)
        };
        self.under_way.values().any(is)
    }

    pub fn finish(self) -> Vec<Journey> {
        self.ended_by(&Ending::Unseen)
    }

    /// Ends all journeys because the window closed: packets that are under way need not be lost.
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

    /// Adds an event; returns the number of the journey that may have ended with it.
    fn put(&mut self, event: Event) -> Option<u64> {
        let skb = event.skb;
        let known = self.under_way.get(&skb).copied();
        let under = match known {
            Some(under) if !self.is_stale(under, &event) => self.changed(under, &event)?,
            _ => {
                // The end was not seen, and the kernel has reused the memory for another packet.
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
                // GRO may merge it into a later packet; this is known only when that one leaves.
                Kind::Gro => self.merging.entry(place).or_default().push(skb),
                Kind::Received => self.merge(place, &event, under.journey),
                _ => {}
            }
        }
        let ending = self.ending(&event, under);
        self.seen.insert(skb, event.time);
        // Fragments made on this CPU next belong to this packet.
        self.newest.insert(event.cpu, under);
        if let Some(identity) = identity(&event) {
            self.by_identity.insert(identity, skb);
        }
        let journey = self.open.get_mut(&under.journey)?;
        // A packet at no device has no namespace in the event: keep the last known one.
        let netns = event.netns.or_else(|| {
            let of_it = journey.steps.iter().rev().filter(|step| step.leg == under.leg);
            of_it.map(|step| step.event.netns).find(Option::is_some).flatten()
        });
        journey.steps.push(Step { leg: under.leg, event: Event { netns, ..event } });
        ending.and_then(|ending| self.close(skb, ending))
    }

    /// Returns the ending of a leg whose end was not seen.
    fn without_end(&self, under: Under) -> Ending {
        let journey = self.open.get(&under.journey);
        match journey.and_then(|journey| journey.last(under.leg)).map(|event| event.kind) {
            // The kernel frees it without an event.
            Some(Kind::Socket) => Ending::Received,
            _ => Ending::Unseen,
        }
    }

    fn is_stale(&self, under: Under, event: &Event) -> bool {
        // Its journey has been removed.
        let Some(journey) = self.open.get(&under.journey) else { return true };
        let last = journey.steps.iter().rev().find(|step| step.leg == under.leg);
        let Some(last) = last.map(|step| &step.event) else { return true };
        // A packet in a socket goes nowhere else. Headers alone do not show this: datagrams of one
        // flow look the same if they have no identification.
        let is_at_its_end =
            matches!(event.kind, Kind::Socket | Kind::Read | Kind::Dropped | Kind::Consumed);
        // Nothing follows the socket, so the address belongs to another packet.
        if last.kind == Kind::Socket && !is_at_its_end {
            return true;
        }
        let change = change(last, event);
        match (&last.flow, &event.flow, change) {
            (.., Change::Other) => true,
            // An IPv6 packet gets a new identification when it is fragmented again.
            (Some(earlier), Some(later), Change::Refragmented(_)) => {
                earlier.protocol != later.protocol
            }
            (Some(earlier), Some(later), _) => !is_same(earlier, later),
            _ => false,
        }
    }

    /// Returns the leg of a known packet, a new one if it was reassembled or fragmented since.
    fn changed(&mut self, under: Under, event: &Event) -> Option<Under> {
        let journey = self.open.get(&under.journey)?;
        let change = change(journey.last(under.leg)?, event);
        let netns = journey.last_place(under.leg).and_then(|last| last.netns);
        match change {
            // Nothing was reassembled or fragmented.
            Change::None | Change::Other => Some(under),
            Change::Reassembled(outer, inner) => {
                let mut of = outer.into_iter().chain(inner);
                of.try_fold(under, |under, of| self.reassembled(under, of, netns, event.skb))
            }
            Change::Fragmented => self.fragmented(under, event),
            Change::Refragmented(of) => {
                // Both happened between two events.
                let whole = self.reassembled(under, of, netns, event.skb)?;
                self.fragmented(whole, event)
            }
        }
    }

    /// Joins the fragments that wait in this one's namespace into one leg, which has the packet's
    /// address.
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
        // The kernel continues with one packet, so the fragments end here.
        journey.legs.push(Leg { origin: Origin::ReassembledFrom(first), ending: None });
        let whole = Under { leg: journey.legs.len() - 1, ..under };
        self.under_way.insert(skb, whole);
        self.by_datagram.insert(of, whole);
        Some(whole)
    }

    /// Records that a packet became its own first fragment.
    fn fragmented(&mut self, under: Under, event: &Event) -> Option<Under> {
        let fragment = Fragments::of(event).outermost()?;
        let journey = self.open.get_mut(&under.journey)?;
        journey.legs[under.leg].ending = Some(Ending::Fragmented);
        journey.legs.push(Leg { origin: Origin::FragmentOf(under.leg), ending: None });
        let first = Under { leg: journey.legs.len() - 1, ..under };
        self.under_way.insert(event.skb, first);
        self.by_datagram.insert(fragment.of, under);
        Some(first)
    }

    /// Finds the leg that this packet is a fragment of.
    fn fragment_of(&self, event: &Event) -> Option<(usize, u64)> {
        // If only its end was seen, the event says nothing about the packet.
        let fragments = Fragments::of(event);
        let fragment = fragments.outermost().filter(|_| event.kind != Kind::Consumed)?;
        if let Some(under) = self.by_datagram.get(&fragment.of) {
            // The same fragment at the same place again: the identification was reused for a new
            // packet.
            let was_there = |step: &Step| {
                is_same_place(&step.event, event)
                    && Fragments::of(&step.event).outermost() == Some(fragment)
            };
            let journey = self.open.get(&under.journey)?;
            let is_another = journey.steps.iter().any(was_there);
            return (!is_another).then_some((under.leg, under.journey));
        }
        let known = || {
            // The tunnel's payload is itself a fragment, of a packet that was seen.
            let under = self.by_datagram.get(&fragments.of_whole().outermost()?.of)?;
            Some((under.leg, under.journey))
        };
        self.cut_on_cpu(event, fragments).or_else(known)
    }

    /// Returns the leg that this CPU processed last, if the packet is its first fragment: the
    /// kernel sends the fragments of a packet before it frees the packet.
    fn cut_on_cpu(&self, event: &Event, fragments: Fragments) -> Option<(usize, u64)> {
        // Later fragments are found by their identification.
        let is_first = fragments.outermost()?.offset == 0;
        let under = *self.newest.get(&event.cpu).filter(|_| is_first)?;
        let whole = self.open.get(&under.journey)?.last(under.leg)?;
        let (of, flow) = (whole.flow.as_ref()?, event.flow.as_ref()?);
        let is_of = is_same_flow(of, flow)
            && is_same(of, flow)
            && Fragments::of(whole) == fragments.of_whole();
        is_of.then_some((under.leg, under.journey))
    }

    /// Returns whether the event frees a fragment together with its reassembled packet: the kernel
    /// reports each of them.
    fn is_freed_with_whole(&self, event: &Event) -> bool {
        let Some(fragment) = Fragments::of(event).outermost() else { return false };
        let is_whole = |under: &Under| {
            let journey = self.open.get(&under.journey);
            let leg = journey.and_then(|journey| journey.legs.get(under.leg));
            leg.is_some_and(|leg| matches!(leg.origin, Origin::ReassembledFrom(_)))
        };
        matches!(event.kind, Kind::Dropped | Kind::Consumed)
            && (self.put_together.contains_key(&fragment.of)
                || self.by_datagram.get(&fragment.of).is_some_and(is_whole))
    }

    /// Creates a leg for a packet with a new address.
    fn begin(&mut self, event: &Event) -> Option<Under> {
        // The reassembled packet has already ended, so this is not a new packet.
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
                if let (Origin::FragmentOf(leg), Some(fragment)) =
                    (origin, Fragments::of(event).outermost())
                {
                    self.by_datagram.insert(fragment.of, Under { journey: number, leg });
                }
                Under { journey: number, leg: journey.legs.len() - 1 }
            }
            // Its start was not seen: every packet is queued before it is sent.
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
                let of = Fragments::of(event).iter().map(|fragment| (fragment.of, under));
                self.by_datagram.extend(of);
                under
            }
        };
        self.under_way.insert(event.skb, under);
        Some(under)
    }

    /// Returns the leg that was just queued at the device, if this packet is a segment of it.
    fn cut_from(&self, event: &Event) -> Option<(usize, u64)> {
        // The kernel segments a packet between the queue and the driver.
        if event.kind != Kind::Sent {
            return None;
        }
        let (index, _) = event.device.as_ref()?;
        let under = self.queued.get(&(event.netns, *index, event.cpu))?;
        let journey = self.open.get(&under.journey)?;
        // The kernel frees the whole packet before it sends the segments.
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

    /// Returns the leg with the same headers.
    fn copied_from(&self, event: &Event) -> Option<(usize, u64)> {
        let known = self.by_identity.get(&identity(event)?)?;
        let under = self.under_way.get(known)?;
        let journey = self.open.get(&under.journey)?;
        let last = journey.last(under.leg)?;
        // The same headers at the same place: another datagram of the same length, not a copy.
        let is_of = is_same_flow(last.flow.as_ref()?, event.flow.as_ref()?)
            && !journey.steps.iter().any(|step| is_same_place(&step.event, event));
        is_of.then_some((under.leg, under.journey))
    }

    /// A packet left GRO: the packets that entered before it and did not leave were merged into it.
    fn merge(&mut self, place: (Option<u32>, u32), event: &Event, into: u64) {
        // No followed packet entered GRO at this device.
        let Some(waiting) = self.merging.get_mut(&place) else { return };
        waiting.retain(|skb| *skb != event.skb);
        // A single packet contains no others.
        let (Some(flow), true) = (&event.flow, event.packets() > 1) else { return };
        let is_of = |skb: &u64| {
            let under = self.under_way.get(skb)?;
            let last = self.open.get(&under.journey)?.last(under.leg)?;
            (last.kind == Kind::Gro && is_same_flow(last.flow.as_ref()?, flow)).then_some(())
        };
        let mut merged: Vec<u64> =
            waiting.iter().copied().filter(|skb| is_of(skb).is_some()).collect();
        // It cannot contain more packets than its GSO count says.
        merged.truncate(usize::from(event.packets()) - 1);
        waiting.retain(|skb| !merged.contains(skb));
        for skb in merged {
            if let Some(number) = self.close(skb, Ending::MergedInto(into)) {
                let ended = self.end_of(number);
                self.ended.extend(ended);
            }
        }
    }

    /// Returns how the leg ends with this event; `None` if it goes on.
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
                    // A GSO packet freed after queueing was replaced by its segments.
                    (Kind::Queued, Some(_)) if last.packets() > 1 => Ending::Cut,
                    // Freed by the driver after sending.
                    (Kind::Sent, Some((_, device))) => Ending::Left(device.clone()),
                    (Kind::Socket, _) => Ending::Received,
                    _ => Ending::Consumed,
                })
            }
            _ => None,
        }
    }

    /// Ends a leg; returns the number of its journey.
    fn close(&mut self, skb: u64, ending: Ending) -> Option<u64> {
        let under = self.under_way.remove(&skb)?;
        self.seen.remove(&skb);
        let journey = self.open.get_mut(&under.journey)?;
        journey.legs[under.leg].ending.get_or_insert(ending);
        Some(under.journey)
    }

    fn end_of(&mut self, number: u64) -> Option<Journey> {
        let journey = self.open.get(&number)?;
        // Other copies, segments or fragments are still under way.
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
            for fragment in Fragments::of(event).iter() {
                let Some(under) = self.by_datagram.get(&fragment.of) else { continue };
                if under.journey != number {
                    continue;
                }
                // Keep the datagram for a while, because its fragments are freed later.
                if matches!(journey.legs[under.leg].origin, Origin::ReassembledFrom(_)) {
                    self.put_together.insert(fragment.of, ended);
                }
                self.by_datagram.remove(&fragment.of);
            }
        }
        Some(journey)
    }

    fn give_up_oldest(&mut self) -> Option<Journey> {
        let (number, journey) = self.open.first_key_value()?;
        let number = *number;
        // Look only at the addresses of this journey: a search through all open legs for each new
        // packet would be slower than packets arrive.
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
