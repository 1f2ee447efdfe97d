//! Values of the last intervals, by place, route and drop.

use std::collections::{BTreeMap, VecDeque};

use observe::{DropSeen, HopSeen, PathSeen, Side, Snapshot, per_second};

/// Number of intervals to keep.
pub const KEPT: usize = 60;

/// Identifies a side of a device, or a socket, across intervals.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceKey {
    namespace: String,
    device: Option<String>,
    side: Side,
}

impl PlaceKey {
    pub fn of(hop: &HopSeen) -> PlaceKey {
        let (namespace, device) = (hop.namespace.clone(), hop.device.clone());
        PlaceKey { namespace, device, side: hop.side }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Place(PlaceKey),
    /// A route, identified by its places, because its packets differ in each interval.
    Path(Vec<PlaceKey>),
    /// Drops: namespace, device, reason, function.
    Drop(String, Option<String>, String, Option<String>),
}

impl Subject {
    pub fn path(path: &PathSeen) -> Subject {
        Subject::Path(path.hops.iter().map(PlaceKey::of).collect())
    }

    pub fn drop(drop: &DropSeen) -> Subject {
        let (namespace, device) = (drop.namespace.clone(), drop.device.clone());
        Subject::Drop(namespace, device, drop.reason.clone(), drop.function.clone())
    }
}

/// One interval of one subject.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// All packets, counted by the device. Without counters, only sampled packets.
    pub packets_per_s: f64,
    /// Bytes, counted by the device.
    pub bytes_per_s: Option<f64>,
    /// Time since the previous hop; for a route, from its first place to its last.
    pub p99_ns: u64,
}

/// The last intervals.
#[derive(Debug, Default)]
pub struct History {
    intervals: VecDeque<BTreeMap<Subject, Point>>,
}

impl History {
    /// Adds an interval, and removes the oldest one if needed.
    pub fn add(&mut self, snapshot: &Snapshot) {
        // Keep a fixed number, so that memory stays bounded.
        if self.intervals.len() == KEPT {
            self.intervals.pop_front();
        }
        self.intervals.push_back(points(snapshot));
    }

    /// Returns one value per interval, the oldest first. `None` if the subject was not seen.
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
    let rate = |packets: u64| per_second(packets, snapshot.seconds);
    for path in &snapshot.paths {
        let followed = rate(path.packets);
        let point = points.entry(Subject::path(path)).or_default();
        (point.packets_per_s, point.p99_ns) = (followed, path.took.p99_ns);
        for hop in &path.hops {
            let point = points.entry(Subject::Place(PlaceKey::of(hop))).or_default();
            match &hop.counted {
                // Assign instead of adding: every route through the device has the same counters.
                Some(counted) => {
                    point.packets_per_s = counted.packets_per_s;
                    point.bytes_per_s = Some(counted.bytes_per_s);
                }
                // Without a device counter, add the sampled packets of all routes through the
                // place.
                None => point.packets_per_s += followed,
            }
            // Several routes may cross the place: show the worst.
            point.p99_ns = point.p99_ns.max(hop.since_before.p99_ns);
        }
    }
    for drop in &snapshot.drops {
        points.entry(Subject::drop(drop)).or_default().packets_per_s += rate(drop.packets);
    }
    points
}
