//! CSV (RFC 4180): one row per cell, in full precision. A text that a spreadsheet would treat as a
//! formula gets a leading single quote ([`foreign::csv_cell`]).

use std::collections::HashSet;

use results::{Cell, DropGoal, EcnCounts, Interval, Results, Role, Status};

use crate::retransmits::retransmits;
use crate::skb;

/// The name of a column, and its field of a row.
pub(crate) type Column<T> = (&'static str, fn(&T) -> String);

/// The cell's load.
pub(crate) const LOAD: [Column<Cell>; 10] = [
    ("mode", |cell| cell.mode.clone()),
    ("role", |cell| role(cell.role).to_owned()),
    ("offload", |cell| cell.offload.to_string()),
    ("mtu", |cell| cell.mtu.to_string()),
    ("workload", |cell| cell.workload.to_string()),
    ("message_bytes", |cell| cell.message_bytes.to_string()),
    ("flows", |cell| cell.flows.to_string()),
    ("outstanding", |cell| cell.outstanding.to_string()),
    ("offered_percent", |cell| text(cell.offered.and_then(|offered| offered.percent))),
    ("offered_per_s", |cell| text(cell.offered.map(|offered| offered.per_s))),
];

pub(crate) const BESIDE: Column<Cell> = ("beside", |cell| text(cell.beside));

/// How the load was sent.
pub(crate) const SENDER: [Column<Cell>; 4] = [
    ("socket_buffer_bytes", |cell| text(cell.socket_buffer_bytes)),
    ("setting", |cell| text(cell.setting.as_ref())),
    ("gso", |cell| cell.gso.to_string()),
    ("engine", |cell| cell.engine.to_string()),
];

/// Ratios are to the baseline of the same block; `*_low` and `*_high` are the ends of the interval
/// at `confidence`. Latencies are microseconds.
const FIGURES: [Column<Cell>; 41] = [
    ("status", |cell| status(cell.status).to_owned()),
    ("reason", |cell| text(cell.reason.as_ref())),
    ("unit", |cell| cell.unit.to_string()),
    ("median", |cell| text(cell.median)),
    ("ratio", |cell| text(cell.ratio.map(|ratio| ratio.median))),
    ("ratio_low", |cell| text(cell.ratio.map(|ratio| ratio.low))),
    ("ratio_high", |cell| text(cell.ratio.map(|ratio| ratio.high))),
    ("confidence", |cell| text(cell.ratio.map(|ratio| ratio.confidence))),
    ("samples", |cell| cell.samples.len().to_string()),
    ("samples_valid", |cell| cell.samples.iter().filter(|s| s.valid).count().to_string()),
    ("service_demand", |cell| text(cell.service_demand.as_ref().map(|demand| demand.value))),
    ("service_demand_unit", |cell| text(cell.service_demand.as_ref().map(|demand| demand.unit))),
    ("service_demand_ratio", |cell| text(demand_ratio(cell).map(|ratio| ratio.median))),
    ("service_demand_ratio_low", |cell| text(demand_ratio(cell).map(|ratio| ratio.low))),
    ("service_demand_ratio_high", |cell| text(demand_ratio(cell).map(|ratio| ratio.high))),
    ("latency_p50_us", |cell| text(cell.latency_us.map(|latency| latency.p50))),
    ("latency_p90_us", |cell| text(cell.latency_us.map(|latency| latency.p90))),
    ("latency_p99_us", |cell| text(cell.latency_us.map(|latency| latency.p99))),
    ("latency_p99_9_us", |cell| text(cell.latency_us.map(|latency| latency.p99_9))),
    ("latency_p99_99_us", |cell| text(cell.latency_us.map(|latency| latency.p99_99))),
    ("latency_max_us", |cell| text(cell.latency_us.map(|latency| latency.max))),
    ("sent", |cell| text(cell.loss.as_ref().map(|loss| loss.sent))),
    ("received", |cell| text(cell.loss.as_ref().map(|loss| loss.received))),
    ("loss_fraction", |cell| text(cell.loss.as_ref().map(|loss| loss.fraction))),
    ("lost_unattributed", |cell| text(cell.loss.as_ref().map(|loss| loss.unattributed))),
    // The smallest mean of any device or stage from client to server (layer 3): at most the MTU if
    // GSO packets were cut.
    ("smallest_mean_skb_bytes", |cell| text(skb::smallest(cell))),
    // The median per sample, all hops together.
    ("hop_drops", |cell| {
        cell.hops.iter().map(|hop| hop.drops).fold(0, u64::saturating_add).to_string()
    }),
    ("intended_per_s", |cell| text(cell.pace.map(|pace| pace.intended_per_s))),
    ("sent_per_s", |cell| text(cell.pace.map(|pace| pace.sent_per_s))),
    ("late_p50_us", |cell| text(cell.pace.map(|pace| pace.late_p50_us))),
    ("late_p99_us", |cell| text(cell.pace.map(|pace| pace.late_p99_us))),
    ("late_max_us", |cell| text(cell.pace.map(|pace| pace.late_max_us))),
    ("drop_goals", |cell| goals(cell, |goal| goal.loss.to_string())),
    ("drop_rates_per_s", |cell| goals(cell, |goal| goal.per_s.to_string())),
    ("drop_kept_per_s", |cell| goals(cell, |goal| goal.kept.to_string())),
    ("drop_missed_per_s", |cell| {
        goals(cell, |goal| goal.missed.map_or("-".to_string(), |rate| rate.to_string()))
    }),
    ("trials", |cell| text(cell.drop_point.as_ref().map(|point| point.trials))),
    ("void_trials", |cell| text(cell.drop_point.as_ref().map(|point| point.void_trials))),
    ("generator_limit", |cell| {
        text(cell.drop_point.as_ref().and_then(|point| point.generator_limit))
    }),
    ("tool_version", |cell| text(cell.tool.as_ref().map(|tool| tool.version.clone()))),
    ("trend", |cell| text(cell.trend.as_ref())),
];

/// Machine and plan; `started` is RFC 3339.
const RUN: [Column<Results>; 9] = [
    ("cpu_model", |results| results.machine.cpu_model.clone()),
    ("cpus", |results| results.machine.cpus.to_string()),
    ("kernel", |results| results.machine.kernel.clone()),
    ("cpu_clock", |results| results.machine.cpu_clock.to_string()),
    ("started", |results| results.started.clone()),
    ("seed", |results| results.plan.seed.to_string()),
    ("blocks_done", |results| results.plan.blocks_done.to_string()),
    ("duration_s", |results| results.plan.duration_s.to_string()),
    ("complete", |results| results.complete.to_string()),
];

/// Columns that were added later. Readers may count columns, so new ones come last.
///
/// `tcp_retransmits` is the median per sample, both ends together. `tcp_cwnd` is in segments,
/// `flow_*` are in the workload's rate unit. `ecn_*` are packets of all valid samples.
const ADDED: [Column<Cell>; 18] = [
    ("service_demand_reason", |cell| text(cell.service_demand_reason.as_ref())),
    ("tcp_retransmits", |cell| text(retransmits(cell))),
    ("congestion_control", |cell| {
        text(cell.tcp.as_ref().map(|tcp| tcp.congestion_control.clone()))
    }),
    ("tcp_rtt_us", |cell| text(cell.tcp.as_ref().map(|tcp| tcp.rtt_us))),
    ("tcp_cwnd", |cell| text(cell.tcp.as_ref().map(|tcp| tcp.cwnd))),
    ("flow_least", |cell| text(cell.flow_shares.as_ref().map(|shares| shares.least))),
    ("flow_median", |cell| text(cell.flow_shares.as_ref().map(|shares| shares.median))),
    ("flow_most", |cell| text(cell.flow_shares.as_ref().map(|shares| shares.most))),
    ("flow_jain", |cell| text(cell.flow_shares.as_ref().map(|shares| shares.jain))),
    ("jitter_us", |cell| text(cell.arrivals.as_ref().map(|arrivals| arrivals.jitter_us))),
    ("reordered", |cell| text(cell.arrivals.as_ref().map(|arrivals| arrivals.reordered))),
    ("arrived", |cell| text(cell.arrivals.as_ref().map(|arrivals| arrivals.received))),
    BESIDE,
    ("beside_forward_bits_per_s", |cell| {
        text(cell.beside_rates.as_ref().and_then(|rates| rates.forward_bits_per_s))
    }),
    ("beside_reverse_bits_per_s", |cell| {
        text(cell.beside_rates.as_ref().and_then(|rates| rates.reverse_bits_per_s))
    }),
    ("ecn_arrived", |cell| text(ecn(cell).map(|ecn| ecn.arrived))),
    ("ecn_ce", |cell| text(ecn(cell).map(|ecn| ecn.ce))),
    ("ecn_not_ect", |cell| text(ecn(cell).and_then(|ecn| ecn.not_ect))),
];

/// Renders a header, one row per cell, and one per mode without cells. Every row has machine and
/// plan, so that rows of several files can be combined. Sizes are bytes. Fields without a value are
/// empty.
pub fn csv(results: &Results) -> String {
    let first = || LOAD.iter().chain(&SENDER).chain(&FIGURES);
    let run = || RUN.iter().map(|(_, field)| field(results));
    let names = first().map(|(name, _)| *name).chain(RUN.iter().map(|(name, _)| *name));
    let mut out = names.chain(ADDED.iter().map(|(name, _)| *name)).collect::<Vec<_>>().join(",");
    out.push_str("\r\n");
    for cell in &results.cells {
        let added = ADDED.iter().map(|(_, field)| field(cell));
        push_row(&mut out, first().map(|(_, field)| field(cell)).chain(run()).chain(added));
    }
    let with_cells: HashSet<&str> = results.cells.iter().map(|cell| cell.mode.as_str()).collect();
    for mode in &results.modes {
        // The cells already describe the mode.
        if with_cells.contains(mode.mode.as_str()) {
            continue;
        }
        let fields = first().map(|(name, _)| match *name {
            "mode" => mode.mode.clone(),
            "status" => status(mode.status).to_owned(),
            "reason" => text(mode.reason.as_ref()),
            _ => String::new(),
        });
        let added = ADDED.iter().map(|_| String::new());
        push_row(&mut out, fields.chain(run()).chain(added));
    }
    out
}

pub(crate) fn push_row(out: &mut String, fields: impl Iterator<Item = String>) {
    let fields: Vec<_> = fields.map(|field| foreign::csv_cell(&field).into_owned()).collect();
    out.push_str(&fields.join(","));
    out.push_str("\r\n");
}

pub(crate) fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn demand_ratio(cell: &Cell) -> Option<Interval> {
    cell.service_demand.as_ref()?.ratio
}

/// Formats loss limits or their rates as a list, separated by spaces, in the file's order; `-` if
/// no rate exceeded the limit.
fn goals(cell: &Cell, pick: fn(&DropGoal) -> String) -> String {
    let goals = cell.drop_point.iter().flat_map(|point| &point.goals);
    goals.map(pick).collect::<Vec<_>>().join(" ")
}

fn ecn(cell: &Cell) -> Option<EcnCounts> {
    crate::ecn::counts(cell)
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Baseline => "baseline",
        Role::Aa => "aa",
        Role::Measured => "measured",
    }
}

fn status(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Failed => "failed",
        Status::Unsupported => "unsupported",
    }
}
