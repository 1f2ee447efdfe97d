//! What was seen in the last intervals, by place, way and drop.

use std::collections::{BTreeMap, VecDeque};

use observe::{DropSeen, HopSeen, Side, Snapshot, WaySeen};

/// Intervals that are kept.
pub const KEPT: usize = 60;

/// A side of a device, or a socket: the same from interval to interval.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceKey {
    namespace: String,
    device: Option<String>,
    side: Side,
}

impl PlaceKey {
    /// Of a hop.
    pub fn of(hop: &HopSeen) -> PlaceKey {
        let (namespace, device) = (hop.namespace.clone(), hop.device.clone());
        PlaceKey { namespace, device, side: hop.side }
    }
}

/// What has a history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A place, whoever's packets.
    Place(PlaceKey),
    /// A way, by its places: its packets are others in each interval.
    Way(Vec<PlaceKey>),
    /// Drops: namespace, device, reason, function.
    Drop(String, Option<String>, String, Option<String>),
}

impl Subject {
    /// Of a way.
    pub fn way(way: &WaySeen) -> Subject {
        Subject::Way(way.hops.iter().map(PlaceKey::of).collect())
    }

    /// Of drops.
    pub fn drop(drop: &DropSeen) -> Subject {
        let (namespace, device) = (drop.namespace.clone(), drop.device.clone());
        Subject::Drop(namespace, device, drop.reason.clone(), drop.function.clone())
    }
}

/// One interval of one subject.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// As the device counts them; where none does, the followed ones.
    pub packets_per_s: f64,
    /// As the device counts them.
    pub bytes_per_s: Option<f64>,
    /// Since the hop before; of a way, from its first place to its last.
    pub p99_ns: u64,
}

/// The last intervals.
#[derive(Debug, Default)]
pub struct History {
    intervals: VecDeque<BTreeMap<Subject, Point>>,
}

impl History {
    /// Adds an interval; the oldest one goes.
    pub fn add(&mut self, snapshot: &Snapshot) {
        if self.intervals.len() == KEPT {
            self.intervals.pop_front();
        }
        self.intervals.push_back(points(snapshot));
    }

    /// A value of each interval, the oldest first; `None` where it was not seen.
    pub fn series(
        &self,
        subject: &Subject,
        value: impl Fn(&Point) -> Option<f64>,
    ) -> Vec<Option<f64>> {
        self.intervals.iter().map(|points| points.get(subject).and_then(&value)).collect()
    }
}

fn points(snapshot: &Snapshot) -> BTreeMap<Subject, Point> {
    let mut points = BTreeMap::<Subject, Point>::new();
    let rate = |packets: u64| packets as f64 / snapshot.seconds.max(f64::MIN_POSITIVE);
    for way in &snapshot.ways {
        let followed = rate(way.packets);
        let point = points.entry(Subject::way(way)).or_default();
        (point.packets_per_s, point.p99_ns) = (followed, way.took.p99_ns);
        for hop in &way.hops {
            let point = points.entry(Subject::Place(PlaceKey::of(hop))).or_default();
            match &hop.counted {
                // The device's, which each way through it tells.
                Some(counted) => {
                    point.packets_per_s = counted.packets_per_s;
                    point.bytes_per_s = Some(counted.bytes_per_s);
                }
                None => point.packets_per_s += followed,
            }
            point.p99_ns = point.p99_ns.max(hop.since_before.p99_ns);
        }
    }
    for drop in &snapshot.drops {
        points.entry(Subject::drop(drop)).or_default().packets_per_s += rate(drop.packets);
    }
    points
}
