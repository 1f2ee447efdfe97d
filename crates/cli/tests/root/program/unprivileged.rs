//! An ordinary user can do everything that the kernel does not reserve for root. Errors name the
//! rest.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use test_support::{left_out, need, require};

use super::launch::{Ended, OVERLANE, Running};
use super::machine::nothing_left;
use super::schema;

/// A user without other processes, so that `down --all` removes only the testbeds of this test.
const USER: u32 = 64242;

/// The program where any user can reach it, and a directory of that user.
pub struct Copy {
    directory: tempfile::TempDir,
}

impl Copy {
    /// Copies the program into a new directory that every user can read.
    pub fn new() -> Copy {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = Copy { directory };
        test_support::install(&fs::read(OVERLANE).unwrap(), &copy.program());
        fs::create_dir(copy.own()).unwrap();
        chown(copy.own(), Some(USER), Some(USER)).unwrap();
        copy
    }

    fn program(&self) -> PathBuf {
        self.directory.path().join("overlane")
    }

    /// Directory that belongs to [`USER`]: its home and runtime directory.
    fn own(&self) -> PathBuf {
        self.directory.path().join("own")
    }

    /// `overlane` with arguments, as that user.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = as_user();
        command.arg(self.program()).args(arguments).current_dir("/").env("HOME", self.own());
        // Otherwise it would be created below /tmp, and stay there.
        command.env("OVERLANE_RUNTIME_DIR", self.own().join("run"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        Running::start(self.command(arguments)).wait()
    }
}

fn as_user() -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={USER}")).arg(format!("--regid={USER}"));
    command.args(["--clear-groups", "--inh-caps=-all"]);
    command
}

/// Whether this machine allows it for ordinary users.
fn possible() -> Result<(), String> {
    need::root()?;
    need::tools(&["setpriv", "unshare"])?;
    let mut command = as_user();
    command.args(["unshare", "--user", "--map-root-user", "--net", "true"]).current_dir("/");
    let possible = Running::start(command).wait().code == Some(0);
    need::that(possible, "this machine lets ordinary users make no user namespaces")
}

/// Whether `/dev/net/tun` is closed to that user by its permissions.
fn tun_is_closed() -> bool {
    fs::metadata("/dev/net/tun").is_ok_and(|meta| meta.mode() & 0o006 != 0o006)
}

#[test]
fn an_ordinary_user_can_measure_and_sees_the_omissions() {
    const TEST: &str = "an_ordinary_user_can_measure_and_sees_the_omissions";
    require!(possible());
    let copy = Copy::new();
    let list = copy.run(&["lab", "list", "--json"]).expect(0).json();
    schema::validate("lab-list", &list);
    let mode = |name: &str| {
        list.as_array().unwrap().iter().find(|mode| mode["mode"] == name).unwrap().clone()
    };
    assert_eq!(mode("vxlan")["supported"], true, "{list:#}");
    if tun_is_closed() {
        let reason = mode("tap")["reason"].as_str().unwrap().to_owned();
        assert!(reason.starts_with("/dev/net/tun: Permission denied"), "{reason}");
    } else {
        eprintln!("{TEST}: /dev/net/tun is open to every user here");
    }

    let out = copy.own().join("r.json");
    let running = Running::start(copy.command(&[
        "lab",
        "run",
        "--quick",
        "--modes",
        "host,vxlan,tap,ipvlan",
        "--workloads",
        "tcp_rr",
        "--blocks",
        "2",
        "--duration",
        "0.05",
        "--disturbance",
        "100",
        "--out",
        out.to_str().unwrap(),
    ]));
    let mark = running.mark().to_owned();
    let ended = running.wait();
    let results: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    // An unavailable mode that was named gives exit code 1.
    let had = results["modes"].as_array().unwrap().iter().all(|mode| mode["status"] == "ok");
    let ended = ended.expect(i32::from(!had));
    schema::validate("results", &results);
    assert_eq!(results["machine"]["privileges"], "user-namespace");
    assert_eq!(results["machine"]["cpu_clock"], "tick");
    let said = results["warnings"].to_string();
    assert!(
        said.contains("features that need root were skipped: the exact CPU clock (BPF)"),
        "{said}"
    );
    assert_eq!(said.contains("tap"), tun_is_closed(), "{said}");
    // Where the kernel lacks ipvlan, root lacks it, too.
    assert!(!said.contains("ipvlan"), "{said}");
    assert!(ended.stdout.contains("ordinary user"), "{ended:#?}");
    for cell in results["cells"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|cell| cell["mode"] == "host" || cell["mode"] == "vxlan")
    {
        assert_eq!(cell["status"], "ok", "{cell:#}");
    }
    assert_eq!(fs::metadata(&out).unwrap().uid(), USER);
    nothing_left(&mark);
}

#[test]
fn an_ordinary_user_has_testbeds_of_their_own() {
    require!(possible(), need::tools(&["ping"]));
    let copy = Copy::new();
    let mut marks = Vec::new();
    for (mode, name) in [("vxlan", "one"), ("nat-proxy", "two")] {
        let programs: &[&str] = if mode == "nat-proxy" { &["docker-proxy", "nft"] } else { &[] };
        if need::tools(programs).inspect_err(|missing| left_out(missing)).is_err() {
            continue;
        }
        let running = Running::start(copy.command(&["lab", "up", mode, "--name", name, "--json"]));
        marks.push(running.mark().to_owned());
        schema::validate("lab-testbed", &running.wait().expect(0).json());
    }
    let status = copy.run(&["lab", "status", "--json"]).expect(0).json();
    schema::validate("lab-status", &status);
    assert_eq!(status.as_array().unwrap().len(), marks.len());
    // Root's own list contains none of them.
    let of_root = super::launch::run(["lab", "status", "--json"]).expect(0).json();
    let pids = |list: &Value| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|one| one["pid"].clone()).collect()
    };
    assert!(pids(&status).iter().all(|pid| !pids(&of_root).contains(pid)));

    copy.run(&["lab", "exec", "one/tenant-a", "--", "ping", "-c", "1", "-W", "10", "10.1.0.12"])
        .expect(0);
    copy.run(&["lab", "exec", "one/a", "--", "sh", "-c", "exit 7"]).expect(7);
    if marks.len() > 1 {
        let first = copy.run(&["lab", "exec", "two/b", "--", "cat", "/proc/1/comm"]).expect(0);
        assert_eq!(first.stdout, "overlane-init\n");
    }
    copy.run(&["lab", "down", "one"]).expect(0);
    let rest = copy.run(&["lab", "down", "--all", "--json"]).expect(0).json();
    assert_eq!(rest.as_array().unwrap().len(), marks.len() - 1);
    assert_eq!(copy.run(&["lab", "status"]).expect(0).stdout.lines().count(), 1);
    for mark in marks {
        nothing_left(&mark);
    }
}
