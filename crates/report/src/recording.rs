//! Aggregates a recording of `overlane watch` while it is read.
//!
//! A recording may span weeks and come from an untrusted party, so memory is bounded. The time line
//! has at most [`MOMENTS`] moments, each covering more intervals the longer the recording is. There
//! are at most [`MOST_PATHS`] paths and [`MOST_DROPS`] places of drops. The rest is only counted.
//!
//! Percentiles over several intervals cannot be computed from those of each interval. For the
//! median, the mean over packets is reported; for other percentiles, the largest value.

use std::collections::{BTreeMap, BTreeSet};

use observe::{
    DropSeen, Encapsulation, HopSeen, Latency, PathSeen, PeerSeen, Rates, Side, Snapshot,
};

use crate::recording_cpu::Cpus;
use crate::recording_peer;
use crate::style::{named, plain};

/// Most moments of the time line.
pub(crate) const MOMENTS: usize = 256;
/// Most paths. A path with more packets replaces one with fewer.
const MOST_PATHS: usize = 32;
const MOST_HOPS: usize = 48;
/// Most places and reasons of drops.
const MOST_DROPS: usize = 128;
/// Most notes about objects that could not be observed.
const MOST_NOT_SEEN: usize = 32;
const MOST_ENDINGS: usize = 16;

/// Figures of one object by moment.
pub(crate) type Series<T> = BTreeMap<usize, T>;

/// Figures that can be combined over several intervals.
trait Merge {
    fn merge(&mut self, other: &Self);
}

fn add<T: Merge + Clone>(series: &mut Series<T>, at: usize, figures: T) {
    match series.get_mut(&at) {
        Some(there) => there.merge(&figures),
        None => drop(series.insert(at, figures)),
    }
}

/// Merges each two moments into one.
fn halve<T: Merge + Clone>(series: &mut Series<T>) {
    for (at, figures) in std::mem::take(series) {
        add(series, at / 2, figures);
    }
}

/// A part of the recording's time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Moment {
    /// End, seconds since 1970.
    pub(crate) end_s: f64,
    pub(crate) seconds: f64,
    pub(crate) followed: u64,
    pub(crate) events: u64,
    pub(crate) lost: u64,
    /// Percent of a CPU, times seconds.
    cpu: f64,
    /// Smallest and largest N of sampling 1 packet in N.
    pub(crate) sample: (u32, u32),
    /// Seconds during which packets were selected to be followed.
    looked: f64,
}

impl Moment {
    /// CPU time of the program, percent of one CPU.
    pub(crate) fn cpu(&self) -> f64 {
        self.cpu / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Share of the time during which packets were selected to be followed.
    pub(crate) fn looked(&self) -> f64 {
        self.looked / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl Merge for Moment {
    fn merge(&mut self, other: &Moment) {
        self.end_s = other.end_s;
        self.seconds += other.seconds;
        self.followed = self.followed.saturating_add(other.followed);
        self.events = self.events.saturating_add(other.events);
        self.lost = self.lost.saturating_add(other.lost);
        self.cpu += other.cpu;
        self.looked += other.looked;
        let (least, most) = other.sample;
        self.sample = (self.sample.0.min(least), self.sample.1.max(most));
    }
}

/// Packet times over several intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Times {
    count: u64,
    /// Sum over packets of the medians, ns.
    medians: f64,
    p99_ns: u64,
    p999_ns: u64,
}

impl Times {
    fn of(latency: &Latency) -> Times {
        Times {
            count: latency.count,
            medians: latency.count as f64 * latency.p50_ns as f64,
            p99_ns: latency.p99_ns,
            p999_ns: latency.p999_ns,
        }
    }

    /// Combines the times: mean of the medians, maximum of other percentiles. `None` without a
    /// packet.
    pub(crate) fn latency(&self) -> Option<Latency> {
        (self.count > 0).then(|| Latency {
            count: self.count,
            p50_ns: (self.medians / self.count as f64) as u64,
            p99_ns: self.p99_ns,
            p999_ns: self.p999_ns,
        })
    }
}

impl Merge for Times {
    fn merge(&mut self, other: &Times) {
        self.count = self.count.saturating_add(other.count);
        self.medians += other.medians;
        self.p99_ns = self.p99_ns.max(other.p99_ns);
        self.p999_ns = self.p999_ns.max(other.p999_ns);
    }
}

/// Figures of packets at a hop over several intervals.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Figures {
    packets: f64,
    bytes: f64,
    gso_packets: f64,
    cut: f64,
    merged: f64,
    checksummed: f64,
    pub(crate) since_before: Times,
    waited: Times,
    /// Most packets in the device's queue.
    queued: Option<u32>,
    /// Seconds covered by the device's counters, and the counts.
    counted_s: f64,
    counted: [f64; 3],
}

impl Figures {
    fn of(hop: &HopSeen, packets: u64, seconds: f64) -> Figures {
        let packets = packets as f64;
        let rates = hop.counted.as_ref();
        let of = |figure: f64| packets * at_least_zero(figure);
        let counted =
            |of: fn(&Rates) -> f64| rates.map_or(0.0, |rates| seconds * at_least_zero(of(rates)));
        Figures {
            packets,
            bytes: of(hop.bytes),
            gso_packets: of(hop.gso_packets),
            cut: of(hop.cut),
            merged: of(hop.merged),
            checksummed: of(hop.checksummed),
            since_before: Times::of(&hop.since_before),
            waited: Times::of(&hop.waited),
            queued: hop.queued,
            counted_s: rates.map_or(0.0, |_| seconds),
            counted: [
                counted(|rates| rates.packets_per_s),
                counted(|rates| rates.bytes_per_s),
                counted(|rates| rates.dropped_per_s),
            ],
        }
    }

    pub(crate) fn counted(&self) -> Option<Rates> {
        let [packets, bytes, dropped] = self.counted.map(|count| count / self.counted_s);
        let rates = Rates { packets_per_s: packets, bytes_per_s: bytes, dropped_per_s: dropped };
        (self.counted_s > 0.0).then_some(rates)
    }

    fn hop(&self, place: &HopKey, (encapsulation, vni): Within) -> HopSeen {
        // Avoids 0 ÷ 0 without packets.
        let share = |of: f64| of / self.packets.max(1.0);
        HopSeen {
            namespace: place.0.clone(),
            device: place.1.clone(),
            side: place.2,
            bytes: share(self.bytes),
            gso_packets: share(self.gso_packets),
            cut: share(self.cut),
            merged: share(self.merged),
            checksummed: share(self.checksummed),
            encapsulation,
            vni,
            since_before: self.since_before.latency().unwrap_or_default(),
            waited: self.waited.latency().unwrap_or_default(),
            queued: self.queued,
            counted: self.counted(),
        }
    }
}

impl Merge for Figures {
    fn merge(&mut self, other: &Figures) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.gso_packets += other.gso_packets;
        self.cut += other.cut;
        self.merged += other.merged;
        self.checksummed += other.checksummed;
        self.since_before.merge(&other.since_before);
        self.waited.merge(&other.waited);
        self.queued = self.queued.max(other.queued);
        self.counted_s += other.counted_s;
        for (own, other) in self.counted.iter_mut().zip(other.counted) {
            *own += other;
        }
    }
}

impl Merge for u64 {
    fn merge(&mut self, other: &u64) {
        *self = self.saturating_add(*other);
    }
}

type HopKey = (String, Option<String>, Side);

/// A path over the whole recording.
#[derive(Debug)]
pub(crate) struct RecordedPath {
    pub(crate) packets: u64,
    example: Option<observe::Addresses>,
    endings: BTreeMap<String, u64>,
    took: Times,
    pub(crate) hops: Vec<Hop>,
}

/// Tunnel around the packets, and its VNI.
type Within = (Option<Encapsulation>, Option<u32>);

#[derive(Debug)]
pub(crate) struct Hop {
    place: HopKey,
    within: Within,
    pub(crate) figures: Series<Figures>,
}

impl Hop {
    pub(crate) fn name(&self) -> String {
        let (namespace, device, side) = &self.place;
        format!("{namespace} {} {}", device.as_deref().unwrap_or("-"), side.name())
    }
}

impl RecordedPath {
    /// Figures over the whole time.
    pub(crate) fn seen(&self) -> PathSeen {
        let hops = self.hops.iter().map(|hop| {
            let mut all = Figures::default();
            hop.figures.values().for_each(|figures| all.merge(figures));
            all.hop(&hop.place, hop.within)
        });
        let ending = self.endings.iter().max_by_key(|(_, packets)| **packets);
        PathSeen {
            packets: self.packets,
            example: self.example.clone(),
            ending: ending.map(|(ending, _)| ending.clone()).unwrap_or_default(),
            hops: hops.collect(),
            took: self.took.latency().unwrap_or_default(),
        }
    }
}

/// A recording, as far as it was read.
#[derive(Debug, Default)]
pub struct Recording {
    pub(crate) intervals: u64,
    /// Intervals per moment: a power of two.
    stride: u64,
    /// Beginning of the first interval, seconds since 1970.
    pub(crate) begin_s: f64,
    pub(crate) moments: Series<Moment>,
    paths: BTreeMap<Vec<HopKey>, RecordedPath>,
    /// Followed packets of paths that are not kept.
    pub(crate) other_paths: u64,
    /// By namespace, device, reason and function.
    drops: BTreeMap<[String; 4], DropSeen>,
    /// Drops at places that are not kept.
    pub(crate) other_drops: u64,
    /// Drops by reason over time.
    pub(crate) reasons: BTreeMap<String, Series<u64>>,
    /// Largest CPU time in an interval, percent of one CPU, and the latest limit.
    pub(crate) most_cpu: f64,
    pub(crate) budget: f64,
    pub(crate) not_seen: BTreeSet<String>,
    pub(crate) cpus: Cpus,
    /// Latest data from the peer, if one was queried.
    pub(crate) peer: Option<PeerSeen>,
}

impl Recording {
    /// Adds the next interval.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let seconds = at_least_zero(snapshot.seconds);
        if self.intervals == 0 {
            self.stride = 1;
            self.begin_s = at_least_zero(at_least_zero(snapshot.time_s) - seconds);
        }
        let mut at = self.intervals / self.stride;
        // All moments are in use: halve them, so that memory stays bounded.
        if at >= MOMENTS as u64 {
            self.halve();
            at /= 2;
        }
        let at = at as usize;
        self.intervals += 1;
        let cpu = at_least_zero(snapshot.own_cpu);
        let moment = Moment {
            end_s: at_least_zero(snapshot.time_s),
            seconds,
            followed: snapshot.followed,
            events: snapshot.events,
            lost: snapshot.events_lost,
            cpu: cpu * seconds,
            sample: (snapshot.sample, snapshot.sample),
            looked: at_least_zero(snapshot.looked).min(1.0) * seconds,
        };
        add(&mut self.moments, at, moment);
        (self.most_cpu, self.budget) = (self.most_cpu.max(cpu), at_least_zero(snapshot.budget));
        self.other_paths = self.other_paths.saturating_add(snapshot.other_paths);
        snapshot.paths.iter().for_each(|path| self.add_path(path, at, seconds));
        snapshot.drops.iter().for_each(|drop| self.add_drop(drop, at));
        self.cpus.add(&snapshot.cpus, seconds);
        if let Some(peer) = &snapshot.peer {
            self.peer = Some(recording_peer::kept(peer));
        }
        for not_seen in &snapshot.not_seen {
            // The file may hold any number of notes.
            if self.not_seen.len() < MOST_NOT_SEEN {
                self.not_seen.insert(named(not_seen));
            }
        }
    }

    /// Halves the number of moments, so that each covers twice as many intervals.
    fn halve(&mut self) {
        self.stride *= 2;
        halve(&mut self.moments);
        self.paths
            .values_mut()
            .flat_map(|path| &mut path.hops)
            .for_each(|hop| halve(&mut hop.figures));
        self.reasons.values_mut().for_each(halve);
    }

    fn add_path(&mut self, path: &PathSeen, at: usize, seconds: f64) {
        let hops = || path.hops.iter().take(MOST_HOPS);
        let place =
            |hop: &HopSeen| (named(&hop.namespace), hop.device.as_deref().map(named), hop.side);
        let places: Vec<HopKey> = hops().map(place).collect();
        if !self.paths.contains_key(&places) && self.paths.len() >= MOST_PATHS {
            // Replace the path with the fewest packets, unless the new one has no more.
            let fewest = self.paths.iter().min_by_key(|(_, path)| path.packets);
            let fewest = fewest.map(|(places, fewest)| (places.clone(), fewest.packets));
            let Some((fewest, packets)) = fewest else { return };
            // The new path has no more packets than any kept one, so only count it.
            if packets >= path.packets {
                self.other_paths = self.other_paths.saturating_add(path.packets);
                return;
            }
            self.other_paths = self.other_paths.saturating_add(packets);
            self.paths.remove(&fewest);
        }
        let fresh = || RecordedPath {
            packets: 0,
            example: path.example.as_ref().map(|example| observe::Addresses {
                source: named(&example.source),
                destination: named(&example.destination),
                protocol: named(&example.protocol),
                ..*example
            }),
            endings: BTreeMap::new(),
            took: Times::default(),
            hops: places
                .iter()
                .map(|place| Hop {
                    place: place.clone(),
                    within: (None, None),
                    figures: Series::new(),
                })
                .collect(),
        };
        let total = self.paths.entry(places.clone()).or_insert_with(fresh);
        total.packets = total.packets.saturating_add(path.packets);
        total.took.merge(&Times::of(&path.took));
        let ending = named(&path.ending);
        if total.endings.len() < MOST_ENDINGS || total.endings.contains_key(&ending) {
            total.endings.entry(ending).or_default().merge(&path.packets);
        }
        for (own, hop) in total.hops.iter_mut().zip(hops()) {
            // Keep the tunnel once it is known.
            if hop.encapsulation.is_some() {
                own.within = (hop.encapsulation, hop.vni);
            }
            add(&mut own.figures, at, Figures::of(hop, path.packets, seconds));
        }
    }

    fn add_drop(&mut self, seen: &DropSeen, at: usize) {
        let [namespace, reason] = [&seen.namespace, &seen.reason].map(|text| named(text));
        let device = seen.device.as_deref().map(named);
        let function = seen.function.as_deref().map(named);
        if self.reasons.len() < MOST_DROPS || self.reasons.contains_key(&reason) {
            add(self.reasons.entry(reason.clone()).or_default(), at, seen.packets);
        }
        let texts = [device.clone(), function.clone()].map(Option::unwrap_or_default);
        let [at_device, by] = texts;
        let key = [namespace.clone(), at_device, reason.clone(), by];
        // No room for another place: only count its packets.
        if self.drops.len() >= MOST_DROPS && !self.drops.contains_key(&key) {
            self.other_drops = self.other_drops.saturating_add(seen.packets);
            return;
        }
        let fresh = || DropSeen {
            namespace,
            device,
            reason,
            function,
            packets: 0,
            meaning: seen.meaning.as_deref().map(|text| plain(text).chars().take(512).collect()),
            check: seen.check.as_deref().map(named),
        };
        let total = self.drops.entry(key).or_insert_with(fresh);
        total.packets = total.packets.saturating_add(seen.packets);
    }

    pub(crate) fn whole(&self) -> Moment {
        let mut moments = self.moments.values();
        let mut whole = moments.next().copied().unwrap_or_default();
        moments.for_each(|moment| whole.merge(moment));
        whole
    }

    /// Returns the paths, most packets first.
    pub(crate) fn paths(&self) -> Vec<&RecordedPath> {
        let mut paths: Vec<&RecordedPath> = self.paths.values().collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.packets));
        paths
    }

    /// Returns the drops, most packets first.
    pub(crate) fn drops(&self) -> Vec<&DropSeen> {
        let mut drops: Vec<&DropSeen> = self.drops.values().collect();
        drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
        drops
    }
}

fn at_least_zero(figure: f64) -> f64 {
    // The upper limit keeps sums finite.
    figure.clamp(0.0, 1e15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(ns: u64) -> Latency {
        Latency { count: 2, p50_ns: ns, p99_ns: 2 * ns, p999_ns: 3 * ns }
    }

    fn snapshot(number: u64, path: &str) -> Snapshot {
        let hop = HopSeen {
            namespace: path.to_owned(),
            device: Some("eth0".to_owned()),
            side: Side::Tx,
            bytes: 100.0,
            gso_packets: 1.0,
            cut: 0.5,
            merged: 0.0,
            checksummed: 0.0,
            encapsulation: None,
            vni: None,
            since_before: latency(1000 + number),
            waited: Latency::default(),
            queued: Some(number as u32),
            counted: Some(Rates { packets_per_s: 10.0, bytes_per_s: 1.0, dropped_per_s: 0.0 }),
        };
        let path = PathSeen {
            packets: 2,
            example: None,
            ending: "received".to_owned(),
            hops: vec![hop],
            took: latency(5000),
        };
        let drop = DropSeen {
            namespace: path.hops[0].namespace.clone(),
            device: None,
            reason: "REASON".to_owned(),
            function: None,
            packets: 3,
            meaning: None,
            check: None,
        };
        Snapshot {
            format: observe::FORMAT,
            time_s: 1000.0 + number as f64,
            seconds: 1.0,
            sample: 1 + number as u32 % 7,
            looked: (number % 2) as f64,
            followed: 2,
            events: 10,
            events_lost: 1,
            own_cpu: 1.0,
            kernel_cpu: 0.5,
            budget: 2.0,
            paths: vec![path],
            other_paths: 0,
            drops: vec![drop],
            flow_drops: None,
            not_seen: Vec::new(),
            cpus: Vec::new(),
            peer: None,
        }
    }

    #[test]
    fn a_long_recording_has_few_moments_and_loses_no_packet() {
        let mut recording = Recording::default();
        let intervals = 5 * MOMENTS as u64 + 3;
        (0..intervals).for_each(|number| recording.add(&snapshot(number, "a")));
        assert!(recording.moments.len() <= MOMENTS && recording.moments.len() > MOMENTS / 4);
        let whole = recording.whole();
        assert_eq!((whole.followed, whole.lost, whole.sample), (2 * intervals, intervals, (1, 7)));
        assert_eq!((recording.begin_s, whole.end_s), (999.0, 999.0 + intervals as f64));
        assert!((whole.looked() - 0.5).abs() < 1e-3, "{}", whole.looked());
        assert!((whole.cpu() - 1.0).abs() < 1e-9 && whole.seconds == intervals as f64);
        let [path] = recording.paths()[..] else { panic!("one path") };
        assert_eq!(path.hops[0].figures.len(), recording.moments.len());
        let seen = path.seen();
        assert_eq!((seen.packets, seen.hops[0].cut, seen.took.p50_ns), (2 * intervals, 0.5, 5000));
        assert_eq!(seen.hops[0].since_before.p99_ns, 2 * (1000 + intervals - 1));
        assert_eq!(seen.hops[0].queued.map(u64::from), Some(intervals - 1), "the most");
        assert_eq!(seen.hops[0].since_before.p50_ns, 1000 + (intervals - 1) / 2);
        assert!((seen.hops[0].counted.unwrap().packets_per_s - 10.0).abs() < 1e-9);
        let dropped: u64 = recording.reasons.values().flat_map(|series| series.values()).sum();
        assert_eq!((dropped, recording.drops()[0].packets), (3 * intervals, 3 * intervals));
    }

    #[test]
    fn ways_and_drops_are_bounded_and_the_busiest_way_stays() {
        let mut recording = Recording::default();
        for number in 0..500 {
            recording.add(&snapshot(number, &format!("{number}{}", "x".repeat(4000))));
            if number >= 250 {
                recording.add(&snapshot(number, "busy"));
            }
        }
        // An equal number of packets does not replace a path; this larger one would.
        let mut late = snapshot(501, "late");
        late.paths[0].packets = 1000;
        recording.add(&late);
        let paths = recording.paths();
        assert_eq!((paths.len(), paths[0].hops[0].name()), (MOST_PATHS, "late eth0 tx".to_owned()));
        let kept: u64 = paths.iter().map(|path| path.packets).sum();
        assert_eq!(kept + recording.other_paths, 500 * 2 + 250 * 2 + 1000);
        assert!(recording.drops().len() <= MOST_DROPS);
        let drops: u64 = recording.drops().iter().map(|drop| drop.packets).sum();
        assert_eq!(drops + recording.other_drops, 3 * 751);
        assert!(paths.iter().all(|path| path.hops[0].name().len() < 200));
    }
}
