//! `overlane vtep` as a program: readiness, signals, reload, privileges, bad input.

use std::io::{Read, Write};
use std::process::{Command, Output};

use foreground::{Foreground, LIMIT, Notify, OVERLANE, path, ping};
use netstate::link::Vxlan;
use nix::sys::signal::Signal;
use packet::vxlan::{PORT, Vni};
use test_support::{need, require};
use testbed::{Host, NIC, Offload, Wire, mac};

use crate::foreground;

/// An endpoint in host a, its TAP in a tenant, the kernel's VXLAN in host b.
struct Vtep {
    program: Foreground,
    tenant: Host,
    ready: String,
    a: Host,
    b: Host,
}

impl Vtep {
    fn start(arguments: impl FnOnce(&str) -> Vec<String>, notify: Option<&Notify>) -> Vtep {
        let [a, b] = Wire { mtu: 1500, offload: Offload::Full }.hosts().unwrap();
        let tenant = Host::new("tenant").unwrap();
        let device = Vxlan {
            name: "vxlan0",
            vni: Some(Vni::new(10).unwrap()),
            local: Wire::B.into(),
            remote: Some(Wire::A.into()),
            underlay: NIC,
            port: PORT,
            learning: true,
            udp_csum: true,
        };
        b.netlink().add_vxlan(&device, mac("b", "vxlan0"), 1450).unwrap();
        b.address("vxlan0", std::net::Ipv4Addr::new(10, 1, 0, 2), 24).unwrap();
        let mut command = Command::new(OVERLANE);
        command.arg("vtep").args(arguments(&path(&tenant)));
        let (program, ready) = Foreground::start(&a, command, notify);
        let wanted = "ready: 10.0.0.1 port 4789; VNI 10 on tap0, MTU 1450, offload: CSUM|TSO4";
        assert!(ready.starts_with(wanted), "{ready}");
        Vtep { program, tenant, ready, a, b }
    }

    fn by_arguments(notify: Option<&Notify>) -> Vtep {
        let arguments = |tenant: &str| {
            ["--vni", "10", "--tap", "tap0:10.1.0.1/24", "--netns", tenant]
                .into_iter()
                .chain(["--local", "10.0.0.1", "--remote", "10.0.0.2", "--queues", "2"])
                .map(str::to_owned)
                .collect()
        };
        Vtep::start(arguments, notify)
    }

    fn ping(&self) {
        ping(&self.tenant, "10.1.0.2");
    }

    fn expect_counters(&mut self) {
        for (name, zero) in [
            ("VNI 10 tap0 to wire", false),
            ("VNI 10 wire to tap0", false),
            ("without network", true),
        ] {
            let line = self.program.line();
            assert!(line.starts_with(&format!("{name}: received ")), "{line}");
            assert!(line.contains("received 0 ") == zero && line.contains("dropped 0"), "{line}");
        }
    }
}

#[test]
fn it_reports_ready_shows_counters_and_ends_on_request() {
    require!(need::tun());
    let notify = Notify::new();
    let mut vtep = Vtep::by_arguments(Some(&notify));
    notify.expect("READY=1");
    vtep.ping();
    vtep.program.signal(Signal::SIGUSR1);
    vtep.expect_counters();
    vtep.program.signal(Signal::SIGHUP);
    assert!(vtep.program.line().contains("configured by arguments"));
    vtep.program.signal(Signal::SIGINT);
    vtep.expect_counters();
    assert_eq!(vtep.program.end(), Some(0));
    notify.expect("STOPPING=1");
    assert!(vtep.tenant.netlink().link("tap0").is_err(), "the device stayed");
}

/// With its remaining privileges.
#[test]
fn it_joins_its_group_on_a_link_made_anew() {
    require!(need::tun());
    const GROUP: &str = "239.1.1.10";
    for hand_over in ["auto", "udp-segment"] {
        let mut vtep = Vtep::start(
            |tenant| {
                ["--vni", "10", "--tap", "tap0:10.1.0.1/24", "--netns", tenant]
                    .into_iter()
                    .chain(["--local", "10.0.0.1", "--remote", "10.0.0.2", "--group", GROUP])
                    .chain(["--hand-over", hand_over])
                    .map(str::to_owned)
                    .collect()
            },
            None,
        );
        let expect_joined = || {
            testbed::poll("the group", LIMIT, || {
                let mut command = Command::new("ip");
                let joined = vtep.a.run(command.args(["maddr", "show", "dev", NIC]))?;
                Ok(if joined.contains(GROUP) { Ok(()) } else { Err(joined) })
            })
            .unwrap();
        };
        expect_joined();
        vtep.a.netlink().delete_link(NIC).unwrap();
        let wire = Wire { mtu: 1500, offload: Offload::Full };
        wire.join(&vtep.a, &vtep.b).unwrap();
        wire.address(&vtep.a, &vtep.b).unwrap();
        expect_joined();
        vtep.program.signal(Signal::SIGTERM);
        for _ in 0..3 {
            assert!(vtep.program.line().contains(": received "));
        }
        assert_eq!(vtep.program.end(), Some(0));
    }
}

#[test]
fn killed_it_leaves_nothing() {
    require!(need::tun());
    let mut vtep = Vtep::by_arguments(None);
    assert!(vtep.ready.contains("; hand-over tunnel-gso (vtep0 to nic0)"), "{}", vtep.ready);
    vtep.ping();
    vtep.program.signal(Signal::SIGKILL);
    assert_eq!(vtep.program.end(), None);
    assert!(vtep.a.netlink().link("vtep0").is_err(), "the second TAP stayed");
    // A leftover program at the NIC would take these packets from the kernel.
    let device = Vxlan {
        name: "vxlan0",
        vni: Some(Vni::new(10).unwrap()),
        local: Wire::A.into(),
        remote: Some(Wire::B.into()),
        underlay: NIC,
        port: PORT,
        learning: true,
        udp_csum: true,
    };
    vtep.a.netlink().add_vxlan(&device, mac("a", "vxlan0"), 1450).unwrap();
    vtep.a.address("vxlan0", std::net::Ipv4Addr::new(10, 1, 0, 1), 24).unwrap();
    ping(&vtep.a, "10.1.0.2");
}

/// `overlane vtep status` in a host.
fn status(host: &Host, arguments: &[&str]) -> Output {
    let mut command = Command::new(OVERLANE);
    command.args(["vtep", "status"]).args(arguments);
    host.netns().run(|| command.output()).unwrap().unwrap()
}

#[test]
fn it_serves_its_counters_to_any_client() {
    require!(need::tun());
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("metrics");
    let mut place = None;
    let arguments = |tenant: &str| {
        let metrics = format!("unix:{}", socket.display());
        place = Some(metrics.clone());
        ["--vni", "10", "--tap", "tap0:10.1.0.1/24", "--netns", tenant, "--local", "10.0.0.1"]
            .into_iter()
            .chain(["--remote", "10.0.0.2", "--metrics", &metrics, "--neigh-suppress"])
            .chain(["--neighbour", "10.1.0.7=02:00:00:00:00:07"])
            .map(str::to_owned)
            .collect()
    };
    let started = std::time::Instant::now();
    let mut vtep = Vtep::start(arguments, None);
    ping(&vtep.tenant, "10.1.0.2");
    let shown = status(&vtep.a, &[]);
    let text = String::from_utf8_lossy(&shown.stdout);
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    assert!(text.starts_with("10.0.0.1:4789: hand-over tunnel-gso (vtep0 to nic0)\n"), "{text}");
    assert!(text.contains("\nVNI 10 wire to tap0: received "), "{text}");
    // It checks for packet filters each second, with its remaining privileges.
    testbed::poll("a second look", foreground::LIMIT, || {
        let looked = started.elapsed() > std::time::Duration::from_millis(1500);
        Ok(if looked { Ok(()) } else { Err("not yet".to_owned()) })
    })
    .unwrap();
    let json = status(&vtep.a, &["--json"]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let network = &json[0]["networks"][0];
    let received = network["from_wire"]["received"].as_u64().unwrap();
    assert!(received >= 3 && network["vni"] == 10 && json[0]["whole"] == true, "{json}");

    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(foreground::LIMIT)).unwrap();
    client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let labels = "local=\"10.0.0.1:4789\",vni=\"10\",tap=\"tap0\",direction=\"from_wire\"";
    for line in [
        format!("overlane_vtep_forwarded_packets_total{{{labels}}} "),
        format!("overlane_vtep_dropped_packets_total{{{labels},reason=\"spoofed\"}} 0\n"),
        format!("overlane_vtep_neighbour_questions_total{{{labels},outcome=\"unknown\"}} 0\n"),
        "tap=\"tap0\",kind=\"configured\"} 1\n".to_owned(),
        "overlane_vtep_whole{local=\"10.0.0.1:4789\"} 1\n".to_owned(),
    ] {
        assert!(answer.contains(&line), "{line}: {answer}");
    }

    vtep.program.signal(Signal::SIGTERM);
    vtep.expect_counters();
    assert_eq!(vtep.program.end(), Some(0));
    assert!(!socket.exists());
    let none = status(&vtep.a, &[]);
    assert!(String::from_utf8_lossy(&none.stdout).starts_with("no endpoint"), "{none:?}");
}

#[test]
fn a_way_that_cannot_be_is_refused_or_named() {
    require!(need::tun());
    // No route leads to a remote end of this host over a NIC.
    let arguments = |how: &str| {
        let mut command = Command::new(OVERLANE);
        command.args(["vtep", "--vni", "10", "--tap", "tap0", "--local", "127.0.0.1"]);
        command.args(["--remote", "127.0.0.2", "--hand-over", how]);
        command
    };
    let host = Host::new("alone").unwrap();
    host.netlink().set_up("lo").unwrap();
    let run = |how| host.netns().run(|| arguments(how).output()).unwrap().unwrap();
    let output = run("tunnel-gso");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("lo, which leads to 127.0.0.2, is not an Ethernet device"), "{error}");
    assert_eq!(run("whole").status.code(), Some(2));
}

#[test]
fn every_thread_has_given_up_its_rights() {
    require!(need::tun());
    let vtep = Vtep::by_arguments(None);
    vtep.program.expect_no_rights(5);
    vtep.ping();
    // Reading changes needs no privileges either.
    for _ in 0..3 {
        vtep.a.run(Command::new("ip").args(["link", "add", "new", "type", "bridge"])).unwrap();
        vtep.a.run(Command::new("ip").args(["link", "del", "new"])).unwrap();
        vtep.ping();
        vtep.program.expect_no_rights(5);
    }
}

/// A confined endpoint detects a new packet filter, and then stops bypassing it.
#[test]
fn a_packet_filter_that_comes_ends_the_hand_over() {
    require!(need::root(), need::tun(), need::tool("nft"), need::tool("iptables-legacy"));
    for (filter, named) in [
        (&["iptables-legacy", "-A", "OUTPUT", "-j", "ACCEPT"][..], "iptables-legacy filter"),
        (&["nft", "add", "table", "inet", "t"], "packet filters"),
    ] {
        let vtep = Vtep::by_arguments(None);
        assert!(vtep.ready.contains("; hand-over tunnel-gso (vtep0 to nic0)"), "{}", vtep.ready);
        vtep.ping();
        vtep.a.run(Command::new(filter[0]).args(&filter[1..])).unwrap();
        testbed::poll("the end of the hand-over", LIMIT, || {
            let text = String::from_utf8_lossy(&status(&vtep.a, &[]).stdout).into_owned();
            Ok(if text.contains("udp-segment") && text.contains(named) {
                Ok(())
            } else {
                Err(text)
            })
        })
        .unwrap();
        vtep.ping();
    }
}

#[test]
fn a_configuration_file_is_reloaded_on_request() {
    require!(need::tun());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("vtep.toml");
    let write = |tenant: &str, remote: &str, more: &str| {
        let text = format!(
            "local = \"10.0.0.1\"\n{more}\n[[network]]\nvni = 10\ntap = \"tap0\"\n\
             netns = \"{tenant}\"\naddress = [\"10.1.0.1/24\"]\nremotes = [\"{remote}\"]\n"
        );
        std::fs::write(&file, text).unwrap();
    };
    let arguments = |tenant: &str| {
        write(tenant, "10.0.0.3", "");
        vec!["--config".to_owned(), file.to_str().unwrap().to_owned()]
    };
    let mut vtep = Vtep::start(arguments, None);
    let tenant = path(&vtep.tenant);
    write(&tenant, "10.0.0.2", "ttl = 0");
    vtep.program.signal(Signal::SIGHUP);
    let line = vtep.program.line();
    assert!(line.starts_with("not reloaded") && line.contains("ttl"), "{line}");
    write(&tenant, "10.0.0.2", "ttl = 9");
    vtep.program.signal(Signal::SIGHUP);
    assert!(vtep.program.line().contains("restart the endpoint"));
    write(&tenant, "10.0.0.2", "");
    vtep.program.signal(Signal::SIGHUP);
    assert_eq!(vtep.program.line(), "reloaded");
    vtep.ping();
}

#[test]
fn impossible_values_are_refused_by_name() {
    let vtep = |arguments: &[&str]| -> Output {
        Command::new(OVERLANE).arg("vtep").args(arguments).output().unwrap()
    };
    let whole = ["--vni", "10", "--tap", "tap0", "--local", "10.0.0.1", "--remote", "10.0.0.2"];
    for (more, named) in [
        (&["--remote", "fd00::2"][..], "fd00::2"),
        (&["--remote", "239.0.0.1"], "multicast group"),
        (&["--group", "10.0.0.9"], "not a multicast group"),
        (&["--group", "239.0.0.1", "--replicate", "10.0.0.2"], "--replicate"),
        (&["--fdb", "02:00"], "MAC=REMOTE"),
        (&["--replicate", "10.0.0.9"], "10.0.0.9 is not in remotes"),
        (&["--queues", "0"], "queues"),
        (&["--mtu", "10"], "mtu"),
        (&["--busy-poll", "10001"], "10001 is not between 0 and 10000 microseconds"),
        (&["--metrics", "9472"], "expected unix:PATH"),
        (&["--neighbour", "10.1.0.7=02:00:00:00:00:07"], "--neigh-suppress"),
        (&["--neigh-suppress", "--neighbour", "10.1.0.7"], "IP=MAC"),
        (&["--neigh-suppress", "--neighbour", "10.1.0.7=7"], "hardware address"),
        (&["--proxy"], "--proxy"),
    ] {
        let output = vtep(&[&whole[..], more].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {error}");
        assert!(error.contains(named), "{more:?}: {error}");
    }
    for arguments in [&whole[2..], &whole[..6], &["--config", "/no/such/file"]] {
        assert_eq!(vtep(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
