//! Golden outputs of Debian 12's tools, and malformed output.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::MAX_MESSAGE_BYTES;

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("../../tests/golden/", $name))
    };
}

const TOOLS: [Tool; 5] = [Tool::Iperf3, Tool::Netperf, Tool::Qperf, Tool::Sockperf, Tool::Nuttcp];

fn load(workload: Workload) -> Load {
    Load { duration: Duration::from_millis(800), ..Load::new(workload) }
}

fn job(load: &Load) -> Job<'_> {
    let at: SocketAddr = "192.0.2.2:20001".parse().unwrap();
    Job { load, target: at, listen: at, data_port: 20002, seconds: 1 }
}

fn read(tool: Tool, load: &Load, client: &str) -> Result<ToolOutcome, Unexpected> {
    driver(tool).read(&job(load), &Printed { client, server: "" })
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= b.abs() * 1e-3
}

#[test]
fn iperf3_streams() {
    let stream = load(Workload::TcpStream);
    let text = golden!("iperf3-3.12-tcp_stream.json");
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let outcome = read(Tool::Iperf3, &stream, text).unwrap();
    let received = &json["end"]["sum_received"];
    assert!(near(outcome.measured.bits_per_s(), received["bits_per_second"].as_f64().unwrap()));
    assert_eq!(outcome.measured.payload_bytes, received["bytes"].as_u64().unwrap());
    assert_eq!(outcome.measured.tcp_retransmits, json["end"]["sum_sent"]["retransmits"].as_u64());
    assert!(outcome.figures["cpu_utilization_percent.host_total"] > 0.0);

    let datagrams = Load { flows: 2, ..load(Workload::UdpStream) };
    let text = golden!("iperf3-3.12-udp_stream.json");
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let measured = read(Tool::Iperf3, &datagrams, text).unwrap().measured;
    let end = &json["end"];
    let counted = measured.datagrams.unwrap();
    assert_eq!(counted.sent, end["sum_sent"]["packets"].as_u64().unwrap());
    assert_eq!(counted.received, end["sum_received"]["bytes"].as_u64().unwrap() / 64);
    assert!(counted.received < counted.sent, "the golden run lost some");

    // Other sizes, protocols or numbers of flows than requested.
    for other in [
        Load { message_bytes: 65, ..datagrams.clone() },
        Load { flows: 1, ..datagrams.clone() },
        Load { flows: 2, message_bytes: 64, ..stream.clone() },
    ] {
        let error = read(Tool::Iperf3, &other, text).unwrap_err();
        assert!(error.expected.contains("test_start"), "{error:?}");
    }
    let refused = read(Tool::Iperf3, &stream, golden!("iperf3-3.12-refused.json")).unwrap_err();
    assert!(refused.expected.contains("Connection refused"), "{refused:?}");
}

#[test]
fn netperf_has_its_own_figures_and_confidence() {
    let stream = load(Workload::TcpStream);
    let one = read(Tool::Netperf, &stream, golden!("netperf-2.7.0-tcp_stream.txt")).unwrap();
    assert!(near(one.measured.bits_per_s(), one.figures["THROUGHPUT"] * 1e3));
    assert!(one.figures["LOCAL_CPU_UTIL"] > 0.0 && one.figures["LOCAL_SD"] > 0.0);
    // A value that it did not compute is not a figure.
    assert!(!one.figures.contains_key("THROUGHPUT_CONFID"));
    assert!(one.measured.tcp_retransmits.is_some());
    let text = golden!("netperf-2.7.0-tcp_stream-confidence.txt");
    let three = read(Tool::Netperf, &stream, text).unwrap();
    assert_eq!(three.figures["CONFIDENCE_ITERATION"], 3.0);
    assert_eq!(three.figures["CONFIDENCE_LEVEL"], 95.0);
    assert!(three.figures["THROUGHPUT_CONFID"] > 0.0);

    for (workload, text) in [
        (Workload::TcpRr, golden!("netperf-2.7.0-tcp_rr.txt")),
        (Workload::TcpCrr, golden!("netperf-2.7.0-tcp_crr.txt")),
        (Workload::UdpRr, golden!("netperf-2.7.0-udp_rr.txt")),
        (Workload::TcpRr, golden!("netperf-2.7.0-tcp_rr-burst.txt")),
    ] {
        let rr = read(Tool::Netperf, &load(workload), text).unwrap();
        assert!(near(rr.measured.rate(), rr.figures["TRANSACTION_RATE"]), "{workload}");
        assert!(rr.figures["P99_LATENCY"] >= rr.figures["P50_LATENCY"], "{workload}");
        assert!(rr.measured.latency.is_none(), "it has no p99.9");
        if let Some(datagrams) = rr.measured.datagrams {
            assert_eq!(datagrams.lost(), 0, "what is under way is not lost");
        }
    }
    let datagrams = load(Workload::UdpStream);
    let udp = read(Tool::Netperf, &datagrams, golden!("netperf-2.7.0-udp_stream.txt")).unwrap();
    let counted = udp.measured.datagrams.unwrap();
    assert_eq!(counted.received, udp.figures["REMOTE_RECV_CALLS"] as u64);
    assert_eq!(counted.sent, udp.figures["LOCAL_SEND_CALLS"] as u64);
    assert!(near(udp.measured.bits_per_s(), udp.figures["THROUGHPUT"] * 1e3));
}

#[test]
fn netperf_output_of_another_form_is_refused() {
    let stream = load(Workload::TcpStream);
    let good = golden!("netperf-2.7.0-tcp_stream.txt");
    for (from, to, expected) in [
        ("10^3bits/s", "10^6bits/s", "THROUGHPUT_UNITS"),
        ("usec/KB", "usec/Tran", "SD_UNITS"),
        ("LOCAL_SD=", "LOCAL_SERVICE=", "requested selectors"),
        ("ELAPSED_TIME=1.00\n", "", "ELAPSED_TIME"),
        ("ELAPSED_TIME=1.00", "ELAPSED_TIME=2.00", "agree"),
        ("ELAPSED_TIME=1.00", "ELAPSED_TIME=nan", "number for ELAPSED_TIME"),
        ("ELAPSED_TIME=1.00", "ELAPSED_TIME 1.00", "NAME=VALUE"),
        ("REMOTE_BYTES_RECVD=", "REMOTE_BYTES_RECVD=-", "count for REMOTE_BYTES_RECVD"),
    ] {
        let text = good.replace(from, to);
        assert_ne!(text, good, "{from}");
        let error = read(Tool::Netperf, &stream, &text).unwrap_err();
        assert!(error.expected.contains(expected), "{from} -> {to}: {error:?}");
    }
}

#[test]
fn qperf_latency_is_one_way() {
    let rr =
        read(Tool::Qperf, &load(Workload::TcpRr), golden!("qperf-0.4.11-tcp_lat.txt")).unwrap();
    // A transaction takes two of its one-way latencies,
    assert!(near(rr.measured.rate(), 1e9 / (2.0 * rr.figures["latency"])));
    // and its rate counts both directions.
    assert!(near(rr.measured.rate(), rr.figures["msg_rate"] / 2.0));
    assert!(near(rr.measured.seconds, 1.0), "{}", rr.measured.seconds);
    let udp =
        read(Tool::Qperf, &load(Workload::UdpRr), golden!("qperf-0.4.11-udp_lat.txt")).unwrap();
    assert!(near(udp.measured.rate(), udp.figures["msg_rate"] / 2.0));

    let stream = load(Workload::TcpStream);
    let bw = read(Tool::Qperf, &stream, golden!("qperf-0.4.11-tcp_bw.txt")).unwrap();
    assert!(near(bw.measured.bits_per_s(), bw.figures["bw"] * 8.0));
    assert!(bw.figures["send_cpus_used"] > 0.0);
    let datagrams = load(Workload::UdpStream);
    let text = golden!("qperf-0.4.11-udp_bw.txt");
    let udp = read(Tool::Qperf, &datagrams, text).unwrap();
    let counted = udp.measured.datagrams.unwrap();
    assert_eq!(counted.received * 64, udp.figures["recv_bytes"] as u64);
    assert_eq!(counted.sent * 64, udp.figures["send_bytes"] as u64);
    for (from, to, expected) in [
        ("udp_bw:", "udp_lat:", "udp_bw:"),
        ("bytes/sec", "MB/sec", "NAME = VALUE UNIT"),
        ("msg_size          =            64", "msg_size          =            65", "msg_size"),
        ("recv_bytes", "recv_octets", "not 0 bytes in"),
    ] {
        let text = text.replace(from, to);
        let error = read(Tool::Qperf, &datagrams, &text).unwrap_err();
        assert!(error.expected.contains(expected), "{from}: {error:?}");
    }
}

#[test]
fn sockperf_counts_at_the_server_and_knows_percentiles() {
    let pairs = Load { message_bytes: 14, ..load(Workload::UdpRr) };
    let text = golden!("sockperf-3.7-udp_rr.txt");
    let rr = read(Tool::Sockperf, &pairs, text).unwrap();
    let latency = rr.measured.latency.unwrap();
    assert!(latency.min <= latency.p50 && latency.p50 <= latency.p99_99);
    assert!(latency.p99_99 <= latency.max, "{latency:?}");
    assert!(near(latency.mean, rr.figures["Round trip"] * 1e3));
    // Only the valid part is measured, but all of it cost CPU time.
    assert!(rr.moved.units > rr.measured.units);

    let datagrams = load(Workload::UdpStream);
    let client = golden!("sockperf-3.7-udp_stream.txt");
    let server = golden!("sockperf-3.7-udp_stream-server.txt");
    let both = |server| driver(Tool::Sockperf).read(&job(&datagrams), &Printed { client, server });
    let counted = both(server).unwrap().measured.datagrams.unwrap();
    assert!(0 < counted.received && counted.received <= counted.sent, "{counted:?}");
    let none = "sockperf: No messages were received on the server.\n";
    assert_eq!(both(none).unwrap().measured.units, 0);
    assert!(both("").unwrap_err().expected.contains("Total "));
    let more = "sockperf: Total 99999999 messages received and handled\n";
    assert!(both(more).unwrap_err().expected.contains("no more messages received"));
    let invalid = "sockperf: No valid observations found. Try tune parameters\n";
    assert!(read(Tool::Sockperf, &pairs, invalid).is_err());
}

#[test]
fn nuttcp_words() {
    let stream = load(Workload::TcpStream);
    let tcp = read(Tool::Nuttcp, &stream, golden!("nuttcp-6.1.2-tcp_stream.txt")).unwrap();
    assert!(near(tcp.measured.bits_per_s(), tcp.figures["rate_Mbps"] * 1e6));
    assert_eq!(tcp.measured.tcp_retransmits, Some(0));
    let datagrams = load(Workload::UdpStream);
    let udp = read(Tool::Nuttcp, &datagrams, golden!("nuttcp-6.1.2-udp_stream.txt")).unwrap();
    let counted = udp.measured.datagrams.unwrap();
    assert_eq!(counted.lost(), udp.figures["drop"] as u64);
    assert!(near(udp.measured.payload_bytes as f64, udp.figures["megabytes"] * f64::from(1 << 20)));
    for bad in ["", "megabytes=1", "nuttcp-t: Error: connect: Connection refused", "a=1 a=2"] {
        assert!(read(Tool::Nuttcp, &stream, bad).is_err(), "{bad:?}");
    }
}

#[test]
fn limits_of_a_tool_are_reported_before_the_run() {
    let wanted = Wanted {
        workload: Workload::TcpStream,
        message_bytes: 1000,
        flows: 1,
        outstanding: 1,
        gso: false,
        scheduled: false,
        buffer_bytes: None,
        published: false,
        ipv6: false,
    };
    let can = |tool, change: &dyn Fn(&mut Wanted)| {
        let mut wanted = wanted;
        change(&mut wanted);
        driver(tool).can(&wanted)
    };
    use Tool::*;
    /// Tool, change of the request, and a part of the reason.
    type Refused<'a> = (Tool, &'a dyn Fn(&mut Wanted), &'a str);
    let refused: [Refused<'_>; 14] = [
        (Iperf3, &|w| w.workload = Workload::TcpRr, "iperf3 does not support tcp_rr"),
        (Iperf3, &|w| (w.workload, w.message_bytes) = (Workload::UdpStream, 15), "16 to 65507"),
        (Iperf3, &|w| w.flows = 129, "128 flows"),
        (Netperf, &|w| w.flows = 2, "one flow"),
        (Netperf, &|w| w.published = true, "only one is published"),
        (Qperf, &|w| w.workload = Workload::TcpCrr, "qperf does not support tcp_crr"),
        (Qperf, &|w| w.outstanding = 4, "one request in flight"),
        (Qperf, &|w| w.published = true, "only one is published"),
        (Sockperf, &|w| w.workload = Workload::TcpStream, "sockperf does not support tcp_stream"),
        (Sockperf, &|w| (w.workload, w.message_bytes) = (Workload::TcpRr, 1), "14 to 65506"),
        (Sockperf, &|w| (w.workload, w.ipv6) = (Workload::TcpRr, true), "IPv4"),
        (Nuttcp, &|w| w.buffer_bytes = Some(32_769), "whole KiB"),
        (Nuttcp, &|w| w.published = true, "only one is published"),
        (Nuttcp, &|w| (w.workload, w.message_bytes) = (Workload::UdpStream, 4), "5 to 65507"),
    ];
    for (tool, change, reason) in refused {
        let error = can(tool, change).unwrap_err();
        assert!(error.contains(reason), "{tool:?}: {error}");
    }
    assert_eq!(can(Iperf3, &|w| w.published = true), Ok(()), "one port for all");
    assert_eq!(can(Netperf, &|w| (w.workload, w.outstanding) = (Workload::TcpRr, 4)), Ok(()));
    assert_eq!(can(Nuttcp, &|w| w.flows = 8), Ok(()));
    for (wanted, reason) in [
        (Wanted { gso: true, ..wanted }, "GSO packets"),
        (Wanted { scheduled: true, ..wanted }, "schedule"),
    ] {
        assert!(check(Iperf3, &wanted).unwrap_err().contains(reason));
    }
    let at = "192.0.2.2:7000".parse().unwrap();
    let error = can_ask(Iperf3, Task::DropPoint, at).unwrap_err();
    assert!(error.contains("NDR and PDR"), "{error}");
}

fn can_ask(tool: Tool, task: Task, at: SocketAddr) -> Result<(), String> {
    super::can(tool, &Ask::new(task), at, at)
}

#[test]
fn a_load_is_mapped_to_options() {
    let line = |tool, load: &Load| driver(tool).commands(&job(load)).client.join(" ");
    let buffers = Load { socket_buffer_bytes: Some(32 << 10), ..load(Workload::TcpStream) };
    assert_eq!(
        line(Tool::Iperf3, &buffers),
        "-c 192.0.2.2 -p 20001 -t 1 -l 65507 -P 1 -i 0 -J -w 32768"
    );
    assert!(line(Tool::Netperf, &buffers).contains(" -s 32768 -S 32768 "));
    assert!(line(Tool::Qperf, &buffers).contains(" -sb 32768 "));
    assert!(line(Tool::Nuttcp, &buffers).contains(" -T0.8 -w32 -ws32 "));
    let requests = Load { outstanding: 4, message_bytes: 100, ..load(Workload::TcpRr) };
    assert!(line(Tool::Netperf, &requests).contains(" -- -P ,20002 -r 100,100 -D L,R -b 3 "));
    assert!(line(Tool::Qperf, &requests).ends_with("-oo msg_size:100 192.0.2.2 tcp_lat"));
    // 0.8 s plus the discarded 0.45 s.
    assert!(line(Tool::Sockperf, &requests).contains(" -t 2 -m 100 --full-rtt --tcp"));
    let flows = Load { flows: 3, ..load(Workload::UdpStream) };
    assert!(line(Tool::Nuttcp, &flows).contains(" -u -Ru -T0.8 -N3 -fparse "));
    assert!(line(Tool::Iperf3, &flows).contains(" -P 3 -i 0 -J -u -b 0"));
}

/// A golden output, cut, spliced and with changed characters.
fn spoiled() -> impl Strategy<Value = String> {
    const WHOLE: [&str; 9] = [
        golden!("iperf3-3.12-tcp_stream.json"),
        golden!("iperf3-3.12-udp_stream.json"),
        golden!("netperf-2.7.0-tcp_stream.txt"),
        golden!("netperf-2.7.0-udp_rr.txt"),
        golden!("qperf-0.4.11-udp_bw.txt"),
        golden!("qperf-0.4.11-tcp_lat.txt"),
        golden!("sockperf-3.7-udp_rr.txt"),
        golden!("sockperf-3.7-udp_stream.txt"),
        golden!("nuttcp-6.1.2-udp_stream.txt"),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..6);
    let cut = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (prop::sample::select(&WHOLE[..]), changes, cut).prop_map(|(text, changes, (from, to))| {
        let mut characters: Vec<char> = text.chars().collect();
        for (at, with) in changes {
            let at = at.index(characters.len());
            // Numbers that are too large, too small, or malformed.
            characters[at] = match with as u32 % 4 {
                0 => '9',
                1 => '-',
                2 => 'e',
                _ => with,
            };
        }
        let (from, to) = (from.index(characters.len()), to.index(characters.len()));
        if from < to {
            characters.drain(from..to / 2 + from / 2);
        }
        characters.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn no_output_panics_or_gives_nonsense(
        text in prop_oneof![spoiled(), ".{0,200}", "[a-z_]{1,9}=[0-9e.-]{1,24}\n"],
        server in prop_oneof![Just(String::new()), "Total [0-9]{1,22} messages received and handled"],
        tool in prop::sample::select(&TOOLS[..]),
        workload in prop::sample::select(&Workload::ALL[..]),
        message_bytes in prop_oneof![Just(1u32), Just(14), Just(64), 1..MAX_MESSAGE_BYTES],
    ) {
        let load = Load { message_bytes, ..load(workload) };
        let printed = Printed { client: &text, server: &server };
        if let Ok(outcome) = driver(tool).read(&job(&load), &printed) {
            let measured = outcome.measured;
            prop_assert!(measured.rate().is_finite() || measured.units == 0, "{:?}", measured.rate());
            prop_assert!(measured.seconds.is_finite() && measured.seconds >= 0.0);
            prop_assert!(outcome.figures.values().all(|figure| figure.is_finite()));
            if let Some(datagrams) = measured.datagrams {
                prop_assert!(datagrams.received <= datagrams.sent);
            }
        }
    }
}
