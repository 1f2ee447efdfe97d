//! `overlane accel` as a program: on, off, status, and a kill, during a connection that must not be
//! affected.

mod agent;
mod check;
mod deleted;
mod probe;
use crate::foreground;
use crate::promtool;
mod sandbox;
use crate::program::schema;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use foreground::{Foreground, LIMIT, OVERLANE, path};
use lab::{Network, Params};
use netstate::connection::{Connections, Entry, Tuple};
use netstate::link::Vxlan;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use packet::vxlan::Vni;
use serde_json::Value;
use test_support::{bound, need, require};
use testbed::{Host, NIC, Offload, mac, poll};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A host's fast path; ended on drop, also if the test fails.
struct Served {
    host: Arc<Host>,
    netns: String,
}

impl Served {
    fn of(network: &Network, host: &str) -> Served {
        let host = network.host(host).unwrap().clone();
        let netns = path(&host);
        Served { host, netns }
    }

    /// `overlane accel` with a verb and its arguments, run in the host: the process that serves the
    /// host accepts requests from where it was started.
    fn accel(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(OVERLANE);
        command.args(["accel", arguments[0], "--netns", &self.netns]).args(&arguments[1..]);
        self.host.netns().run(|| command.stdin(Stdio::null()).output().unwrap()).unwrap()
    }

    fn status(&self) -> Value {
        let output = self.accel(&["status", "--json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn hits(&self) -> u64 {
        let status = self.status();
        let count = |word: &str| status["packets"][word]["packets"].as_u64().unwrap_or(0);
        count("decap_hit")
    }

    fn off(&self) -> Output {
        self.accel(&["off", "--all"])
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
        let listen = || bound(|| TcpListener::bind(address.listen));
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

    /// Sends a megabyte and receives a byte.
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

    /// Exchanges data until the fast path of a host delivers packets.
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

fn network() -> Result<Network, String> {
    need::root()?;
    let params = Params::new(1500, Offload::Full);
    Ok(lab::find("vxlan").unwrap().build(&params).unwrap())
}

/// Moves the tunnel to IPv6.
fn over_ipv6(network: &Network) {
    const MTU: u32 = 1500 - 70;
    let address = |last| IpAddr::from(Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, last));
    for (host, own, other) in [("a", 1, 2), ("b", 2, 1)] {
        let host = network.host(host).unwrap();
        // No other program uses IPv6 there, so only the tenants' addresses are learned.
        for of in ["lo", NIC] {
            host.sysctl(&format!("net/ipv6/conf/{of}/disable_ipv6"), "0").unwrap();
        }
        host.address(NIC, address(own), 64).unwrap();
        let device = Vxlan {
            name: "vxlan0",
            vni: Some(Vni::new(42).unwrap()),
            local: address(own),
            remote: Some(address(other)),
            underlay: NIC,
            port: 4789,
            learning: true,
            udp_csum: true,
        };
        let netlink = host.netlink();
        netlink.delete_link(device.name).unwrap();
        netlink.add_vxlan(&device, mac(host.name(), device.name), MTU).unwrap();
        netlink.set_master(device.name, "br0").unwrap();
        netlink.set_up(device.name).unwrap();
    }
    for tenant in [network.client(), network.server()] {
        tenant.netlink().set_mtu("eth0", MTU).unwrap();
    }
}

/// A process that accelerates in the foreground, and its first line.
fn run(served: &Served, devices: &str) -> (Foreground, String) {
    let mut command = Command::new(OVERLANE);
    command.args(["accel", "run", devices]);
    Foreground::start(&served.host, command, None)
}

/// One that accelerates `vxlan0`.
fn run_one(served: &Served) -> Foreground {
    let (foreground, said) = run(served, "vxlan0");
    assert!(said.starts_with("ready: vxlan0: accelerated"), "{said}");
    foreground
}

#[test]
fn a_connection_survives_on_off_and_kill() {
    let network = require!(network());
    survives(&network);
}

#[test]
fn a_connection_survives_on_off_and_kill_over_ipv6() {
    let network = require!(network());
    over_ipv6(&network);
    survives(&network);
}

fn survives(network: &Network) {
    let (a, b) = (Served::of(network, "a"), Served::of(network, "b"));
    let mut connection = Connection::new(network);
    connection.exchange();

    let output = a.accel(&["on", "vxlan0"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("vxlan0: accelerated"), "{}", text(&output.stdout));
    let mut foreground = run_one(&b);
    connection.until_taken(&a);
    connection.until_taken(&b);
    let status = a.status();
    let (device, port) = (&status["devices"][0], &status["devices"][0]["ports"][0]);
    for (what, part, word) in [("device", device, "decap_hit"), ("port", port, "encap_refresh")] {
        assert!(part["packets"][word]["packets"].as_u64() > Some(0), "{what}: {status:#}");
        assert!(part["entries"].as_u64() > Some(0), "{what}: {status:#}");
    }
    schema::validate("accel-status", &status);
    let shown = text(&a.accel(&["status"]).stdout);
    for expected in ["  entries 1; from the wire ", "\n    entries 1; from the tenant "] {
        assert!(shown.contains(expected), "{shown}");
    }

    // After a kill, the kernel detaches the programs, and the slow path continues.
    foreground.child.kill().unwrap();
    assert_eq!(foreground.end(), None);
    connection.exchange();
    assert!(b.status().is_null(), "{}", b.status());

    // No program is left at the hooks.
    let mut foreground = run_one(&b);
    connection.until_taken(&b);
    foreground.signal(Signal::SIGTERM);
    assert_eq!(foreground.end(), Some(0));
    connection.exchange();

    let output = a.accel(&["off", "vxlan0"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(a.status().is_null(), "{}", a.status());
    connection.exchange();
}

/// A confined process replaces conntrack's entries after the end of the killed one.
#[test]
fn entries_are_left_to_conntrack_after_a_kill() {
    require!(need::tool("conntrack"));
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut foreground = run_one(&a);
    let conntrack = "conntrack -I -p tcp -s 192.0.2.1 -d 192.0.2.2 --sport 1234 --dport 80 \
                     --state ESTABLISHED -t 300 -u ASSURED,SEEN_REPLY";
    let run = || Command::new("sh").args(["-ec", conntrack]).output().unwrap();
    let output = a.host.netns().run(run).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tuple = Tuple {
        source: ([192, 0, 2, 1].into(), 1234),
        destination: ([192, 0, 2, 2].into(), 80),
        protocol: 6,
    };
    let entry = || {
        let of = || Connections::open().unwrap().get(&tuple).unwrap();
        a.host.netns().run(of).unwrap()
    };
    let mark = || Connections::open().unwrap().make_liberal(&tuple).unwrap();
    a.host.netns().run(mark).unwrap();
    // There are no rules, so the process itself has no reason to look for entries.
    assert!(entry().is_some_and(|entry| entry.is_marked));

    foreground.child.kill().unwrap();
    assert_eq!(foreground.end(), None);
    poll("the entry to be replaced", LIMIT, || {
        let entry = entry();
        let is_fresh = |entry: &Entry| !entry.is_marked && entry.liberal == [false; 2];
        let is_replaced = entry.as_ref().is_some_and(is_fresh);
        Ok(is_replaced.then_some(()).ok_or_else(|| format!("{entry:?}")))
    })
    .unwrap();
}

/// A confined process notices the end of its caretaker.
#[test]
fn a_killed_caretaker_is_reported() {
    require!(need::tool("nft"));
    let network = require!(network());
    let a = Served::of(&network, "a");
    let rules = "sysctl -qw net.bridge.bridge-nf-call-iptables=1
        nft 'table ip t { chain c { type filter hook forward priority 0; ct state invalid drop; }; }'";
    let made = || Command::new("sh").args(["-ec", rules]).status().unwrap();
    assert!(a.host.netns().run(made).unwrap().success());
    let mut connection = Connection::new(&network);
    let foreground = run_one(&a);
    // Flows need verdicts as soon as the bridge has learned an address.
    let mut unguarded = |expected: bool| {
        poll("the status of the caretaker", LIMIT, || {
            connection.exchange();
            let status = a.status();
            let is_met = status["flows"]["unguarded"] == expected;
            Ok(is_met.then_some(()).ok_or_else(|| status.to_string()))
        })
        .unwrap();
    };
    unguarded(false);
    let children = format!("/proc/{0}/task/{0}/children", foreground.child.id());
    let children = std::fs::read_to_string(children).unwrap();
    let is_caretaker = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "accel-caretaker"
    };
    let pid = children.split_whitespace().find(is_caretaker).unwrap().parse().unwrap();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    unguarded(true);
    let shown = text(&a.accel(&["status"]).stdout);
    assert!(
        shown.contains("the caretaker was killed: TCP connections take the slow path"),
        "{shown}"
    );
    assert!(a.off().status.success());
}

#[test]
fn one_process_serves_a_namespace() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut foreground = run_one(&a);
    let output = a.accel(&["run", "--all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is already accelerated"), "{}", text(&output.stderr));
    // The running process accelerates a second device.
    let output = a.accel(&["on", "--all"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(a.status()["pid"], foreground.child.id());
    assert!(a.off().status.success());
    assert_eq!(foreground.end(), Some(0));
}

#[test]
fn maps_have_the_requested_size_and_the_status_counts_entries_that_do_not_fit() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    let mut connection = Connection::new(&network);
    let output = a.accel(&["on", "--max-entries", "1", "vxlan0"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    poll("an address without room", LIMIT, || {
        connection.exchange();
        let status = a.status();
        let full = status["left_out"] == 1 && status["entries"] == 1 && status["max_entries"] == 1;
        Ok(full.then_some(()).ok_or_else(|| status.to_string()))
    })
    .unwrap();
    connection.exchange();
    assert_eq!(a.hits(), 0, "{}", a.status());
    let shown = text(&a.accel(&["status"]).stdout);
    assert!(shown.contains(", 1 entries beyond --max-entries 1 take the slow path"), "{shown}");

    // It keeps its start options.
    let output = a.accel(&["on", "--max-entries", "5", "--all"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("has room for 1 entries"), "{}", text(&output.stderr));
    assert!(a.accel(&["on", "--max-entries", "1", "--all"]).status.success());
}

#[test]
fn refusals_have_a_code_an_object_and_a_remedy() {
    let network = require!(network());
    require!(need::tool("nft"));
    let a = Served::of(&network, "a");
    let chain = "table netdev t { chain c { type filter hook ingress device nic0 priority 0; }; }";
    let made = a.host.netns().run(|| Command::new("nft").arg(chain).status().unwrap()).unwrap();
    assert!(made.success());
    // A refused device that was named: only a part was done.
    let output = a.accel(&["on", "vxlan0"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    let shown = text(&output.stdout);
    let line = "vxlan0: slow path: AX201 packet filter: nftables netdev t c\n";
    assert!(shown.starts_with(line), "{shown}");
    assert!(shown.contains("remedy: `overlane accel explain AX201`"), "{shown}");
    let status = a.status();
    schema::validate("accel-status", &status);
    let refused = &status["devices"][0]["refused"];
    assert_eq!((&refused["code"], &refused["object"]), (&"AX201".into(), &"netdev t c".into()));
    assert_eq!(refused["evidence"], "packet filter: nftables netdev t c");
    assert!(refused["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{status:#}");
}

#[test]
fn wrong_devices_are_named() {
    let network = require!(network());
    let a = Served::of(&network, "a");
    for (arguments, expected) in [
        (["on", "no-such"], "DEV: find link no-such"),
        (["run", "br0"], "DEV: br0 is a bridge device, not vxlan"),
        (["off", "vxlan0"], "DEV: \"vxlan0\" is not accelerated"),
    ] {
        let output = a.accel(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    assert!(a.status().is_null());
}
