//! What of an interval is listed, in order.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use observe::{DropSeen, HopSeen, Side, Snapshot, WaySeen};

use super::history::Subject;

/// What ways are sorted by, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Followed packets.
    Packets,
    /// The 99th percentile from the first place to the last.
    P99,
    /// Drops of the devices on it, and followed packets that were dropped.
    Drops,
}

impl Sort {
    /// The one after it.
    pub fn next(self) -> Sort {
        match self {
            Sort::Packets => Sort::P99,
            Sort::P99 => Sort::Drops,
            Sort::Drops => Sort::Packets,
        }
    }

    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Packets => "packets",
            Sort::P99 => "p99",
            Sort::Drops => "drops",
        }
    }
}

/// A row, by indices into the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// A way.
    Way(usize),
    /// A hop of a way.
    Hop(usize, usize),
    /// Drops.
    Drop(usize),
}

/// A row from interval to interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// A way.
    Way(Subject),
    /// A hop of a way, by its number.
    Hop(Subject, usize),
    /// Drops.
    Drop(Subject),
}

impl Chosen {
    /// What a row is about; `None` where the interval has no such row.
    pub fn of(snapshot: &Snapshot, row: Row) -> Option<Chosen> {
        Some(match row {
            Row::Way(way) => Chosen::Way(Subject::way(snapshot.ways.get(way)?)),
            Row::Hop(way, hop) => Chosen::Hop(Subject::way(snapshot.ways.get(way)?), hop),
            Row::Drop(drop) => Chosen::Drop(Subject::drop(snapshot.drops.get(drop)?)),
        })
    }

    /// Where it is in an interval.
    pub fn find(&self, snapshot: &Snapshot) -> Option<Row> {
        let find =
            |subject: &Subject| snapshot.ways.iter().position(|way| Subject::way(way) == *subject);
        match self {
            Chosen::Way(way) => find(way).map(Row::Way),
            Chosen::Hop(way, hop) => find(way).map(|way| Row::Hop(way, *hop)),
            Chosen::Drop(drop) => {
                let mut drops = snapshot.drops.iter();
                drops.position(|seen| Subject::drop(seen) == *drop).map(Row::Drop)
            }
        }
    }
}

/// Rows of an interval: ways, hops of those that are open, drops.
pub fn rows(snapshot: &Snapshot, sort: Sort, filter: &str, open: &BTreeSet<Subject>) -> Vec<Row> {
    let wanted = filter.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&wanted);
    let mut ways: Vec<usize> = (0..snapshot.ways.len()).collect();
    ways.retain(|way| way_has(&snapshot.ways[*way], &has));
    ways.sort_by_key(|way| Reverse(rank(&snapshot.ways[*way], snapshot.seconds, sort)));
    let mut rows = Vec::new();
    for way in ways {
        rows.push(Row::Way(way));
        let seen = &snapshot.ways[way];
        if open.contains(&Subject::way(seen)) {
            rows.extend((0..seen.hops.len()).map(|hop| Row::Hop(way, hop)));
        }
    }
    let drops = snapshot.drops.iter().enumerate().filter(|(_, drop)| drop_has(drop, &has));
    rows.extend(drops.map(|(drop, _)| Row::Drop(drop)));
    rows
}

fn way_has(way: &WaySeen, has: &impl Fn(&str) -> bool) -> bool {
    let hop_has = |hop: &HopSeen| has(&hop.namespace) || hop.device.as_deref().is_some_and(has);
    let flow = way.example.as_ref().map(ToString::to_string).unwrap_or_default();
    has(&flow) || has(&way.ending) || way.hops.iter().any(hop_has)
}

fn drop_has(drop: &DropSeen, has: &impl Fn(&str) -> bool) -> bool {
    has(&drop.namespace) || drop.device.as_deref().is_some_and(has) || has(&drop.reason)
}

/// What comes first has the largest; ways of the same rank stay in the order of packets.
fn rank(way: &WaySeen, seconds: f64, sort: Sort) -> u64 {
    match sort {
        Sort::Packets => way.packets,
        Sort::P99 => way.took.p99_ns,
        Sort::Drops => {
            let counted = way.hops.iter().filter_map(|hop| hop.counted.as_ref());
            let devices: f64 = counted.map(|rates| rates.dropped_per_s).sum();
            let is_dropped = way.hops.iter().any(|hop| hop.side == Side::Drop);
            let followed = if is_dropped { way.packets } else { 0 };
            // Drops of less than one a second count, too.
            ((devices * seconds) as u64).saturating_add(followed)
        }
    }
}
