//! CSV with a row per sample, for spreadsheets and data frames.

use results::{Cell, Results, Sample};

use crate::csv::{BESIDE, Column, LOAD, SENDER, push_row, text};

const UNIT: Column<Cell> = ("unit", |cell| cell.unit.to_string());

/// Ratios are to the baseline of the same block. Latencies and jitter are microseconds, CPU times
/// seconds of the whole machine.
const FIGURES: [Column<Sample>; 44] = [
    ("block", |sample| sample.block.to_string()),
    ("position", |sample| sample.position.to_string()),
    ("valid", |sample| sample.valid.to_string()),
    ("invalid_reason", |sample| text(sample.invalid_reason.as_ref())),
    ("value", |sample| sample.value.to_string()),
    ("ratio", |sample| text(sample.ratio)),
    ("seconds", |sample| sample.seconds.to_string()),
    ("bits_per_s", |sample| sample.bits_per_s.to_string()),
    ("units", |sample| sample.units.to_string()),
    ("service_demand", |sample| text(sample.service_demand)),
    ("service_demand_ratio", |sample| text(sample.service_demand_ratio)),
    ("service_demand_reason", |sample| text(sample.service_demand_reason.as_ref())),
    ("cpu_user_s", |sample| sample.cpu.user.to_string()),
    ("cpu_system_s", |sample| sample.cpu.system.to_string()),
    ("cpu_softirq_s", |sample| sample.cpu.softirq.to_string()),
    ("cpu_irq_s", |sample| sample.cpu.irq.to_string()),
    ("cpu_steal_s", |sample| sample.cpu.steal.to_string()),
    ("cpu_idle_s", |sample| sample.cpu.idle.to_string()),
    ("latency_p50_us", |sample| text(sample.latency_us.map(|latency| latency.p50))),
    ("latency_p90_us", |sample| text(sample.latency_us.map(|latency| latency.p90))),
    ("latency_p99_us", |sample| text(sample.latency_us.map(|latency| latency.p99))),
    ("latency_p99_9_us", |sample| text(sample.latency_us.map(|latency| latency.p99_9))),
    ("latency_p99_99_us", |sample| text(sample.latency_us.map(|latency| latency.p99_99))),
    ("latency_max_us", |sample| text(sample.latency_us.map(|latency| latency.max))),
    ("sent", |sample| text(sample.loss.as_ref().map(|loss| loss.sent))),
    ("received", |sample| text(sample.loss.as_ref().map(|loss| loss.received))),
    ("lost_fraction", |sample| text(sample.loss.as_ref().map(|loss| loss.fraction))),
    ("jitter_us", |sample| text(sample.arrivals.as_ref().map(|arrivals| arrivals.jitter_us))),
    ("reordered", |sample| text(sample.arrivals.as_ref().map(|arrivals| arrivals.reordered))),
    ("tcp_retransmits", |sample| sample.tcp_retransmits.to_string()),
    ("congestion_control", |sample| {
        text(sample.tcp.as_ref().map(|tcp| tcp.congestion_control.clone()))
    }),
    ("tcp_rtt_us", |sample| text(sample.tcp.as_ref().map(|tcp| tcp.rtt_us))),
    ("tcp_cwnd", |sample| text(sample.tcp.as_ref().map(|tcp| tcp.cwnd))),
    ("flow_least", |sample| text(sample.flow_shares.as_ref().map(|shares| shares.least))),
    ("flow_median", |sample| text(sample.flow_shares.as_ref().map(|shares| shares.median))),
    ("flow_most", |sample| text(sample.flow_shares.as_ref().map(|shares| shares.most))),
    ("flow_jain", |sample| text(sample.flow_shares.as_ref().map(|shares| shares.jain))),
    ("beside_forward_bits_per_s", |sample| {
        text(sample.beside_rates.as_ref().and_then(|rates| rates.forward_bits_per_s))
    }),
    ("beside_reverse_bits_per_s", |sample| {
        text(sample.beside_rates.as_ref().and_then(|rates| rates.reverse_bits_per_s))
    }),
    ("softnet_dropped", |sample| sample.softnet_dropped.to_string()),
    ("softnet_squeezed", |sample| sample.softnet_squeezed.to_string()),
    ("steal_share", |sample| text(sample.disturbance.as_ref().map(|by| by.steal_share))),
    ("throttled_share", |sample| text(sample.disturbance.as_ref().map(|by| by.throttled_share))),
    ("other_share", |sample| text(sample.disturbance.as_ref().map(|by| by.other_share))),
];

/// The machine and the run; `started` is RFC 3339.
const RUN: [Column<Results>; 5] = [
    ("cpu_model", |results| results.machine.cpu_model.clone()),
    ("kernel", |results| results.machine.kernel.clone()),
    ("started", |results| results.started.clone()),
    ("seed", |results| results.plan.seed.to_string()),
    ("complete", |results| results.complete.to_string()),
];

/// Columns that were added later. Readers may count columns, so new ones come last.
const ADDED: [Column<Sample>; 3] = [
    ("ecn_arrived", |sample| text(sample.ecn.as_ref().map(|ecn| ecn.arrived))),
    ("ecn_ce", |sample| text(sample.ecn.as_ref().map(|ecn| ecn.ce))),
    ("ecn_not_ect", |sample| text(sample.ecn.as_ref().and_then(|ecn| ecn.not_ect))),
];

/// Renders a header and a row per sample, discarded ones included. Every row has the cell's identity
/// and the machine, so that rows of several files can be combined. Sizes are bytes. Fields without a
/// value are empty.
pub fn csv_samples(results: &Results) -> String {
    let identity = || LOAD.iter().chain([&BESIDE]).chain(&SENDER).chain([&UNIT]);
    let names = identity().map(|(name, _)| *name).chain(FIGURES.iter().map(|(name, _)| *name));
    let names = names.chain(RUN.iter().map(|(name, _)| *name));
    let mut out = names.chain(ADDED.iter().map(|(name, _)| *name)).collect::<Vec<_>>().join(",");
    out.push_str("\r\n");
    for cell in &results.cells {
        for sample in &cell.samples {
            let fields = identity().map(|(_, field)| field(cell));
            let fields = fields.chain(FIGURES.iter().map(|(_, field)| field(sample)));
            let fields = fields.chain(RUN.iter().map(|(_, field)| field(results)));
            push_row(&mut out, fields.chain(ADDED.iter().map(|(_, field)| field(sample))));
        }
    }
    out
}
