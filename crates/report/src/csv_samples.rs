//! CSV with a row per sample, for spreadsheets and data frames.

use results::{Cell, Latency, Results, Role, Sample};

/// The columns. Ratios are to the baseline of the same block. Sizes are bytes, latencies and jitter
/// microseconds, CPU times seconds of the whole machine, `started` RFC 3339.
const HEADER: [&str; 68] = [
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
    "beside",
    "socket_buffer_bytes",
    "setting",
    "gso",
    "engine",
    "unit",
    "block",
    "position",
    "valid",
    "invalid_reason",
    "value",
    "ratio",
    "seconds",
    "bits_per_s",
    "units",
    "service_demand",
    "service_demand_ratio",
    "service_demand_reason",
    "cpu_user_s",
    "cpu_system_s",
    "cpu_softirq_s",
    "cpu_irq_s",
    "cpu_steal_s",
    "cpu_idle_s",
    "latency_p50_us",
    "latency_p90_us",
    "latency_p99_us",
    "latency_p99_9_us",
    "latency_p99_99_us",
    "latency_max_us",
    "sent",
    "received",
    "lost_fraction",
    "jitter_us",
    "reordered",
    "tcp_retransmits",
    "congestion_control",
    "tcp_rtt_us",
    "tcp_cwnd",
    "flow_least",
    "flow_median",
    "flow_most",
    "flow_jain",
    "beside_forward_bits_per_s",
    "beside_reverse_bits_per_s",
    "softnet_dropped",
    "softnet_squeezed",
    "steal_share",
    "throttled_share",
    "other_share",
    "cpu_model",
    "kernel",
    "started",
    "seed",
    "complete",
    "ecn_arrived",
    "ecn_ce",
    "ecn_not_ect",
];

/// Renders a header and a row per sample, discarded ones included. Every row has the cell's identity
/// and the machine, so that rows of several files can be combined. Fields without a value are empty.
pub fn csv_samples(results: &Results) -> String {
    let mut out = HEADER.join(",") + "\r\n";
    let run = [
        results.machine.cpu_model.clone(),
        results.machine.kernel.clone(),
        results.started.clone(),
        results.plan.seed.to_string(),
        results.complete.to_string(),
    ];
    for cell in &results.cells {
        let identity = identity(cell);
        for sample in &cell.samples {
            let fields = identity.iter().cloned().chain(figures(sample)).chain(run.iter().cloned());
            let fields = fields.chain(added(sample));
            let fields: Vec<String> =
                fields.map(|field| foreign::csv_cell(&field).into_owned()).collect();
            // A row of another length would shift its columns.
            debug_assert_eq!(fields.len(), HEADER.len());
            out.push_str(&fields.join(","));
            out.push_str("\r\n");
        }
    }
    out
}

fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

fn identity(cell: &Cell) -> Vec<String> {
    let role = match cell.role {
        Role::Baseline => "baseline",
        Role::Aa => "aa",
        Role::Measured => "measured",
    };
    vec![
        cell.mode.clone(),
        role.to_owned(),
        cell.offload.to_string(),
        cell.mtu.to_string(),
        cell.workload.to_string(),
        cell.message_bytes.to_string(),
        cell.flows.to_string(),
        cell.outstanding.to_string(),
        text(cell.offered.and_then(|offered| offered.percent)),
        text(cell.offered.map(|offered| offered.per_s)),
        text(cell.beside),
        text(cell.socket_buffer_bytes),
        cell.setting.clone().unwrap_or_default(),
        cell.gso.to_string(),
        cell.engine.to_string(),
        cell.unit.to_string(),
    ]
}

/// Returns the columns that were added after those of the run. Readers may count columns.
fn added(sample: &Sample) -> [String; 3] {
    let ecn = sample.ecn.as_ref();
    [
        text(ecn.map(|ecn| ecn.arrived)),
        text(ecn.map(|ecn| ecn.ce)),
        text(ecn.and_then(|ecn| ecn.not_ect)),
    ]
}

fn figures(sample: &Sample) -> Vec<String> {
    let latency = |pick: fn(Latency) -> f64| text(sample.latency_us.map(pick));
    let (loss, arrivals) = (sample.loss.as_ref(), sample.arrivals.as_ref());
    let (tcp, shares) = (sample.tcp.as_ref(), sample.flow_shares.as_ref());
    let beside = sample.beside_rates.as_ref();
    let (cpu, by) = (&sample.cpu, sample.disturbance.as_ref());
    vec![
        sample.block.to_string(),
        sample.position.to_string(),
        sample.valid.to_string(),
        sample.invalid_reason.clone().unwrap_or_default(),
        sample.value.to_string(),
        text(sample.ratio),
        sample.seconds.to_string(),
        sample.bits_per_s.to_string(),
        sample.units.to_string(),
        text(sample.service_demand),
        text(sample.service_demand_ratio),
        sample.service_demand_reason.clone().unwrap_or_default(),
        cpu.user.to_string(),
        cpu.system.to_string(),
        cpu.softirq.to_string(),
        cpu.irq.to_string(),
        cpu.steal.to_string(),
        cpu.idle.to_string(),
        latency(|l| l.p50),
        latency(|l| l.p90),
        latency(|l| l.p99),
        latency(|l| l.p99_9),
        latency(|l| l.p99_99),
        latency(|l| l.max),
        text(loss.map(|loss| loss.sent)),
        text(loss.map(|loss| loss.received)),
        text(loss.map(|loss| loss.fraction)),
        text(arrivals.map(|arrivals| arrivals.jitter_us)),
        text(arrivals.map(|arrivals| arrivals.reordered)),
        sample.tcp_retransmits.to_string(),
        tcp.map(|tcp| tcp.congestion_control.clone()).unwrap_or_default(),
        text(tcp.map(|tcp| tcp.rtt_us)),
        text(tcp.map(|tcp| tcp.cwnd)),
        text(shares.map(|shares| shares.least)),
        text(shares.map(|shares| shares.median)),
        text(shares.map(|shares| shares.most)),
        text(shares.map(|shares| shares.jain)),
        text(beside.and_then(|rates| rates.forward_bits_per_s)),
        text(beside.and_then(|rates| rates.reverse_bits_per_s)),
        sample.softnet_dropped.to_string(),
        sample.softnet_squeezed.to_string(),
        text(by.map(|by| by.steal_share)),
        text(by.map(|by| by.throttled_share)),
        text(by.map(|by| by.other_share)),
    ]
}
