//! A made-up run with every dimension of a cell: sizes, flows, outstanding requests, loads, socket
//! buffers, settings, engines, NDR and PDR, histograms, a time line, a peer, faults.

use std::collections::BTreeMap;

use results::*;

use super::{BLOCKS, HOST, MODES, Noise, Place, cell, results};

/// Modes of this run: the lab's own, fewer.
const SHOWN: [&str; 4] = ["host", "bridge", "vxlan", "ovs-vxlan"];

pub fn deep() -> Results {
    let mut noise = Noise::new(21);
    let mut cells = Vec::new();
    for bytes in [1, 16, 256, 1024, 4096, 65507] {
        cells.extend(group(&mut noise, "tcp_stream", bytes, |_| {}));
    }
    for flows in [1, 4, 16] {
        cells.extend(group(&mut noise, "tcp_rr", 1, |cell| {
            cell.flows = flows;
            time(cell, 1.0 + 0.2 * f64::from(flows));
        }));
    }
    for percent in [10.0, 50.0, 90.0] {
        cells.extend(group(&mut noise, "tcp_rr", 1, |cell| {
            let per_s = cell.median.unwrap() * percent / 100.0;
            cell.offered = Some(Offered { percent: Some(percent), per_s });
            time(cell, 1.0 / (1.05 - percent / 100.0));
            in_microseconds(cell);
            let pace = Pacing {
                intended_per_s: per_s,
                sent_per_s: per_s * 0.9995,
                late_p50_us: 1.4,
                late_p99_us: 9.7,
                late_max_us: 180.0,
            };
            cell.pace = Some(pace);
        }));
    }
    cells.extend(group(&mut noise, "tcp_rr", 1, |cell| {
        cell.outstanding = 8;
        time(cell, 4.0);
    }));
    cells.extend(group(&mut noise, "tcp_stream", 65507, |cell| {
        cell.socket_buffer_bytes = Some(32768);
    }));
    cells.extend(group(&mut noise, "tcp_stream", 65507, |cell| {
        cell.engine = "iperf3".parse().unwrap();
        cell.tool = Some(Tool {
            version: "iperf 3.12 (cJSON 1.7.15)".to_string(),
            command: "iperf3 -J -c 192.0.2.2 -t 0.5".to_string(),
            figures: BTreeMap::from([("cpu_utilization_percent.host_total".to_string(), 61.2)]),
            ratio: None,
        });
    }));
    let settings = [None, Some("300"), Some("1000")];
    for (step, setting) in settings.into_iter().enumerate() {
        cells.extend(group(&mut noise, "drop_point", 64, |cell| {
            cell.setting = setting.map(|value| format!("sysctl:net.core.netdev_budget={value}"));
            drop_point(cell, 1.0 + 0.15 * step as f64);
        }));
    }
    for (beside, forward, reverse) in
        [(Beside::TcpStream, Some(9.1e9), None), (Beside::Both, Some(6.2e9), Some(5.9e9))]
    {
        let rates = BesideRates { forward_bits_per_s: forward, reverse_bits_per_s: reverse };
        cells.extend(group(&mut noise, "tcp_rr", 1, |cell| beside_bulk(cell, beside, rates)));
    }
    let mut results = Results { cells, ..results() };
    results.modes.retain(|record| {
        SHOWN.contains(&record.mode.as_str()) || record.status == Status::Unsupported
    });
    results.peer = Some(Machine { cpus: 4, idle_load: 0.0, ..results.machine.clone() });
    let plan = &mut results.plan;
    plan.name = Some("cni-sweep".to_string());
    plan.offload = vec!["full".parse().unwrap()];
    plan.sizes = vec![1, 16, 256, 1024, 4096, 65507];
    plan.flows = vec![1, 4, 16];
    plan.outstanding = vec![1, 8];
    plan.load_percent = vec![10.0, 50.0, 90.0];
    plan.beside = vec![Beside::TcpStream, Beside::Both];
    plan.socket_buffers = vec![32768];
    plan.engines = vec!["overlane".parse().unwrap(), "iperf3".parse().unwrap()];
    plan.vary = vec!["sysctl:net.core.netdev_budget=300,1000".to_string()];
    plan.workloads.push("drop_point".parse().unwrap());
    results.timeline = Some(timeline(results.cells.len()));
    results.faults = vec![
        fault("vxlan", "session-ends", &[2240, 2180, 9012], None),
        fault("vxlan", "mac-moves", &[112, 98], Some("zebra's entry of c was not ready")),
        fault("ovs-vxlan", "daemon-killed", &[], Some("ss: No such file or directory")),
        // Interrupted before the first trial.
        fault("ovs-vxlan", "link-down", &[], None),
    ];
    results
}

/// A fault of three trials with these numbers of lost datagrams, and the failure after them.
fn fault(mode: &str, name: &str, lost: &[u64], failed: Option<&str>) -> FaultRecord {
    let trial = |lost: &u64| FaultTrial {
        reason: None,
        cost: Some(FaultCost {
            sent: lost + 60,
            received: 60,
            twice: lost % 3,
            outage_s: (lost + 1) as f64 / 1000.0,
        }),
    };
    let failed = failed.map(|reason| FaultTrial { reason: Some(reason.to_string()), cost: None });
    FaultRecord {
        mode: mode.to_string(),
        offload: "full".parse().unwrap(),
        mtu: 1500,
        fault: name.to_string(),
        title: format!("what happens in {name}"),
        interval_s: 0.001,
        asked: 3,
        trials: lost.iter().map(trial).chain(failed).collect(),
    }
}

fn group(noise: &mut Noise, workload: &str, bytes: u32, change: impl Fn(&mut Cell)) -> Vec<Cell> {
    let column = match workload {
        "tcp_stream" => 0,
        "tcp_rr" => 2,
        _ => 3,
    };
    let load = match workload {
        "tcp_stream" => 1.0 / (1.0 + 2000.0 / f64::from(bytes)),
        _ => 1.0,
    };
    let mut cells = Vec::new();
    let host: Vec<f64> = (0..BLOCKS).map(|_| HOST[column] * load * noise.factor(0.012)).collect();
    for (mode, shares, cpu) in MODES.iter().filter(|(mode, ..)| SHOWN.contains(mode)) {
        let roles: &[Role] =
            if *mode == "host" { &[Role::Baseline, Role::Aa] } else { &[Role::Measured] };
        for role in roles {
            let values: Vec<f64> = match role {
                Role::Baseline => host.clone(),
                _ => host.iter().map(|h| h * shares[column] * noise.factor(0.02)).collect(),
            };
            let place = Place { mode, role: *role, workload, bytes, offload: "full" };
            let mut made = cell(noise, &place, &values, &host, *cpu);
            change(&mut made);
            cells.push(made);
        }
    }
    cells
}

/// Latencies of a queue: an exponential tail above a fixed cost.
fn time(cell: &mut Cell, load: f64) {
    let base = load * 1e6 / cell.median.unwrap();
    let mut bins = Vec::new();
    let mut left = 400_000.0_f64;
    let mut us = base * 0.8;
    while left >= 1.0 {
        let here = (left * 0.25).ceil();
        bins.push(Bin { us, count: here as u64 });
        left -= here;
        us *= 1.06;
    }
    cell.histogram = bins.clone();
    for sample in &mut cell.samples {
        sample.histogram = bins.clone();
    }
}

/// Converts a cell at a load: its value is the median latency.
fn in_microseconds(cell: &mut Cell) {
    cell.unit = "us".parse().unwrap();
    cell.median = cell.median.map(|rate| 1e6 / rate);
    cell.ratio = cell.ratio.map(|r| Interval {
        median: 1.0 / r.median,
        low: 1.0 / r.high,
        high: 1.0 / r.low,
        ..r
    });
    for sample in &mut cell.samples {
        sample.value = 1e6 / sample.value;
        sample.ratio = sample.ratio.map(|ratio| 1.0 / ratio);
    }
}

/// Converts it to requests that wait behind bulk traffic.
fn beside_bulk(cell: &mut Cell, beside: Beside, rates: BesideRates) {
    let slower = if beside == Beside::Both { 31.0 } else { 8.0 };
    time(cell, 1.2 * slower);
    cell.beside = Some(beside);
    cell.beside_rates = Some(rates);
    cell.service_demand = None;
    cell.service_demand_reason = Some("the bulk traffic took CPU time, too".to_string());
    for sample in &mut cell.samples {
        sample.beside_rates = Some(rates);
        sample.service_demand = None;
        let grown = |latency: Latency| Latency { p50: latency.p50 * slower, ..latency };
        sample.latency_us = sample.latency_us.map(grown);
    }
}

fn drop_point(cell: &mut Cell, better: f64) {
    let base = cell.median.unwrap() * better;
    let goals = [(0.0, 0.8), (0.001, 0.9), (0.005, 0.97)].map(|(loss, share)| DropGoal {
        loss,
        per_s: base * share * (1.0 - loss),
        kept: base * share,
        missed: (cell.mode != "host" || loss < 0.005).then_some(base * share * 1.02),
    });
    let point = DropPoint {
        goals: goals.to_vec(),
        trials: 41,
        void_trials: 2,
        generator_limit: (cell.mode == "host").then_some(base),
    };
    cell.drop_point = Some(point.clone());
    for (i, sample) in cell.samples.iter_mut().enumerate() {
        sample.value *= better * 0.8;
        let mut point = point.clone();
        for goal in &mut point.goals {
            goal.per_s *= 1.0 + 0.01 * i as f64;
        }
        sample.drop_point = Some(point);
    }
    cell.median = cell.median.map(|median| median * better * 0.8);
    cell.loss = Some(Loss {
        sent: 900_000,
        received: 890_000,
        fraction: 0.0111,
        places: BTreeMap::from([
            ("tenant-b socket buffer".to_string(), 7_000),
            ("softnet backlog".to_string(), 2_600),
        ]),
        unattributed: 400,
    });
    cell.latency_us = None;
    for hop in &mut cell.hops {
        hop.drops = if hop.host == "tenant-b" { 7_000 } else { 0 };
    }
}

fn timeline(cells: usize) -> Timeline {
    let steps = 240;
    let wave = |phase: f64, height: f64| -> Vec<f64> {
        (0..steps).map(|i| height * (0.5 + 0.5 * (f64::from(i) / 7.0 + phase).sin())).collect()
    };
    let cpu = |cpu: usize| CpuTimeline {
        cpu,
        user: wave(cpu as f64, 0.15),
        system: wave(1.0 + cpu as f64, 0.4),
        irq: wave(2.0, 0.02),
        softirq: wave(3.0 - cpu as f64, 0.35),
        steal: wave(4.0, 0.03),
    };
    let mut interrupts = Vec::new();
    for (name, height) in [("NET_RX", 21_000.0), ("NET_TX", 900.0), ("CAL", 4_000.0)] {
        for cpu in 0..2 {
            let per_s = wave(cpu as f64, height);
            interrupts.push(InterruptTimeline { name: name.to_string(), cpu, per_s });
        }
    }
    for queue in 0..4 {
        let name = format!("virtio0-input.{queue}");
        interrupts.push(InterruptTimeline { name, cpu: queue % 2, per_s: wave(0.5, 1_500.0) });
    }
    let marks = (0..steps).map(|i| Mark { at_s: f64::from(i) * 0.5, cell: i as usize % cells });
    Timeline { step_s: 0.5, cpus: vec![cpu(0), cpu(1)], interrupts, marks: marks.collect() }
}
