//! What a Kubernetes node's rules and neighbours cost, by the numbers of services and nodes:
//! the time until rules are read, the time that everything is slow after a change, the share of
//! packets that go fast while endpoints change ten times a second, CPU time at rest and then,
//! memory.
//!
//! `cargo run --release -p overlane-accel --example node_cost [SERVICES [NODES]]`, as root.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use accel::{Accel, Wanted};
use nix::time::{ClockId, clock_gettime};
use testbed::{Host, Offload};

#[path = "../tests/fastpath/exchange.rs"]
#[allow(dead_code)]
mod exchange;
#[path = "../tests/fastpath/machine.rs"]
#[allow(dead_code)]
mod machine;
#[path = "../tests/fastpath/pair.rs"]
#[allow(dead_code)]
mod pair;
#[path = "../tests/fastpath/sandbox.rs"]
#[allow(dead_code)]
mod sandbox;
#[path = "../tests/fastpath/underlay.rs"]
#[allow(dead_code)]
mod underlay;

use exchange::{Exchange, RULES};
use pair::{Pair, TENANT_B, since};

const REST: Duration = Duration::from_secs(10);
/// Between two changes of endpoints.
const CHANGE: Duration = Duration::from_millis(100);
const PORT: u16 = 5402;

fn main() -> ExitCode {
    for missing in [test_support::need::root(), test_support::need::tool("iptables-nft")] {
        if let Err(missing) = missing {
            eprintln!("{missing}");
            return ExitCode::FAILURE;
        }
    }
    let argument = |at, otherwise| -> usize {
        std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (services, nodes) = (argument(1, 5000), argument(2, 1000));
    println!(
        "{:>8} {:>6} {:>6} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8}",
        "services",
        "nodes",
        "rules",
        "read ms",
        "slow ms",
        "first ms",
        "fast %",
        "rest %",
        "busy %",
        "RSS KiB"
    );
    for (services, nodes) in [(0, 0), (services / 50, nodes), (services, 0), (services, nodes)] {
        measure(services, nodes);
    }
    ExitCode::SUCCESS
}

fn measure(services: usize, nodes: usize) {
    let pair = Pair::routed(Offload::Full, false, true);
    for host in [&pair.a, &pair.b] {
        pair::sh(host, RULES);
        host.settle().unwrap();
    }
    restore(&pair.a, &rules(services));
    add_nodes(&pair.a, nodes);
    let (read, rules) = pair
        .a
        .netns()
        .run(|| {
            let begin = Instant::now();
            let rules = ruleset::read().unwrap();
            (begin.elapsed(), rules.rules())
        })
        .unwrap();
    let accels = [&pair.a, &pair.b].map(|host| Accel::start(host.netns(), Wanted::All).unwrap());
    let mut exchange = Exchange::new(&pair, (TENANT_B, PORT).into(), (TENANT_B, PORT).into());
    let begin = Instant::now();
    let first = loop {
        let before = accels[0].status();
        exchange.go(100);
        if since(&accels[0], &before, "encap_hit") > 0 {
            break begin.elapsed();
        }
        assert!(begin.elapsed() < pair::LIMIT * 3, "{:#?}", accels[0].status());
    };
    let slow = change(&pair.a, &accels[0], services, &mut exchange);
    let rest = cpu_during(REST, || std::thread::sleep(REST));
    // Endpoints of one service change, as kube-proxy writes them.
    let (stop, before) = (AtomicBool::new(false), accels[0].status());
    let mut busy = 0.0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !stop.load(Ordering::Acquire) {
                let begin = Instant::now();
                restore(&pair.a, &endpoint(turn));
                turn += 1;
                std::thread::sleep(CHANGE.saturating_sub(begin.elapsed()));
            }
        });
        busy = cpu_during(REST, || {
            let begin = Instant::now();
            while begin.elapsed() < REST {
                exchange.go(100);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        stop.store(true, Ordering::Release);
    });
    let of = |word| since(&accels[0], &before, word) as f64;
    let status = accels[0].status();
    let words = status.packets.keys().filter(|word| word.starts_with("encap_"));
    let all: f64 = words.map(|word| of(word)).sum();
    println!(
        "{services:>8} {nodes:>6} {rules:>6} {:>8.1} {:>8.1} {:>8.0} {:>7.1} {:>7.2} {:>7.1} {:>8}",
        read.as_secs_f64() * 1e3,
        slow.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
        1e2 * of("encap_hit") / all.max(1.0),
        rest * 1e2,
        busy * 1e2,
        memory(),
    );
}

/// How long packets go slow after an endpoint's change.
fn change(host: &Host, accel: &Accel, turn: usize, exchange: &mut Exchange) -> Duration {
    let mut all: Vec<Duration> = (0..10)
        .map(|round| {
            // In force again, and its flow admitted.
            let settled = Instant::now();
            while settled.elapsed() < Duration::from_millis(1200) {
                exchange.go(100);
            }
            restore(host, &endpoint(turn + round));
            let begin = Instant::now();
            let mut last_slow = begin;
            while begin.elapsed() < Duration::from_secs(2) {
                let before = accel.status();
                exchange.go(100);
                if since(accel, &before, "encap_hit") == 0 {
                    last_slow = Instant::now();
                }
            }
            last_slow - begin
        })
        .collect();
    all.sort();
    all[all.len() / 2]
}

/// Services in kube-proxy's form, with an endpoint each.
fn rules(services: usize) -> String {
    let mut text = String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n");
    for at in 0..services {
        let _ = writeln!(text, ":KUBE-SVC-{at} - [0:0]\n:KUBE-SEP-{at} - [0:0]");
    }
    text += "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
             -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n";
    for at in 0..services {
        let address = format!("10.96.{}.{}", at / 250, at % 250 + 1);
        let _ = writeln!(
            text,
            "-A KUBE-SERVICES -d {address}/32 -p tcp -m comment --comment \"n/s{at} cluster IP\" \
             -m tcp --dport 80 -j KUBE-SVC-{at}\n\
             -A KUBE-SVC-{at} ! -s 10.1.0.0/16 -d {address}/32 -p tcp -m comment \
             --comment \"n/s{at} cluster IP\" -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
             -A KUBE-SVC-{at} -m comment --comment \"n/s{at} -> 10.1.0.12:8080\" -j KUBE-SEP-{at}\n\
             -A KUBE-SEP-{at} -s 10.1.0.12/32 -m comment --comment n/s{at} -j KUBE-MARK-MASQ\n\
             -A KUBE-SEP-{at} -p tcp -m comment --comment n/s{at} -m tcp -j DNAT \
             --to-destination 10.1.0.12:8080"
        );
    }
    text + "COMMIT\n"
}

/// Another endpoint of the service 0.
fn endpoint(turn: usize) -> String {
    format!(
        "*nat\n:KUBE-SVC-0 - [0:0]\n:KUBE-SEP-0 - [0:0]\n\
         -A KUBE-SVC-0 -m comment --comment \"n/s0 -> 10.1.0.12:8080\" -j KUBE-SEP-0\n\
         -A KUBE-SEP-0 -p tcp -m comment --comment n/s0 -m tcp -j DNAT \
         --to-destination 10.1.0.12:{}\nCOMMIT\n",
        8000 + turn % 1000
    )
}

/// Chains that are named are made anew, the others stay.
fn restore(host: &Host, text: &str) {
    feed(host, Command::new("iptables-nft-restore").arg("--noflush"), text);
}

/// Other nodes as flannel has them: a route, a neighbour and a forwarding entry each.
fn add_nodes(host: &Host, nodes: usize) {
    let (mut entries, mut ways) = (String::new(), String::new());
    for at in 0..nodes {
        let (high, low) = (at / 250, at % 250 + 1);
        let mac = pair::address(at);
        let _ = writeln!(
            ways,
            "neigh add 10.{}.{low}.0 lladdr {mac} dev vxlan0\n\
             route add 10.{0}.{low}.0/24 via 10.{0}.{low}.0 dev vxlan0 onlink",
            100 + high
        );
        entries += &pair::entry("add", at, &format!("10.0.{}.{low}", 1 + high));
    }
    pair::sh(host, "ip route add 10.0.0.0/16 via 10.0.0.2");
    feed(host, Command::new("ip").args(["-batch", "-"]), &ways);
    pair::bridge(host, &entries);
}

fn feed(host: &Host, command: &mut Command, text: &str) {
    command.stdin(Stdio::piped());
    let mut child = host.netns().run(|| command.spawn()).unwrap().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// CPU time of this process's other threads meanwhile, of one CPU.
fn cpu_during(time: Duration, what: impl FnOnce()) -> f64 {
    let of = |clock| Duration::from(clock_gettime(clock).unwrap());
    let cpu = || of(ClockId::CLOCK_PROCESS_CPUTIME_ID) - of(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let before = cpu();
    what();
    (cpu() - before).as_secs_f64() / time.as_secs_f64()
}

/// Resident memory of this process, KiB.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
