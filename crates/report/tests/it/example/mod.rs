//! A made-up run of the scale measured once on the test machine: 13 modes ×
//! offload full and none × three workloads, with seeded noise. Its figures are
//! invented; the statistics on them are computed as in a real run.

#![allow(dead_code, reason = "no test file uses all of it")]

use std::collections::BTreeMap;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use results::stats::{median, ratio_interval, trend};
use results::*;

mod deep;

#[allow(unused_imports, reason = "not every test that includes this needs it")]
pub use deep::deep;

const BLOCKS: u32 = 8;
const LEVEL: f64 = 0.95;

/// Mode; share of host in tcp_stream full, tcp_stream none (of host none),
/// tcp_rr, udp_stream; CPU ratio.
const MODES: [(&str, [f64; 4], f64); 13] = [
    ("host", [1.0, 1.0, 1.0, 1.0], 1.0),
    ("same-host", [1.08, 2.6, 1.06, 1.12], 0.93),
    ("bridge", [0.93, 0.9, 0.95, 0.72], 1.12),
    ("bridge-macnat", [0.89, 0.84, 0.93, 0.66], 1.19),
    ("macvlan", [0.99, 0.97, 0.995, 0.96], 1.02),
    ("routed", [0.94, 0.92, 0.96, 0.75], 1.09),
    ("nat", [0.88, 0.82, 0.92, 0.64], 1.21),
    ("nat-proxy", [0.42, 0.51, 0.47, 0.31], 2.4),
    ("vxlan", [0.72, 0.61, 0.81, 0.39], 1.52),
    ("vxlan-routed", [0.76, 0.66, 0.84, 0.44], 1.43),
    ("ovs-vlan", [0.081, 0.14, 0.61, 0.24], 9.3),
    ("ovs-vxlan", [0.056, 0.11, 0.57, 0.2], 12.8),
    ("tap", [0.17, 0.38, 0.68, 0.47], 5.1),
];

/// Host's values: tcp_stream full and none in bit/s, tcp_rr, udp_stream.
const HOST: [f64; 4] = [16.2e9, 5.9e9, 38_400.0, 221_000.0];

struct Noise(Pcg64);

impl Noise {
    fn new(seed: u64) -> Noise {
        Noise(Pcg64::seed_from_u64(seed))
    }

    fn factor(&mut self, spread: f64) -> f64 {
        let sum: f64 = (0..12).map(|_| self.0.next_u64() as f64 / u64::MAX as f64).sum();
        1.0 + spread * (sum - 6.0)
    }
}

/// Alternatives of a mode that serve the same purpose.
fn alternatives(mode: &str) -> Vec<Alternative> {
    let (other, advice) = match mode {
        "ovs-vxlan" => (
            "vxlan",
            "tunnel with the kernel's VXLAN device or OVS's kernel datapath instead of OVS in \
             user space",
        ),
        "vxlan" => (
            "routed",
            "route tenants' addresses over the underlay instead of tunnelling, where you can",
        ),
        "nat-proxy" => (
            "nat",
            "publish ports by NAT instead of docker-proxy (Docker: \"userland-proxy\": false)",
        ),
        "bridge" => ("macvlan", "put tenants on the NIC by macvlan instead of a bridge"),
        _ => return Vec::new(),
    };
    vec![Alternative { mode: other.to_owned(), advice: advice.to_owned() }]
}

pub fn results() -> Results {
    let mut noise = Noise::new(20);
    let mut cells = Vec::new();
    for (workload, size) in [("tcp_stream", 65536), ("tcp_rr", 1), ("udp_stream", 64)] {
        for offload in ["full", "none"] {
            cells.extend(group(&mut noise, workload, size, offload));
        }
    }
    let text = |text: &str| text.to_string();
    let unsupported = |mode: &str, path: &str, reason: &str, remedy: &str| ModeRecord {
        mode: text(mode),
        path: text(path),
        status: Status::Unsupported,
        reason: Some(text(reason)),
        remedy: Some(text(remedy)),
        notes: vec![],
        alternatives: vec![],
    };
    let mut modes: Vec<ModeRecord> = MODES
        .iter()
        .map(|(mode, ..)| ModeRecord {
            mode: text(mode),
            path: text("tenant – … – wire"),
            status: Status::Ok,
            reason: None,
            remedy: None,
            notes: if mode.starts_with("ovs") {
                vec![text("user-space datapath (datapath_type=netdev)")]
            } else {
                vec![]
            },
            alternatives: alternatives(mode),
        })
        .collect();
    modes.push(unsupported(
        "vlan",
        "tenant – veth – bridge – VLAN-tagged NIC – wire",
        "the kernel has no 8021q",
        "a kernel with CONFIG_VLAN_8021Q, or `modprobe 8021q`",
    ));
    modes.push(unsupported(
        "ipvlan",
        "tenant – ipvlan – NIC – wire",
        "the kernel has no ipvlan",
        "a kernel with CONFIG_IPVLAN, or `modprobe ipvlan`",
    ));
    Results {
        schema: text(SCHEMA),
        overlane: text("0.1.0"),
        complete: true,
        ended_by: "blocks".parse().unwrap(),
        started: text("2025-11-20T21:34:40Z"),
        finished: text("2025-11-20T21:39:02Z"),
        machine: Machine {
            cpu_model: text("Intel(R) Xeon(R) Processor @ 2.60GHz"),
            cpus: 2,
            memory_bytes: 25_200_000_000,
            kernel: text("6.18.0"),
            os: text("Debian GNU/Linux 12 (bookworm)"),
            hypervisor: Some(text("KVM")),
            cpu_clock: "tick".parse().unwrap(),
            cpu_clock_reason: Some(text("no BPF")),
            privileges: "root".parse().unwrap(),
            idle_load: 0.01,
            cpu_of_load: true,
        },
        peer: None,
        timeline: None,
        plan: Plan {
            name: None,
            seed: 1,
            baseline: text("host"),
            modes: modes.iter().map(|mode| mode.mode.clone()).collect(),
            offload: vec!["full".parse().unwrap(), "none".parse().unwrap()],
            mtu: vec![1500],
            workloads: vec![
                "tcp_stream".parse().unwrap(),
                "tcp_rr".parse().unwrap(),
                "udp_stream".parse().unwrap(),
            ],
            sizes: vec![],
            flows: vec![1],
            outstanding: vec![1],
            load_percent: vec![],
            rates_bits_per_s: vec![],
            ipv6: false,
            beside: vec![],
            dscp: None,
            ecn: false,
            socket_buffers: vec![],
            engines: vec!["overlane".parse().unwrap()],
            vary: vec![],
            gso: false,
            placement: Placement {
                policy: "split".parse().unwrap(),
                client_cpus: vec![0],
                server_cpus: vec![1],
            },
            steering: "none".parse().unwrap(),
            blocks: BLOCKS,
            max_blocks: BLOCKS,
            blocks_done: BLOCKS,
            duration_s: 0.5,
            warmup_s: 0.1,
            confidence: ConfidenceGoal { level: LEVEL, half_width: None, interim_analyses: vec![] },
        },
        modes,
        testbeds: vec![],
        faults: vec![],
        cells,
        background: None,
        warnings: vec![text(
            "One machine plays both hosts: throughput here is total cost, not line rate.",
        )],
    }
}

fn group(noise: &mut Noise, workload: &str, size: u32, offload: &str) -> Vec<Cell> {
    let column = match (workload, offload) {
        ("tcp_stream", "full") => 0,
        ("tcp_stream", _) => 1,
        ("tcp_rr", _) => 2,
        _ => 3,
    };
    let mut cells: Vec<Cell> = Vec::new();
    // Every sample's noise, and the host's of the same block, drifting together.
    let drift: Vec<f64> = (0..BLOCKS).map(|block| 1.0 - 0.01 * f64::from(block)).collect();
    let host: Vec<f64> = drift.iter().map(|d| HOST[column] * d * noise.factor(0.012)).collect();
    for (i, (mode, shares, cpu)) in MODES.iter().enumerate() {
        if i == 1 {
            let again: Vec<f64> =
                drift.iter().map(|d| HOST[column] * d * noise.factor(0.012)).collect();
            let place = Place { mode: "host", role: Role::Aa, workload, bytes: size, offload };
            cells.push(cell(noise, &place, &again, &host, 1.0));
        }
        let values: Vec<f64> = if i == 0 {
            host.clone()
        } else {
            drift.iter().map(|d| HOST[column] * d * shares[column] * noise.factor(0.02)).collect()
        };
        let role = if i == 0 { Role::Baseline } else { Role::Measured };
        let place = Place { mode, role, workload, bytes: size, offload };
        cells.push(cell(noise, &place, &values, &host, *cpu));
    }
    cells
}

/// Identity of a cell.
struct Place<'a> {
    mode: &'a str,
    role: Role,
    workload: &'a str,
    bytes: u32,
    offload: &'a str,
}

fn cell(noise: &mut Noise, place: &Place<'_>, values: &[f64], host: &[f64], cpu: f64) -> Cell {
    let Place { mode, role, workload, bytes: size, offload } = *place;
    let hops = || hops(mode, workload, offload);
    let (unit, demand_unit, demand) = match workload {
        "tcp_stream" => ("bit/s", "us/KiB", 0.9),
        "tcp_rr" => ("transaction/s", "us/transaction", 38.0),
        _ => ("datagram/s", "us/datagram", 6.4),
    };
    let round_trip = 1e6 / values[0];
    let latency = (workload == "tcp_rr").then_some(Latency {
        p50: round_trip * 0.93,
        p90: round_trip * 1.2,
        p99: round_trip * 2.7,
        p99_9: round_trip * 9.1,
        p99_99: round_trip * 20.0,
        max: round_trip * 31.0,
    });
    let loss = (workload == "udp_stream").then(|| Loss {
        sent: 1_000_000,
        received: 987_000,
        fraction: 0.013 / values[0] * 221_000.0 / 10.0,
        places: BTreeMap::from([("tenant-b socket buffer".to_string(), 12_900)]),
        unattributed: 100,
    });
    let samples: Vec<Sample> = values
        .iter()
        .zip(host)
        .enumerate()
        .map(|(block, (value, host))| {
            let ratio = cpu * noise.factor(0.02);
            // One block was disturbed for one mode.
            let valid = !(block == 3 && mode == "routed" && workload == "tcp_rr");
            Sample {
                block: block as u32,
                position: 0,
                value: *value,
                valid,
                invalid_reason: (!valid).then(|| "steal 14% of CPU time, limit 5%".to_string()),
                path_proved: true,
                ratio: Some(value / host),
                seconds: 0.5,
                bits_per_s: if unit == "bit/s" { *value } else { value * f64::from(size) * 8.0 },
                units: (value * 0.5) as u64,
                service_demand_reason: None,
                flow_shares: None,
                tcp: None,
                arrivals: None,
                ecn: None,
                beside_rates: None,
                rates_by_second: Vec::new(),
                service_demand: Some(demand * ratio),
                service_demand_ratio: Some(ratio),
                cpu: CpuSeconds { system: 0.5, softirq: 0.4, ..CpuSeconds::default() },
                peer_cpu: None,
                latency_us: latency,
                histogram: Vec::new(),
                drop_point: None,
                pace: None,
                tool_figures: BTreeMap::new(),
                loss: loss.clone(),
                hops: hops(),
                tcp_retransmits: 0,
                softnet_dropped: 0,
                softnet_squeezed: 0,
                udp_errors: BTreeMap::new(),
                conntrack_entries: 0,
                disturbance: None,
                peer_disturbance: None,
                guests: Vec::new(),
            }
        })
        .collect();
    let valid: Vec<&Sample> = samples.iter().filter(|sample| sample.valid).collect();
    let all = |pick: fn(&Sample) -> f64| valid.iter().map(|s| pick(s)).collect::<Vec<f64>>();
    let interval = |ratios: Vec<f64>| {
        (role != Role::Baseline).then(|| ratio_interval(&ratios, LEVEL).unwrap())
    };
    let drift = trend(&all(|sample| sample.ratio.unwrap())).unwrap();
    Cell {
        mode: mode.to_string(),
        role,
        offload: offload.parse().unwrap(),
        mtu: 1500,
        workload: workload.parse().unwrap(),
        message_bytes: size,
        flows: 1,
        outstanding: 1,
        offered: None,
        beside: None,
        socket_buffer_bytes: None,
        setting: None,
        gso: false,
        engine: "overlane".parse().unwrap(),
        unit: unit.parse().unwrap(),
        status: Status::Ok,
        reason: None,
        median: median(&all(|sample| sample.value)),
        ratio: interval(all(|sample| sample.ratio.unwrap())),
        service_demand: Some(ServiceDemand {
            value: median(&all(|sample| sample.service_demand.unwrap())).unwrap(),
            unit: demand_unit.parse().unwrap(),
            ratio: interval(all(|sample| sample.service_demand_ratio.unwrap())),
        }),
        service_demand_reason: None,
        flow_shares: None,
        tcp: None,
        arrivals: None,
        beside_rates: None,
        latency_us: latency,
        histogram: Vec::new(),
        drop_point: None,
        pace: None,
        tool: None,
        loss,
        hops: hops(),
        trend: drift.is_significant().then(|| drift.to_string()),
        settled_after: None,
        samples,
    }
}

/// The path to the server: GSO packets with full, segmented at the NIC with none, never built
/// before a TAP device without offload.
fn hops(mode: &str, workload: &str, offload: &str) -> Vec<HopRecord> {
    let path: &[(&str, &str)] = match mode {
        "host" => &[("a", "eth0"), ("b", "eth0")],
        "same-host" => &[("tenant-a", "eth0"), ("tenant-b", "eth0")],
        "vxlan" | "vxlan-routed" => &[
            ("tenant-a", "eth0"),
            ("a", "vxlan0"),
            ("a", "eth0"),
            ("b", "eth0"),
            ("b", "vxlan0"),
            ("tenant-b", "eth0"),
        ],
        "tap" => &[("tenant-a", "tap0"), ("a", "eth0"), ("b", "eth0"), ("tenant-b", "tap0")],
        _ => &[("tenant-a", "eth0"), ("a", "eth0"), ("b", "eth0"), ("tenant-b", "eth0")],
    };
    let mut before_nic = true;
    path.iter()
        .flat_map(|(host, device)| {
            before_nic &= (*host, *device) != ("a", "eth0");
            let is_tap = mode == "tap" || mode.starts_with("ovs") && !before_nic;
            let cut = is_tap || mode != "same-host" && offload == "none" && !before_nic;
            let mean = match workload {
                "tcp_stream" if cut => 1_498.7,
                "tcp_stream" => 51_204.3,
                "tcp_rr" => 53.0,
                _ => 92.0,
            };
            let hop = |direction: &str, mean: f64| HopRecord {
                host: host.to_string(),
                device: device.to_string(),
                direction: direction.parse().unwrap(),
                kind: "device".parse().unwrap(),
                packets: 20_000,
                bytes: (20_000.0 * mean) as u64,
                mean_skb_bytes: mean,
                drops: 0,
                excused: 0,
            };
            [hop("forward", mean), hop("reverse", 52.0)]
        })
        .collect()
}
