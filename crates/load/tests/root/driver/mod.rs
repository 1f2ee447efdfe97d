//! The real tools, each with each of its workloads, between two namespaces joined by a veth pair.
//! Needs root and the tools; otherwise skipped by name.

use crate::engine::wire;

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use load::ask::{Ask, Engine, Task, Tool};
use load::driver::{self, DriverError};
use load::{Ends, EngineError, Load, Watch, Workload};
use results::Direction;
use test_support::{left_out, require};
use wire::{DEVICE, Wire, ip, nft, run_in, wire_or_skip};

const PORT: u16 = 7000;
const TOOLS: [Tool; 5] = [Tool::Iperf3, Tool::Netperf, Tool::Qperf, Tool::Sockperf, Tool::Nuttcp];

fn load(workload: Workload) -> Load {
    Load {
        message_bytes: match workload {
            Workload::TcpStream => 16_384,
            _ => 64,
        },
        warmup: Duration::from_millis(20),
        duration: Duration::from_millis(500),
        ..Load::new(workload)
    }
}

fn name(tool: Tool) -> &'static str {
    Engine::Tool(tool).name()
}

/// `Ok` if it is installed.
fn installed(tool: Tool, at: SocketAddr) -> Result<(), String> {
    let mut ask = Ask::new(Task::Steady(Workload::UdpStream));
    ask.engine = Engine::Tool(tool);
    match driver::can(tool, &ask, at, at) {
        Err(reason) if reason.contains("is not installed") => Err(reason),
        _ => Ok(()),
    }
}

/// Whether it is installed; if not, prints that, and the test continues without it.
fn has(tool: Tool, at: SocketAddr) -> bool {
    installed(tool, at).map_err(|reason| left_out(&reason)).is_ok()
}

/// Payload bytes that crossed the server's device between begin and end.
struct Bytes<'a> {
    wire: &'a Wire,
    /// `rx` if the client sends, `tx` if the server does.
    way: &'static str,
    read: Vec<u64>,
}

impl Bytes<'_> {
    fn look(&mut self) {
        let path = format!("/sys/class/net/{DEVICE}/statistics/{}_bytes", self.way);
        // A sysfs mount shows the namespace in which it was mounted.
        let script = format!("mount -t sysfs sysfs /sys && cat {path}");
        let arguments = ["-m", "sh", "-c", &script];
        let printed = run_in(&self.wire.server, "unshare", &arguments).stdout;
        self.read.push(String::from_utf8(printed).unwrap().trim().parse().unwrap());
    }
}

impl Watch for Bytes<'_> {
    fn begin(&mut self) {
        self.look();
    }

    fn end(&mut self) {
        self.look();
    }
}

#[test]
fn every_tool_does_every_workload_it_has() {
    let wire = require!(wire_or_skip());
    let at = Wire::server_at(PORT);
    let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
    let mut done = 0;
    for tool in TOOLS.into_iter().filter(|tool| has(*tool, at)) {
        for workload in Workload::ALL {
            let load = load(workload);
            let mut ask = Ask::new(Task::Steady(workload));
            ask.message_bytes = load.message_bytes;
            let can = driver::can(tool, &ask, at, at);
            let way = if workload.sends(Direction::Forward) { "rx" } else { "tx" };
            let what = format!("{} {workload}", name(tool));
            let mut bytes = Bytes { wire: &wire, way, read: Vec::new() };
            let mut run = || {
                bytes.read.clear();
                driver::run(tool, &load, &ends, &mut bytes, &AtomicBool::new(false))
            };
            let mut taken = run();
            for _ in 0..3 {
                // A tool without CPU time at its end reports another duration than its rate refers
                // to.
                let Err(error @ DriverError::Output { .. }) = &taken else { break };
                eprintln!("{what}: measured again: {error}");
                taken = run();
            }
            if let Err(reason) = can {
                let error = taken.unwrap_err();
                assert!(matches!(error, DriverError::Unsupported { .. }), "{what}: {error}");
                assert_eq!(error.to_string(), reason);
                assert!(bytes.read.is_empty(), "{what}: nothing was started");
                continue;
            }
            done += 1;
            let (measured, report) = taken.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(measured.rate() > 100.0, "{what}: {measured:?}");
            assert!(measured.units > 100, "{what}: {measured:?}");
            assert!(measured.seconds > 0.4 && measured.seconds < 3.0, "{what}: {measured:?}");
            let lead = name(tool).trim_end_matches('3');
            assert!(report.version.to_lowercase().starts_with(lead), "{report:?}");
            assert!(report.command.starts_with(name(tool)), "{report:?}");
            assert!(!report.figures.is_empty(), "{what}");
            assert!(report.moved.units >= measured.units, "{what}: {report:?}");
            // Bytes that the tool reports as received crossed the wire in between.
            let crossed = bytes.read[1] - bytes.read[0];
            assert!(crossed >= measured.payload_bytes, "{what}: {crossed} of {measured:?}");
            if let Some(datagrams) = measured.datagrams {
                assert!(0 < datagrams.received && datagrams.received <= datagrams.sent, "{what}");
            }
            eprintln!(
                "{what}: {:.0} {} in {:.2} s",
                measured.rate(),
                workload.unit(),
                measured.seconds
            );
        }
    }
    assert!(done > 0, "no tool is installed");
}

#[test]
fn flows_requests_and_buffers_are_passed_on() {
    let wire = require!(wire_or_skip());
    let at = Wire::server_at(PORT);
    let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
    let cpu = *sys::affinity::of_this_thread().unwrap().last().unwrap();
    let base = |workload| Load {
        socket_buffer_bytes: Some(64 << 10),
        client_cpus: vec![cpu],
        server_cpus: vec![cpu],
        ..load(workload)
    };
    for (tool, load) in [
        (Tool::Iperf3, Load { flows: 3, ..base(Workload::TcpStream) }),
        (Tool::Iperf3, Load { flows: 2, ..base(Workload::UdpStream) }),
        (Tool::Nuttcp, Load { flows: 3, ..base(Workload::TcpStream) }),
        (Tool::Nuttcp, Load { flows: 2, ..base(Workload::UdpStream) }),
        (Tool::Netperf, Load { outstanding: 8, ..base(Workload::TcpRr) }),
        (Tool::Qperf, base(Workload::TcpStream)),
        (Tool::Sockperf, base(Workload::UdpRr)),
    ] {
        if !has(tool, at) {
            continue;
        }
        let what = format!("{} {load:?}", name(tool));
        let (measured, report) = driver::run(tool, &load, &ends, &mut (), &AtomicBool::new(false))
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(measured.units > 0, "{what}");
        if tool == Tool::Netperf {
            assert!(measured.messages_merge);
            // As the kernel reports it.
            assert_eq!(report.figures["LSS_SIZE_END"], f64::from(128 << 10), "{report:?}");
        }
    }
}

#[test]
fn a_published_port_is_enough_for_one_port_tools() {
    let wire = require!(wire_or_skip());
    let published: SocketAddr = "198.51.100.1:8080".parse().unwrap();
    ip(&wire.client, &["route", "add", "198.51.100.1/32", "via", wire::SERVER]);
    nft(
        &wire.server,
        "table ip t {\n chain c {\n type nat hook prerouting priority -100\n \
         ip daddr 198.51.100.1 meta l4proto { tcp, udp } th dport 8080 dnat to 192.0.2.2:7000\n}\n}",
    );
    let listen = Wire::server_at(PORT);
    let ends = Ends { client: &wire.client, server: &wire.server, target: published, listen };
    for (tool, workload) in [
        (Tool::Iperf3, Workload::TcpStream),
        (Tool::Iperf3, Workload::UdpStream),
        (Tool::Sockperf, Workload::TcpRr),
        (Tool::Sockperf, Workload::UdpRr),
        // The same port again: the previous run must not hold it.
        (Tool::Iperf3, Workload::TcpStream),
    ] {
        if !has(tool, listen) {
            continue;
        }
        let (measured, _) =
            driver::run(tool, &load(workload), &ends, &mut (), &AtomicBool::new(false))
                .unwrap_or_else(|e| panic!("{} {workload}: {e}", name(tool)));
        assert!(measured.units > 0);
    }
    for tool in [Tool::Netperf, Tool::Qperf, Tool::Nuttcp] {
        let asked = load(Workload::TcpStream);
        let error = driver::run(tool, &asked, &ends, &mut (), &AtomicBool::new(false)).unwrap_err();
        assert!(error.to_string().contains("only one is published"), "{error}");
    }
}

#[test]
fn a_broken_path_is_reported_in_the_engines_words() {
    let wire = require!(wire_or_skip());
    let at = Wire::server_at(PORT);
    require!(installed(Tool::Iperf3, at));
    nft(
        &wire.server,
        "table ip t {\n chain c {\n type filter hook input priority 0\n tcp dport 7000 drop\n}\n}",
    );
    let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
    let asked = Load { setup_limit: Duration::from_millis(300), ..load(Workload::TcpStream) };
    let error =
        driver::run(Tool::Iperf3, &asked, &ends, &mut (), &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, DriverError::Path(EngineError::NoAnswer { .. })), "{error}");
}

/// Processes of this name among this process's descendants.
fn running(name: &str) -> usize {
    let me = std::process::id().to_string();
    let output = Command::new("ps").args(["-o", "comm=", "--ppid", &me]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().filter(|l| l.trim() == name).count()
}

#[test]
fn a_stop_ends_the_tool_at_once_and_leaves_none() {
    let wire = require!(wire_or_skip());
    let at = Wire::server_at(PORT);
    require!(installed(Tool::Qperf, at));
    let ends = Ends { client: &wire.client, server: &wire.server, target: at, listen: at };
    let stop = AtomicBool::new(false);
    let asked = Load { duration: Duration::from_secs(1000), ..load(Workload::TcpStream) };
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(20);
            // Server and client.
            while running("qperf") < 2 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            stop.store(true, Ordering::Relaxed);
        });
        driver::run(Tool::Qperf, &asked, &ends, &mut (), &stop).unwrap_err()
    });
    assert!(matches!(error, DriverError::Stopped), "{error}");
    assert_eq!(running("qperf"), 0);
}
