//! `overlane probe` over a path whose network card damages packets: from the fault to its proven
//! repair, and its undo.

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use measure::remote::{ProbePeer, Token};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use probe::exchange::Peer;
use probe::message::{Answer, Ask, Open, VERSION};
use probe::options::OWN_PORT;
use serde_json::Value;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;
use test_support::{need, require};

use super::launch::{Ended, Running, eventually};
use super::machine::nothing_left;
use super::remote::overlane;
use super::schema;
use crate::mangler::{Bed, Fault, Mangled};

/// The other end of the bed.
const PEER: &str = "10.9.0.2";

struct Path {
    bed: Bed,
    directory: tempfile::TempDir,
}

impl Path {
    fn new(fault: Fault) -> Path {
        Path::mangled(Mangled { fault, out: true, back: false })
    }

    fn mangled(mangled: Mangled) -> Path {
        let bed = Bed::new(false);
        bed.mangle(mangled);
        let directory = tempfile::tempdir().unwrap();
        let path = Path { bed, directory };
        let token = path.at("token");
        std::fs::write(&token, "a secret of the tests 7Jx0").unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn at(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    fn serve(&self) -> Running {
        self.serve_with(&[])
    }

    fn serve_with(&self, more: &[&str]) -> Running {
        let token = self.at("token");
        let words = ["measure", "serve", "--bind", "0.0.0.0", "--token", &token];
        let [_, server] = self.bed.namespaces();
        let words = [&words[..], more].concat();
        let mut server = Running::start(inside(server, overlane(&words)));
        server.await_stdout("ready: ");
        server
    }

    fn run(&self, words: &[&str]) -> Ended {
        self.start(words).wait()
    }

    fn start(&self, words: &[&str]) -> Running {
        let journal = self.at("journal");
        let [client, _] = self.bed.namespaces();
        let words = [words, &["--journal", &journal]].concat();
        Running::start(inside(client, overlane(&words)))
    }

    fn probe(&self, more: &[&str]) -> Ended {
        self.start_probe(more).wait()
    }

    fn start_probe(&self, more: &[&str]) -> Running {
        let token = self.at("token");
        let words = ["probe", PEER, "--token", &token, "--quick", "--rate", "20000000"];
        self.start(&[&words[..], more].concat())
    }

    /// Findings of OV090, as JSON.
    fn findings(&self) -> Vec<Value> {
        let own = ["--netns", "/proc/self/ns/net", "--watch", "0", "--json", "--fail-on", "never"];
        let host = self.run(&[&["doctor"], &own[..]].concat()).expect(0).json();
        schema::validate("doctor", &host);
        let findings = host["findings"].as_array().unwrap().iter();
        findings.filter(|finding| finding["code"] == "OV090").cloned().collect()
    }
}

fn inside(netns: &NetNs, command: Command) -> Command {
    let mut inside = Command::new("nsenter");
    let fd = netns.as_fd().as_raw_fd();
    inside.arg(format!("--net=/proc/{}/fd/{fd}", std::process::id()));
    inside.arg(command.get_program()).args(command.get_args()).current_dir("/");
    inside
}

/// While it connects, and while it waits for packets or for an answer of the peer.
#[test]
fn ctrl_c_ends_a_probe_as_documented() {
    require!(need::root(), need::device("vxlan"), need::tools(&["nsenter"]));
    let path = Path::new(Fault::None);
    let [_, server] = path.bed.namespaces();
    // It accepts, and never answers.
    let silent = server.run(|| TcpListener::bind((PEER, 5210))).unwrap().unwrap();
    let probe = path.start_probe(&[]);
    let mark = probe.mark().to_owned();
    let connection = silent.accept().unwrap();
    probe.signal(Signal::SIGINT);
    let ended = probe.wait().expect(130);
    assert_eq!(ended.stderr, "", "{ended:#?}");
    nothing_left(&mark);
    drop((connection, silent));

    let _server = path.serve();
    for said in ["path MTU", "classes to the peer", "classes from the peer"] {
        let mut probe = path.start_probe(&[]);
        let mark = probe.mark().to_owned();
        probe.await_stderr(said);
        probe.signal(Signal::SIGINT);
        let ended = probe.wait().expect(130);
        assert!(!ended.stderr.contains("error"), "{ended:#?}");
        nothing_left(&mark);
    }
    path.probe(&[]).expect(0);
}

#[test]
fn a_fault_is_found_repaired_and_taken_back_by_four_commands() {
    require!(need::root(), need::device("vxlan"), need::tools(&["nsenter"]));
    let path = Path::new(Fault::UsoTail);
    let _server = path.serve();
    assert_eq!(path.findings(), Vec::<Value>::new());

    let report = path.probe(&["--yes", "--json"]).expect(10).json();
    schema::validate("probe", &report);
    let guilty = &report["bad"][0]["search"]["guilty"];
    assert_eq!(guilty["feature"], "tx-udp-segmentation", "{:#}", report["bad"]);
    let [finding] = &path.findings()[..] else { panic!("{:#?}", path.findings()) };
    let command = finding["fix"]["command"].as_str().unwrap();
    assert!(command.ends_with("-K eth0 tx-udp-segmentation off"), "{command}");

    let own = ["--netns", "/proc/self/ns/net", "--watch", "0", "--yes"];
    let fixed = path.run(&[&["doctor", "fix", "OV090"], &own[..]].concat()).expect(0).stdout;
    assert!(fixed.contains("tx-udp-segmentation"), "{fixed}");
    // The repair is proven, and the recorded finding stays unchanged.
    path.probe(&[]).expect(0);
    assert_eq!(path.findings(), Vec::<Value>::new());

    path.run(&["undo", "--all"]).expect(0);
    assert_eq!(path.findings().len(), 1);
    path.probe(&[]).expect(10);

    // The card is replaced by a good one: a clean run removes the finding.
    path.bed.mangle(Mangled { fault: Fault::None, out: true, back: false });
    path.probe(&[]).expect(0);
    assert_eq!(path.findings(), Vec::<Value>::new());
}

/// A feature of the server's device that is off for the search of a client.
const SWITCHED: &str = "tx-tcp-segmentation";

/// Whether the feature of the server's device is on.
fn is_on(path: &Path) -> Result<(), String> {
    let [_, server] = path.bed.namespaces();
    let features = server.run(|| Ethtool::open().unwrap().features("eth0").unwrap()).unwrap();
    if features[SWITCHED].active { Ok(()) } else { Err(format!("{SWITCHED} is off")) }
}

#[test]
fn a_fault_of_the_servers_device_is_found_where_its_administrator_allows_it() {
    require!(need::root(), need::device("vxlan"), need::tools(&["nsenter"]));
    let path = Path::mangled(Mangled { fault: Fault::Tso4, out: false, back: true });
    let journal = path.at("server's journal");
    let allowed = ["--allow-settings", "eth0", "--journal", &journal];

    let server = path.serve();
    let report = path.probe(&["--yes", "--json"]).expect(10).json();
    schema::validate("probe", &report);
    let [bad] = &report["bad"].as_array().unwrap()[..] else { panic!("{:#}", report["bad"]) };
    assert_eq!(bad["candidates"][0]["end"], "peer", "{bad:#}");
    assert_eq!(bad["candidates"][0]["feature"], SWITCHED, "{bad:#}");
    let text = path.probe(&["--yes"]).expect(10).stdout;
    assert!(text.contains("settings of the peer were not switched: its administrator"), "{text}");
    assert!(text.contains("overlane measure serve --allow-settings eth0"), "{text}");
    drop(server);

    let mut server = path.serve_with(&allowed);
    assert!(server.stdout_so_far().contains("clients may switch settings of eth0"));
    // Only with --yes of the client.
    let report = path.probe(&["--json"]).expect(10).json();
    assert_eq!(report["bad"][0]["search"]["not_done"], "needs --yes");
    let report = path.probe(&["--yes", "--json"]).expect(10).json();
    schema::validate("probe", &report);
    let guilty = &report["bad"][0]["search"]["guilty"];
    assert_eq!(guilty["end"], "peer", "{:#}", report["bad"]);
    assert_eq!(guilty["feature"], SWITCHED, "{:#}", report["bad"]);
    let text = path.probe(&["--yes"]).expect(10).stdout;
    assert!(text.contains("cause: tx-tcp-segmentation of eth0 at the peer"), "{text}");
    assert!(text.contains("fix, at the peer: ethtool -K eth0 tx-tcp-segmentation off"), "{text}");
    server.await_stderr("switched settings of this machine off");
    is_on(&path).unwrap();
    // Doctor has no repair for it here, and names the cause.
    let [finding] = &path.findings()[..] else { panic!("{:#?}", path.findings()) };
    assert!(finding["fix"].is_null(), "{finding:#}");
    let evidence = finding["evidence"].to_string();
    assert!(evidence.contains("cause: tx-tcp-segmentation of eth0 at the peer"), "{evidence}");
}

#[test]
fn settings_of_a_server_are_restored_whatever_ends_first() {
    require!(need::root(), need::tools(&["nsenter"]));
    let path = Path::new(Fault::None);
    let journal = path.at("server's journal");
    let stop = AtomicBool::new(false);
    let token = Token::of("a secret of the tests 7Jx0").unwrap();
    for ends in ["the client", "the server", "the process that switches settings"] {
        let server = path.serve_with(&["--allow-settings", "eth0", "--journal", &journal]);
        let helper = children(server.pid(), "serve-settings");
        let [helper] = &helper[..] else { panic!("{helper:?}") };
        let [client, _] = path.bed.namespaces();
        let (mut peer, _) = client
            .run(|| {
                ProbePeer::connect(format!("{PEER}:5210").parse().unwrap(), Some(&token), &stop)
            })
            .unwrap()
            .unwrap();
        let open = Open {
            version: VERSION,
            session: 7,
            own_port: OWN_PORT,
            source_base: 25_000,
            vni: 0xe0_0000,
            other: None,
        };
        assert!(matches!(peer.ask(&Ask::Open(open)), Ok(Answer::Opened(_))));
        let off = Ask::SwitchOff(vec![SWITCHED.to_owned()]);
        assert_eq!(peer.ask(&off), Ok(Answer::SwitchedOff));
        assert!(is_on(&path).is_err());
        match ends {
            "the client" => drop(peer),
            "the server" => server.signal(Signal::SIGKILL),
            _ => kill(Pid::from_raw(*helper), Signal::SIGKILL).unwrap(),
        }
        eventually(&format!("{SWITCHED} on after the end of {ends}"), || is_on(&path));
        // The entry goes after the setting.
        eventually("an empty journal", || {
            let [_, netns] = path.bed.namespaces();
            let list = ["undo", "--list", "--journal", &journal];
            let listed = Running::start(inside(netns, overlane(&list))).wait().stdout;
            if listed.trim() == "nothing to undo" { Ok(()) } else { Err(listed) }
        });
    }
}

#[test]
fn a_server_allows_settings_of_real_devices_without_ssh_only() {
    require!(need::root(), need::tools(&["nsenter"]));
    let path = Path::new(Fault::None);
    let [client, server] = path.bed.namespaces();
    let journal = path.at("server's journal");
    let refused = |more: &[&str]| {
        let words = [&["measure", "serve", "--journal", &journal], more].concat();
        let ended = Running::start(inside(server, overlane(&words))).wait().expect(2);
        ended.stderr
    };
    let said = refused(&["--allow-settings", "eth7"]);
    assert!(said.contains("no device eth7"), "{said}");
    let said = refused(&["--yes"]);
    assert!(said.contains("--allow-settings"), "{said}");
    // An administrator is logged in over this device.
    let listener = server.run(|| std::net::TcpListener::bind("0.0.0.0:22").unwrap()).unwrap();
    let there: std::net::SocketAddr = format!("{PEER}:22").parse().unwrap();
    let _login = client.run(|| std::net::TcpStream::connect(there).unwrap()).unwrap();
    let _accepted = listener.accept().unwrap();
    let said = refused(&["--allow-settings", "eth0"]);
    assert!(said.contains("eth0 carries an SSH connection"), "{said}");
    drop(path.serve_with(&["--allow-settings", "eth0", "--yes", "--journal", &journal]));
    // A journal that cannot be used is an error at the start.
    let words = ["measure", "serve", "--allow-settings", "eth0", "--yes", "--journal", "/dev/null"];
    let said = Running::start(inside(server, overlane(&words))).wait().expect(1).stderr;
    assert!(said.contains("--allow-settings: ") && said.contains("/dev/null"), "{said}");
}

#[test]
fn hops_are_devices_of_this_machine_and_each_is_named_once() {
    require!(need::root(), need::tools(&["nsenter"]));
    let path = Path::new(Fault::None);
    // Before the peer is asked: none serves.
    for (hops, word) in [
        (&["--hop", "eth7"][..], "for one of another machine, run overlane probe --yes there"),
        (&["--hop", "no such:eth0"], "--hop: "),
        (&["--hop", "lo", "--hop", "lo"], "lo is named twice"),
    ] {
        let said = path.probe(hops).expect(2).stderr;
        assert!(said.contains(word), "{hops:?}: {said}");
    }
    let _server = path.serve();
    let said = path.probe(&["--hop", "eth0"]).expect(1).stderr;
    assert!(said.contains("hop eth0: it is the device of the path"), "{said}");
    // The server's namespace, by a path, is a hop's as well.
    let [_, server] = path.bed.namespaces();
    let fd = server.as_fd().as_raw_fd();
    let hop = format!("/proc/{}/fd/{fd}:eth0", std::process::id());
    path.bed.mangle(Mangled { fault: Fault::UsoTail, out: true, back: false });
    let report = path.probe(&["--hop", "lo", "--hop", &hop, "--json"]).expect(10).json();
    schema::validate("probe", &report);
    let hops = report["hops"].as_array().unwrap();
    assert_eq!((hops.len(), &hops[0]["netns"]), (2, &Value::Null), "{hops:#?}");
    let candidates = report["bad"][0]["candidates"].as_array().unwrap();
    // The hop nearest to the receiver comes first.
    assert_eq!(candidates[0]["end"], "hop", "{candidates:#?}");
    assert_eq!(candidates[0]["device"], "eth0", "{candidates:#?}");
    assert_eq!(candidates[0]["feature"], "tx-udp-segmentation", "{candidates:#?}");
    assert!(candidates.iter().any(|one| one["end"] == "here"), "{candidates:#?}");
}

/// Process IDs of a process's children with this name.
fn children(parent: i32, name: &str) -> Vec<i32> {
    let of = |process: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let is_child = after.split_whitespace().nth(1)?.parse() == Ok(parent);
        (is_child && before.ends_with(&format!("({name}"))).then_some(process)
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.filter_map(of).collect()
}
