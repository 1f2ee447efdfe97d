//! `measure serve` and `measure run` between two hosts: two network namespaces,
//! joined by a wire and by a VXLAN tunnel over it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use netstate::link::Vxlan;
use nix::sys::signal::Signal;
use serde_json::Value;
use test_support::{need, require};
use testbed::{Host, NIC, Offload, Wire, mac};

use super::launch::{Ended, OVERLANE, Running};
use super::machine::nothing_left;
use super::schema;
use super::signals::interrupted;
use super::unprivileged::Copy;

const TUNNEL: &str = "vxlan0";
const QUICK: [&str; 8] =
    ["--blocks", "2", "--duration", "0.05", "--warmup", "0.01", "--disturbance", "100"];

/// Two hosts and a token.
pub struct Two {
    pub a: Host,
    pub b: Host,
    directory: tempfile::TempDir,
}

impl Two {
    pub fn new() -> Two {
        let [a, b] = Wire { mtu: 1500, offload: Offload::Full }.hosts().unwrap();
        for (host, local, remote, own) in
            [(&a, Wire::A, Wire::B, "10.9.0.1"), (&b, Wire::B, Wire::A, "10.9.0.2")]
        {
            let device = Vxlan {
                name: TUNNEL,
                vni: Some(packet::vxlan::Vni::new(7).unwrap()),
                local: local.into(),
                remote: Some(remote.into()),
                underlay: NIC,
                port: 4789,
                learning: true,
                udp_csum: true,
            };
            host.netlink().add_vxlan(&device, mac(host.name(), TUNNEL), 1450).unwrap();
            host.netlink().set_up(TUNNEL).unwrap();
            host.address(TUNNEL, own.parse::<std::net::Ipv4Addr>().unwrap(), 24).unwrap();
        }
        let two = Two { a, b, directory: tempfile::tempdir().unwrap() };
        two.write("token", "a secret of the tests 7Jx0", 0o600);
        two
    }

    pub fn write(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn token(&self) -> String {
        self.path("token").to_str().unwrap().to_owned()
    }

    /// The server in b, listening for anyone with the token.
    pub fn serve(&self) -> Running {
        ready(inside(
            &self.b,
            overlane(&["measure", "serve", "--bind", "0.0.0.0", "--token", &self.token()]),
        ))
    }

    /// Like `serve`, but as on another machine: with another boot ID.
    pub fn serve_elsewhere(&self) -> Running {
        let boot = self.write("boot", "00000000-1111-2222-3333-444444444444\n", 0o644);
        let script = format!(
            "mount --bind {boot} /proc/sys/kernel/random/boot_id && \
             exec \"{OVERLANE}\" measure serve --bind 0.0.0.0 --token {}",
            self.token()
        );
        let mut server = Command::new("unshare");
        server.args(["--mount", "sh", "-c", &script]);
        ready(inside(&self.b, server))
    }

    pub fn run(&self, arguments: &[&str]) -> Running {
        let token = self.token();
        let mut words = vec!["measure", "run", "--token", &token];
        words.extend_from_slice(arguments);
        let mut command = inside(&self.a, overlane(&words));
        command.env("OVERLANE_LOG", "overlane=debug");
        Running::start(command)
    }
}

pub fn overlane(arguments: &[&str]) -> Command {
    let mut command = Command::new(OVERLANE);
    command.args(arguments);
    command
}

/// A command in a host's namespace.
pub fn inside(host: &Host, command: Command) -> Command {
    let fd = host.netns().as_fd().as_raw_fd();
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net=/proc/{}/fd/{fd}", std::process::id()));
    inside.arg(command.get_program()).args(command.get_args()).current_dir("/");
    inside
}

/// Starts a server and waits for its ready line.
pub fn ready(command: Command) -> Running {
    let mut server = Running::start(command);
    server.await_stdout("ready: ");
    server
}

pub fn possible() -> Result<(), String> {
    need::root()?;
    need::tools(&["nsenter", "unshare", "mount"])
}

fn cells(results: &Value) -> &[Value] {
    results["cells"].as_array().unwrap()
}

/// Whether every sample of a workload was taken and is valid.
fn whole(results: &Value, workload: &Value) -> bool {
    let blocks = results["plan"]["blocks_done"].as_u64().unwrap() as usize;
    let mut cells = cells(results).iter().filter(|cell| cell["workload"] == *workload);
    cells.all(|cell| {
        let samples = cell["samples"].as_array().unwrap();
        samples.len() >= blocks && samples.iter().all(|sample| sample["valid"] == true)
    })
}

#[test]
fn a_second_clients_loads_wait_for_their_turn() {
    require!(possible());
    let two = Two::new();
    let _server = two.serve();
    let more = ["--json", "--blocks", "4", "--duration", "0.2", "--disturbance", "100"];
    let run = |workload, name| {
        two.run(&[&["10.0.0.2", "--workloads", workload, "--name", name], &more[..]].concat())
    };
    let (first, second) = (run("tcp_stream", "one"), run("tcp_rr", "two"));
    for ended in [first.wait(), second.wait()] {
        let results = ended.expect(0).json();
        assert_eq!(results["complete"], true);
        assert!(cells(&results).iter().all(|cell| cell["status"] == "ok"), "{results:#}");
    }
}

#[test]
fn every_workload_over_a_tunnel_against_the_hosts_own_path() {
    require!(possible());
    let two = Two::new();
    let server = two.serve_elsewhere();
    let out = two.path("r.json");
    let mut arguments = vec![
        "10.9.0.2",
        "--baseline",
        "10.0.0.2",
        "--name",
        "vxlan",
        "--baseline-name",
        "host",
        "--workloads",
        "tcp_stream,tcp_rr,tcp_crr,udp_stream,udp_rr",
        "--out",
        out.to_str().unwrap(),
        "--json",
    ];
    arguments.extend_from_slice(&QUICK);
    let ended = two.run(&arguments).wait().expect(0);
    let results = ended.json();
    schema::validate("results", &results);
    assert_eq!(serde_json::from_str::<Value>(&fs::read_to_string(&out).unwrap()).unwrap(), results);
    assert_eq!(results["complete"], true);
    assert_eq!(results["peer"]["kernel"], results["machine"]["kernel"]);
    assert_eq!(results["plan"]["baseline"], "host");
    assert_eq!(cells(&results).len(), 5 * 3);
    for cell in cells(&results) {
        let what = format!("{} {} {}", cell["mode"], cell["workload"], cell["reason"]);
        assert_eq!(cell["status"], "ok", "{what}");
        assert!(cell["median"].as_f64().unwrap() > 0.0, "{what}");
        // If one of two blocks is void, as on a starved machine, there is no ratio.
        if whole(&results, &cell["workload"]) {
            assert_eq!(cell["ratio"].is_null(), cell["role"] == "baseline", "{what}");
        }
        let device = if cell["mode"] == "vxlan" { TUNNEL } else { NIC };
        let hops: Vec<_> =
            cell["hops"].as_array().unwrap().iter().map(|h| (&h["host"], &h["device"])).collect();
        assert_eq!(hops.len(), 4, "{what}");
        for (hop, host) in hops.iter().zip(["client", "client", "server", "server"]) {
            assert_eq!((hop.0.as_str(), hop.1.as_str()), (Some(host), Some(device)), "{what}");
        }
        for sample in cell["samples"].as_array().unwrap().iter().filter(|s| s["valid"] == true) {
            assert_eq!(sample["path_proved"], true, "{what}");
            assert!(sample["peer_cpu"]["idle"].as_f64().is_some(), "{what}");
            let loss = &sample["loss"];
            if cell["workload"] == "udp_stream" {
                let accounted: u64 =
                    loss["where"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
                let lost = loss["sent"].as_u64().unwrap() - loss["received"].as_u64().unwrap();
                assert_eq!(accounted + loss["unattributed"].as_u64().unwrap(), lost, "{what}");
            }
        }
    }
    for testbed in results["testbeds"].as_array().unwrap() {
        let devices = testbed["devices"].as_array().unwrap();
        assert_eq!(devices.len(), 2);
        assert!(devices.iter().all(|d| d["features"]["rx-gro"].is_boolean()), "{testbed}");
    }
    let mark = server.mark().to_owned();
    server.signal(Signal::SIGTERM);
    let ended = server.wait().expect(0);
    assert!(ended.stderr.contains("session opened"), "{}", ended.stderr);
    nothing_left(&mark);
}

#[test]
fn refused_clients_get_the_reason() {
    require!(possible());
    let two = Two::new();
    let at_a = |arguments: &[&str]| Running::start(inside(&two.a, overlane(arguments))).wait();
    let says = |ended: Ended, code: i32, text: &str| {
        let ended = ended.expect(code);
        assert!(ended.stderr.contains(text), "{text:?}: {}", ended.stderr);
    };
    let token = two.token();
    says(at_a(&["measure", "serve", "--bind", "10.0.0.1"]), 2, "token is required");
    says(at_a(&["measure", "serve", "--bind", "0.0.0.0"]), 2, "token is required");
    says(at_a(&["measure", "serve", "--bind", "10.0.0.77", "--token", &token]), 1, "10.0.0.77");
    let open = two.write("open", "a secret of the tests 7Jx0", 0o644);
    says(at_a(&["measure", "serve", "--bind", "10.0.0.1", "--token", &open]), 2, "0644");
    says(at_a(&["measure", "run", "10.0.0.2", "--token", &open]), 2, "0644");

    let server = two.serve();
    let other = two.write("other", "another secret of tests", 0o600);
    says(at_a(&["measure", "run", "10.0.0.2", "--token", &other]), 1, "wrong token");
    says(at_a(&["measure", "run", "10.0.0.2"]), 1, "requires a token");
    says(at_a(&["measure", "run", "10.0.0.2:5999", "--token", &token]), 1, "refused");
    says(at_a(&["measure", "run", "192.0.2.1", "--token", &token]), 1, "unreachable");
    says(at_a(&["measure", "run", "10.0.0.2", "--engine", "iperf3"]), 2, "--engine");
    says(at_a(&["measure", "run", "10.0.0.2:x"]), 2, "port");
    let many = ["measure", "run", "10.0.0.2", "--token", &token, "--flows", "65"];
    says(at_a(&many), 2, "server allows 64");
    drop(server);

    // Another program, and a future version of overlane.
    let answers: [(&[u8], &str); 2] = [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and so on until 48 bytes", "is not overlane"),
        (
            b"overlane\x00\x09\0\0\0\0\0\0................................",
            "version 9, this is version 3",
        ),
    ];
    for (answer, text) in answers {
        let listener = two.b.netns().run(|| TcpListener::bind("10.0.0.2:5210").unwrap()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(answer).unwrap();
                // Until the client has read the answer and disconnected.
                let _ = stream.read_to_end(&mut Vec::new());
            });
            says(at_a(&["measure", "run", "10.0.0.2"]), 1, text);
        });
    }
}

/// If either end is killed, the other continues or ends with the results that it has.
#[test]
fn an_end_that_vanishes_takes_nothing_with_it() {
    require!(possible());
    let two = Two::new();
    let long = [
        "10.0.0.2",
        "--workloads",
        "udp_stream",
        "--blocks",
        "10000",
        "--duration",
        "0.1",
        "--disturbance",
        "100",
        "--json",
    ];
    let mut server = two.serve();

    let mut client = two.run(&long);
    server.await_stderr("session opened");
    client.await_samples(1);
    let mark = client.mark().to_owned();
    client.signal(Signal::SIGKILL);
    client.wait();
    nothing_left(&mark);
    server.await_stderr("session closed");
    // Its load has ended, too: the next one is not refused.
    let mut short = vec!["10.0.0.2", "--workloads", "udp_stream", "--json"];
    short.extend_from_slice(&QUICK);
    let results = two.run(&short).wait().expect(0).json();
    assert_eq!(cells(&results)[0]["status"], "ok");

    let mut client = two.run(&long);
    server.await_next_stderr("session opened");
    client.await_samples(3);
    let mark = server.mark().to_owned();
    server.signal(Signal::SIGKILL);
    server.wait();
    nothing_left(&mark);
    let results = client.wait_at_most(Duration::from_secs(90)).expect(1).json();
    schema::validate("results", &results);
    assert_eq!(results["complete"], false);
    assert_eq!(results["ended_by"], "failed");
    let samples: Vec<&Value> =
        cells(&results).iter().flat_map(|cell| cell["samples"].as_array().unwrap()).collect();
    assert!(samples.iter().any(|sample| sample["valid"] == true), "{samples:?}");
    let gone = |sample: &&&Value| {
        sample["invalid_reason"].as_str().is_some_and(|reason| reason.contains("is gone"))
    };
    assert!(samples.iter().filter(gone).count() >= 3, "{samples:?}");

    // After the server is back, it is used again.
    let server = two.serve();
    let mut some = vec!["10.0.0.2", "--workloads", "tcp_rr", "--json"];
    some.extend_from_slice(&["--blocks", "30", "--duration", "0.1", "--disturbance", "100"]);
    let mut client = two.run(&some);
    client.await_samples(3);
    server.signal(Signal::SIGKILL);
    server.wait();
    let _server = two.serve();
    let results = client.wait().expect(0).json();
    assert_eq!(results["complete"], true);
}

#[test]
fn an_interrupted_client_writes_what_it_has_and_the_server_serves_the_next() {
    require!(possible());
    let two = Two::new();
    let server = two.serve();
    let (out, there) = (two.path("r.json"), Wire::B.to_string());
    let mut long = vec![&*there, "--workloads", "tcp_rr,udp_stream", "--blocks", "1000"];
    long.extend(["--duration", "0.05", "--disturbance", "100", "--out", out.to_str().unwrap()]);
    // In the first sample, and after several.
    for samples in [0, 4] {
        let mut client = two.run(&long);
        let mark = client.mark().to_owned();
        client.await_samples(samples);
        client.signal(Signal::SIGINT);
        client.wait().expect(130);
        let results = interrupted(&out);
        let taken = cells(&results).iter().flat_map(|cell| cell["samples"].as_array().unwrap());
        assert!(samples == 0 || taken.count() > 0, "{results:#}");
        assert!(!two.path("r.json.samples").exists());
        nothing_left(&mark);
    }
    two.run(&[&[&*there][..], &QUICK].concat()).wait().expect(0);
    server.signal(Signal::SIGINT);
    server.wait().expect(0);
}

#[test]
fn an_ordinary_user_measures_without_any_privilege() {
    require!(possible(), need::tools(&["setpriv"]));
    let two = Two::new();
    let copy = Copy::new();
    let server = ready(inside(&two.a, copy.command(&["measure", "serve"])));
    let mut arguments = vec!["measure", "run", "127.0.0.1", "--json"];
    arguments.extend_from_slice(&QUICK);
    let results = Running::start(inside(&two.a, copy.command(&arguments))).wait().expect(0).json();
    schema::validate("results", &results);
    assert_eq!(results["machine"]["privileges"], "user");
    assert_eq!(results["peer"]["privileges"], "user");
    // One machine: its CPU time is not counted twice.
    for sample in cells(&results).iter().flat_map(|cell| cell["samples"].as_array().unwrap()) {
        assert!(sample["peer_cpu"].is_null());
    }
    server.signal(Signal::SIGINT);
    server.wait().expect(0);
}

/// Findings that neither end can make alone.
#[test]
fn doctor_finds_what_the_other_end_disagrees_on() {
    require!(possible());
    let two = Two::new();
    let server = two.serve();
    let (token, there) = (two.token(), Wire::B.to_string());
    let doctor = |more: &[&str]| {
        let mut words = vec!["doctor", "--netns", "/proc/self/ns/net", "--watch", "0.1"];
        words.extend(["--json", "--peer", &there]);
        words.extend_from_slice(more);
        Running::start(inside(&two.a, overlane(&words))).wait()
    };
    let found = |json: &Value| -> Vec<String> {
        let findings = json["findings"].as_array().unwrap().iter();
        let findings = findings.filter(|finding| finding["code"] == "OV063");
        findings.map(|finding| finding["evidence"].to_string()).collect()
    };
    let healthy = doctor(&["--token", &token, "--fail-on", "never"]).expect(0).json();
    schema::validate("doctor", &healthy);
    assert_eq!(found(&healthy), [""; 0]);

    two.b.netlink().set_mtu(TUNNEL, 1300).unwrap();
    let sick = doctor(&["--token", &token]).expect(10).json();
    let found = found(&sick);
    assert!(found.len() == 1 && found[0].contains("MTU of vxlan0 there: 1300"), "{sick:#}");

    let refused = doctor(&[]).expect(1);
    assert!(refused.stderr.contains("requires a token"), "{}", refused.stderr);
    server.signal(Signal::SIGTERM);
    server.wait().expect(0);
}
