//! CSV (RFC 4180): one row per cell, in full precision. A text that a spreadsheet would treat as a
//! formula gets a leading single quote ([`foreign::csv_cell`]).

use std::collections::HashSet;

use results::{Cell, DropGoal, DropPoint, Interval, Latency, Pacing, Results, Role, Status};

use crate::retransmits::retransmits;
use crate::skb;

/// The columns. Ratios are to the baseline of the same block; `*_low` and
/// `*_high` are the ends of the interval at `confidence`. Sizes are bytes,
/// latencies microseconds, `started` RFC 3339. Readers may count columns: new ones come last.
const HEADER: [&str; 82] = [
    "mode",
    "role",
    "offload",
    "mtu",
    "workload",
    "message_bytes",
    "flows",
    "outstanding",
    "offered_percent",
    "offered_per_s",
    "socket_buffer_bytes",
    "setting",
    "gso",
    "engine",
    "status",
    "reason",
    "unit",
    "median",
    "ratio",
    "ratio_low",
    "ratio_high",
    "confidence",
    "samples",
    "samples_valid",
    "service_demand",
    "service_demand_unit",
    "service_demand_ratio",
    "service_demand_ratio_low",
    "service_demand_ratio_high",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "latency_p99_9_us",
    "latency_p99_99_us",
    "latency_max_us",
    "sent",
    "received",
    "loss_fraction",
    "lost_unattributed",
    "smallest_mean_skb_bytes",
    "hop_drops",
    "intended_per_s",
    "sent_per_s",
    "late_p50_us",
    "late_p99_us",
    "late_max_us",
    "drop_goals",
    "drop_rates_per_s",
    "drop_kept_per_s",
    "drop_missed_per_s",
    "trials",
    "void_trials",
    "generator_limit",
    "tool_version",
    "trend",
    "cpu_model",
    "cpus",
    "kernel",
    "cpu_clock",
    "started",
    "seed",
    "blocks_done",
    "duration_s",
    "complete",
    "service_demand_reason",
    "tcp_retransmits",
    "congestion_control",
    "tcp_rtt_us",
    "tcp_cwnd",
    "flow_least",
    "flow_median",
    "flow_most",
    "flow_jain",
    "jitter_us",
    "reordered",
    "arrived",
    "beside",
    "beside_forward_bits_per_s",
    "beside_reverse_bits_per_s",
    "ecn_arrived",
    "ecn_ce",
    "ecn_not_ect",
];

/// Number of the columns that were added last ([`added_fields`]).
const ADDED: usize = 18;

/// Renders a header, one row per cell, and one per mode without cells. Every row has machine and
/// plan, so that rows of several files can be combined. Fields without a value are empty.
///
/// `smallest_mean_skb_bytes` is the smallest mean skb of any device or stage from client to server
/// (layer 3): at most the MTU if GSO packets were cut. `hop_drops` is the median per sample, all
/// hops together. `tcp_retransmits` is the median per sample, both ends together. `tcp_cwnd` is in
/// segments, `flow_*` are in the workload's rate unit. `ecn_*` are packets of all valid samples.
pub fn csv(results: &Results) -> String {
    let mut out = HEADER.join(",") + "\r\n";
    let machine = run_fields(results);
    for cell in &results.cells {
        push_row(&mut out, [cell_fields(cell), machine.clone(), added_fields(cell)].concat());
    }
    let with_cells: HashSet<&str> = results.cells.iter().map(|cell| cell.mode.as_str()).collect();
    for mode in &results.modes {
        // The cells already describe the mode.
        if with_cells.contains(mode.mode.as_str()) {
            continue;
        }
        let mut fields = vec![String::new(); HEADER.len() - ADDED - machine.len()];
        fields[0] = mode.mode.clone();
        fields[column("status")] = status(mode.status).to_string();
        fields[column("reason")] = mode.reason.clone().unwrap_or_default();
        let added = vec![String::new(); ADDED];
        push_row(&mut out, [fields, machine.clone(), added].concat());
    }
    out
}

fn column(name: &str) -> usize {
    HEADER.iter().position(|head| *head == name).unwrap_or(0)
}

fn push_row(out: &mut String, fields: Vec<String>) {
    // A row of another length would shift its columns.
    debug_assert_eq!(fields.len(), HEADER.len());
    for (i, field) in fields.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(&foreign::csv_cell(field));
    }
    out.push_str("\r\n");
}

fn cell_fields(cell: &Cell) -> Vec<String> {
    let role = match cell.role {
        Role::Baseline => "baseline",
        Role::Aa => "aa",
        Role::Measured => "measured",
    };
    let valid = cell.samples.iter().filter(|sample| sample.valid).count();
    let mut fields = vec![
        cell.mode.clone(),
        role.to_string(),
        cell.offload.to_string(),
        cell.mtu.to_string(),
        cell.workload.to_string(),
        cell.message_bytes.to_string(),
        cell.flows.to_string(),
        cell.outstanding.to_string(),
        number(cell.offered.and_then(|offered| offered.percent)),
        number(cell.offered.map(|offered| offered.per_s)),
        cell.socket_buffer_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
        cell.setting.clone().unwrap_or_default(),
        cell.gso.to_string(),
        cell.engine.to_string(),
        status(cell.status).to_string(),
        cell.reason.clone().unwrap_or_default(),
        cell.unit.to_string(),
        number(cell.median),
    ];
    fields.extend(ends(cell.ratio.as_ref()));
    fields.push(number(cell.ratio.map(|ratio| ratio.confidence)));
    fields.push(cell.samples.len().to_string());
    fields.push(valid.to_string());
    let demand = cell.service_demand.as_ref();
    fields.push(number(demand.map(|demand| demand.value)));
    fields.push(demand.map(|demand| demand.unit.to_string()).unwrap_or_default());
    fields.extend(ends(demand.and_then(|demand| demand.ratio.as_ref())));
    let latency = |pick: fn(Latency) -> f64| number(cell.latency_us.map(pick));
    fields.extend([
        latency(|l| l.p50),
        latency(|l| l.p90),
        latency(|l| l.p99),
        latency(|l| l.p99_9),
        latency(|l| l.p99_99),
        latency(|l| l.max),
    ]);
    let loss = cell.loss.as_ref();
    fields.extend([
        loss.map(|loss| loss.sent.to_string()).unwrap_or_default(),
        loss.map(|loss| loss.received.to_string()).unwrap_or_default(),
        number(loss.map(|loss| loss.fraction)),
        loss.map(|loss| loss.unattributed.to_string()).unwrap_or_default(),
        number(skb::smallest(cell)),
        cell.hops.iter().map(|hop| hop.drops).fold(0, u64::saturating_add).to_string(),
    ]);
    fields.extend(schedule(cell.pace.as_ref()));
    fields.extend(drop_point(cell.drop_point.as_ref()));
    fields.push(cell.tool.as_ref().map(|tool| tool.version.clone()).unwrap_or_default());
    fields.push(cell.trend.clone().unwrap_or_default());
    fields
}

/// Returns the columns that were added after those of machine and plan.
fn added_fields(cell: &Cell) -> Vec<String> {
    let mut fields =
        vec![cell.service_demand_reason.clone().unwrap_or_default(), number(retransmits(cell))];
    let tcp = cell.tcp.as_ref();
    fields.extend([
        tcp.map(|tcp| tcp.congestion_control.clone()).unwrap_or_default(),
        number(tcp.map(|tcp| tcp.rtt_us)),
        number(tcp.map(|tcp| tcp.cwnd)),
    ]);
    let shares = cell.flow_shares.as_ref();
    fields.extend([
        number(shares.map(|shares| shares.least)),
        number(shares.map(|shares| shares.median)),
        number(shares.map(|shares| shares.most)),
        number(shares.map(|shares| shares.jain)),
    ]);
    let arrivals = cell.arrivals.as_ref();
    fields.extend([
        number(arrivals.map(|arrivals| arrivals.jitter_us)),
        arrivals.map(|arrivals| arrivals.reordered.to_string()).unwrap_or_default(),
        arrivals.map(|arrivals| arrivals.received.to_string()).unwrap_or_default(),
    ]);
    let beside = cell.beside_rates.as_ref();
    fields.extend([
        cell.beside.map(|beside| beside.to_string()).unwrap_or_default(),
        number(beside.and_then(|rates| rates.forward_bits_per_s)),
        number(beside.and_then(|rates| rates.reverse_bits_per_s)),
    ]);
    let ecn = crate::ecn::counts(cell);
    let whole = |count: Option<u64>| count.map(|count| count.to_string()).unwrap_or_default();
    fields.extend([
        whole(ecn.map(|ecn| ecn.arrived)),
        whole(ecn.map(|ecn| ecn.ce)),
        whole(ecn.and_then(|ecn| ecn.not_ect)),
    ]);
    fields
}

fn schedule(pace: Option<&Pacing>) -> [String; 5] {
    let figure = |pick: fn(&Pacing) -> f64| number(pace.map(pick));
    [
        figure(|p| p.intended_per_s),
        figure(|p| p.sent_per_s),
        figure(|p| p.late_p50_us),
        figure(|p| p.late_p99_us),
        figure(|p| p.late_max_us),
    ]
}

/// Formats loss limits and their rates as lists, separated by spaces, in the file's order; `-` if
/// no rate exceeded the limit.
fn drop_point(point: Option<&DropPoint>) -> [String; 7] {
    let list = |pick: fn(&DropGoal) -> String| {
        let goals = point.map(|point| point.goals.iter().map(pick).collect::<Vec<_>>());
        goals.unwrap_or_default().join(" ")
    };
    [
        list(|goal| goal.loss.to_string()),
        list(|goal| goal.per_s.to_string()),
        list(|goal| goal.kept.to_string()),
        list(|goal| goal.missed.map_or("-".to_string(), |rate| rate.to_string())),
        point.map(|point| point.trials.to_string()).unwrap_or_default(),
        point.map(|point| point.void_trials.to_string()).unwrap_or_default(),
        number(point.and_then(|point| point.generator_limit)),
    ]
}

fn run_fields(results: &Results) -> Vec<String> {
    let (machine, plan) = (&results.machine, &results.plan);
    vec![
        machine.cpu_model.clone(),
        machine.cpus.to_string(),
        machine.kernel.clone(),
        machine.cpu_clock.to_string(),
        results.started.clone(),
        plan.seed.to_string(),
        plan.blocks_done.to_string(),
        plan.duration_s.to_string(),
        results.complete.to_string(),
    ]
}

fn ends(interval: Option<&Interval>) -> [String; 3] {
    [
        number(interval.map(|interval| interval.median)),
        number(interval.map(|interval| interval.low)),
        number(interval.map(|interval| interval.high)),
    ]
}

fn number(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn status(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Failed => "failed",
        Status::Unsupported => "unsupported",
    }
}
