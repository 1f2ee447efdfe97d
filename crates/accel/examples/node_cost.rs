//! Measures the cost of a Kubernetes node's rules, neighbours, pods and flows by their numbers: the
//! time until rules are read, the time on the slow path after a change, the share of packets on the
//! fast path while endpoints change ten times a second, CPU time at rest and during these changes,
//! and memory.
//!
//! `cargo run --release -p overlane-accel --example node_cost [SERVICES NODES PODS FLOWS]`, as root:
//! this node alone; by default, five sizes of nodes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::UdpSocket;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use accel::{Accel, Wanted};
use nix::time::{ClockId, clock_gettime};
use testbed::{Host, Offload};

#[path = "../tests/root/fastpath/exchange.rs"]
#[allow(dead_code)]
mod exchange;
#[path = "../tests/root/fastpath/pair.rs"]
#[allow(dead_code)]
mod pair;
#[path = "../tests/root/fastpath/sandbox.rs"]
#[allow(dead_code)]
mod sandbox;
#[path = "../tests/root/fastpath/underlay.rs"]
#[allow(dead_code)]
mod underlay;

use exchange::{Exchange, RULES};
use pair::{Pair, TENANT_B, since};

const REST: Duration = Duration::from_secs(10);
/// Interval between two changes of endpoints.
const CHANGE: Duration = Duration::from_millis(100);
const PORT: u16 = 5402;
/// Each of many flows sends a datagram in this time.
const ROUND: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
struct Node {
    services: usize,
    nodes: usize,
    pods: usize,
    flows: usize,
}

fn main() -> ExitCode {
    for missing in [test_support::need::root(), test_support::need::tool("iptables-nft")] {
        if let Err(missing) = missing {
            eprintln!("{missing}");
            return ExitCode::FAILURE;
        }
    }
    let numbers: Result<Vec<usize>, _> =
        std::env::args().skip(1).map(|text| text.parse()).collect();
    let nodes = match numbers.as_deref() {
        Ok([]) => Vec::from(nodes()),
        Ok(&[services, nodes, pods, flows]) => Vec::from([Node { services, nodes, pods, flows }]),
        _ => {
            eprintln!("expected no argument, or four numbers: SERVICES NODES PODS FLOWS");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "{:>8} {:>5} {:>4} {:>6} {:>6} {:>7} {:>7} {:>6} {:>6} {:>6} {:>7}",
        "services",
        "nodes",
        "pods",
        "flows",
        "rules",
        "read ms",
        "slow ms",
        "fast %",
        "rest %",
        "busy %",
        "RSS MiB"
    );
    nodes.into_iter().for_each(measure);
    ExitCode::SUCCESS
}

/// From few to many.
fn nodes() -> [Node; 5] {
    let most = Node { services: 5000, nodes: 1000, pods: 250, flows: 20_000 };
    let few = Node { services: 0, nodes: 0, pods: 0, flows: 0 };
    [
        few,
        Node { services: 100, nodes: most.nodes, ..few },
        Node { services: most.services, ..few },
        Node { pods: 0, flows: 0, ..most },
        most,
    ]
}

fn measure(node: Node) {
    let Node { services, nodes, pods, flows } = node;
    let pair = Pair::routed(Offload::Full, false, true);
    for host in [&pair.a, &pair.b] {
        pair::sh(host, RULES);
        host.settle().unwrap();
    }
    restore(&pair.a, &rules(services));
    add_nodes(&pair.a, nodes);
    add_pods(&pair.a, pods);
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
    loop {
        let before = accels[0].status();
        exchange.go(100);
        if since(&accels[0], &before, "encap_hit") > 0 {
            break;
        }
        assert!(begin.elapsed() < pair::LIMIT * 3, "{:#?}", accels[0].status());
    }
    let many = Flows::new(&pair, flows);
    many.admitted(&accels[0]);
    let (ended, flows_cpu) = (AtomicBool::new(false), AtomicU64::new(0));
    let (ended, flows_cpu) = (&ended, &flows_cpu);
    std::thread::scope(|scope| {
        scope.spawn(|| many.go_on(ended, flows_cpu));
        let figures = figures(&pair, &accels[0], services, &mut exchange, flows_cpu);
        ended.store(true, Ordering::Release);
        let Figures { slow, rest, busy, fast } = figures;
        println!(
            "{services:>8} {nodes:>5} {pods:>4} {flows:>6} {rules:>6} {:>7.1} {:>7.1} {:>6.1} \
             {:>6.2} {:>6.1} {:>7}",
            read.as_secs_f64() * 1e3,
            slow.as_secs_f64() * 1e3,
            1e2 * fast,
            rest * 1e2,
            busy * 1e2,
            memory(),
        );
    });
}

struct Figures {
    /// Time on the slow path after a change.
    slow: Duration,
    /// CPU time, of one CPU.
    rest: f64,
    busy: f64,
    /// Share of packets on the fast path while endpoints change.
    fast: f64,
}

fn figures(
    pair: &Pair,
    accel: &Accel,
    services: usize,
    exchange: &mut Exchange,
    flows_cpu: &AtomicU64,
) -> Figures {
    let slow = change(&pair.a, accel, services, exchange);
    let rest = cpu_during(REST, flows_cpu, || std::thread::sleep(REST));
    // Endpoints of one service change, as kube-proxy writes them.
    let (stop, before) = (AtomicBool::new(false), accel.status());
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
        busy = cpu_during(REST, flows_cpu, || {
            let begin = Instant::now();
            while begin.elapsed() < REST {
                exchange.go(100);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        stop.store(true, Ordering::Release);
    });
    let of = |word| since(accel, &before, word) as f64;
    let status = accel.status();
    let words = status.packets.keys().filter(|word| word.starts_with("encap_"));
    let all: f64 = words.map(|word| of(word)).sum();
    Figures { slow, rest, busy, fast: of("encap_hit") / all.max(1.0) }
}

/// Datagrams of many flows in one direction: from each near socket to each far one.
struct Flows {
    many: usize,
    near: Vec<UdpSocket>,
    /// Sinks: they receive packets and answer nothing.
    far: Vec<UdpSocket>,
}

/// Far sockets: there are more flows than a process may have descriptors.
const FAR: u16 = 10;

impl Flows {
    fn new(pair: &Pair, many: usize) -> Flows {
        pair::sh(&pair.tenant_a, "sysctl -qw net.ipv4.ip_local_port_range='1024 65000'");
        let listen = |at| UdpSocket::bind((TENANT_B, PORT + 1 + at)).unwrap();
        let far = pair.tenant_b.netns().run(|| (0..FAR).map(listen).collect()).unwrap();
        let one = |_| UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        let sockets = many.div_ceil(usize::from(FAR));
        let near = pair.tenant_a.netns().run(|| (0..sockets).map(one).collect()).unwrap();
        Flows { many, near, far }
    }

    /// Sends until every flow takes the fast path, or as many as the table can hold.
    fn admitted(&self, accel: &Accel) {
        let begin = Instant::now();
        let admitted = || accel.status().flows.map_or(0, |flows| flows.admitted);
        while admitted() < self.many as u64 {
            assert!(begin.elapsed() < pair::LIMIT * 6, "{:#?}", accel.status());
            // After a pause of a second, the count of a flow restarts, and it would never be
            // admitted.
            self.send(Duration::from_millis(400), || true);
        }
    }

    /// Sends one datagram of each flow, spread over this time, while `goes_on` returns true.
    fn send(&self, time: Duration, goes_on: impl Fn() -> bool) {
        const AT_ONCE: usize = 100;
        let pause = time / (self.many / AT_ONCE + 1) as u32;
        let flows: Vec<(&UdpSocket, &UdpSocket)> = (self.near.iter())
            .flat_map(|near| self.far.iter().map(move |far| (near, far)))
            .take(self.many)
            .collect();
        for some in flows.chunks(AT_ONCE) {
            for (near, far) in some {
                // A full queue may lose a datagram.
                let _ = near.send_to(b"there", far.local_addr().unwrap());
            }
            if !goes_on() {
                return;
            }
            std::thread::sleep(pause);
        }
    }

    /// Sends until `ended`; stores its own CPU time, in ns, in `cpu`.
    fn go_on(&self, ended: &AtomicBool, cpu: &AtomicU64) {
        let record_time = || {
            let spent = Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
            cpu.store(u64::try_from(spent.as_nanos()).unwrap(), Ordering::Release);
            !ended.load(Ordering::Acquire)
        };
        while self.many > 0 && record_time() {
            self.send(ROUND, record_time);
        }
    }
}

/// Silent pods: ports of the bridge.
fn add_pods(host: &Host, pods: usize) {
    let mut lines = String::new();
    for at in 0..pods {
        let _ = writeln!(
            lines,
            "link add pod{at} type veth peer name peer{at}\nlink set pod{at} master {}\n\
             link set pod{at} up\nlink set peer{at} up",
            pair::BRIDGE
        );
    }
    feed(host, Command::new("ip").args(["-batch", "-"]), &lines);
}

/// Measures how long packets take the slow path after an endpoint's change.
fn change(host: &Host, accel: &Accel, turn: usize, exchange: &mut Exchange) -> Duration {
    let mut all: Vec<Duration> = (0..10)
        .map(|round| {
            // Until the plan is in force again and the flow is admitted.
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

/// Named chains are written anew, the others stay.
fn restore(host: &Host, text: &str) {
    feed(host, Command::new("iptables-nft-restore").arg("--noflush"), text);
}

/// Adds other nodes as flannel does: a route, a neighbour and a forwarding entry each.
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

/// CPU time of this process's other threads during `what`, as a share of one CPU, without the
/// sender of many flows.
fn cpu_during(time: Duration, flows: &AtomicU64, what: impl FnOnce()) -> f64 {
    let of = |clock| Duration::from(clock_gettime(clock).unwrap());
    let cpu = || {
        let sender = Duration::from_nanos(flows.load(Ordering::Acquire));
        let others = of(ClockId::CLOCK_PROCESS_CPUTIME_ID) - of(ClockId::CLOCK_THREAD_CPUTIME_ID);
        others.saturating_sub(sender)
    };
    let before = cpu();
    what();
    (cpu() - before).as_secs_f64() / time.as_secs_f64()
}

/// Resident memory of this process, MiB.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = value.and_then(|v| v.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kib / 1024
}
