//! `overlane try` between two hosts, and in the lab.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use test_support::{need, require};

use super::launch::{Ended, Running, eventually, overlane as program, run};
use super::machine::nothing_left;
use super::remote::{Two, inside, overlane, possible};
use super::schema;

const QUICK: [&str; 8] =
    ["--blocks", "6", "--duration", "0.05", "--warmup", "0.01", "--disturbance", "100"];
const STREAM: [&str; 2] = ["--workloads", "tcp_stream"];
fn journal(two: &Two) -> String {
    two.path("journal").to_str().unwrap().to_owned()
}

fn trial(two: &Two, arguments: &[&str]) -> Running {
    let (token, journal) = (two.token(), journal(two));
    let own = ["--token", &token, "--journal", &journal];
    let words = [&["try"], arguments, &own].concat();
    let mut command = inside(&two.a, overlane(&words));
    command.env("OVERLANE_LOG", "overlane=debug");
    Running::start(command)
}

/// The state of a host that these tests change, as text.
fn state(two: &Two) -> String {
    let show = |program: &str, words: &str| {
        let mut command = Command::new(program);
        two.a.run(command.args(words.split(' '))).unwrap()
    };
    [
        show("ip", "-o link show dev nic0"),
        show("ip", "-o link show dev vxlan0"),
        show("ethtool", "-k nic0"),
        // Learned entries change by themselves.
        show("bridge", "fdb show dev vxlan0")
            .lines()
            .filter(|line| line.contains("permanent"))
            .collect(),
    ]
    .concat()
}

fn undo(two: &Two, what: &str) -> Ended {
    let journal = journal(two);
    let command = inside(&two.a, overlane(&["undo", what, "--journal", &journal]));
    Running::start(command).wait()
}

#[track_caller]
fn narrow(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_change_is_proven_better_kept_and_taken_back() {
    require!(possible(), need::tools(&["tc", "ethtool", "bridge"]));
    let two = Two::new();
    // Slower than any machine, even under load.
    let (slow, free) = (
        "tc qdisc replace dev nic0 root tbf rate 50mbit burst 64k latency 50ms",
        "tc qdisc del dev nic0 root",
    );
    let tool = |command: &str| {
        let mut words = command.split(' ');
        two.a.run(Command::new(words.next().unwrap()).args(words)).unwrap()
    };
    tool(slow);
    let before = state(&two);
    let _server = two.serve();
    let ask = [&["--against", "10.9.0.2"], &STREAM[..], &QUICK].concat();
    let better = [&[free, "--undo-with", slow, "--json"], &ask[..]].concat();
    let json = trial(&two, &better).wait().expect(0).json();
    schema::validate("try", &json);
    assert_eq!((&json["verdict"], &json["kept"]), (&"better".into(), &true.into()));
    assert_eq!(json["entries"].as_array().unwrap().len(), 1);
    assert!(!tool("tc qdisc show dev nic0").contains("tbf"));
    let list = undo(&two, "--list").expect(0).stdout;
    assert!(list.contains(free) && !list.contains("trial"), "{list}");

    let worse = [&[slow, "--undo-with", free], &ask[..]].concat();
    let text = trial(&two, &worse).wait().expect(10).stdout;
    narrow(&text);
    assert!(text.contains("Undone: tcp_stream is proven worse"), "{text}");
    assert!(!tool("tc qdisc show dev nic0").contains("tbf"));
    undo(&two, "--all").expect(0);
    assert!(tool("tc qdisc show dev nic0").contains("tbf"));

    // A change whose inverse is the previous value, measured only.
    let cut = "ethtool -K nic0 tso off gso off tx-udp_tnl-segmentation off";
    let only = [&[cut, "--keep", "never"], &ask[..]].concat();
    let ended = trial(&two, &only).wait();
    assert!([Some(0), Some(10)].contains(&ended.code), "{ended:#?}");
    narrow(&ended.stdout);
    assert_eq!(state(&two), before);
}

#[test]
fn a_missing_forwarding_entry_is_found_and_its_remedy_proven() {
    require!(possible(), need::tools(&["ip", "bridge"]));
    let two = Two::new();
    let mac = testbed::mac("b", "vxlan0");
    for command in [
        "ip link del vxlan0",
        "ip link add vxlan0 mtu 1450 type vxlan id 7 local 10.0.0.1 dev nic0 dstport 4789 nolearning",
        "ip addr add 10.9.0.1/24 dev vxlan0",
        "ip link set vxlan0 up",
        &format!("ip neigh replace 10.9.0.2 lladdr {mac} dev vxlan0 nud permanent"),
    ] {
        let mut words = command.split(' ');
        two.a.run(Command::new(words.next().unwrap()).args(words)).unwrap();
    }
    let before = state(&two);
    let _server = two.serve();
    let doctor = ["doctor", "--json", "--watch", "0", "--netns", "/proc/self/ns/net"];
    let found = Running::start(inside(&two.a, overlane(&doctor))).wait().expect(10).json();
    let first = &found["findings"][0];
    assert_eq!(first["code"], "OV035", "{found:#}");

    let entry = format!("{mac} dev vxlan0 dst 10.0.0.2");
    let (add, delete) = (format!("bridge fdb append {entry}"), format!("bridge fdb del {entry}"));
    let arguments = [&add, "--against", "10.9.0.2", "--json"];
    let refused = trial(&two, &arguments).wait().expect(2);
    assert!(refused.stderr.contains("--undo-with"), "{refused:#?}");
    let with = [&arguments[..], &["--undo-with", &delete]].concat();
    let json = trial(&two, &with).wait().expect(0).json();
    schema::validate("try", &json);
    assert_eq!((&json["verdict"], &json["kept"]), (&"better".into(), &true.into()), "{json:#}");
    assert_eq!(json["reached"]["as_found"][1], 0, "{json:#}");
    assert!(state(&two).contains(&mac.to_string()));
    undo(&two, "--all").expect(0);
    assert_eq!(state(&two), before);
}

/// If small packets pass and full-size ones do not, there is no ratio.
#[test]
fn a_path_that_drops_full_size_packets_is_proven_by_what_arrives() {
    require!(possible(), need::tools(&["nft"]));
    let two = Two::new();
    let chain = "chain out { type filter hook output priority 0; meta length > 1000 drop; };";
    let (cut, whole) = (format!("nft 'table inet cut {{ {chain} }}'"), "nft delete table inet cut");
    two.a.nft(&format!("table inet cut {{ {chain} }}")).unwrap();
    let _server = two.serve();
    let arguments = [whole, "--undo-with", &cut, "--against", "10.9.0.2", "--json"];
    let arguments = [&arguments[..], &STREAM, &QUICK].concat();
    let json = trial(&two, &arguments).wait().expect(0).json();
    schema::validate("try", &json);
    assert_eq!(json["verdict"], "better", "{:#}", json["judged"]);
    assert_eq!(json["judged"][0]["carried"]["as_found"][1], 0, "{:#}", json["judged"]);
    undo(&two, "--all").expect(0);
    let mut list = Command::new("nft");
    assert!(two.a.run(list.args(["list", "tables"])).unwrap().contains("inet cut"));
}

/// TCP carries more with the change, and datagrams are damaged.
#[test]
fn a_faster_path_that_damages_packets_is_worse() {
    require!(possible(), need::tools(&["nft"]));
    let two = Two::new();
    let cut = "table inet cut { chain out { type filter hook output priority 0; \
               meta length > 1000 drop; }; }";
    // The 90th byte of outer UDP packets that carry UDP: in the payload of the inner packet.
    let harm = "table inet harm { chain out { type filter hook output priority 0; \
                udp dport 4789 @th,312,8 17 @th,720,16 set 0xdead; }; }";
    two.a.nft(cut).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        format!("nft -f {}", path.display())
    };
    let change = file("change", format!("delete table inet cut\n{harm}\n"));
    let inverse = file("inverse", format!("delete table inet harm\n{cut}\n"));
    let _server = two.serve();
    let arguments = [&change, "--undo-with", &inverse, "--against", "10.9.0.2", "--json"];
    let arguments = [&arguments[..], &STREAM, &QUICK].concat();
    let json = trial(&two, &arguments).wait().expect(10).json();
    schema::validate("try", &json);
    assert_eq!((&json["verdict"], &json["kept"]), (&"worse".into(), &false.into()), "{json:#}");
    let reason = json["reason"].as_str().unwrap();
    assert!(reason.contains("packets to the server corrupted"), "{reason}");
    let mut list = Command::new("nft");
    let tables = two.a.run(list.args(["list", "tables"])).unwrap();
    assert!(tables.contains("inet cut") && !tables.contains("inet harm"), "{tables}");
}

#[test]
fn every_end_of_a_trial_undoes_the_change() {
    require!(possible());
    let two = Two::new();
    let server = two.serve();
    let mtu = || two.a.netlink().link("vxlan0").unwrap().mtu;
    let change = "ip link set vxlan0 mtu 1400";
    let long = ["--workloads", "udp_stream", "--blocks", "1000", "--duration", "0.2"];
    let arguments =
        [&[change, "--against", "10.9.0.2", "--disturbance", "100"], &long[..]].concat();
    let changed = |mtu: &dyn Fn() -> u32| {
        eventually("the change", || if mtu() == 1400 { Ok(()) } else { Err(String::new()) });
    };
    let back = |mtu: &dyn Fn() -> u32| {
        eventually("the earlier value", || if mtu() == 1450 { Ok(()) } else { Err("1400".into()) });
    };

    let mut running = trial(&two, &arguments);
    running.await_samples(1);
    changed(&mtu);
    // No other command may undo a change on trial.
    assert!(
        undo(&two, "--list")
            .stdout
            .lines()
            .all(|line| line.ends_with("on trial") || line == "nothing to undo")
    );
    running.signal(Signal::SIGINT);
    running.wait().expect(130);
    assert_eq!(mtu(), 1450);

    let mut running = trial(&two, &arguments);
    let mark = running.mark().to_owned();
    running.await_samples(1);
    changed(&mtu);
    running.signal(Signal::SIGKILL);
    running.wait();
    back(&mtu);
    nothing_left(&mark);

    let mut running = trial(&two, &arguments);
    running.await_samples(1);
    server.signal(Signal::SIGKILL);
    server.wait();
    let ended = running.wait_at_most(Duration::from_secs(90));
    assert_eq!(ended.code, Some(1), "{ended:#?}");
    assert_eq!(mtu(), 1450);
    assert!(undo(&two, "--list").expect(0).stdout.contains("nothing"));
}

/// A VXLAN device keeps an MTU above the limit of its NIC, but does not accept it again.
#[test]
fn settings_that_cannot_be_restored_are_not_changed() {
    require!(possible(), need::tools(&["ip", "ethtool", "bridge"]));
    let two = Two::new();
    two.a.netlink().set_mtu("nic0", 1400).unwrap();
    let before = state(&two);
    let lower = ["ip link set vxlan0 mtu 1350", "--against", "10.9.0.2"];
    let refused = trial(&two, &lower).wait().expect(1);
    assert!(refused.stderr.contains("1450 could not be restored"), "{refused:#?}");
    let journal = journal(&two);
    let here = ["--netns", "/proc/self/ns/net", "--watch", "0", "--journal", &journal];
    let fix = [&["doctor", "fix", "OV013", "--yes"], &here[..]].concat();
    let by_hand = Running::start(inside(&two.a, overlane(&fix))).wait().expect(1);
    assert!(by_hand.stdout.contains("fix by hand: ip link set dev vxlan0"), "{by_hand:#?}");
    assert_eq!(state(&two), before);
    assert!(undo(&two, "--list").expect(0).stdout.contains("nothing to undo"));
}

#[test]
fn arguments_that_try_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let journal = ["--journal", directory.path().to_str().unwrap()];
    let against = ["--against", "127.0.0.1"];
    for (arguments, named) in [
        (&["try", "true"][..], "--against"),
        (&["try", "ip route add 192.0.2.0/24 dev lo", "--against", "127.0.0.1"], "--undo-with"),
        (&["try", "echo 1 > /tmp/x", "--against", "127.0.0.1"], "--undo-with"),
        (&["try", "ip link set no-such-dev mtu 1400", "--against", "127.0.0.1"], "no-such-dev"),
        (&["try", "ip link set lo mtu many", "--against", "127.0.0.1"], "expected a 32-bit number"),
        (&["try", "ethtool -K lo no-such-feature on", "--against", "127.0.0.1"], "no-such-feature"),
        (&["try", "--finding", "OV999", "--against", "127.0.0.1"], "OV999"),
        (&["try", "true", "--finding", "OV013", "--against", "127.0.0.1"], "--finding"),
        (&["try", "true", "--against", "127.0.0.1", "--engine", "iperf3"], "--engine"),
        (&["try", "true", "--undo-with", "true", "--against", "h:0"], "--against"),
    ] {
        let refused = run([arguments, &journal].concat()).expect(2);
        assert!(refused.stderr.contains(named), "{arguments:?}: {refused:#?}");
    }
    // No server listens there.
    let arguments = [&["try", "true", "--undo-with", "true"], &against[..], &journal].concat();
    let ended = run([&arguments[..], &["--against", "127.0.0.1:9"]].concat());
    assert_ne!(ended.code, Some(0), "{ended:#?}");
}

#[test]
fn the_lab_tries_a_profile_and_a_command() {
    require!(need::root());
    let command = "a: ethtool -K nic0 tx-udp_tnl-segmentation off";
    let mut lab =
        program(["lab", "run", "--mode", "vxlan", "--try", "offload:no-tunnel", "--json"]);
    lab.args(["--try", command]).args(STREAM).args(["--blocks", "2"]).args(&QUICK[2..]);
    let results = Running::start(lab).wait().expect(0).json();
    schema::validate("results", &results);
    assert_eq!(results["plan"]["offload"], serde_json::json!(["full"]));
    let cells = results["cells"].as_array().unwrap();
    for setting in ["offload=no-tunnel", command] {
        let cell = cells.iter().find(|c| c["setting"] == setting && c["mode"] == "vxlan").unwrap();
        assert_eq!(cell["status"], "ok", "{cell:#}");
        assert!(cell["ratio"]["median"].as_f64().is_some(), "{cell:#}");
    }
    for (change, named) in [
        ("offload:some", "full"),
        ("ethtool -K nic0 gro off", "HOST: COMMAND"),
        ("ring=1,2", "one"),
    ] {
        let refused = run(["lab", "run", "--mode", "vxlan", "--try", change]).expect(2);
        assert!(refused.stderr.contains(named), "{refused:#?}");
    }
}
