//! `overlane doctor`: on a namespace of its own, on a saved host, on bad input.

use std::process::Command;

use super::launch::{is_root, run};
use super::schema;

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
    if !is_root("a_namespace_is_diagnosed_saved_and_diagnosed_again") {
        return;
    }
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
    let unpacked = Command::new("tar").args(["--zstd", "-xOf", file, "host.json"]).output();
    if let Ok(unpacked) = unpacked.as_ref().map(|output| String::from_utf8_lossy(&output.stdout)) {
        assert!(!unpacked.contains("192.0.2.7"), "an address was left in the dump");
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
