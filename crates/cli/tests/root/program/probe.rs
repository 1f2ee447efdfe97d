//! `overlane probe` over a path whose network card damages packets: from the fault to its proven
//! repair, and its undo.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use sys::netns::NetNs;
use test_support::{need, require};

use super::launch::{Ended, Running};
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
        let bed = Bed::new(false);
        bed.mangle(Mangled { fault, out: true, back: false });
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
        let token = self.at("token");
        let words = ["measure", "serve", "--bind", "0.0.0.0", "--token", &token];
        let [_, server] = self.bed.namespaces();
        let mut server = Running::start(inside(server, overlane(&words)));
        server.await_stdout("ready: ");
        server
    }

    fn run(&self, words: &[&str]) -> Ended {
        let journal = self.at("journal");
        let [client, _] = self.bed.namespaces();
        let words = [words, &["--journal", &journal]].concat();
        Running::start(inside(client, overlane(&words))).wait()
    }

    fn probe(&self, more: &[&str]) -> Ended {
        let token = self.at("token");
        let words = ["probe", PEER, "--token", &token, "--quick", "--rate", "20000000"];
        self.run(&[&words[..], more].concat())
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
