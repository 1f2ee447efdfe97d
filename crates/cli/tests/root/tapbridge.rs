//! `overlane tapbridge` as a program: readiness, signals, privileges, and its end.

use std::io::Read;
use std::net::Ipv6Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use foreground::{Foreground, LIMIT, Notify, OVERLANE, path, ping};
use nix::sys::signal::Signal;
use test_support::{Stop, need, require};
use testbed::Host;

use crate::foreground;

/// A bridge between two tenants.
struct Bridge {
    program: Foreground,
    left: Host,
    right: Host,
}

impl Bridge {
    fn start(more: &[&str], notify: Option<&Notify>) -> Bridge {
        let (left, right) = (Host::new("left").unwrap(), Host::new("right").unwrap());
        let mut command = Command::new(OVERLANE);
        command.args(["tapbridge", "--left", "tap0:10.9.0.1/24", "--right", "tap0:10.9.0.2/24"]);
        command.args(["--left-netns", &path(&left), "--right-netns", &path(&right)]).args(more);
        let (program, ready) = Foreground::start(&left, command, notify);
        let engine = if more.contains(&"uring") { "uring" } else { "epoll" };
        let wanted = format!("ready: tap0 and tap0 are joined, engine {engine}");
        assert!(ready.starts_with(&wanted), "{ready}");
        Bridge { program, left, right }
    }

    fn ping(&self) {
        ping(&self.left, "10.9.0.2");
    }

    /// Asserts that the next printed counters contain three answered pings.
    fn expect_counters(&mut self) {
        for _direction in 0..2 {
            let line = self.program.line();
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

#[test]
fn it_reports_ready_shows_counters_and_ends_on_request() {
    require!(need::tun());
    for end in [Signal::SIGINT, Signal::SIGTERM] {
        let notify = Notify::new();
        let mut bridge = Bridge::start(&["--queues", "2"], Some(&notify));
        notify.expect("READY=1");
        bridge.ping();
        bridge.program.signal(Signal::SIGUSR1);
        bridge.expect_counters();
        bridge.program.signal(end);
        bridge.expect_counters();
        assert_eq!(bridge.program.end(), Some(0));
        notify.expect("STOPPING=1");
        bridge.expect_gone();
    }
}

#[test]
fn ipv6_addresses_are_in_force_once_it_is_ready() {
    require!(need::tun());
    // The kernel serves these first, because all share a queue.
    let [busy, other, left, right] =
        ["busy", "other", "left", "right"].map(|name| Host::with_ipv6(name).unwrap());
    busy.connect("eth0", &other, "eth0", 1500).unwrap();
    busy.sysctl("net/ipv6/conf/eth0/keep_addr_on_down", "1").unwrap();
    for last in 1..=500 {
        let address = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, last);
        busy.netlink().add_address("eth0", address.into(), 64).unwrap();
    }
    let (ended, mut own) = (AtomicBool::new(false), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                busy.netlink().set_down("eth0").unwrap();
                busy.netlink().set_up("eth0").unwrap();
            }
        });
        // Also if an assertion below fails.
        let _end = Stop(&ended);
        for _ in 0..5 {
            let mut command = Command::new(OVERLANE);
            command.args(["tapbridge", "--left", "tap0:fd00::1/64", "--right", "tap0:fd00::2/64"]);
            command.args(["--left-netns", &path(&left), "--right-netns", &path(&right)]);
            let (mut program, _ready) = Foreground::start(&left, command, None);
            for (host, address) in [(&left, "fd00::1"), (&right, "fd00::2")] {
                let link = host.netlink().link("tap0").unwrap().index;
                own.push(host.netlink().is_own(link, address.parse().unwrap()).unwrap());
            }
            program.signal(Signal::SIGTERM);
            for _direction in 0..2 {
                program.line();
            }
            program.end();
        }
    });
    assert_eq!(own, [true; 10]);
}

#[test]
fn every_thread_has_given_up_its_rights() {
    require!(need::tun());
    let bridge = Bridge::start(&["--queues", "3"], None);
    bridge.program.expect_no_rights(4);
    bridge.ping();
}

/// Rings are set up before privileges are dropped; afterwards they are only entered. A forbidden
/// system call would end the process.
#[test]
fn rings_forward_without_rights() {
    require!(need::tun(), rings());
    let mut bridge = Bridge::start(&["--engine", "uring", "--queues", "2"], None);
    for _ in 0..2 {
        bridge.program.expect_no_rights(3);
        bridge.ping();
    }
    bridge.program.signal(Signal::SIGUSR1);
    bridge.expect_counters();
    bridge.program.signal(Signal::SIGTERM);
    bridge.expect_counters();
    assert_eq!(bridge.program.end(), Some(0));
    bridge.expect_gone();
}

/// Checks for `io_uring` that is not disabled for root.
fn rings() -> Result<(), String> {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
        Ok(off) => need::that(off.trim() != "2", "kernel.io_uring_disabled below 2"),
        // Before Linux 6.6 this sysctl does not exist.
        Err(_) => need::that(std::path::Path::new("/proc/kallsyms").exists(), "io_uring"),
    }
}

#[test]
fn a_kill_leaves_nothing() {
    require!(need::tun());
    let mut bridge = Bridge::start(&[], None);
    bridge.ping();
    bridge.program.signal(Signal::SIGKILL);
    assert_eq!(bridge.program.end(), None);
    bridge.expect_gone();
}

#[test]
fn a_device_that_vanishes_is_a_failure_with_its_name() {
    require!(need::tun());
    let mut bridge = Bridge::start(&["--no-offload=right", "--mtu", "9000"], None);
    bridge.ping();
    assert_eq!(bridge.left.netlink().link("tap0").unwrap().mtu, 9000);
    bridge.right.netlink().delete_link("tap0").unwrap();
    bridge.expect_counters();
    assert_eq!(bridge.program.end(), Some(1));
    bridge.expect_gone();
}

#[test]
fn problems_are_named() {
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
    fails_with(&["--busy-poll", "10001"], "--busy-poll: 10001 is not 0 to 10000");
    fails_with(&["--busy-poll", "1", "--engine", "uring"], "not with --engine uring");
    fails_with(&["--mtu", "67"], "--mtu: 67 is not 68 to 65521");
    fails_with(&["--engine", "dpdk"], "unknown engine \"dpdk\"; known: auto, bpf, epoll");
    fails_with(&["--left-netns", "no-such-netns"], "/run/netns/no-such-netns");
    fails(&["--left", "tap0", "--right", "tap0"], 2, "the same namespace");
    fails(&["--left", "tap0", "--right", "tap1", "--netmap"], 2, "exactly one IPv4");
    fails(&["--left", "tap0:10.0.0.1/33", "--right", "tap1"], 2, "at most 32");
    fails(&["--left", "a/b", "--right", "tap1"], 2, "device name \"a/b\"");
}
