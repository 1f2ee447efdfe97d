//! Commands that doctor prints and does not run itself: each works, and its undo restores the state.

use std::path::Path;
use std::process::Command;

use test_support::{need, require};

use crate::cases::{Case, tools};

/// A case whose finding has commands, the check, and the namespace that they change.
const PRINTED: [(&str, &str, &str); 8] = [
    ("139-no-endpoints-reject", "OV111", "a"),
    ("146-tc-redirect", "OV048", "pod-b"),
    ("154-pod-answers-elsewhere", "OV103", "pod-b"),
    ("164-no-arp", "OV120", "guest-b"),
    ("166-external-ip-of-node", "OV037", "a"),
    ("172-macvlan-and-host", "OV119", "a"),
    ("173-legacy-dead-endpoint", "OV109", "a"),
    ("174-legacy-no-endpoints", "OV111", "a"),
];

/// Settings of a namespace, without counters.
fn state(prefix: &str, namespace: &str) -> String {
    let script = "nft -s list ruleset; iptables-legacy-save 2>/dev/null | grep -v '^[#:]'; \
                  ip -o addr | awk '{print $2, $4}'; ip -o link | grep -o '^[0-9]*: [^:]*\\|NOARP'; \
                  ip route; tc filter show dev eth0 ingress 2>/dev/null";
    let place = format!("{prefix}-{namespace}");
    let output = Command::new("ip").args(["netns", "exec", &place, "sh", "-c", script]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

fn run(directory: &Path, command: &str) {
    let output = Command::new("sh").args(["-c", command]).current_dir(directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
}

#[test]
fn commands_work_and_are_undone() {
    require!(need::networks(), need::root(), tools());
    for (name, code, namespace) in PRINTED {
        let case = Case::named(name);
        let prefix = format!("ovp{}", std::process::id());
        let directory = tempfile(&prefix);
        case.run(&prefix, "up").unwrap();
        let diagnosis = case.seek(&prefix, &[]);
        let finding = diagnosis.findings.iter().find(|finding| finding.code == code);
        let fix = finding.and_then(|finding| finding.fix.clone());
        let fix = fix.unwrap_or_else(|| panic!("{name}: {code} has no commands"));
        let before = state(&prefix, namespace);
        run(&directory, &fix.command);
        let after = state(&prefix, namespace);
        assert_ne!(before, after, "{name}: {} changes nothing", fix.command);
        // Only the owner of such an object can make it again, which the text says.
        if !fix.undo.starts_with("not possible") {
            run(&directory, &fix.undo);
            assert_eq!(before, state(&prefix, namespace), "{name}: {}", fix.undo);
        }
        case.run(&prefix, "down").unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

/// A directory for the files that commands write.
fn tempfile(prefix: &str) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("{prefix}-saved"));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}
