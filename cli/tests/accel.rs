//! `overlane accel` as a program: on, off, status, and its violent end, under a
//! connection that must not notice.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use lab::{Network, Params};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testbed::{Offload, poll};

const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");
const LIMIT: Duration = Duration::from_secs(60);

fn overlane(arguments: &[&str]) -> Output {
    Command::new(OVERLANE).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A host's fast path; ended when dropped, however the test ends.
struct Served {
    netns: String,
}

impl Served {
    fn of(network: &Network, host: &str) -> Served {
        let netns = network.host(host).unwrap().netns();
        let fd = netns.as_fd().as_raw_fd();
        Served { netns: format!("/proc/{}/fd/{fd}", std::process::id()) }
    }

    fn on(&self, device: &str) -> Output {
        overlane(&["accel", "on", "--netns", &self.netns, device])
    }

    fn status(&self) -> Value {
        let output = overlane(&["accel", "status", "--netns", &self.netns, "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn hits(&self) -> u64 {
        let status = self.status();
        let count = |word: &str| status["packets"][word]["packets"].as_u64().unwrap_or(0);
        count("ingress_hit")
    }

    fn off(&self) -> Output {
        overlane(&["accel", "off", "--netns", &self.netns, "--all"])
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.off();
    }
}

/// A connection through the tenants that is used all the time.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Connection {
    fn new(network: &Network) -> Connection {
        let address = network.address;
        let listen = || TcpListener::bind(address.listen).unwrap();
        let listener = network.server().netns().run(listen).unwrap();
        let connect = || TcpStream::connect_timeout(&address.target, LIMIT).unwrap();
        let client = network.client().netns().run(connect).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.set_write_timeout(Some(LIMIT)).unwrap();
        }
        Connection { client, server }
    }

    /// A megabyte there and a byte back.
    fn exchange(&mut self) {
        let sent: Vec<u8> = (0..1_000_000u32).map(|at| (at / 251 + at) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut received = vec![0; sent.len()];
                self.server.read_exact(&mut received).unwrap();
                assert!(received == sent);
                self.server.write_all(&[1]).unwrap();
            });
            self.client.write_all(&sent).unwrap();
            self.client.read_exact(&mut [0]).unwrap();
        });
    }

    /// Exchanges until the fast path of a host delivers.
    fn until_taken(&mut self, served: &Served) {
        let before = served.hits();
        poll("the fast path", LIMIT, || {
            self.exchange();
            let taken = served.hits() > before;
            Ok(taken.then_some(()).ok_or_else(|| served.status().to_string()))
        })
        .unwrap();
    }
}

fn network() -> Option<Network> {
    if !sys::userns::may_administer_networks() || !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN)");
        return None;
    }
    let params = Params { mtu: 1500, offload: Offload::Full };
    Some(lab::find("vxlan").unwrap().build(&params).unwrap())
}

fn run(served: &Served) -> Child {
    let mut child = Command::new(OVERLANE)
        .args(["accel", "run", "--netns", &served.netns, "vxlan0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready: vxlan0: accelerated"), "{line}");
    child
}

#[test]
fn a_connection_survives_on_off_and_kill() {
    let Some(network) = network() else { return };
    let (a, b) = (Served::of(&network, "a"), Served::of(&network, "b"));
    let mut connection = Connection::new(&network);
    connection.exchange();

    let output = a.on("vxlan0");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("vxlan0: accelerated\n"), "{}", text(&output.stdout));
    let mut foreground = run(&b);
    connection.until_taken(&a);
    connection.until_taken(&b);

    // Killed: the kernel detaches, and the slow path goes on.
    foreground.kill().unwrap();
    foreground.wait().unwrap();
    connection.exchange();
    assert!(b.status().is_null(), "{}", b.status());

    // Nothing is left that another one would find at the hooks.
    let mut foreground = run(&b);
    connection.until_taken(&b);
    let pid = Pid::from_raw(foreground.id().cast_signed());
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(foreground.wait().unwrap().success());
    connection.exchange();

    let output = overlane(&["accel", "off", "--netns", &a.netns, "vxlan0"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(a.status().is_null(), "{}", a.status());
    connection.exchange();
}

#[test]
fn one_process_serves_a_namespace() {
    let Some(network) = network() else { return };
    let a = Served::of(&network, "a");
    let mut foreground = run(&a);
    let output = overlane(&["accel", "run", "--netns", &a.netns, "--all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is accelerated already"), "{}", text(&output.stderr));
    // A second device is taken up by the one that runs.
    assert!(overlane(&["accel", "on", "--netns", &a.netns, "--all"]).status.success());
    assert_eq!(a.status()["pid"], foreground.id());
    assert!(a.off().status.success());
    assert!(foreground.wait().unwrap().success());
}

#[test]
fn wrong_devices_are_named() {
    let Some(network) = network() else { return };
    let a = Served::of(&network, "a");
    for (arguments, expected) in [
        (["on", "no-such"], "DEV: find link no-such"),
        (["run", "br0"], "DEV: br0 is a bridge device, not vxlan"),
        (["off", "vxlan0"], "DEV: \"vxlan0\" is not accelerated"),
    ] {
        let [verb, device] = arguments;
        let output = overlane(&["accel", verb, "--netns", &a.netns, device]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    assert!(a.status().is_null());
}
