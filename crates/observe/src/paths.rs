//! Groups the journeys of one interval by their path.

use std::collections::HashMap;

use crate::event::{Checksum, Event, Kind, Tunnel};
use crate::explain;
use crate::journey::{Ending, Journey, Origin};
use crate::record::{Addresses, Names};
use crate::snapshot::{HopSeen, Latency, PathSeen, Rates, Side};

/// Paths shown per interval; packets of further paths are only counted.
const MOST: usize = 64;

/// A place, by the kernel's numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// Inode of the network namespace.
    pub netns: Option<u32>,
    /// Index and name of the device.
    pub device: Option<(u32, String)>,
    pub side: Side,
}

/// Statistics of the followed packets at a place.
#[derive(Debug, Default)]
pub(crate) struct PlaceTotals {
    pub packets: u64,
    pub bytes: u64,
    /// Packets that they stand for (GSO).
    pub gso_packets: u64,
    pub cut: u64,
    pub merged: u64,
    pub checksummed: u64,
    within: Option<Tunnel>,
    /// Times since the previous hop, ns.
    pub since_before: Vec<u64>,
    /// Times spent at this place, ns.
    pub waited: Vec<u64>,
}

#[derive(Debug, Default)]
struct PathState {
    packets: u64,
    example: Option<Addresses>,
    endings: HashMap<String, u64>,
    seen: Vec<PlaceTotals>,
    took: Vec<u64>,
}

/// A path, for totals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneWay<'a> {
    places: &'a [Place],
    seen: &'a [PlaceTotals],
    /// Packets that took this path.
    pub packets: u64,
    /// Times from the first place to the last, ns.
    pub took: &'a [u64],
}

impl<'a> OneWay<'a> {
    pub fn hops(&self) -> impl Iterator<Item = (&'a Place, &'a PlaceTotals)> {
        self.places.iter().zip(self.seen)
    }
}

/// Paths of one interval.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    paths: HashMap<Vec<Place>, PathState>,
    /// Packets of paths for which there was no room.
    pub others: u64,
    /// Number of packets over all paths.
    pub followed: u64,
}

/// A stay at one place: its events. They begin with those of the whole packet if it was segmented
/// there.
struct Stay<'a> {
    place: Place,
    events: Vec<&'a Event>,
    is_cut: bool,
}

fn side(kind: Kind) -> Option<Side> {
    match kind {
        Kind::Queued | Kind::Sent => Some(Side::Tx),
        Kind::Backlog | Kind::Gro | Kind::Received => Some(Side::Rx),
        Kind::Socket | Kind::Read => Some(Side::Socket),
        Kind::Dropped => Some(Side::Drop),
        // The place of the free is not part of the path.
        Kind::Consumed => None,
    }
}

/// Returns the stays of a journey: those of its first packet, then of the first segment or fragment
/// of that, and so on.
fn stays<'a>(journey: &'a Journey, names: &dyn Names) -> (Vec<Stay<'a>>, Option<&'a Ending>) {
    let mut stays: Vec<Stay<'a>> = Vec::new();
    let mut leg = 0;
    loop {
        let mut is_first =
            matches!(journey.legs[leg].origin, Origin::SegmentOf(_) | Origin::FragmentOf(_));
        for step in journey.steps.iter().filter(|step| step.leg == leg) {
            let Some(side) = side(step.event.kind) else { continue };
            let device = match side {
                Side::Rx | Side::Tx | Side::Drop => step.event.device.clone(),
                // The device is the one that the packet came from, not where the socket is.
                Side::Socket => None,
            };
            let place = Place { netns: step.event.netns, device, side };
            match stays.last_mut().filter(|stay| stay.place == place) {
                Some(stay) => {
                    stay.events.push(&step.event);
                    stay.is_cut |= is_first;
                }
                None => stays.push(Stay { place, events: vec![&step.event], is_cut: false }),
            }
            is_first = false;
        }
        // Legs made from a leg have a higher index. The path continues with the reassembled packet,
        // or else with the first segment or fragment.
        let later = |is_next: &dyn Fn(Origin) -> bool| {
            let mut after = journey.legs.iter().enumerate().skip(leg + 1);
            after.find(|(_, other)| is_next(other.origin)).map(|(at, _)| at)
        };
        let ending = journey.legs[leg].ending.as_ref();
        let next = match ending {
            Some(Ending::Reassembled) => {
                later(&|origin| matches!(origin, Origin::ReassembledFrom(_)))
            }
            Some(Ending::Fragmented) => later(&|origin| origin == Origin::FragmentOf(leg)),
            _ => later(&|origin| origin == Origin::SegmentOf(leg)),
        };
        match next {
            Some(next) => leg = next,
            None => {
                if let Some(stay) = stays.last_mut().filter(|_| is_used(ending, names)) {
                    // A socket had received it before.
                    stay.place = Place { device: None, side: Side::Socket, ..stay.place };
                }
                return (stays, ending);
            }
        }
    }
}

/// Returns the places of a journey, in order.
pub(crate) fn places(journey: &Journey, names: &dyn Names) -> impl Iterator<Item = Place> {
    stays(journey, names).0.into_iter().map(|stay| stay.place)
}

/// Describes the drop that a journey ended with; `None`: it ended otherwise.
pub(crate) fn dropped(journey: &Journey, names: &dyn Names) -> Option<String> {
    let (_, ending) = stays(journey, names);
    let is_dropped = matches!(ending, Some(Ending::Dropped(..))) && !is_used(ending, names);
    is_dropped.then(|| words(ending, names))
}

/// Whether the packet had been used when the kernel dropped it.
fn is_used(ending: Option<&Ending>, names: &dyn Names) -> bool {
    match ending {
        Some(Ending::Dropped(reason, location)) => {
            explain::is_used(&names.reason(*reason), names.function(*location).as_deref())
        }
        _ => false,
    }
}

impl Paths {
    pub fn add(&mut self, journey: &Journey, names: &dyn Names) {
        let (stays, ending) = stays(journey, names);
        // Only the free was seen, so there is no path.
        if stays.is_empty() {
            return;
        }
        self.followed += 1;
        let key: Vec<Place> = stays.iter().map(|stay| stay.place.clone()).collect();
        // The number of paths is limited; packets of further paths are only counted.
        if !self.paths.contains_key(&key) && self.paths.len() >= MOST {
            self.others += 1;
            return;
        }
        let path = self.paths.entry(key).or_default();
        path.packets += 1;
        // One flow is enough to recognise the path.
        if path.example.is_none() {
            path.example = journey.flow().as_ref().map(Addresses::from);
        }
        *path.endings.entry(words(ending, names)).or_default() += 1;
        path.took.push(journey.took());
        path.seen.resize_with(stays.len(), PlaceTotals::default);
        let mut before: Option<&Event> = None;
        for (seen, stay) in path.seen.iter_mut().zip(&stays) {
            seen.add(stay, before);
            before = stay.events.last().copied();
        }
    }

    /// Iterates over the paths, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = OneWay<'_>> {
        self.paths.iter().map(|(places, path)| OneWay {
            places,
            seen: &path.seen,
            packets: path.packets,
            took: &path.took,
        })
    }

    /// Returns the paths for display, the one with most packets first. `counted` returns what a
    /// device counted on a side, and how many packets are in its queue.
    pub fn into_seen(
        self,
        names: &dyn Names,
        counted: &dyn Fn(u32, u32, Side) -> (Option<Rates>, Option<u32>),
    ) -> Vec<PathSeen> {
        let mut paths: Vec<(Vec<Place>, PathState)> = self.paths.into_iter().collect();
        // Ties are ordered by place, so that the order does not change between intervals.
        paths.sort_by_cached_key(|(places, path)| (u64::MAX - path.packets, format!("{places:?}")));
        let shown = paths.into_iter().map(|(places, path)| {
            let hops = places.iter().zip(path.seen).map(|(place, seen)| {
                let device = place.netns.zip(place.device.as_ref());
                let known = device.map(|(netns, device)| counted(netns, device.0, place.side));
                seen.hop(place, names.namespace(place.netns), known.unwrap_or_default())
            });
            let ending = path.endings.into_iter().max_by_key(|(name, n)| (*n, name.clone()));
            PathSeen {
                packets: path.packets,
                example: path.example,
                ending: ending.map(|(name, _)| name).unwrap_or_default(),
                hops: hops.collect(),
                took: Latency::of(path.took),
            }
        });
        shown.collect()
    }
}

impl PlaceTotals {
    fn add(&mut self, stay: &Stay<'_>, before: Option<&Event>) {
        let [first, .., last] = stay.events[..] else {
            // One event is both the first and the last of its stay.
            let Some(only) = stay.events.first() else { return };
            return self.add_between(stay, only, only, before);
        };
        self.add_between(stay, first, last, before);
    }

    fn add_between(
        &mut self,
        stay: &Stay<'_>,
        first: &Event,
        last: &Event,
        before: Option<&Event>,
    ) {
        self.packets += 1;
        self.bytes += u64::from(first.bytes);
        self.gso_packets += u64::from(first.packets());
        self.cut += u64::from(stay.is_cut);
        self.merged += u64::from(last.packets() > first.packets());
        let is_partial = |event: &Event| event.checksum == Checksum::Partial;
        self.checksummed +=
            u64::from(stay.place.side == Side::Tx && is_partial(first) && !is_partial(last));
        self.within = first.tunnel;
        if let Some(before) = before {
            self.since_before.push(first.time.saturating_sub(before.time));
        }
        if stay.events.len() > 1 {
            self.waited.push(last.time.saturating_sub(first.time));
        }
    }

    fn hop(
        self,
        place: &Place,
        namespace: String,
        (counted, queued): (Option<Rates>, Option<u32>),
    ) -> HopSeen {
        let packets = self.packets.max(1) as f64;
        let share = |of: u64| of as f64 / packets;
        HopSeen {
            namespace,
            device: place.device.as_ref().map(|(_, name)| name.clone()),
            side: place.side,
            bytes: share(self.bytes),
            gso_packets: share(self.gso_packets),
            cut: share(self.cut),
            merged: share(self.merged),
            checksummed: share(self.checksummed),
            encapsulation: self.within.map(|tunnel| tunnel.encapsulation),
            vni: self.within.and_then(|tunnel| tunnel.vni),
            since_before: Latency::of(self.since_before),
            waited: Latency::of(self.waited),
            queued,
            counted,
        }
    }
}

fn words(ending: Option<&Ending>, names: &dyn Names) -> String {
    match ending {
        Some(Ending::Read(_, command)) => format!("read by {command}"),
        Some(Ending::Received) => "received".to_owned(),
        Some(Ending::Dropped(..)) if is_used(ending, names) => "received".to_owned(),
        Some(Ending::Dropped(reason, _)) => format!("dropped: {}", names.reason(*reason)),
        Some(Ending::Left(device)) => format!("left through {device}"),
        Some(Ending::Consumed) => "consumed".to_owned(),
        Some(Ending::Cut) => "segmented".to_owned(),
        Some(Ending::Fragmented) => "fragmented".to_owned(),
        Some(Ending::Reassembled) => "reassembled".to_owned(),
        Some(Ending::MergedInto(_)) => "merged".to_owned(),
        Some(Ending::UnderWay) => "still under way after 50 ms".to_owned(),
        Some(Ending::Unseen) | None => "not seen again".to_owned(),
    }
}
