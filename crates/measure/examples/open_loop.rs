//! Shows a known stall of the server as measured by an open loop and by closed loops: 20 ms of
//! every second, between two private hosts joined by a wire.
//!
//! On a schedule, 2% of the requests are due in a stall and wait for the rest of it, 0 to 20 ms,
//! evenly distributed: half of them, 1% of all, longer than 10 ms, and one in twenty, 0.1% of all,
//! longer than 19 ms. So p99 is 10 ms and p99.9 is 19 ms. In a closed loop, which sends a request
//! after each answer, one request per second meets the stall.
//!
//! The stall is made in two ways: in the built-in server (`server_stall`), and by a real-time task
//! that takes the CPU of any server, so that sockperf's ping-pong and netperf's TCP_RR meet the
//! same stall.
//!
//! `cargo run --release -p overlane-measure --example open_loop [SECONDS [RATE]]`,
//! as root.

use std::error::Error;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use load::{Ends, Load, MAX_OUTSTANDING, Stall, Workload, run};
use sys::netns::NetNs;
use testbed::{Offload, Wire};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PORT: u16 = 5301;
/// Separate ports: some servers cannot bind a port with connections in `TIME_WAIT`.
const SOCKPERF: u16 = 5302;
const NETPERF: u16 = 5303;
const STALL: Stall = Stall { every: Duration::from_secs(1), length: Duration::from_millis(20) };
/// First argument of the real-time task; its CPU follows.
const HOG: &str = "hog";

/// A program that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Uses its CPU for the length of a stall in each period.
fn hog(cpu: usize) -> Outcome<()> {
    sys::affinity::pin(cpu)?;
    loop {
        std::thread::sleep(STALL.every - STALL.length);
        let begun = Instant::now();
        while begun.elapsed() < STALL.length {
            std::hint::spin_loop();
        }
    }
}

/// Starts the task with a higher priority than all others on the CPU.
fn start_hog(cpu: usize) -> Outcome<Running> {
    let own = std::env::current_exe()?;
    let mut command = Command::new("chrt");
    command.args(["-f", "50"]).arg(own).args([HOG, &cpu.to_string()]);
    let child = command.spawn().map_err(|e| format!("chrt (apt install util-linux): {e}"))?;
    Ok(Running(child))
}

/// Latencies in ms; `None` if the program does not report them.
struct Seen {
    requests: u64,
    p50: f64,
    p99: f64,
    p99_9: Option<f64>,
    max: f64,
}

impl Seen {
    fn print(&self, name: &str) {
        let p99_9 = self.p99_9.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
        println!(
            "  {name:<34} {:>9} {:>8.3} {:>8.3} {p99_9:>8} {:>8.3}",
            self.requests, self.p50, self.p99, self.max
        );
    }
}

struct Bench<'a> {
    client: &'a NetNs,
    server: &'a NetNs,
    client_cpu: usize,
    server_cpu: usize,
    seconds: u64,
}

impl Bench<'_> {
    fn ours(&self, per_s: Option<f64>, server_stall: Option<Stall>) -> Outcome<Seen> {
        let at = SocketAddr::from((Wire::B, PORT));
        let load = Load {
            outstanding: if per_s.is_some() { MAX_OUTSTANDING } else { 1 },
            transactions_per_s: per_s,
            server_stall,
            duration: Duration::from_secs(self.seconds),
            client_cpus: vec![self.client_cpu],
            server_cpus: vec![self.server_cpu],
            ..Load::new(Workload::TcpRr)
        };
        let ends = Ends { client: self.client, server: self.server, target: at, listen: at };
        let measured = run(&load, &ends, &mut (), &AtomicBool::new(false))?;
        let latency = measured.latency.ok_or("no request was answered")?;
        let ms = |ns: u64| ns as f64 / 1e6;
        Ok(Seen {
            requests: latency.count,
            p50: ms(latency.p50),
            p99: ms(latency.p99),
            p99_9: Some(ms(latency.p99_9)),
            max: ms(latency.max),
        })
    }

    fn spawn(&self, netns: &NetNs, cpu: usize, line: &str) -> Outcome<Running> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let spawned = netns.run(|| {
            // Inherited by the program.
            sys::affinity::pin(cpu).map_err(|e| e.to_string())?;
            Command::new(words[0])
                .args(&words[1..])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|e| format!("{}: {e}", words[0]))
        })??;
        Ok(Running(spawned))
    }

    /// Output of a program after its server has started.
    fn driven(&self, port: u16, server: &str, client: &str) -> Outcome<String> {
        let _server = self.spawn(self.server, self.server_cpu, server)?;
        let deadline = Instant::now() + Duration::from_secs(5);
        // Until it listens.
        while self.client.run(|| std::net::TcpStream::connect((Wire::B, port)).is_err())? {
            if Instant::now() > deadline {
                return Err(format!("{server}: does not listen on port {port}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut client_process = self.spawn(self.client, self.client_cpu, client)?;
        let mut printed = String::new();
        if let Some(stdout) = &mut client_process.0.stdout {
            std::io::Read::read_to_string(stdout, &mut printed)?;
        }
        let status = client_process.0.wait()?;
        if !status.success() {
            return Err(format!("{client}: {status}: {}", printed.trim()).into());
        }
        Ok(printed)
    }

    fn sockperf(&self) -> Outcome<Seen> {
        let (address, seconds) = (Wire::B, self.seconds);
        let printed = self.driven(
            SOCKPERF,
            &format!("sockperf server --tcp -i {address} -p {SOCKPERF}"),
            &format!(
                "sockperf ping-pong --tcp -i {address} -p {SOCKPERF} -m 14 -t {seconds} --full-rtt"
            ),
        )?;
        // "sockperf: ---> percentile 99.900 =   20.345", microseconds.
        let figure = |after: &str| {
            let line = printed.lines().find(|line| line.contains(after))?;
            line.rsplit('=').next()?.trim().parse::<f64>().ok()
        };
        let ms = |after: &str| {
            figure(after).map(|us| us / 1e3).ok_or(format!("no {after:?} in: {printed}"))
        };
        let requests = printed
            .split_once(" observations")
            .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok())
            .ok_or(format!("no number of observations in: {printed}"))?;
        Ok(Seen {
            requests,
            p50: ms("percentile 50.000")?,
            p99: ms("percentile 99.000")?,
            p99_9: Some(ms("percentile 99.900")?),
            max: ms("<MAX> observation")?,
        })
    }

    fn netperf(&self) -> Outcome<Seen> {
        let (address, seconds) = (Wire::B, self.seconds);
        let printed = self.driven(
            NETPERF,
            &format!("netserver -D -4 -L {address} -p {NETPERF}"),
            &format!(
                "netperf -P 0 -H {address} -p {NETPERF} -l {seconds} -t TCP_RR -- -r 1,1 -o \
                 THROUGHPUT,P50_LATENCY,P99_LATENCY,MAX_LATENCY"
            ),
        )?;
        let line = printed.lines().last().unwrap_or_default();
        let figures: Vec<f64> =
            line.split(',').map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
        let [per_s, p50, p99, max] = figures[..] else {
            return Err(format!("four figures expected of netperf, got: {printed}").into());
        };
        Ok(Seen {
            requests: (per_s * seconds as f64) as u64,
            p50: p50 / 1e3,
            p99: p99 / 1e3,
            p99_9: None,
            max: max / 1e3,
        })
    }
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == HOG).is_some() {
        return hog(arguments.next().ok_or("a CPU")?.parse()?);
    }
    let seconds: u64 = arguments.next().map_or(Ok(10), |word| word.parse())?;
    let per_s: f64 = arguments.next().map_or(Ok(2000.0), |word| word.parse())?;
    let cpus = sys::affinity::of_this_thread()?;
    let [client_cpu, server_cpu, ..] = cpus[..] else {
        return Err("two CPUs are needed: the stall is to take the server's only".into());
    };
    let [client, server] = Wire { mtu: 1500, offload: Offload::Full }.hosts()?;
    let (client, server) = (client.netns(), server.netns());
    let bench = Bench { client, server, client_cpu, server_cpu, seconds };

    println!(
        "the server stands still for {:?} of each {:?}; tcp_rr for {seconds} s, ms:",
        STALL.length, STALL.every
    );
    println!(
        "  {:<34} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "", "requests", "p50", "p99", "p99.9", "max"
    );
    println!(
        "  {:<34} {:>9} {:>8} {:>8.3} {:>8.3} {:>8.3}",
        "by arithmetic, on a schedule", "", "", 10.0, 19.0, 20.0
    );
    println!("in the built-in server:");
    bench.ours(Some(per_s), Some(STALL))?.print(&format!("overlane, open loop, {per_s:.0}/s"));
    bench.ours(None, Some(STALL))?.print("overlane, closed loop");
    println!("by a real-time task on the server's CPU:");
    let _hog = start_hog(server_cpu)?;
    bench.ours(Some(per_s), None)?.print(&format!("overlane, open loop, {per_s:.0}/s"));
    bench.ours(None, None)?.print("overlane, closed loop");
    for (name, seen) in
        [("sockperf ping-pong", bench.sockperf()), ("netperf TCP_RR", bench.netperf())]
    {
        match seen {
            Ok(seen) => seen.print(name),
            Err(error) => println!("  {name:<34} left out: {error}"),
        }
    }
    Ok(())
}
