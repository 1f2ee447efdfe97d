//! Standing testbeds: `lab up`, `status`, `exec`, `down`.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use test_support::{need, require};

use super::launch::{Ended, Running, eventually, overlane, run};
use super::machine::{marked, nothing_left};
use super::schema;

/// A standing testbed, removed when dropped.
pub struct Testbed {
    pub name: String,
    mark: String,
    pub described: Value,
}

impl Testbed {
    /// Builds a mode under a unique name.
    #[track_caller]
    pub fn up(mode: &str, part: &str) -> Testbed {
        let name = format!("test-{}-{part}", std::process::id());
        let running = Running::start(overlane(["lab", "up", mode, "--name", &name, "--json"]));
        let mark = running.mark().to_owned();
        let described = running.wait().expect(0).json();
        schema::validate("lab-testbed", &described);
        assert_eq!((&described["name"], &described["mode"]), (&name.clone().into(), &mode.into()));
        Testbed { name, mark, described }
    }

    pub fn exec(&self, host: &str, command: &[&str]) -> Ended {
        let at = format!("{}/{host}", self.name);
        run([&["lab", "exec", &at, "--"], command].concat())
    }

    fn pid(&self) -> i32 {
        self.described["pid"].as_i64().unwrap() as i32
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // It removes its socket. The test may already have taken it down.
        let mut down = overlane(["lab", "down", &self.name]);
        let _ = down.stdout(Stdio::null()).stderr(Stdio::null()).status();
        for found in marked(&self.mark) {
            let _ = kill(Pid::from_raw(found.pid), Signal::SIGKILL);
        }
    }
}

/// The standing testbeds of this process.
fn standing() -> Vec<Value> {
    let all = run(["lab", "status", "--json"]).expect(0).json();
    schema::validate("lab-status", &all);
    let prefix = format!("test-{}-", std::process::id());
    let own = |one: &&Value| one["name"].as_str().unwrap().starts_with(&prefix);
    all.as_array().unwrap().iter().filter(own).cloned().collect()
}

#[test]
fn up_exec_status_down() {
    require!(need::root(), need::tools(&["ping", "ip"]));
    assert_eq!(standing(), [] as [Value; 0]);
    let one = Testbed::up("vxlan", "one");
    let two = Testbed::up("vxlan", "two");
    assert_eq!(standing(), [one.described.clone(), two.described.clone()]);
    let text = run(["lab", "status"]).expect(0).stdout;
    assert!(text.contains(&one.name) && text.contains("nsenter --net=/proc/"), "{text}");

    one.exec("tenant-a", &["ping", "-c", "1", "-W", "10", "10.1.0.12"]).expect(0);
    // Tenants cannot reach the underlay.
    one.exec("tenant-a", &["ping", "-c", "1", "-W", "1", "10.0.0.2"]).expect(2);
    one.exec("a", &["ping", "-c", "1", "-W", "10", "10.0.0.2"]).expect(0);
    assert_eq!(
        one.exec("a", &["sh", "-c", "echo out; echo err >&2; exit 7"]).expect(7).stderr,
        "err\n"
    );
    assert_eq!(one.exec("a", &["sh", "-c", "kill -9 $$"]).signal, Some(9));
    let missing = one.exec("a", &["no-such-program"]).expect(1);
    assert!(missing.stderr.contains("no-such-program"), "{missing:#?}");
    assert!(one.exec("b", &["ip", "-o", "link"]).expect(0).stdout.contains("vxlan0"));

    // A device made in one is not in the other.
    one.exec("tenant-a", &["ip", "link", "set", "eth0", "alias", "marked"]).expect(0);
    let other = two.exec("tenant-a", &["ip", "link", "show", "eth0"]).expect(0);
    assert!(!other.stdout.contains("alias marked"), "{other:#?}");

    let ambiguous = run(["lab", "exec", "tenant-a", "--", "true"]).expect(2);
    for name in [&one.name, &two.name] {
        assert!(ambiguous.stderr.contains(&format!("{name}/tenant-a")), "{ambiguous:#?}");
    }
    // The same names work for --netns.
    let only = |name: &str| {
        run(["trace", "--netns", name, "--drops-only", "--duration", "100ms", "--json"])
    };
    let ambiguous = only("tenant-a").expect(2);
    assert!(ambiguous.stderr.contains(&format!("{}/tenant-a", two.name)), "{ambiguous:#?}");
    only(&format!("{}/tenant-a", two.name)).expect(0);
    let unknown = one.exec("tenant-c", &["true"]).expect(2);
    assert!(unknown.stderr.contains(&format!("{}/tenant-b", one.name)), "{unknown:#?}");

    let again = run(["lab", "up", "host", "--name", &one.name]).expect(1);
    assert!(again.stderr.contains(&format!("{} is already running", one.name)), "{again:#?}");

    // An unknown name is an error, and nothing is removed.
    run(["lab", "down", &one.name, "no-such-testbed"]).expect(2);
    assert_eq!(standing().len(), 2);
    let removed = run(["lab", "down", &one.name, "--json"]).expect(0).json();
    schema::validate("lab-down", &removed);
    assert_eq!(removed, serde_json::json!([one.name]));
    // When down returns, the name is free.
    let again = Testbed::up("host", "one");
    assert_eq!(standing(), [again.described.clone(), two.described.clone()]);
    assert_eq!(run(["lab", "down", &again.name, &two.name]).expect(0).stdout.lines().count(), 2);
    assert_eq!(standing(), [] as [Value; 0]);
    for testbed in [one, two, again] {
        nothing_left(&testbed.mark);
    }
}

#[test]
fn programs_of_a_standing_testbed_are_seen_inside_it() {
    require!(need::root(), need::tools(&["docker-proxy", "bash"]));
    let testbed = Testbed::up("nat-proxy", "proxy");
    assert_eq!(testbed.exec("b", &["cat", "/proc/1/comm"]).expect(0).stdout, "overlane-init\n");
    testbed.exec("b", &["sh", "-c", "exit 9"]).expect(9);
    testbed.exec("b", &["sh", "-c", "kill -15 $$"]).expect(128 + 15);
    // The proxy listens on the published port.
    let target = testbed.described["target"].as_str().unwrap().replace(':', "/");
    testbed.exec("tenant-a", &["bash", "-c", &format!("exec 3<>/dev/tcp/{target}")]).expect(0);
    run(["lab", "down", &testbed.name]).expect(0);
    nothing_left(&testbed.mark);
}

#[test]
fn a_killed_holder_leaves_nothing() {
    require!(need::root());
    let testbed = Testbed::up("nat-proxy", "killed");
    assert!(!marked(&testbed.mark).is_empty());
    kill(Pid::from_raw(testbed.pid()), Signal::SIGKILL).unwrap();
    nothing_left(&testbed.mark);
    assert_eq!(standing(), [] as [Value; 0]);
    run(["lab", "down", &testbed.name]).expect(2);
}

#[test]
fn a_holder_of_another_user_is_not_believed() {
    require!(need::root(), need::tools(&["setpriv", "perl"]));
    let name = format!("test-{}-false", std::process::id());
    // Answers every request with a testbed whose host is this process's namespace.
    let answer = format!(
        "{{\"name\":\"{name}\",\"mode\":\"host\",\"offload\":\"full\",\"mtu\":1500,\"pid\":1,\
         \"hosts\":[{{\"name\":\"a\",\"netns\":\"/proc/self/ns/net\",\"init\":null}}],\"target\":\"10.0.0.2:1\",\
         \"client\":\"a\",\"server\":\"a\",\"notes\":[]}}"
    );
    let script = "use Socket; $SIG{PIPE} = 'IGNORE'; socket(S, PF_UNIX, SOCK_STREAM, 0); \
        bind(S, sockaddr_un(\"\\0overlane/0/$ARGV[0]\")) or die; listen(S, 5); \
        print STDERR \"listens\"; while (accept(C, S)) { syswrite(C, \"$ARGV[1]\\n\"); close C; }";
    let mut command = std::process::Command::new("setpriv");
    command.args([
        "--reuid=64242",
        "--regid=64242",
        "--clear-groups",
        "perl",
        "-e",
        script,
        &name,
        &answer,
    ]);
    let mut imposter = Running::start(command);
    imposter.await_stderr("listens");
    assert_eq!(standing(), [] as [Value; 0]);
    run(["lab", "exec", &format!("{name}/a"), "--", "true"]).expect(2);
    run(["lab", "down", &name]).expect(2);
    assert!(imposter.runs());
}

#[test]
fn a_holder_that_does_not_answer_holds_nobody_up() {
    require!(need::root());
    let stuck = Testbed::up("host", "stuck");
    let well = Testbed::up("host", "well");
    kill(Pid::from_raw(stuck.pid()), Signal::SIGSTOP).unwrap();
    assert_eq!(standing(), std::slice::from_ref(&well.described));
    run(["lab", "down", &well.name]).expect(0);
    let refused = run(["lab", "down", &stuck.name]).expect(1);
    assert!(refused.stderr.contains("does not answer"), "{refused:#?}");
    kill(Pid::from_raw(stuck.pid()), Signal::SIGCONT).unwrap();
    // It may still have to read requests of clients that have disconnected.
    eventually("an answer", || match run(["lab", "status", "--json"]).json() {
        all if all.to_string().contains(&stuck.name) => Ok(()),
        all => Err(all.to_string()),
    });
    run(["lab", "down", &stuck.name]).expect(0);
    nothing_left(&stuck.mark);
}
