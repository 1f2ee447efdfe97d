//! `accel check`: its report before anything is attached, and its clean-up.

use std::net::Ipv4Addr;
use std::process::Command;

use serde_json::Value;
use test_support::{need, require};

use super::foreground::LIMIT;
use super::{Connection, Served, network, schema, text};

impl Served {
    /// Programs at the tcx hooks of a device.
    fn attached(&self, device: &str) -> usize {
        use sys::tcx::{Hook, programs};
        let index = self.host.netlink().link(device).unwrap().index;
        let count = |hook| programs(index, hook).unwrap().len();
        self.host.netns().run(|| count(Hook::Ingress) + count(Hook::Egress)).unwrap()
    }
}

fn checked(served: &Served, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = served.accel(&[&["check", "--json"], arguments].concat());
    let value: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    schema::validate("accel-check", &value);
    (output.status.code(), value)
}

#[test]
fn traffic_that_could_go_fast_is_counted_and_goes_on() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    connection.exchange();
    let (code, value) = std::thread::scope(|scope| {
        let checking = scope.spawn(|| checked(&a, &["--all", "--seconds", "3"]));
        while !checking.is_finished() {
            connection.exchange();
        }
        checking.join().unwrap()
    });
    assert_eq!(code, Some(0), "{value:#}");
    let device = &value["devices"][0];
    assert_eq!((&device["device"], &device["state"]), (&"vxlan0".into(), &"accelerated".into()));
    let count = |what: &str| device["traffic"][what]["packets"].as_u64().unwrap();
    assert!(count("fast") > 20, "{value:#}");
    assert_eq!((count("slow"), count("uncertain")), (0, 0), "{value:#}");
    assert!(value["seconds"].as_f64().unwrap() >= 3.0, "{value:#}");
    assert_eq!(value["traffic"], device["traffic"], "{value:#}");
    assert_eq!(a.attached("vxlan0"), 0, "nothing is left");
    connection.exchange();
    assert!(a.status().is_null());
}

#[test]
fn parts_that_would_stay_slow_are_named_with_a_remedy() {
    let network = require!(network());
    require!(need::tool("nft"));
    let a = Served::of(&network, "a");
    let chain = "table netdev t { chain c { type filter hook ingress device nic0 priority 0; }; }";
    let made = a.host.netns().run(|| Command::new("nft").arg(chain).status().unwrap()).unwrap();
    assert!(made.success());
    let mut connection = Connection::new(&network);
    let (code, value) = std::thread::scope(|scope| {
        let checking = scope.spawn(|| checked(&a, &["vxlan0", "--seconds", "1"]));
        while !checking.is_finished() {
            connection.exchange();
        }
        checking.join().unwrap()
    });
    assert_eq!(code, Some(1), "{value:#}");
    let device = &value["devices"][0];
    assert_eq!((&device["state"], &device["why"]["code"]), (&"slow".into(), &"AX201".into()));
    assert_eq!(device["traffic"]["fast"]["packets"], 0, "{value:#}");
    assert!(device["traffic"]["reasons"]["AX201"]["packets"].as_u64() > Some(0), "{value:#}");
    let shown = text(&a.accel(&["check", "vxlan0", "--seconds", "0"]).stdout);
    assert!(shown.contains("vxlan0: would take the slow path: AX201 packet filter"), "{shown}");
    assert!(shown.contains("remedy: ") && shown.contains("was not counted"), "{shown}");
}

#[test]
fn addresses_that_no_plan_knows_stay_slow() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    connection.exchange();
    // The host sends over its bridge itself, which no tenant's port sees.
    a.host.address("br0", Ipv4Addr::new(10, 99, 0, 1), 24).unwrap();
    let b = Served::of(&network, "b");
    b.host.address("br0", Ipv4Addr::new(10, 99, 0, 2), 24).unwrap();
    let (code, value) = std::thread::scope(|scope| {
        let checking = scope.spawn(|| checked(&a, &["--all", "--seconds", "2"]));
        while !checking.is_finished() {
            let mut ping = Command::new("ping");
            ping.args(["-n", "-c", "10", "-i", "0.01", "-W", "1", "10.99.0.2"]);
            let _ = a.host.netns().run(|| ping.output().unwrap()).unwrap();
            connection.exchange();
        }
        checking.join().unwrap()
    });
    assert_eq!(code, Some(1), "{value:#}");
    let traffic = &value["devices"][0]["traffic"];
    assert!(traffic["fast"]["packets"].as_u64() > Some(0), "{value:#}");
    assert!(traffic["slow"]["packets"].as_u64() > Some(0), "{value:#}");
}

#[test]
fn bad_input_and_one_that_runs_are_named() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    for (arguments, code, wanted) in [
        (&["check", "no-such"][..], 2, "DEV: find link no-such"),
        (&["check", "br0"], 2, "DEV: br0 is a bridge device, not vxlan"),
        (&["check", "--all", "--seconds", "x"], 2, "invalid value"),
        (&["check", "--all", "--seconds", "999999"], 2, "invalid value"),
        (&["check"], 2, "required"),
    ] {
        let output = a.accel(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
    }
    assert!(a.accel(&["on", "--all"]).status.success());
    let output = a.accel(&["check", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("accelerates this namespace"),
        "{}",
        text(&output.stderr)
    );
    assert!(a.off().status.success());
    a.host.netlink().delete_link("vxlan0").unwrap();
    let output = a.accel(&["check", "--all", "--seconds", "0"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("no VXLAN device"), "{}", text(&output.stdout));
}

#[test]
fn a_check_that_is_killed_leaves_nothing() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut command = Command::new(super::OVERLANE);
    command.args(["accel", "check", "--all", "--seconds", "3600"]);
    let mut child = a.host.netns().run(|| command.spawn().unwrap()).unwrap();
    testbed::poll("the programs that look", LIMIT, || {
        Ok((a.attached("vxlan0") == 2).then_some(()).ok_or_else(|| "none".to_owned()))
    })
    .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    testbed::poll("their end", LIMIT, || {
        Ok((a.attached("vxlan0") == 0).then_some(()).ok_or_else(|| "some".to_owned()))
    })
    .unwrap();
}
