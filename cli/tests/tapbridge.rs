//! `overlane tapbridge` as a program: readiness, signals, rights, and its end.

use std::io::{BufRead, BufReader, Lines, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::Host;

const OVERLANE: &str = env!("CARGO_BIN_EXE_overlane");
const LIMIT: Duration = Duration::from_secs(60);

fn privileged() -> bool {
    let may = sys::userns::may_administer_networks() && sys::tap::available().is_ok();
    if !may {
        eprintln!("skipped: needs root (CAP_NET_ADMIN) and /dev/net/tun");
    }
    may
}

/// A bridge between two tenants; killed when dropped.
struct Bridge {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    left: Host,
    right: Host,
}

impl Bridge {
    fn start(more: &[&str], notify: Option<&str>) -> Bridge {
        let (left, right) = (Host::new("left").unwrap(), Host::new("right").unwrap());
        let path = |host: &Host| {
            format!("/proc/{}/fd/{}", std::process::id(), host.netns().as_fd().as_raw_fd())
        };
        let mut command = Command::new(OVERLANE);
        command.args(["tapbridge", "--left", "tap0:10.9.0.1/24", "--right", "tap0:10.9.0.2/24"]);
        command.args(["--left-netns", &path(&left), "--right-netns", &path(&right)]).args(more);
        if let Some(notify) = notify {
            command.env("NOTIFY_SOCKET", notify);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        assert!(ready.starts_with("ready: tap0 and tap0 are joined, engine epoll"), "{ready}");
        Bridge { child, lines, left, right }
    }

    fn ping(&self) {
        let mut command = Command::new("ping");
        command.args(["-n", "-c", "3", "-i", "0.01", "-W", "5", "10.9.0.2"]);
        self.left.run(&mut command).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// The counters that it prints next: three pings have been answered.
    fn expect_counters(&mut self) {
        for _direction in 0..2 {
            let line = self.lines.next().unwrap().unwrap();
            assert!(line.starts_with("tap0 to tap0: received "), "{line}");
            assert!(line.ends_with("; dropped 0") && !line.contains("received 0 "), "{line}");
        }
    }

    fn expect_gone(&self) {
        testbed::poll("the devices' end", LIMIT, || {
            let left = [&self.left, &self.right].map(|host| host.netlink().link("tap0").is_ok());
            Ok(if left == [false; 2] { Ok(()) } else { Err(format!("{left:?}")) })
        })
        .unwrap();
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_says_when_it_is_ready_shows_counters_and_ends_when_told() {
    if !privileged() {
        return;
    }
    for end in [Signal::SIGINT, Signal::SIGTERM] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let notified = UnixDatagram::bind(&path).unwrap();
        notified.set_read_timeout(Some(LIMIT)).unwrap();
        let mut bridge = Bridge::start(&["--queues", "2"], path.to_str());
        let mut message = [0; 64];
        let length = notified.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
        bridge.ping();
        bridge.signal(Signal::SIGUSR1);
        bridge.expect_counters();
        bridge.signal(end);
        bridge.expect_counters();
        assert!(bridge.lines.next().is_none());
        assert_eq!(bridge.child.wait().unwrap().code(), Some(0));
        let length = notified.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"STOPPING=1");
        bridge.expect_gone();
    }
}

#[test]
fn every_thread_has_given_up_its_rights() {
    if !privileged() {
        return;
    }
    let bridge = Bridge::start(&["--queues", "3"], None);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", bridge.child.id())).unwrap();
    let mut count = 0;
    for task in tasks {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        count += 1;
    }
    assert_eq!(count, 4, "a thread a queue, and the first");
    bridge.ping();
}

#[test]
fn a_kill_leaves_nothing() {
    if !privileged() {
        return;
    }
    let mut bridge = Bridge::start(&[], None);
    bridge.ping();
    bridge.signal(Signal::SIGKILL);
    bridge.child.wait().unwrap();
    bridge.expect_gone();
}

#[test]
fn a_device_that_vanishes_is_a_failure_with_its_name() {
    if !privileged() {
        return;
    }
    let mut bridge = Bridge::start(&["--no-offload=right", "--mtu", "9000"], None);
    bridge.ping();
    assert_eq!(bridge.left.netlink().link("tap0").unwrap().mtu, 9000);
    bridge.right.netlink().delete_link("tap0").unwrap();
    assert_eq!(bridge.child.wait().unwrap().code(), Some(1));
    bridge.expect_gone();
}

#[test]
fn what_is_wrong_is_named() {
    let fails = |arguments: &[&str], code: i32, said: &str| {
        let mut child = Command::new(OVERLANE)
            .arg("tapbridge")
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = String::new();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code), "{text}");
        assert!(text.contains(said), "{text}");
    };
    let (left, right) = (["--left", "tap0:10.0.0.1/24"], ["--right", "tap1:10.0.1.1/24"]);
    let fails_with = |more: &[&str], said| {
        fails(&[&left[..], &right[..], more].concat(), 2, said);
    };
    fails_with(&["--queues", "0"], "--queues: 0 is not 1 to 256");
    fails_with(&["--queues", "257"], "--queues: 257 is not 1 to 256");
    fails_with(&["--mtu", "67"], "--mtu: 67 is not 68 to 65521");
    fails_with(&["--engine", "dpdk"], "unknown engine \"dpdk\"; known: auto, bpf, epoll");
    fails_with(&["--left-netns", "no-such-netns"], "/run/netns/no-such-netns");
    fails(&["--left", "tap0", "--right", "tap0"], 2, "the same namespace");
    fails(&["--left", "tap0", "--right", "tap1", "--netmap"], 2, "exactly one IPv4");
    fails(&["--left", "tap0:10.0.0.1/33", "--right", "tap1"], 2, "at most 32");
    fails(&["--left", "a/b", "--right", "tap1"], 2, "device name \"a/b\"");
}
