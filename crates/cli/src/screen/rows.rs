//! Rows of the list for an interval, in order.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use observe::{DropSeen, HopSeen, PathSeen, Side, Snapshot};

use super::history::Subject;

/// Sort key of routes, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Packets,
    /// The 99th percentile from the first place to the last.
    P99,
    /// Drops of the devices on the route, and dropped sampled packets.
    Drops,
}

impl Sort {
    pub fn next(self) -> Sort {
        match self {
            Sort::Packets => Sort::P99,
            Sort::P99 => Sort::Drops,
            Sort::Drops => Sort::Packets,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Sort::Packets => "packets",
            Sort::P99 => "p99",
            Sort::Drops => "drops",
        }
    }
}

/// A row, as indices into the interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    Path(usize),
    Hop(usize, usize),
    Drop(usize),
}

/// Identifies a row across intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    Path(Subject),
    /// A hop of a route, by its number.
    Hop(Subject, usize),
    Drop(Subject),
}

impl Chosen {
    /// Returns the identity of a row, or `None` if the interval has no such row.
    pub fn of(snapshot: &Snapshot, row: Row) -> Option<Chosen> {
        Some(match row {
            Row::Path(path) => Chosen::Path(Subject::path(snapshot.paths.get(path)?)),
            Row::Hop(path, hop) => Chosen::Hop(Subject::path(snapshot.paths.get(path)?), hop),
            Row::Drop(drop) => Chosen::Drop(Subject::drop(snapshot.drops.get(drop)?)),
        })
    }

    pub fn find(&self, snapshot: &Snapshot) -> Option<Row> {
        let find = |subject: &Subject| {
            snapshot.paths.iter().position(|path| Subject::path(path) == *subject)
        };
        match self {
            Chosen::Path(path) => find(path).map(Row::Path),
            Chosen::Hop(path, hop) => find(path).map(|path| Row::Hop(path, *hop)),
            Chosen::Drop(drop) => {
                let mut drops = snapshot.drops.iter();
                drops.position(|seen| Subject::drop(seen) == *drop).map(Row::Drop)
            }
        }
    }
}

/// Returns the rows of an interval: routes, hops of open routes, drops.
pub fn rows(snapshot: &Snapshot, sort: Sort, filter: &str, open: &BTreeSet<Subject>) -> Vec<Row> {
    // The filter ignores case.
    let wanted = filter.to_lowercase();
    let has = |text: &str| text.to_lowercase().contains(&wanted);
    let mut paths: Vec<usize> = (0..snapshot.paths.len()).collect();
    paths.retain(|path| path_has(&snapshot.paths[*path], &has));
    paths.sort_by_key(|path| Reverse(rank(&snapshot.paths[*path], snapshot.seconds, sort)));
    let mut rows = Vec::new();
    for path in paths {
        rows.push(Row::Path(path));
        let seen = &snapshot.paths[path];
        if open.contains(&Subject::path(seen)) {
            rows.extend((0..seen.hops.len()).map(|hop| Row::Hop(path, hop)));
        }
    }
    // Drops come last, so that the list can show them in a separate area.
    let drops = snapshot.drops.iter().enumerate().filter(|(_, drop)| drop_has(drop, &has));
    rows.extend(drops.map(|(drop, _)| Row::Drop(drop)));
    rows
}

fn path_has(path: &PathSeen, has: &impl Fn(&str) -> bool) -> bool {
    let hop_has = |hop: &HopSeen| has(&hop.namespace) || hop.device.as_deref().is_some_and(has);
    let flow = path.example.as_ref().map(ToString::to_string).unwrap_or_default();
    has(&flow) || has(&path.ending) || path.hops.iter().any(hop_has)
}

fn drop_has(drop: &DropSeen, has: &impl Fn(&str) -> bool) -> bool {
    has(&drop.namespace) || drop.device.as_deref().is_some_and(has) || has(&drop.reason)
}

/// Returns the sort key. Routes with equal keys stay in the order of packets.
fn rank(path: &PathSeen, seconds: f64, sort: Sort) -> u64 {
    match sort {
        Sort::Packets => path.packets,
        Sort::P99 => path.took.p99_ns,
        Sort::Drops => {
            let counted = path.hops.iter().filter_map(|hop| hop.counted.as_ref());
            let devices: f64 = counted.map(|rates| rates.dropped_per_s).sum();
            // Devices count only their own drops, so a route that ends in a drop counts as well.
            let is_dropped = path.hops.iter().any(|hop| hop.side == Side::Drop);
            let followed = if is_dropped { path.packets } else { 0 };
            // Multiply first, so that less than one drop per second also counts.
            ((devices * seconds) as u64).saturating_add(followed)
        }
    }
}
