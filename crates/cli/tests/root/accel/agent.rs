//! `accel run` as a node's agent: metrics, probes, events, takeovers, its end.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};
use testbed::{Host, poll};

use super::foreground::{Foreground, LIMIT, OVERLANE};
use super::promtool;
use super::{Connection, Served, network, schema, text};

const PLACE: &str = "127.0.0.1:9473";

/// Answer to a GET in a host: status line, body.
fn get(host: &Host, path: &str) -> std::io::Result<(String, String)> {
    let connect = || TcpStream::connect(PLACE);
    let mut stream = host.netns().run(connect).unwrap()?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| std::io::Error::from(ErrorKind::InvalidData))?;
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.to_owned()))
}

fn agent(arguments: &[&str]) -> Command {
    let mut command = Command::new(OVERLANE);
    command.args(["accel", "run", "--all"]).args(arguments);
    command
}

/// The value of a metric, named with its labels.
fn value(page: &str, metric: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn metrics_and_probes_are_served_and_a_silent_scraper_holds_up_nothing() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    let (mut foreground, said) = Foreground::start(&a.host, agent(&["--metrics", PLACE]), None);
    assert!(said.starts_with("ready: vxlan0: accelerated"), "{said}");
    connection.until_taken(&a);
    let silent: Vec<TcpStream> = (0..64)
        .map(|_| a.host.netns().run(|| TcpStream::connect(PLACE).unwrap()).unwrap())
        .collect();
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(get(&a.host, probe).unwrap(), ("HTTP/1.1 200 OK".into(), "ok\n".into()));
    }
    assert_eq!(get(&a.host, "/").unwrap().0, "HTTP/1.1 404 Not Found");
    let (head, page) = get(&a.host, "/metrics").unwrap();
    assert_eq!(head, "HTTP/1.1 200 OK");
    for (metric, least) in [
        ("overlane_accel_in_force", 1.0),
        ("overlane_accel_device_accelerated{device=\"vxlan0\"}", 1.0),
        ("overlane_accel_packets_total{path=\"fast\",reason=\"decap_hit\"}", 1.0),
        ("overlane_accel_bytes_total{path=\"fast\",reason=\"decap_hit\"}", 60.0),
        (
            "overlane_accel_device_packets_total{device=\"vxlan0\",path=\"fast\",reason=\"decap_hit\"}",
            1.0,
        ),
        ("overlane_accel_rebuilds_total{cause=\"start\"}", 1.0),
        ("overlane_accel_entries", 1.0),
        ("process_resident_memory_bytes", 1e6),
    ] {
        assert!(value(&page, metric).is_some_and(|value| value >= least), "{metric}\n{page}");
    }
    // A loose limit, because the machine may be busy.
    assert!(value(&page, "overlane_accel_heartbeat_age_seconds").unwrap() < 5.0, "{page}");
    drop(silent);
    connection.exchange();
    foreground.signal(Signal::SIGTERM);
    assert_eq!(foreground.end(), Some(0));
}

#[test]
fn prometheus_reads_the_metrics() {
    let network = require!(network());
    require!(need::tool("promtool"));
    let a = Served::of(&network, "a");
    let (_foreground, _) = Foreground::start(&a.host, agent(&["--metrics", PLACE]), None);
    let (_, page) = get(&a.host, "/metrics").unwrap();
    promtool::assert_clean(&page);
}

fn events(path: &Path) -> Vec<Value> {
    let lines = std::fs::read_to_string(path).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_tell_what_comes_and_goes() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let (mut foreground, _) =
        Foreground::start(&a.host, agent(&["--events", path.to_str().unwrap()]), None);
    let wait = |what: &str, is: &dyn Fn(&Value) -> bool| {
        poll(what, LIMIT, || {
            let all = events(&path);
            Ok(all.iter().any(is).then_some(()).ok_or_else(|| format!("{all:#?}")))
        })
        .unwrap();
    };
    wait("the device", &|event| event["device"] == "vxlan0" && event["state"] == "accelerated");
    a.host.netlink().set_down("vxlan0").unwrap();
    wait("the reason", &|event| {
        event["event"] == "device" && event["state"] == "slow" && event["why"]["code"] == "AX005"
    });
    a.host.netlink().delete_link("vxlan0").unwrap();
    wait("its end", &|event| event["event"] == "device" && event["state"] == "gone");
    foreground.signal(Signal::SIGTERM);
    assert_eq!(foreground.end(), Some(0));
    let all = events(&path);
    assert_eq!(all[0]["event"], "started", "{all:#?}");
    assert_eq!(all[0]["pid"], foreground.child.id(), "{all:#?}");
    assert_eq!(all.last().unwrap()["event"], "stopped", "{all:#?}");
    assert!(all.iter().any(|event| event["event"] == "port"), "{all:#?}");
    assert!(all.iter().any(|event| event["event"] == "generation"), "{all:#?}");
    for event in &all {
        schema::validate("accel-event", event);
    }
}

#[test]
fn events_on_standard_output_begin_with_the_start() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let (mut foreground, said) = Foreground::start(&a.host, agent(&["--events", "-"]), None);
    let first: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(first["event"], "started", "{said}");
    foreground.signal(Signal::SIGTERM);
    let mut last = said;
    while !last.contains("\"stopped\"") {
        last = foreground.line();
    }
    assert_eq!(foreground.end(), Some(0));
}

#[test]
fn an_event_file_that_cannot_be_is_refused() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let output = a.accel(&["run", "--all", "--events", "/no/such/directory/file"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--events: cannot open"), "{}", text(&output.stderr));
}

/// Datagrams at a steady rate from one tenant to the other, counted until dropped.
struct Datagrams {
    stop: std::sync::Arc<AtomicBool>,
    sent: std::sync::Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Numbers of the received datagrams, once the receiver has ended.
    receiving: Option<std::thread::JoinHandle<std::collections::BTreeSet<u64>>>,
}

impl Datagrams {
    /// A thousand per second, if the machine's load permits.
    fn start(network: &lab::Network) -> Datagrams {
        let address = network.address;
        let bind = |ip| move || UdpSocket::bind((ip, 0)).unwrap();
        let receiver = network.server().netns().run(bind(address.listen.ip())).unwrap();
        let to = (address.target.ip(), receiver.local_addr().unwrap().port());
        let any = if to.0.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
        let sender = network.client().netns().run(bind(any)).unwrap();
        nix::sys::socket::setsockopt(&receiver, nix::sys::socket::sockopt::RcvBuf, &(8 << 20))
            .unwrap();
        let (stop, sent) = <(std::sync::Arc<AtomicBool>, std::sync::Arc<AtomicU64>)>::default();
        let theirs = (stop.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            while !theirs.0.load(Ordering::Acquire) {
                let number = theirs.1.load(Ordering::Acquire);
                sender.send_to(&number.to_be_bytes(), to).unwrap();
                theirs.1.store(number + 1, Ordering::Release);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        // Paced, so that no buffer fills up.
        let theirs = (stop.clone(), sent.clone());
        let receiving = std::thread::spawn(move || {
            let mut arrived = std::collections::BTreeSet::new();
            let mut bytes = [0; 8];
            let mut silent = 0;
            while silent < 5 {
                match receiver.recv(&mut bytes) {
                    Ok(_) => drop(arrived.insert(u64::from_be_bytes(bytes))),
                    Err(_) if theirs.0.load(Ordering::Acquire) => silent += 1,
                    Err(_) => {}
                }
                let stopped = theirs.0.load(Ordering::Acquire);
                if stopped && arrived.len() as u64 == theirs.1.load(Ordering::Acquire) {
                    break;
                }
            }
            arrived
        });
        Datagrams { stop, sent, thread: Some(thread), receiving: Some(receiving) }
    }

    /// The missing numbers, and the number of sent datagrams.
    fn end(mut self) -> (Vec<u64>, u64) {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap();
        let sent = self.sent.load(Ordering::Acquire);
        let arrived = self.receiving.take().unwrap().join().unwrap();
        ((0..sent).filter(|number| !arrived.contains(number)).collect(), sent)
    }
}

#[test]
fn ten_takeovers_lose_no_packet() {
    let network = require!(network());
    let (a, b) = (Served::of(&network, "a"), Served::of(&network, "b"));
    let mut connection = Connection::new(&network);
    connection.exchange();
    let arguments = ["--takeover", "--metrics", PLACE];
    let start = |served: &Served| Foreground::start(&served.host, agent(&arguments), None).0;
    let mut serving = [start(&a), start(&b)];
    connection.until_taken(&a);
    connection.until_taken(&b);
    let datagrams = Datagrams::start(&network);
    for _ in 0..10 {
        for (served, running) in [&a, &b].into_iter().zip(&mut serving) {
            let mut next = start(served);
            // The predecessor has ended by itself, successfully.
            std::mem::swap(running, &mut next);
            assert_eq!(next.end(), Some(0));
            // A status request reaches the successor.
            assert_eq!(served.status()["pid"], running.child.id());
            assert!(served.status()["devices"][0]["refused"].is_null(), "{}", served.status());
            let (head, _) = get(&served.host, "/readyz").unwrap();
            assert_eq!(head, "HTTP/1.1 200 OK");
            connection.exchange();
        }
    }
    connection.until_taken(&a);
    connection.until_taken(&b);
    let (missing, sent) = datagrams.end();
    assert!(sent > 100, "{sent}");
    assert!(missing.is_empty(), "of {sent}: {missing:?}");
    for running in &mut serving {
        running.signal(Signal::SIGTERM);
        assert_eq!(running.end(), Some(0));
    }
    connection.exchange();
}

/// In a sandbox packets cross a veth pair, and each process has its own.
#[test]
fn takeovers_beside_a_sandbox_lose_no_packet() {
    let network = require!(network());
    let sandboxes = ["a", "b"].map(|host| super::sandbox::sandbox(&network, host));
    let b = Served::of(&network, "b");
    let mut connection = Connection::new(&network);
    connection.exchange();
    let start = || Foreground::start(&b.host, agent(&["--takeover"]), None).0;
    let links = || super::sandbox::links(&sandboxes[1]).len();
    let before = links();
    let mut running = start();
    connection.until_taken(&b);
    let datagrams = Datagrams::start(&network);
    for _ in 0..10 {
        let mut last = std::mem::replace(&mut running, start());
        assert_eq!(last.end(), Some(0));
        connection.until_taken(&b);
        // The successor searches for sandboxes after it has started serving.
        let pairs = || {
            let now = links();
            Ok((now == before + 1).then_some(()).ok_or_else(|| format!("{now}, not {before} + 1")))
        };
        poll("one pair", LIMIT, pairs).unwrap();
    }
    let (missing, sent) = datagrams.end();
    assert!(sent > 100 && missing.is_empty(), "of {sent}: {missing:?}");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
    assert_eq!(links(), before);
}

/// The predecessor ends between the request and the hand-over.
#[test]
fn a_predecessor_that_hangs_or_is_killed_is_succeeded() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    let (mut first, _) = Foreground::start(&a.host, agent(&["--takeover"]), None);
    for millis in [20, 60, 100] {
        let killer = std::thread::spawn({
            let pid = nix::unistd::Pid::from_raw(first.child.id().cast_signed());
            move || {
                std::thread::sleep(Duration::from_millis(millis));
                nix::sys::signal::kill(pid, Signal::SIGKILL)
            }
        });
        let (second, said) = Foreground::start(&a.host, agent(&["--takeover"]), None);
        assert!(said.starts_with("ready: vxlan0: accelerated"), "{said}");
        let _ = killer.join().unwrap();
        let _ = first.child.wait();
        assert_eq!(a.status()["pid"], second.child.id());
        connection.until_taken(&a);
        first = second;
    }
}

/// Packets sent through a host's VXLAN device: those on the slow path.
fn handed_to_the_device(host: &Host) -> u64 {
    let ip = || Command::new("ip").args(["-s", "-j", "link", "show", "vxlan0"]).output().unwrap();
    let value: Value = serde_json::from_slice(&host.netns().run(ip).unwrap().stdout).unwrap();
    value[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
}

#[test]
fn the_fast_path_is_in_force_all_through_a_takeover() {
    let network = require!(network());
    require!(need::tool("ip"));
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    let (mut running, _) = Foreground::start(&a.host, agent(&["--takeover"]), None);
    connection.until_taken(&a);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let arguments = ["--takeover", "--events", path.to_str().unwrap()];
    let datagrams = Datagrams::start(&network);
    // Few packets take the slow path. A loaded machine delays heartbeats, with a takeover and
    // without, so one in ten tries must succeed.
    let most_went_fast = (0..10).any(|_| {
        let (device, before) =
            (handed_to_the_device(&a.host), datagrams.sent.load(Ordering::Acquire));
        let next = Foreground::start(&a.host, agent(&arguments), None).0;
        let mut last = std::mem::replace(&mut running, next);
        assert_eq!(last.end(), Some(0));
        let slow = handed_to_the_device(&a.host) - device;
        let all = datagrams.sent.load(Ordering::Acquire) - before;
        println!("{slow} of {all} datagrams by the device");
        slow < all / 5
    });
    assert!(most_went_fast);
    let (missing, sent) = datagrams.end();
    assert!(missing.is_empty(), "of {sent}: {missing:?}");
    running.signal(Signal::SIGTERM);
    assert_eq!(running.end(), Some(0));
    let all = events(&path);
    assert!(all[0]["predecessor"].is_u64(), "{all:#?}");
    // The successor never takes a predecessor's programs for foreign ones.
    let before_the_end = all.iter().take_while(|event| event["event"] != "handed_over");
    let mut slow = before_the_end.filter(|event| event["state"] == "slow");
    assert!(slow.next().is_none(), "{all:#?}");
}

#[test]
fn a_lingering_process_ends_on_request() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let arguments = ["--takeover", "--linger"];
    let (mut first, _) = Foreground::start(&a.host, agent(&arguments), None);
    let (mut second, _) = Foreground::start(&a.host, agent(&arguments), None);
    assert_eq!(a.status()["pid"], second.child.id());
    assert!(first.child.try_wait().unwrap().is_none(), "it would be started again");
    first.signal(Signal::SIGTERM);
    assert_eq!(first.end(), Some(0));
    assert_eq!(a.status()["pid"], second.child.id());
    second.signal(Signal::SIGTERM);
    assert_eq!(second.end(), Some(0));
}

#[test]
fn without_takeover_the_second_says_who_runs() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let (first, _) = Foreground::start(&a.host, agent(&[]), None);
    let output = a.accel(&["run", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    let wanted = format!("is already accelerated by process {}", first.child.id());
    assert!(text(&output.stderr).contains(&wanted), "{}", text(&output.stderr));
}

#[test]
fn a_successor_that_fails_leaves_the_predecessor_alone() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    let (mut first, _) = Foreground::start(&a.host, agent(&["--takeover"]), None);
    connection.until_taken(&a);
    // It is killed at different stages of the takeover.
    for millis in [0, 30, 60, 90, 120, 200] {
        let mut command = agent(&["--takeover"]);
        let spawn = || command.stdout(Stdio::null()).spawn().unwrap();
        let mut second = a.host.netns().run(spawn).unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        let _ = second.kill();
        let _ = second.wait();
        poll("the fast path of the first, or of one after both", LIMIT, || {
            let before = a.hits();
            connection.exchange();
            if first.child.try_wait().unwrap().is_some() {
                // The kill came too late: the successor had taken over.
                assert!(a.status().is_null(), "{}", a.status());
                first = Foreground::start(&a.host, agent(&["--takeover"]), None).0;
            }
            let taken = a.hits() > before;
            Ok(taken.then_some(()).ok_or_else(|| a.status().to_string()))
        })
        .unwrap();
        assert_eq!(a.status()["pid"], first.child.id());
    }
}
