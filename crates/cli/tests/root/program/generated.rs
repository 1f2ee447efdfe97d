//! Texts generated from the arguments (help, completions, man pages) and from the list of modes.

use std::collections::BTreeSet;
use std::path::Path;

use super::launch::{entries, run};
use super::schema;
use test_support::{need, require};

const VERBS: [&[&str]; 23] = [
    &[],
    &["lab"],
    &["lab", "list"],
    &["lab", "run"],
    &["lab", "kernels"],
    &["lab", "up"],
    &["lab", "exec"],
    &["lab", "status"],
    &["lab", "down"],
    &["accel", "status"],
    &["accel", "explain"],
    &["doctor"],
    &["doctor", "list"],
    &["doctor", "explain"],
    &["doctor", "dump"],
    &["doctor", "fix"],
    &["doctor", "confirm"],
    &["try"],
    &["undo"],
    &["report"],
    &["tour"],
    &["completions"],
    &["man"],
];

#[test]
fn every_verb_has_a_help_text_within_100_columns() {
    for verb in VERBS {
        for option in ["--help", "-h", "--help-all"] {
            let help = run(verb.iter().copied().chain([option])).expect(0);
            assert!(help.stdout.contains("Usage: overlane"), "{help:#?}");
            assert!(help.stderr.is_empty(), "{help:#?}");
            let widest = help.stdout.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= 100, "{verb:?}: {widest} columns");
            assert!(!help.stdout.contains("hold"), "the holder is no verb of the user's: {verb:?}");
        }
    }
    let help = run(["lab", "run", "--help-all"]).stdout;
    for option in [
        "--modes",
        "--baseline",
        "--workloads",
        "--sizes",
        "--offload",
        "--mtu",
        "--flows",
        "--gso",
        "--placement",
        "--blocks",
        "--duration",
        "--confidence",
        "--max-blocks",
        "--seed",
        "--quick",
        "--out",
        "--json",
        "--format",
    ] {
        assert!(
            help.contains(&format!("{option} ")) || help.contains(&format!("{option}\n")),
            "{option}"
        );
    }
    assert_eq!(
        run(["--version"]).expect(0).stdout.trim(),
        concat!("overlane ", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let made = run(["completions", shell]).expect(0);
        assert!(made.stdout.contains("overlane"), "{shell}: {}", made.stdout);
    }
    require!(need::tool("bash"));
    let script = run(["completions", "bash"]).stdout;
    let offered = |words: &[&str]| {
        let line = words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
        let last = words.last().unwrap();
        // The script calls `overlane` in the search path.
        let asked = format!(
            "PATH={}:$PATH\n{script}\nCOMP_WORDS=({line}); COMP_CWORD={}; COMP_TYPE=9\n\
             _clap_complete_overlane overlane '{last}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            Path::new(env!("CARGO_BIN_EXE_overlane")).parent().unwrap().display(),
            words.len() - 1
        );
        super::launch::sh("bash", &["-c", &asked])
    };
    let verbs = offered(&["overlane", "lab", ""]);
    for verb in ["list", "run", "up", "exec", "status", "down"] {
        assert!(verbs.split_whitespace().any(|word| word == verb), "{verb}: {verbs}");
    }
    assert_eq!(offered(&["overlane", "accel", "explain", "AX00"]).lines().next(), Some("AX001"));
    let modes = offered(&["overlane", "lab", "run", "--modes", "host,vxlan+"]);
    assert_eq!(modes.lines().next(), Some("host,vxlan+accel"), "{modes}");
}

/// A directory with this program, which completion scripts find by `PATH`.
fn program() -> String {
    let directory = Path::new(env!("CARGO_BIN_EXE_overlane")).parent().unwrap();
    format!("export PATH='{}':$PATH\n", directory.display())
}

/// zsh loads the script as an autoloaded function, the first use of which has to complete.
#[test]
fn zsh_completes_codes_lists_and_devices() {
    require!(need::tool("zsh"));
    let directory = tempfile::tempdir().unwrap();
    let script = run(["completions", "zsh"]).expect(0).stdout;
    std::fs::write(directory.path().join("_overlane"), script).unwrap();
    let offered = |words: &[&str]| {
        // The completion system calls the function with these variables, and shows what
        // `_describe` and `compadd` get.
        let asked = format!(
            "{}fpath=('{}' $fpath); autoload -Uz _overlane\n\
             _describe() {{ print -l -- ${{(P)argv[-1]}} }}; compdef() {{ : }}\n\
             words=({}); CURRENT={}; _overlane",
            program(),
            directory.path().display(),
            words.iter().map(|word| format!("'{word}' ")).collect::<String>(),
            words.len(),
        );
        super::launch::sh("zsh", &["-f", "-c", &asked])
    };
    for (words, wanted) in OFFERED {
        let shown = offered(words);
        assert!(shown.lines().any(|line| line.starts_with(wanted)), "{words:?}: {shown}");
    }
}

#[test]
fn fish_completes_codes_lists_and_devices() {
    require!(need::tool("fish"));
    let script = run(["completions", "fish"]).expect(0).stdout;
    for (words, wanted) in OFFERED {
        let asked = format!("{}{script}\ncomplete -C '{}'", program(), words.join(" "));
        let shown = super::launch::sh("fish", &["--no-config", "-c", &asked]);
        assert!(shown.lines().any(|line| line.starts_with(wanted)), "{words:?}: {shown}");
    }
}

/// Words of a command line, the last of which is to be completed, and the beginning of an offer.
const OFFERED: &[(&[&str], &str)] = &[
    (&["overlane", "lab", ""], "run"),
    (&["overlane", "accel", "explain", "AX00"], "AX001"),
    (&["overlane", "doctor", "explain", "OV01"], "OV013"),
    (&["overlane", "lab", "run", "--modes", "host,vxlan+"], "host,vxlan+accel"),
    (&["overlane", "accel", "on", "l"], "lo"),
];

#[test]
fn a_man_page_for_every_verb() {
    let directory = tempfile::tempdir().unwrap();
    run(["man", directory.path().to_str().unwrap()]).expect(0);
    let pages = entries(directory.path());
    for verb in VERBS {
        let name = ["overlane"].iter().chain(verb).copied().collect::<Vec<_>>().join("-") + ".1";
        assert!(pages.contains(&name), "{name} is not among {pages:?}");
        let page = std::fs::read_to_string(directory.path().join(&name)).unwrap();
        for part in [".TH", ".SH NAME", ".SH SYNOPSIS"] {
            assert!(page.contains(part), "{name} has no {part}");
        }
    }
    assert!(!pages.iter().any(|page| page.contains("hold")), "{pages:?}");
}

#[test]
fn lab_list_says_of_every_mode_whether_and_why_not() {
    require!(need::root(), need::tools(&["unshare", "ip"]));
    let list = run(["lab", "list", "--json"]).expect(0).json();
    schema::validate("lab-list", &list);
    let modes: Vec<&str> =
        list.as_array().unwrap().iter().map(|mode| mode["mode"].as_str().unwrap()).collect();
    for mode in [
        "host",
        "same-host",
        "bridge",
        "bridge-macnat",
        "macvlan",
        "ipvlan",
        "vlan",
        "routed",
        "nat",
        "nat-proxy",
        "vxlan",
        "vxlan+accel",
        "vxlan6",
        "vxlan6+accel",
        "vxlan-routed",
        "vxlan-routed+accel",
        "swarm",
        "swarm+accel",
        "ovs-vlan",
        "ovs-vxlan",
        "tap",
    ] {
        assert!(modes.contains(&mode), "{mode} is not among {modes:?}");
    }
    let text = run(["lab", "list"]).expect(0).stdout;
    for group in lab_groups(&list) {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("{group}: "))),
            "{group}: {text}"
        );
    }
    for mode in list.as_array().unwrap() {
        let name = mode["mode"].as_str().unwrap();
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name));
        let state = if mode["supported"] == true { "yes" } else { "no" };
        assert_eq!(line.unwrap().split_whitespace().nth(1), Some(state), "{name}");
        if let Some(reason) = mode["reason"].as_str() {
            assert!(text.contains(reason), "{name}: {reason}");
        }
        // The kernel's own answer to `ip link add type KIND`.
        let (kind, reason) = match name {
            "ipvlan" => ("ipvlan", "kernel has no ipvlan"),
            "vlan" => ("vlan", "kernel has no 8021q"),
            _ => continue,
        };
        let lacks = kernel_lacks(kind);
        assert_eq!(mode["supported"], !lacks, "{mode}");
        assert!(!lacks || mode["reason"] == reason, "{mode}");
    }
}

#[test]
fn lab_list_shows_only_modes_and_groups_with_a_word() {
    require!(need::root());
    let names = |words: &[&str]| {
        let list = run([&["lab", "list", "--json"], words].concat()).expect(0).json();
        let names = list.as_array().unwrap().iter().map(|mode| mode["mode"].as_str().unwrap());
        names.map(str::to_owned).collect::<BTreeSet<String>>()
    };
    let chosen = names(&["VXLAN6", "docker"]);
    assert!(chosen.contains("vxlan6+accel") && chosen.contains("swarm"), "{chosen:?}");
    assert!(!chosen.contains("vxlan") && !chosen.contains("host"), "{chosen:?}");
    let text = run(["lab", "list", "vxlan6"]).expect(0).stdout;
    assert!(text.lines().count() < 8, "groups without a mode are left out: {text}");
    let ended = run(["lab", "list", "swarn"]).expect(2);
    assert!(ended.stderr.contains("did you mean \"swarm\""), "{ended:#?}");
}

fn lab_groups(list: &serde_json::Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|mode| mode["group"].as_str().unwrap()).collect()
}

/// Asks `ip` in a namespace of its own.
fn kernel_lacks(kind: &str) -> bool {
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "ip", "link", "add", "probe", "link", "lo", "type", kind]);
    if kind == "vlan" {
        command.args(["id", "7"]);
    }
    let ended = super::launch::Running::start(command).wait();
    ended.stderr.contains("Unknown device type") || ended.stderr.contains("not supported")
}

#[test]
fn schemas_refuse_what_the_program_never_prints() {
    let mode = |supported: bool, reason: Option<&str>| {
        serde_json::json!([{
            "mode": "x", "path": "y", "group": "z", "in_all": true,
            "supported": supported, "reason": reason, "remedy": reason,
        }])
    };
    schema::validate("lab-list", &mode(true, None));
    schema::validate("lab-list", &mode(false, Some("why")));
    assert!(!schema::errors("lab-list", &mode(false, None)).is_empty());
    assert!(!schema::errors("lab-list", &mode(true, Some("why"))).is_empty());
    assert!(!schema::errors("lab-status", &serde_json::json!([{ "name": "x" }])).is_empty());
    assert!(!schema::errors("lab-down", &serde_json::json!(["a b"])).is_empty());
    schema::validate("lab-status", &serde_json::json!([]));
}
