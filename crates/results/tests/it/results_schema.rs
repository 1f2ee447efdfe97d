//! The results types, `schema/results.schema.json` and the reader agree: they accept the same
//! files, and errors name an edited place.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use results::*;
use serde_json::{Value, json};

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/results.schema.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn text(value: &str) -> String {
    value.to_string()
}

fn latency() -> Latency {
    Latency { p50: 11.2, p90: 14.0, p99: 31.5, p99_9: 88.1, p99_99: 120.0, max: 412.7 }
}

fn loss() -> Loss {
    Loss {
        sent: 1_000_000,
        received: 996_100,
        fraction: 0.0039,
        places: BTreeMap::from([(text("tenant-b socket buffer"), 3_800)]),
        unattributed: 100,
    }
}

fn interval() -> Interval {
    Interval { median: 0.81, low: 0.78, high: 0.85, confidence: 0.95, samples: 8 }
}

fn hop() -> HopRecord {
    HopRecord {
        host: text("tenant-a"),
        device: text("eth0"),
        direction: Direction::Forward,
        kind: RecordKind::Device,
        packets: 21_000,
        bytes: 1_200_000_000,
        mean_skb_bytes: 57_142.9,
        drops: 0,
        excused: 0,
    }
}

fn sample() -> Sample {
    Sample {
        block: 0,
        position: 17,
        value: 183_000.5,
        valid: true,
        invalid_reason: None,
        path_proved: true,
        ratio: Some(0.81),
        seconds: 0.5,
        bits_per_s: 93_696_000.0,
        units: 91_500,
        service_demand: Some(6.1),
        service_demand_reason: Some(text("unknown")),
        arrivals: Some(results::Arrivals { jitter_us: 7.5, reordered: 2, received: 90_000 }),
        flow_shares: results::FlowShares::of(&[1.0, 2.0]),
        tcp: Some(results::TcpState {
            congestion_control: "bbr".to_owned(),
            rtt_us: 80.0,
            cwnd: 10.0,
        }),
        service_demand_ratio: Some(1.22),
        cpu: cpu(),
        peer_cpu: Some(cpu()),
        latency_us: Some(latency()),
        histogram: histogram(),
        drop_point: Some(drop_point()),
        pace: Some(pace()),
        tool_figures: BTreeMap::from([(text("LOCAL_CPU_UTIL"), 12.5)]),
        loss: Some(loss()),
        hops: vec![hop()],
        tcp_retransmits: 3,
        ecn: Some(results::EcnCounts { arrived: 90_000, ce: 12, not_ect: Some(3) }),
        beside_rates: Some(beside_rates()),
        rates_by_second: vec![1e9, 2e9],
        softnet_dropped: 0,
        softnet_squeezed: 2,
        udp_errors: BTreeMap::from([(text("RcvbufErrors"), 3_800)]),
        conntrack_entries: 4,
        disturbance: Some(disturbance()),
        peer_disturbance: Some(disturbance()),
        guests: vec![GuestSample { name: text("tenant-a"), cpu: cpu(), seconds: 0.51 }],
    }
}

fn beside_rates() -> results::BesideRates {
    results::BesideRates { forward_bits_per_s: Some(9e9), reverse_bits_per_s: Some(8e9) }
}

fn disturbance() -> Disturbance {
    Disturbance {
        steal_share: 0.01,
        throttled_share: 0.002,
        other_share: 0.48,
        busiest_share: 0.97,
    }
}

fn background() -> Background {
    let usual = |level| Usual { level, spread: 0.02 };
    let machine = MachineBackground {
        other: usual(0.48),
        busiest: usual(0.97),
        steal: usual(0.01),
        throttled: usual(0.0),
    };
    Background {
        rule: JudgedBy::Background,
        strict_share: Some(0.1),
        machine,
        peer: Some(machine),
        retaken: 3,
        kept: 1,
    }
}

/// Fields that older files lack, by the end of their path.
const NEWER: [&str; 23] = [
    "/faults",
    "/alternatives",
    "/background",
    "/disturbance",
    "/guests",
    "/peer_disturbance",
    "/settled_after",
    "/flow_shares",
    "/tcp",
    "/service_demand_reason",
    "/qdiscs",
    "/cpu_of_load",
    "/arrivals",
    "/rates_bits_per_s",
    "/dscp",
    "/ecn",
    "/ipv6",
    "/rates_by_second",
    "/beside",
    "/beside_rates",
    "/testbeds/0/setting",
    "/testbeds/0/probe",
    "disturbance/busiest_share",
];

fn cell() -> Cell {
    Cell {
        mode: text("vxlan"),
        role: Role::Measured,
        offload: Profile::Full,
        mtu: 1500,
        workload: Task::Steady(Workload::UdpStream),
        message_bytes: 64,
        flows: 1,
        outstanding: 1,
        offered: Some(Offered { percent: Some(50.0), per_s: 91_500.0 }),
        beside: Some(results::Beside::Both),
        beside_rates: Some(beside_rates()),
        socket_buffer_bytes: Some(32_768),
        setting: Some(text("sysctl:net.core.netdev_budget=1000")),
        gso: false,
        engine: Engine::Overlane,
        unit: Unit::Datagrams,
        status: Status::Ok,
        reason: None,
        samples: vec![
            sample(),
            Sample { valid: false, invalid_reason: Some(text("steal 12%")), ..sample() },
        ],
        median: Some(183_000.5),
        ratio: Some(interval()),
        service_demand: Some(ServiceDemand {
            value: 6.1,
            unit: DemandUnit::PerDatagram,
            ratio: Some(interval()),
        }),
        service_demand_reason: Some(text("unknown")),
        arrivals: Some(results::Arrivals { jitter_us: 7.5, reordered: 2, received: 90_000 }),
        flow_shares: results::FlowShares::of(&[1.0, 2.0]),
        tcp: Some(results::TcpState {
            congestion_control: "bbr".to_owned(),
            rtt_us: 80.0,
            cwnd: 10.0,
        }),
        latency_us: Some(latency()),
        histogram: histogram(),
        drop_point: Some(drop_point()),
        pace: Some(pace()),
        tool: Some(Tool {
            version: text("iperf 3.12"),
            command: text("iperf3 -c 10.0.0.2"),
            figures: BTreeMap::from([(text("cpu host_total"), 12.5)]),
            ratio: Some(interval()),
        }),
        loss: Some(loss()),
        hops: vec![hop()],
        settled_after: Some(8),
        trend: Some(text("falls by 12.0% over 8 samples (Mann-Kendall p = 0.0004)")),
    }
}

fn cpu() -> CpuSeconds {
    CpuSeconds { user: 0.1, system: 0.4, softirq: 0.3, irq: 0.0, steal: 0.01, idle: 0.19 }
}

fn histogram() -> Vec<Bin> {
    vec![Bin { us: 11.0, count: 40 }, Bin { us: 11.5, count: 2 }]
}

fn drop_point() -> DropPoint {
    DropPoint {
        goals: vec![DropGoal {
            loss: 0.001,
            per_s: 180_000.0,
            kept: 180_100.0,
            missed: Some(184_000.0),
        }],
        trials: 31,
        void_trials: 1,
        generator_limit: Some(400_000.0),
    }
}

fn pace() -> Pacing {
    Pacing {
        intended_per_s: 1000.0,
        sent_per_s: 999.5,
        late_p50_us: 1.5,
        late_p99_us: 12.0,
        late_max_us: 80.0,
    }
}

fn machine() -> Machine {
    Machine {
        cpu_model: text("Intel(R) Xeon(R) Processor @ 2.60GHz"),
        cpus: 2,
        memory_bytes: 25_200_000_000,
        kernel: text("6.18.0"),
        os: text("Debian GNU/Linux 12 (bookworm)"),
        hypervisor: Some(text("KVM")),
        cpu_clock: CpuClock::Tick,
        cpu_clock_reason: Some(text("BPF needs CAP_BPF")),
        privileges: Privileges::Root,
        idle_load: 0.02,
        cpu_of_load: true,
    }
}

fn timeline() -> Timeline {
    Timeline {
        step_s: 0.5,
        cpus: vec![CpuTimeline {
            cpu: 0,
            user: vec![0.1],
            system: vec![0.2],
            irq: vec![0.0],
            softirq: vec![0.3],
            steal: vec![0.01],
        }],
        interrupts: vec![InterruptTimeline { name: text("NET_RX"), cpu: 0, per_s: vec![1200.0] }],
        marks: vec![Mark { at_s: 0.1, cell: 0 }],
    }
}

/// Every option and every list is filled.
fn full() -> Results {
    Results {
        schema: text(SCHEMA),
        overlane: text("0.1.0"),
        complete: true,
        ended_by: EndedBy::Confidence,
        started: text("2025-11-20T21:34:40Z"),
        finished: text("2025-11-20T21:39:02.5Z"),
        machine: machine(),
        peer: Some(machine()),
        plan: Plan {
            name: Some(text("qperf-sweep")),
            seed: u64::MAX,
            baseline: text("host"),
            modes: vec![text("host"), text("vxlan")],
            offload: vec![Profile::Full, Profile::NoTunnel, Profile::None],
            mtu: vec![1500, 9000],
            workloads: Task::ALL.to_vec(),
            sizes: vec![1, 65507],
            flows: vec![1],
            outstanding: vec![1],
            load_percent: vec![50.0],
            rates_bits_per_s: vec![100_000_000],
            ipv6: true,
            beside: vec![results::Beside::Both],
            dscp: Some(46),
            ecn: true,
            socket_buffers: vec![4096],
            engines: vec![Engine::Overlane],
            vary: vec![text("sysctl:net.core.netdev_budget=300,1000")],
            gso: true,
            placement: Placement {
                policy: PlacementPolicy::Split,
                client_cpus: vec![0],
                server_cpus: vec![1],
            },
            steering: Steering::None,
            blocks: 8,
            max_blocks: 40,
            blocks_done: 8,
            duration_s: 0.5,
            warmup_s: 0.1,
            confidence: ConfidenceGoal {
                level: 0.95,
                half_width: Some(0.05),
                interim_analyses: vec![8, 10],
            },
        },
        modes: vec![ModeRecord {
            mode: text("vlan"),
            path: text("tenant – veth – bridge – VLAN-tagged NIC – wire"),
            status: Status::Unsupported,
            reason: Some(text("kernel has no 8021q")),
            remedy: Some(text("modprobe 8021q")),
            notes: vec![text("tag 100")],
            alternatives: vec![Alternative {
                mode: text("bridge"),
                advice: text("leave out the tag"),
            }],
        }],
        testbeds: vec![TestbedRecord {
            mode: text("vxlan"),
            offload: Profile::Full,
            mtu: 1500,
            tenant_mtu: 1450,
            devices: vec![DeviceRecord {
                host: text("a"),
                device: text("eth0"),
                mtu: 1500,
                features: BTreeMap::from([(text("tx-udp_tnl-segmentation"), true)]),
            }],
            qdiscs: BTreeMap::from([(text("eth0"), text("fq"))]),
            setting: Some(text("vm:queues=2")),
            guests: vec![GuestRecord {
                name: text("tenant-a"),
                kernel: text("6.1.0-41-cloud-amd64"),
                cpus: 2,
                queues: 2,
                mrg_rxbuf: true,
                tunnel_gso: false,
                tap: Some(TapRecord {
                    device: text("tap0"),
                    queues: 2,
                    txqueuelen: 1000,
                    sndbuf: 2_147_483_647,
                    vhost: false,
                }),
            }],
            probe: Some(PathProbe {
                classes: 30,
                damage: vec![text("packets to the server lost: 6 of 6 (UDP/IPv4, 64 B)")],
                untested: vec![text("packets from the server: an address is translated")],
                seconds: 0.4,
            }),
        }],
        faults: vec![FaultRecord {
            mode: text("bgp"),
            offload: Profile::Full,
            mtu: 1500,
            fault: text("session-ends"),
            title: text("b's session ends"),
            interval_s: 0.001,
            asked: 2,
            trials: vec![FaultTrial {
                reason: None,
                cost: Some(FaultCost { sent: 100, received: 60, twice: 1, outage_s: 0.04 }),
            }],
        }],
        cells: vec![cell()],
        timeline: Some(timeline()),
        warnings: vec![text("CPU time is counted by ticks")],
        background: Some(background()),
    }
}

/// Every optional part is missing.
fn minimal() -> Results {
    let full = full();
    Results {
        complete: false,
        ended_by: EndedBy::Interrupted,
        machine: Machine { hypervisor: None, cpu_clock_reason: None, ..full.machine },
        plan: Plan {
            name: None,
            modes: vec![],
            offload: vec![],
            mtu: vec![],
            workloads: vec![],
            sizes: vec![],
            blocks_done: 0,
            confidence: ConfidenceGoal { level: 0.99, half_width: None, interim_analyses: vec![] },
            ..full.plan
        },
        modes: vec![],
        testbeds: vec![],
        faults: vec![],
        cells: vec![],
        peer: None,
        timeline: None,
        warnings: vec![],
        ..full
    }
}

fn read(value: &Value) -> Result<Results, ReadError> {
    Results::from_json(&serde_json::to_vec(value).unwrap())
}

fn field_error(value: &Value) -> FieldError {
    match read(value) {
        Err(ReadError::Field(error)) => error,
        other => panic!("expected an error that names a field, got {other:?}"),
    }
}

#[test]
fn schema_is_one() {
    assert!(jsonschema::meta::is_valid(&schema()));
}

#[test]
fn examples_validate_and_read_back() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for results in [full(), minimal()] {
        let value = serde_json::to_value(&results).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, [""; 0]);
        assert_eq!(read(&value).unwrap(), results);
    }
}

#[test]
fn files_of_before_the_background_are_read() {
    let mut value = serde_json::to_value(full()).unwrap();
    value.as_object_mut().unwrap().remove("background");
    for sample in value["cells"][0]["samples"].as_array_mut().unwrap() {
        let sample = sample.as_object_mut().unwrap();
        sample.remove("disturbance");
        sample.remove("peer_disturbance");
        sample.remove("guests");
    }
    assert!(jsonschema::validator_for(&schema()).unwrap().is_valid(&value));
    assert_eq!(read(&value).unwrap().background, None);
}

/// Walks a value with every field filled and its schema together.
fn hold_together(
    at: &str,
    value: &Value,
    schema: &Value,
    root: &Value,
    seen: &mut BTreeSet<String>,
) {
    if let Some(reference) = schema["$ref"].as_str() {
        seen.insert(reference.to_string());
        let definition = root.pointer(reference.strip_prefix('#').unwrap());
        let definition = definition.unwrap_or_else(|| panic!("{at}: no {reference}"));
        return hold_together(at, value, definition, root, seen);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        assert_eq!(choices[1], json!({"type": "null"}), "{at}");
        return hold_together(at, value, &choices[0], root, seen);
    }
    match value {
        Value::Object(fields) => {
            if schema["additionalProperties"].is_object() {
                assert!(!fields.is_empty(), "{at}: the example must have an entry");
                for (name, value) in fields {
                    hold_together(
                        &format!("{at}/{name}"),
                        value,
                        &schema["additionalProperties"],
                        root,
                        seen,
                    );
                }
                return;
            }
            assert_eq!(schema["additionalProperties"], json!(false), "{at}");
            let known = schema["properties"].as_object().unwrap();
            let names = |map: &serde_json::Map<String, Value>| -> BTreeSet<String> {
                map.keys().cloned().collect()
            };
            assert_eq!(names(fields), names(known), "{at}: fields of the type, of the schema");
            let required: BTreeSet<String> = schema["required"]
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap().to_string())
                .collect();
            let newer = |name: &String| {
                let place = format!("{at}/{name}");
                NEWER.iter().any(|newer| place.ends_with(newer))
            };
            let always: BTreeSet<String> =
                names(known).into_iter().filter(|name| !newer(name)).collect();
            assert_eq!(required, always, "{at}: required");
            for (name, value) in fields {
                let at = format!("{at}/{name}");
                let description = known[name]["description"].as_str().unwrap_or_default();
                assert!(description.len() > 4, "{at} has no description");
                hold_together(&at, value, &known[name], root, seen);
            }
        }
        Value::Array(items) => {
            assert!(!items.is_empty(), "{at}: the example must have an item");
            for (i, item) in items.iter().enumerate() {
                hold_together(&format!("{at}/{i}"), item, &schema["items"], root, seen);
            }
        }
        // In the full example only a void sample's and an ok cell's reasons are null.
        Value::Null => assert!(at.ends_with("reason"), "{at}: the example must have a value"),
        _ => assert!(
            schema["type"].is_string() || schema["type"].is_array() || schema["enum"].is_array(),
            "{at}"
        ),
    }
}

#[test]
fn every_field_is_in_the_schema_and_no_other() {
    let schema = schema();
    let mut seen = BTreeSet::new();
    hold_together("", &serde_json::to_value(full()).unwrap(), &schema, &schema, &mut seen);
    let defined: BTreeSet<String> =
        schema["$defs"].as_object().unwrap().keys().map(|name| format!("#/$defs/{name}")).collect();
    assert_eq!(seen, defined, "definitions in use");
}

/// Pointers to every object and every plain value below `value`.
fn places(at: String, value: &Value, objects: &mut Vec<String>, leaves: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            objects.push(at.clone());
            for (name, value) in fields {
                places(format!("{at}/{name}"), value, objects, leaves);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                places(format!("{at}/{i}"), item, objects, leaves);
            }
        }
        _ => leaves.push(at),
    }
}

#[test]
fn a_value_of_another_type_is_named() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let original = serde_json::to_value(full()).unwrap();
    let (mut objects, mut leaves) = (Vec::new(), Vec::new());
    places(String::new(), &original, &mut objects, &mut leaves);
    assert!(leaves.len() > 150, "{}", leaves.len());
    for leaf in leaves.iter().filter(|leaf| *leaf != "/schema") {
        let mut edited = original.clone();
        *edited.pointer_mut(leaf).unwrap() = json!([true]);
        assert!(!validator.is_valid(&edited), "{leaf}: the schema allows [true]");
        let error = field_error(&edited);
        assert_eq!(&error.pointer, leaf, "{error}");
        assert!(!error.expected.is_empty() && !error.got.is_empty(), "{error}");
    }
}

#[test]
fn unknown_and_missing_fields_are_named() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let original = serde_json::to_value(full()).unwrap();
    let (mut objects, mut leaves) = (Vec::new(), Vec::new());
    places(String::new(), &original, &mut objects, &mut leaves);
    let is_map = |at: &str| {
        ["features", "qdiscs", "where", "udp_errors", "figures"].iter().any(|map| at.ends_with(map))
    };
    for object in objects.iter().filter(|at| !is_map(at)) {
        let mut edited = original.clone();
        let fields = edited.pointer_mut(object).unwrap().as_object_mut().unwrap();
        fields.insert(text("speed"), json!(1));
        assert!(!validator.is_valid(&edited), "{object}");
        assert_eq!(field_error(&edited).pointer, format!("{object}/speed"));
        let names: Vec<String> =
            original.pointer(object).unwrap().as_object().unwrap().keys().cloned().collect();
        for name in names {
            let mut edited = original.clone();
            edited.pointer_mut(object).unwrap().as_object_mut().unwrap().remove(&name);
            let place = format!("{object}/{name}");
            if NEWER.iter().any(|newer| place.ends_with(newer)) {
                // A file of an older version.
                assert!(validator.is_valid(&edited) && read(&edited).is_ok(), "{place}");
                continue;
            }
            assert!(!validator.is_valid(&edited), "{object} without {name}");
            // The reader treats a missing nullable value as null.
            match read(&edited) {
                Err(ReadError::Field(error)) => {
                    let expected = format!("{object}/{name}");
                    assert!(
                        error.pointer == expected || error.pointer.ends_with("reason"),
                        "{error}"
                    );
                }
                Err(other) => panic!("{object}/{name}: {other}"),
                Ok(_) => {
                    let mut null = original.clone();
                    *null.pointer_mut(&format!("{object}/{name}")).unwrap() = Value::Null;
                    assert!(validator.is_valid(&null), "{object}/{name} may not be null");
                }
            }
        }
    }
}

/// Edits that keep the type. The schema finds each too, except where one value
/// contradicts another.
#[test]
fn edited_values_are_named() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let original = serde_json::to_value(full()).unwrap();
    for (pointer, value, named) in [
        ("/ended_by", json!("bored"), "/ended_by"),
        ("/started", json!("yesterday"), "/started"),
        ("/machine/cpus", json!(0), "/machine/cpus"),
        ("/machine/idle_load", json!(1.5), "/machine/idle_load"),
        ("/machine/privileges", json!("wheel"), "/machine/privileges"),
        ("/plan/offload/1", json!("some"), "/plan/offload/1"),
        ("/plan/mtu/0", json!(67), "/plan/mtu/0"),
        ("/plan/sizes/1", json!(65508), "/plan/sizes/1"),
        ("/plan/sizes/0", json!(0), "/plan/sizes/0"),
        ("/plan/flows/0", json!(0), "/plan/flows/0"),
        ("/plan/seed", json!(-1), "/plan/seed"),
        ("/plan/duration_s", json!(0), "/plan/duration_s"),
        ("/plan/warmup_s", json!(-0.1), "/plan/warmup_s"),
        ("/plan/confidence/level", json!(95), "/plan/confidence/level"),
        ("/plan/confidence/half_width", json!(-0.05), "/plan/confidence/half_width"),
        ("/plan/placement/policy", json!("left"), "/plan/placement/policy"),
        ("/modes/0/status", json!("fine"), "/modes/0/status"),
        ("/modes/0/reason", json!(null), "/modes/0/reason"),
        ("/testbeds/0/tenant_mtu", json!(1), "/testbeds/0/tenant_mtu"),
        ("/testbeds/0/devices/0/mtu", json!(1), "/testbeds/0/devices/0/mtu"),
        ("/faults/0/mtu", json!(67), "/faults/0/mtu"),
        ("/faults/0/offload", json!("some"), "/faults/0/offload"),
        ("/faults/0/interval_s", json!(-1), "/faults/0/interval_s"),
        ("/faults/0/asked", json!(0), "/faults/0/asked"),
        ("/faults/0/trials/0/cost/outage_s", json!(-1), "/faults/0/trials/0/cost/outage_s"),
        ("/faults/0/trials/0/cost/twice", json!(-1), "/faults/0/trials/0/cost/twice"),
        ("/cells/0/workload", json!("tcp_streams"), "/cells/0/workload"),
        ("/cells/0/role", json!("guest"), "/cells/0/role"),
        ("/cells/0/unit", json!("bit"), "/cells/0/unit"),
        ("/cells/0/message_bytes", json!(0), "/cells/0/message_bytes"),
        ("/cells/0/median", json!(null), "/cells/0/median"),
        ("/cells/0/median", json!(-1), "/cells/0/median"),
        ("/cells/0/reason", json!("tired"), "/cells/0/reason"),
        ("/cells/0/status", json!("failed"), "/cells/0/median"),
        ("/cells/0/ratio/low", json!(-1), "/cells/0/ratio/low"),
        ("/cells/0/ratio/confidence", json!(1), "/cells/0/ratio/confidence"),
        ("/cells/0/ratio/samples", json!(0), "/cells/0/ratio/samples"),
        ("/cells/0/service_demand/unit", json!("s"), "/cells/0/service_demand/unit"),
        ("/cells/0/loss/fraction", json!(1.01), "/cells/0/loss/fraction"),
        ("/cells/0/hops/0/kind", json!("wire"), "/cells/0/hops/0/kind"),
        ("/cells/0/hops/0/direction", json!("up"), "/cells/0/hops/0/direction"),
        ("/cells/0/hops/0/packets", json!(1.5), "/cells/0/hops/0/packets"),
        ("/cells/0/samples/0/value", json!(-1), "/cells/0/samples/0/value"),
        ("/cells/0/samples/0/path_proved", json!(false), "/cells/0/samples/0/path_proved"),
        ("/cells/0/samples/0/invalid_reason", json!("x"), "/cells/0/samples/0/invalid_reason"),
        ("/cells/0/samples/1/invalid_reason", json!(null), "/cells/0/samples/1/invalid_reason"),
        ("/cells/0/samples/0/cpu/steal", json!(-1), "/cells/0/samples/0/cpu/steal"),
        ("/cells/0/samples/0/latency_us/p50", json!(-1), "/cells/0/samples/0/latency_us/p50"),
    ] {
        let mut edited = original.clone();
        *edited.pointer_mut(pointer).unwrap() = value.clone();
        assert!(!validator.is_valid(&edited), "the schema allows {value} at {pointer}");
        assert_eq!(field_error(&edited).pointer, named, "{value} at {pointer}");
    }
    for (pointer, value) in [
        ("/faults/0/trials/0/cost/received", json!(101)),
        ("/faults/0/trials/0/cost", json!(null)),
        ("/faults/0/trials/0/reason", json!("bird in b: is not running")),
        ("/cells/0/ratio/median", json!(0.7)),
        ("/cells/0/ratio/high", json!(0.8)),
        ("/cells/0/latency_us/p99", json!(13)),
        ("/cells/0/samples/0/latency_us/max", json!(1)),
    ] {
        let mut edited = original.clone();
        *edited.pointer_mut(pointer).unwrap() = value.clone();
        assert_eq!(field_error(&edited).pointer, pointer, "{value} at {pointer}");
    }
}

#[test]
fn errors_say_what_was_expected_and_what_came() {
    let mut edited = serde_json::to_value(full()).unwrap();
    edited["cells"][0]["workload"] = json!("tcp_streams");
    assert_eq!(
        read(&edited).unwrap_err().to_string(),
        "results are damaged or edited: /cells/0/workload: expected \"tcp_stream\" or \"tcp_rr\" \
         or \"tcp_crr\" or \"tcp_maerts\" \
         or \"udp_stream\" or \"udp_rr\" or \"drop_point\", got \"tcp_streams\""
    );
    edited["cells"][0]["workload"] = json!(7);
    assert_eq!(
        read(&edited).unwrap_err().to_string(),
        "results are damaged or edited: /cells/0/workload: expected a string, got integer `7`"
    );
    edited["schema"] = json!("overlane.results/2");
    assert_eq!(
        read(&edited).unwrap_err().to_string(),
        "results have another schema: /schema: expected \"overlane.results/3\", got \
         \"overlane.results/2\""
    );
    let missing = Results::read("/nowhere/results.json".as_ref()).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read results /nowhere/results.json: "));
    let twice = r#"{"schema": "overlane.results/3", "schema": "overlane.results/3"}"#;
    let error = Results::from_json(twice.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("/schema: expected the field once"), "{error}");
}

#[test]
fn more_marks_than_packets_are_refused() {
    for name in ["ce", "not_ect"] {
        let mut edited = serde_json::to_value(full()).unwrap();
        edited["cells"][0]["samples"][0]["ecn"][name] = json!(90_001);
        let error = field_error(&edited).to_string();
        assert!(error.contains(&format!("/ecn/{name}")) && error.contains("90000"), "{error}");
    }
}

#[test]
fn a_file_cut_short_anywhere_says_so() {
    let whole = serde_json::to_vec_pretty(&full()).unwrap();
    for end in 0..whole.len() {
        match Results::from_json(&whole[..end]) {
            Err(ReadError::CutShort { .. }) => {}
            other => panic!("cut after {end} of {} bytes: {other:?}", whole.len()),
        }
    }
    let inside = whole.windows(14).position(|at| at == b"\"RcvbufErrors\"").unwrap();
    let error = Results::from_json(&whole[..inside + 16]).unwrap_err().to_string();
    assert!(error.contains("inside /cells/0/samples/0/udp_errors"), "{error}");
    assert!(Results::from_json(b"").unwrap_err().to_string().ends_with("the file is empty"));
    let mut longer = whole.clone();
    longer.extend_from_slice(b"{}");
    assert!(matches!(Results::from_json(&longer), Err(ReadError::Syntax { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn made_up_results_validate_and_read_back_bit_for_bit(
        seed in any::<u64>(),
        ratios in prop::collection::vec(1e-6..1e6_f64, 0..6),
        latencies in prop::option::of(prop::array::uniform5(0.0..1e7_f64)),
        failed in any::<bool>(),
        reason in ".{0,40}",
        role in prop::sample::select(vec![Role::Baseline, Role::Aa, Role::Measured]),
        counts in prop::array::uniform4(any::<u64>()),
    ) {
        let latency_us = latencies.map(|mut sorted| {
            sorted.sort_by(f64::total_cmp);
            Latency {
                p50: sorted[0],
                p90: sorted[1],
                p99: sorted[2],
                p99_9: sorted[3],
                p99_99: sorted[4],
                max: sorted[4],
            }
        });
        let samples: Vec<Sample> = ratios
            .iter()
            .enumerate()
            .map(|(i, ratio)| Sample {
                block: i as u32,
                ratio: Some(*ratio),
                valid: !failed,
                invalid_reason: failed.then(|| reason.clone()),
                path_proved: !failed,
                units: counts[0],
                latency_us,
                udp_errors: BTreeMap::from([(reason.clone(), counts[1])]),
                hops: vec![HopRecord { packets: counts[2], bytes: counts[3], ..hop() }; i],
                ..sample()
            })
            .collect();
        let mut results = full();
        results.plan.seed = seed;
        results.cells = vec![Cell {
            role,
            status: if failed { Status::Failed } else { Status::Ok },
            reason: failed.then(|| reason.clone()),
            median: (!failed).then(|| ratios.iter().sum()),
            ratio: results::stats::ratio_interval(&ratios, 0.95).ok(),
            latency_us,
            samples,
            ..cell()
        }];
        let written = serde_json::to_vec(&results).unwrap();
        let value: Value = serde_json::from_slice(&written).unwrap();
        let schema = schema();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        prop_assert_eq!(errors, Vec::<String>::new());
        prop_assert_eq!(Results::from_json(&written).unwrap(), results);
    }

    #[test]
    fn damaged_files_never_panic(position in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = serde_json::to_vec(&full()).unwrap();
        let position = position.index(bytes.len());
        bytes[position] = byte;
        let _ = Results::from_json(&bytes);
    }
}

/// Removes the newer fields that are null where the file has none of them.
fn without_newer(written: &mut Value, kept: &Value) {
    match (written, kept) {
        (Value::Object(fields), Value::Object(kept)) => {
            let newer = |name: &String| NEWER.iter().any(|newer| newer[1..] == **name);
            fields.retain(|name, value| {
                !(newer(name) && value.is_null() && !kept.contains_key(name))
            });
            for (name, value) in fields {
                without_newer(value, &kept.get(name).cloned().unwrap_or_default());
            }
        }
        (Value::Array(items), Value::Array(kept)) => {
            items.iter_mut().zip(kept).for_each(|(item, kept)| without_newer(item, kept));
        }
        _ => {}
    }
}

/// Files of earlier versions are read, and written again unchanged.
#[test]
fn files_of_earlier_versions_are_read() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results");
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let mut found = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".json") || name == "claims.json" {
            continue;
        }
        let text = std::fs::read(&path).unwrap();
        let kept: Value = serde_json::from_slice(&text).unwrap();
        let results = Results::from_json(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(validator.is_valid(&kept), "{name}");
        let mut written = serde_json::to_value(&results).unwrap();
        without_newer(&mut written, &kept);
        // Not `assert_eq`: both are megabytes.
        assert!(written == kept, "{name} is written otherwise than it was");
        found += 1;
    }
    assert!(found > 0, "no file in {directory}");
}
