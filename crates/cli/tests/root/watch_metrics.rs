//! `overlane watch --metrics` on a network under load, scraped by Debian's Prometheus.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foreground::{Foreground, LIMIT, OVERLANE, path};
use lab::{Network, Params};
use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};
use testbed::{Host, Offload, poll};

use crate::foreground;
use crate::promtool;

const PLACE: &str = "127.0.0.1:9474";
const PROMETHEUS: &str = "127.0.0.1:9090";

/// Two tenants behind a tunnel, a stream between them, and datagrams to a closed port.
struct Loaded {
    network: Network,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Loaded {
    fn new() -> Result<Loaded, String> {
        need::root()?;
        // The wire accepts no GSO packets: they are segmented before it.
        let params = Params::new(1500, Offload::None);
        let network = lab::find("vxlan").unwrap().build(&params).unwrap();
        let (stop, address) = (Arc::new(AtomicBool::new(false)), network.address);
        let listen = || TcpListener::bind(address.listen).unwrap();
        let listener = network.server().netns().run(listen).unwrap();
        let connect = || TcpStream::connect_timeout(&address.target, LIMIT).unwrap();
        let mut client = network.client().netns().run(connect).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let bind = || UdpSocket::bind(("0.0.0.0", 0)).unwrap();
        let datagrams = network.client().netns().run(bind).unwrap();
        let receiving = std::thread::spawn(move || {
            let mut room = vec![0; 1 << 20];
            while server.read(&mut room).is_ok_and(|count| count > 0) {}
        });
        let stops = stop.clone();
        let sending = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                client.write_all(&[7; 1 << 16]).unwrap();
                // Port 9 is closed; the sender's "connection refused" is expected.
                let _ = datagrams.send_to(b"discard", (address.target.ip(), 9));
                // Not a flood: the machine may be busy.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Ok(Loaded { network, stop, threads: vec![sending, receiving] })
    }

    /// The host that serves the requests, on its loopback device.
    fn host(&self) -> &Arc<Host> {
        self.network.host("a").unwrap()
    }

    /// `overlane watch --metrics` of all of the network.
    fn watch(&self, place: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(OVERLANE);
        command.args(["watch", "--metrics", place, "--interval", "200ms", "--budget", "100%"]);
        let hosts: Vec<String> = self.network.hosts().iter().map(|host| path(host)).collect();
        command.args(["--netns", &hosts.join(",")]).args(arguments).stdin(Stdio::null());
        command
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Answer to a GET in a host: status line, body.
fn get(host: &Host, place: &str, path: &str) -> std::io::Result<(String, String)> {
    let mut stream = host.netns().run(|| TcpStream::connect(place)).unwrap()?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| std::io::Error::from(ErrorKind::InvalidData))?;
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

/// Sum over the series of a metric whose labels have `with`.
fn sum(page: &str, metric: &str, with: &str) -> f64 {
    let of = |line: &&str| {
        let rest = line.strip_prefix(metric);
        rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(with)
    };
    let values = page.lines().filter(of).filter_map(|line| line.rsplit(' ').next());
    values.filter_map(|value| value.parse::<f64>().ok()).sum()
}

#[test]
fn metrics_and_probes_are_served_while_packets_are_watched() {
    let loaded = require!(Loaded::new());
    let host = loaded.host();
    let (mut program, said) = Foreground::start(host, loaded.watch(PLACE, &[]), None);
    assert_eq!(said, format!("ready: metrics at {PLACE}"));
    let silent: Vec<TcpStream> =
        (0..64).map(|_| host.netns().run(|| TcpStream::connect(PLACE).unwrap()).unwrap()).collect();
    let page = poll("everything that is counted", LIMIT, || {
        let (head, page) = get(host, PLACE, "/metrics").unwrap();
        assert_eq!(head, "HTTP/1.1 200 OK");
        let all = [
            ("device_packets_total", "device=\"vxlan0\""),
            ("device_bytes_total", "device=\"nic0\""),
            ("dropped_packets_total", "reason=\"NO_SOCKET\""),
            ("place_dropped_packets_total", "reason=\"NO_SOCKET\""),
            ("hop_followed_packets_total", "device=\"nic0\""),
            ("hop_followed_segments_total", "device=\"vxlan0\""),
            ("hop_cut_packets_total", "side=\"tx\""),
            ("hop_latency_seconds_count", "device=\"vxlan0\""),
            ("hop_wait_seconds_count", ""),
            ("way_followed_packets_total", " vxlan0 tx > "),
            ("way_latency_seconds_sum", ""),
            ("events_total", ""),
            ("own_cpu_ratio", ""),
            ("followed_ratio", ""),
            ("looked_ratio", ""),
        ];
        let missing = all
            .iter()
            .find(|(metric, with)| sum(&page, &format!("overlane_watch_{metric}"), with) <= 0.0);
        Ok(missing.map_or(Ok(page.clone()), |missing| Err(format!("{missing:?}\n{page}"))))
    })
    .unwrap();
    assert_eq!(sum(&page, "overlane_watch_budget_cpu_ratio", ""), 1.0);
    for probe in ["/healthz", "/readyz"] {
        let answer = get(host, PLACE, probe).unwrap();
        assert_eq!(answer, ("HTTP/1.1 200 OK".into(), "ok\n".into()), "{probe}");
    }
    assert_eq!(get(host, PLACE, "/").unwrap().0, "HTTP/1.1 404 Not Found");
    // Remote ends choose addresses.
    let address = loaded.network.address.target.ip().to_string();
    assert!(!page.contains(&address), "{page}");
    // Counters never decrease.
    let (_, later) = get(host, PLACE, "/metrics").unwrap();
    for line in page.lines().filter(|line| line.contains("_total")) {
        let Some((series, before)) = line.rsplit_once(' ') else { continue };
        if line.starts_with('#') {
            continue;
        }
        let after = later.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let value = |text: &str| text.parse::<f64>().unwrap();
        assert!(after.is_some_and(|after| value(after) >= value(before)), "{line}: {after:?}");
    }
    drop(silent);
    program.signal(Signal::SIGTERM);
    assert_eq!(program.end(), Some(0), "nothing more was printed");
}

#[test]
fn a_place_that_is_taken_is_refused_and_intervals_are_printed_when_asked_for() {
    let loaded = require!(Loaded::new());
    let directory = tempfile::tempdir().unwrap();
    let place = format!("unix:{}", directory.path().join("metrics").display());
    let (mut first, _) = Foreground::start(loaded.host(), loaded.watch(&place, &[]), None);
    let record = directory.path().join("r.jsonl");
    let mut second = loaded.watch(&place, &["--record", record.to_str().unwrap()]);
    let refused = second.output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("listen at unix:") && said.contains("in use"), "{said}");
    assert!(!record.exists(), "nothing is written before");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end(), Some(0));
    let printed = loaded.watch(&place, &["--json", "--count", "2"]).output().unwrap();
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let lines = String::from_utf8(printed.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let quiet = loaded.watch(&place, &["--count", "1"]).output().unwrap();
    let said = String::from_utf8(quiet.stdout).unwrap();
    assert_eq!(said, format!("ready: metrics at {place}\n"));
}

#[test]
fn promtool_finds_nothing_in_the_metrics() {
    let loaded = require!(Loaded::new());
    require!(need::tool("promtool"));
    let host = loaded.host();
    let (_program, _) = Foreground::start(host, loaded.watch(PLACE, &[]), None);
    let page = poll("a histogram", LIMIT, || {
        let (_, page) = get(host, PLACE, "/metrics").unwrap();
        let is_whole = page.contains("way_latency_seconds_bucket") && page.contains("NO_SOCKET");
        Ok(is_whole.then_some(page.clone()).ok_or(page))
    })
    .unwrap();
    promtool::assert_clean(&page);
}

/// A Prometheus in a test host, killed when it is dropped.
struct Prometheus<'a> {
    child: Child,
    host: &'a Host,
}

impl Prometheus<'_> {
    fn start<'a>(host: &'a Host, directory: &Path) -> Prometheus<'a> {
        let file = directory.join("prometheus.yml");
        let config = format!(
            "global:\n  scrape_interval: 250ms\n  scrape_timeout: 250ms\nscrape_configs:\n\
             \x20 - job_name: overlane\n    scrape_timeout: 250ms\n\
             \x20   static_configs:\n      - targets: ['{PLACE}']\n"
        );
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={PROMETHEUS}"))
            .arg("--log.level=warn")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = host.netns().run(|| command.spawn().unwrap()).unwrap();
        Prometheus { child, host }
    }

    /// Series that answer a query; why there is no answer.
    fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?query={escaped}");
        let (head, body) = get(self.host, PROMETHEUS, &path).map_err(|e| e.to_string())?;
        let answer: Value = serde_json::from_str(&body).map_err(|e| format!("{head}: {e}"))?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
            _ => Err(format!("{query}: {head}: {body}")),
        }
    }

    /// Waits until a query has an answer of a number above zero.
    fn awaits(&self, query: &str) {
        poll(query, LIMIT, || {
            let positive = |series: &Value| {
                let value = series["value"][1].as_str().and_then(|value| value.parse::<f64>().ok());
                value.is_some_and(|value| value > 0.0)
            };
            Ok(match self.query(query) {
                Ok(series) if series.iter().any(positive) => Ok(()),
                Ok(series) => Err(format!("{series:?}")),
                Err(error) => Err(error),
            })
        })
        .unwrap();
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Queries of the dashboard's panels, with its variables filled in.
fn dashboard() -> Vec<String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(top.join("examples/grafana/overlane-watch.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$__rate_interval", "1m").replace("$__range", "1m");
        query.replace("$instance", ".*").replace("$namespace", ".*")
    });
    queries.collect()
}

#[test]
fn prometheus_scrapes_them_and_answers_the_dashboard() {
    let loaded = require!(Loaded::new());
    require!(need::tool("prometheus"));
    let host = loaded.host();
    let directory = tempfile::tempdir().unwrap();
    let (_program, _) = Foreground::start(host, loaded.watch(PLACE, &[]), None);
    let prometheus = Prometheus::start(host, directory.path());
    prometheus.awaits("up{job=\"overlane\"}");
    for query in [
        "sum by (device) (rate(overlane_watch_device_packets_total{device=\"vxlan0\"}[1m]))",
        "rate(overlane_watch_dropped_packets_total{reason=\"NO_SOCKET\"}[1m])",
        "histogram_quantile(0.99, sum by (device, le) \
         (rate(overlane_watch_hop_latency_seconds_bucket{device=\"vxlan0\"}[1m])))",
        "rate(overlane_watch_hop_followed_segments_total{device=\"vxlan0\", side=\"tx\"}[1m]) / \
         rate(overlane_watch_hop_followed_packets_total{device=\"vxlan0\", side=\"tx\"}[1m]) > 1",
    ] {
        prometheus.awaits(query);
    }
    let queries = dashboard();
    assert!(queries.len() > 15, "{queries:?}");
    for query in &queries {
        assert!(!query.contains('$'), "{query}: an unknown variable");
        // Drops of devices, lost events and similar ones need not have happened.
        let series = prometheus.query(query).unwrap();
        let may_be_none = query.ends_with("> 0") || query.contains("> 0)");
        assert!(may_be_none || !series.is_empty(), "{query} has no answer");
    }
}
