//! `overlane doctor`: on a namespace of its own, on a saved host, on bad input.

use std::process::Command;

use super::launch::{OVERLANE, Running, eventually, run};
use super::schema;
use test_support::{need, require};

/// A named namespace with a veth pair whose ends differ in MTU; gone when dropped.
struct Namespace(String);

impl Namespace {
    fn new(part: &str) -> Namespace {
        let name = format!("overlane-test-{}-{part}", std::process::id());
        let namespace = Namespace(name);
        namespace.ip(&["netns", "add", &namespace.0]);
        let inside = ["-n", &namespace.0];
        for arguments in [
            &["link", "add", "left", "type", "veth", "peer", "name", "right"][..],
            &["link", "set", "left", "mtu", "1400", "up"],
            &["link", "set", "right", "up"],
            &["address", "add", "192.0.2.7/24", "dev", "left"],
        ] {
            namespace.ip(&[&inside[..], arguments].concat());
        }
        namespace
    }

    fn ip(&self, arguments: &[&str]) {
        let status = Command::new("ip").args(arguments).status().unwrap();
        assert!(status.success(), "ip {arguments:?}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn codes(diagnosis: &serde_json::Value) -> Vec<&str> {
    let findings = diagnosis["findings"].as_array().unwrap();
    findings
        .iter()
        .filter(|finding| finding["namespace"] != "machine")
        .map(|finding| finding["code"].as_str().unwrap())
        .collect()
}

#[test]
fn a_namespace_is_diagnosed_saved_and_diagnosed_again() {
    require!(need::root());
    let namespace = Namespace::new("doctor");
    let at = ["--netns", &namespace.0, "--watch", "0.1"];
    let json = run([&["doctor", "--json"], &at[..]].concat()).expect(10).json();
    schema::validate("doctor", &json);
    assert_eq!(codes(&json), ["OV015"], "{json:#}");
    assert!(json["findings"].to_string().contains("right mtu 1400"), "{json:#}");

    let text = run([&["doctor", "--fail-on", "never"], &at[..]].concat()).expect(0).stdout;
    assert!(text.contains("OV015 warning") && text.contains("fix   nsenter --net="), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("dump.tar.zst");
    let file = file.to_str().unwrap();
    run([&["doctor", "dump", "--scrub", "--out", file], &at[..]].concat()).expect(0);
    let again = run(["doctor", "--from", file, "--json"]).expect(10).json();
    schema::validate("doctor", &again);
    assert_eq!(codes(&again), ["OV015"]);
    let unpacked = zstd::stream::decode_all(std::fs::File::open(file).unwrap()).unwrap();
    let unpacked = String::from_utf8_lossy(&unpacked);
    assert!(unpacked.contains("host.json"), "the archive is looked into");
    assert!(!unpacked.contains("192.0.2.7"), "an address was left in the dump");
}

/// MTU of the larger end of the pair.
fn mtu(namespace: &Namespace) -> String {
    let arguments = ["-n", &namespace.0, "-o", "link", "show", "right"];
    let shown = Command::new("ip").args(arguments).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    text.split(" mtu ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn a_fix_is_made_listed_and_taken_back() {
    require!(need::root());
    let namespace = Namespace::new("fix");
    let directory = tempfile::tempdir().unwrap();
    let journal = ["--journal", directory.path().to_str().unwrap()];
    let at = ["--netns", &namespace.0, "--watch", "0"];
    let fix = [&["doctor", "fix", "OV015"][..], &at, &journal].concat();
    assert!(run(&fix[..]).expect(2).stderr.contains("--yes"));
    assert_eq!(mtu(&namespace), "1500");

    run([&fix[..], &["--yes"]].concat()).expect(0);
    assert_eq!(mtu(&namespace), "1400");
    run([&["doctor"], &at[..]].concat()).expect(0);
    let list = run([&["undo", "--list"], &journal[..]].concat()).expect(0).stdout;
    assert!(list.contains("OV015") && list.contains("1400 was 1500"), "{list}");
    assert!(run([&["undo", "9"], &journal[..]].concat()).expect(2).stderr.contains('9'));
    run([&["undo", "--all"], &journal[..]].concat()).expect(0);
    assert_eq!(mtu(&namespace), "1500");

    // Without a confirmation.
    run([&fix[..], &["--yes", "--confirm-within", "1"]].concat()).expect(0);
    assert_eq!(mtu(&namespace), "1400");
    eventually("the change is taken back", || match mtu(&namespace) {
        now if now == "1500" => Ok(()),
        now => Err(now),
    });
    run([&fix[..], &["--yes", "--confirm-within", "600"]].concat()).expect(0);
    run([&["doctor", "confirm"], &journal[..]].concat()).expect(0);
    let list = run([&["undo", "--list"], &journal[..]].concat()).expect(0).stdout;
    assert!(list.contains("1400 was 1500") && !list.contains("confirm"), "{list}");
    // The process that waited for the 600 seconds has ended.
    let waiting = |process: &std::path::Path| {
        let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(journal[1])
    };
    eventually("nobody waits any more", || {
        let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
        match processes.find(|entry| waiting(&entry.path())) {
            None => Ok(()),
            Some(process) => Err(format!("{process:?}")),
        }
    });
}

/// A fix, an undo or a trial that is killed at any moment is repaired: by the next undo, or a trial
/// by its guard process.
#[test]
fn a_killed_fix_undo_or_trial_is_repaired() {
    killed_and_repaired(8);
}

#[test]
fn fixes_undos_and_trials_that_are_killed_at_many_moments_are_repaired() {
    killed_and_repaired(34);
}

/// Kills each of the three at this number of moments of its run time.
fn killed_and_repaired(moments: usize) {
    require!(need::root());
    let namespace = Namespace::new("kill");
    namespace.ip(&["-n", &namespace.0, "link", "set", "lo", "up"]);
    let directory = tempfile::tempdir().unwrap();
    let journal = ["--journal", directory.path().to_str().unwrap()];
    let within = |words: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace.0, OVERLANE]).args(words);
        command
    };
    let mut server = Running::start(within(&["measure", "serve"]));
    server.await_stdout("ready: ");

    let fix = ["doctor", "fix", "OV015", "--yes", "--netns", &namespace.0, "--watch", "0"];
    let mtu_change = "ip link set right mtu 1400";
    let trial = ["try", mtu_change, "--against", "127.0.0.1", "--workloads", "tcp_rr"];
    let quick = ["--blocks", "3", "--duration", "0.02", "--warmup", "0", "--disturbance", "100"];
    let kinds = [
        [&fix[..], &journal].concat(),
        [&["undo", "--all"][..], &journal].concat(),
        [&trial[..], &quick, &["--keep", "never"], &journal].concat(),
    ];
    let took = |words: &[&str]| {
        let begun = std::time::Instant::now();
        Running::start(within(words)).wait();
        begun.elapsed()
    };
    let whole: Vec<_> = kinds.iter().map(|words| took(words)).collect();
    for round in 0..3 * moments {
        let kind = round % 3;
        // Undo needs a change to take back.
        if kind == 1 {
            run(&kinds[0][..]).expect(0);
        }
        let mut child = within(&kinds[kind])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Kills are spread over its whole run time.
        let moment = (round / 3) as f64 / (moments - 1) as f64;
        std::thread::sleep(whole[kind].mul_f64(moment * 1.05));
        let _ = child.kill();
        child.wait().unwrap();
        if kind == 2 && round % 2 == 0 {
            // No other process takes the change back.
            eventually("the trial's change is taken back", || match mtu(&namespace) {
                now if now == "1500" => Ok(()),
                now => Err(now),
            });
        }
        let repaired = run([&["undo", "--all"], &journal[..]].concat());
        assert_eq!(repaired.code, Some(0), "round {round}: {repaired:#?}");
        assert_eq!(mtu(&namespace), "1500", "round {round}");
        let list = run([&["undo", "--list"], &journal[..]].concat()).expect(0).stdout;
        assert!(list.contains("nothing"), "round {round}: {list}");
    }
}

#[test]
fn checks_are_listed_and_explained() {
    let list = run(["doctor", "list", "--json"]).expect(0).json();
    schema::validate("doctor-list", &list);
    assert!(list.as_array().unwrap().len() >= 40);
    for check in list.as_array().unwrap() {
        let code = check["code"].as_str().unwrap();
        let text = run(["doctor", "explain", code]).expect(0).stdout;
        assert!(text.starts_with(code), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    assert!(run(["doctor", "list"]).expect(0).stdout.contains("OV013 error"));
}

#[test]
fn bad_input_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("x");
    std::fs::write(&file, "no archive").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, named) in [
        (&["doctor", "explain", "OV999"][..], "OV999"),
        (&["doctor", "--from", file], "not a saved host"),
        (&["doctor", "--from", "/no/such/file"], "/no/such/file"),
        (&["doctor", "--watch", "-1"], "-1"),
        (&["doctor", "--watch=nan"], "--watch"),
        (&["doctor", "--netns", "no-such-namespace"], "no-such-namespace"),
        (&["doctor", "dump", "--out", "/no/such/place"], "/no/such/place"),
    ] {
        let refused = run(arguments).expect(2);
        assert!(refused.stderr.contains(named), "{arguments:?}: {refused:#?}");
    }
}
