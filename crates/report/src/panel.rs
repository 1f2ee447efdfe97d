//! Groups cells into tables and orders them.

use results::{Cell, Interval, Results, Role, Status, Task, Unit};

use crate::style::plain;
use crate::unit;
use crate::work::{Work, round, worth};

/// One table: cells that can be compared at a glance.
pub(crate) struct Panel<'a> {
    /// Cells by offload profile; never empty, nor is any group.
    pub(crate) groups: Vec<Group<'a>>,
}

/// The cells of one offload profile: baseline, A/A, then the fastest first.
pub(crate) struct Group<'a> {
    pub(crate) offload: &'a str,
    pub(crate) cells: Vec<&'a Cell>,
}

pub(crate) fn panels(results: &Results) -> Vec<Panel<'_>> {
    // Unsupported modes are listed once each below the tables.
    let measured = results.cells.iter().filter(|cell| cell.status != Status::Unsupported);
    let mut cells: Vec<&Cell> = measured.collect();
    cells.sort_by(|a, b| {
        let works = Work::of(a).cmp(&Work::of(b));
        works.then(a.offload.cmp(&b.offload)).then_with(|| within(a, b))
    });
    cells
        .chunk_by(|a, b| Work::of(a) == Work::of(b))
        // The run ended before: `missing` counts these cells.
        .filter(|panel| !panel.iter().all(|cell| cell.never_ran()))
        .map(|panel| {
            let groups = panel.chunk_by(|a, b| a.offload == b.offload);
            Panel {
                groups: groups
                    .map(|cells| Group { offload: cells[0].offload.name(), cells: cells.to_vec() })
                    .collect(),
            }
        })
        .collect()
}

fn within(a: &Cell, b: &Cell) -> std::cmp::Ordering {
    let role = |cell: &Cell| match cell.role {
        Role::Baseline => 0,
        Role::Aa => 1,
        Role::Measured => 2,
    };
    // Cells without a ratio come last.
    let ratio = |cell: &Cell| worth(cell).map_or(-1.0, |ratio| ratio.median);
    let failed = |cell: &Cell| cell.status != Status::Ok;
    // Reference cells first, failed cells last, the rest by speed.
    (role(a).cmp(&role(b)))
        .then(failed(a).cmp(&failed(b)))
        .then(ratio(b).total_cmp(&ratio(a)))
        .then(a.mode.cmp(&b.mode))
}

impl<'a> Panel<'a> {
    pub(crate) fn cells(&self) -> impl Iterator<Item = &'a Cell> {
        self.groups.iter().flat_map(|group| group.cells.iter().copied())
    }

    /// Formats the median of a cell in the panel's scale, or says that it has none.
    pub(crate) fn figure(&self, cell: &Cell) -> String {
        match cell.median {
            Some(median) => self.scale().number(median),
            None if cell.never_ran() => "not run".to_owned(),
            None => "failed".to_owned(),
        }
    }

    /// Returns whether the CPU time of a cell is known, or a reason why it is not.
    pub(crate) fn has_cpu(&self) -> bool {
        self.cells().any(|c| c.service_demand.is_some() || c.service_demand_reason.is_some())
    }

    /// Returns a cell, for the properties that all have in common.
    pub(crate) fn first(&self) -> &'a Cell {
        self.groups[0].cells[0]
    }

    /// `tcp_stream, 64 KiB messages, MTU 1500`.
    pub(crate) fn title(&self) -> String {
        Work::of(self.first()).title()
    }

    /// Names the quantity of the figures.
    pub(crate) fn quantity(&self) -> &'static str {
        match self.first().unit {
            _ if self.first().workload == Task::DropPoint => "PDR 0.1%",
            Unit::Bits => "payload at the receiver",
            Unit::Datagrams => "datagrams at the receiver",
            Unit::Connections => "connections",
            Unit::Microseconds => "median latency",
            Unit::Transactions => "transactions",
        }
    }

    pub(crate) fn scale(&self) -> unit::Scale {
        let largest = self.cells().filter_map(|cell| cell.median).fold(0.0, f64::max);
        unit::Scale::new(self.first().unit, largest)
    }

    /// Returns the confidence of the intervals as percent; empty without intervals.
    pub(crate) fn confidence(&self) -> String {
        let ratio = self.cells().find_map(|cell| cell.ratio);
        ratio.map_or(String::new(), |ratio| format!("{}% ", round(100.0 * ratio.confidence)))
    }
}

/// Returns a cell's name within its group. The A/A cell repeats the baseline.
pub(crate) fn name(cell: &Cell) -> String {
    let mode = plain(&cell.mode);
    if cell.role == Role::Aa { format!("{mode} (A/A)") } else { mode }
}

/// Whether its ratio's interval includes 1: not statistically different from the baseline.
pub(crate) fn is_undecided(cell: &Cell) -> bool {
    cell.ratio.is_some_and(|ratio| ratio.low <= 1.0 && 1.0 <= ratio.high)
}

/// Returns the largest distance of an A/A interval from 1. Smaller differences prove nothing.
pub(crate) fn noise_floor(interval: &Interval) -> f64 {
    (1.0 - interval.low).abs().max((interval.high - 1.0).abs())
}
