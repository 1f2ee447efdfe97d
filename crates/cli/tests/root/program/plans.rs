//! Plans, and varied settings.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use test_support::{need, require};

use super::launch::{Running, eventually, overlane, run};
use super::run::SHORT;
use super::schema;

const BUDGET: &str = "/proc/sys/net/core/netdev_budget";

fn read(path: &std::path::Path) -> Value {
    let results = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    schema::validate("results", &results);
    results
}

#[test]
fn a_printed_plan_is_the_plan() {
    let listed = run(["lab", "plans", "--json"]).expect(0).json();
    for plan in listed.as_array().unwrap() {
        let name = plan["name"].as_str().unwrap();
        assert!(plan["description"].as_str().unwrap().len() > 10, "{plan}");
        let printed = run(["lab", "plans", name]).expect(0);
        assert!(
            printed.stdout.contains("[[part]]") && printed.stdout.contains("[quick]"),
            "{name}"
        );
    }
    run(["lab", "plans", "no-such-plan"]).expect(2);
}

/// A plan as JSON: TOML's tables are objects.
fn as_json(plan: &str) -> Value {
    toml_edit::de::from_str(plan).unwrap()
}

#[test]
fn the_schema_of_plans_is_that_of_their_options() {
    let printed = run(["lab", "plans", "--schema"]).expect(0).json();
    assert!(schema::read("plan.schema.json") == printed, "run `make schemas`");

    let listed = run(["lab", "plans", "--json"]).expect(0).json();
    let names = listed.as_array().unwrap().iter().map(|plan| plan["name"].as_str().unwrap());
    let built_in = names.map(|name| run(["lab", "plans", name]).expect(0).stdout);
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/plans");
    let files = std::fs::read_dir(directory).unwrap();
    let files = files.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    for plan in built_in.chain(files) {
        schema::validate("plan", &as_json(&plan));
    }
    for wrong in [
        "ofload = \"full\"",
        "gso = 1",
        "placement = \"here\"",
        "duration = []",
        "out = \"r.json\"",
        "[part]\nflows = 1",
        "[[part]]\nblocks = 4",
        "[quick]\nofload = 1",
    ] {
        assert!(!schema::errors("plan", &as_json(wrong)).is_empty(), "{wrong}");
    }
}

#[test]
fn a_plan_of_a_user_is_carried_out() {
    require!(need::root());
    let directory = tempfile::tempdir().unwrap();
    let (plan, out) = (directory.path().join("mine.toml"), directory.path().join("r.json"));
    std::fs::write(
        &plan,
        "description = \"two parts\"\nmodes = [\"host\"]\noffload = \"full\"\nblocks = 7\n\
         vary = [\"sysctl:net.core.netdev_budget=299\", \"ring=64\"]\n\
         [[part]]\nworkloads = \"tcp_rr\"\nsizes = [1, 100]\n\
         [[part]]\nworkloads = \"udp_stream\"\nflows = 2\n",
    )
    .unwrap();
    let before = std::fs::read_to_string(BUDGET).unwrap();
    let mut arguments = vec!["lab", "run", "--plan", plan.to_str().unwrap(), "--json"];
    // They include --blocks 2, which overrides the plan.
    arguments.extend(SHORT);
    arguments.extend(["--out", out.to_str().unwrap()]);
    run(arguments).expect(0);
    let results = read(&out);
    assert_eq!(results["plan"]["name"], plan.to_str().unwrap());
    assert_eq!(results["plan"]["blocks"], 2);
    assert_eq!(results["plan"]["workloads"], json!(["tcp_rr", "udp_stream"]));
    let cells = results["cells"].as_array().unwrap();
    let asked = |workload: &str, status: &str, setting: &Value| {
        let cells = cells.iter().filter(|cell| {
            cell["workload"] == workload && cell["status"] == status && cell["setting"] == *setting
        });
        cells.map(|cell| (cell["message_bytes"].clone(), cell["flows"].clone())).collect::<Vec<_>>()
    };
    // The setting as found, twice for the noise floor; then the new value.
    let both = [(json!(1), json!(1)), (json!(100), json!(1))];
    let found = asked("tcp_rr", "ok", &Value::Null);
    assert!(found.len() == 4 && both.iter().all(|ask| found.contains(ask)), "{found:?}");
    let budget = json!("sysctl:net.core.netdev_budget=299");
    assert_eq!(asked("tcp_rr", "ok", &budget), both);
    assert_eq!(asked("udp_stream", "ok", &budget), [(json!(64), json!(2))]);
    // veth has no ring, so the setting is unsupported.
    assert_eq!(asked("udp_stream", "unsupported", &json!("ring=64")).len(), 1);
    assert_eq!(std::fs::read_to_string(BUDGET).unwrap(), before);
    let timeline = &results["timeline"];
    assert!(!timeline["cpus"].as_array().unwrap().is_empty());
    assert!(!timeline["marks"].as_array().unwrap().is_empty());
}

#[test]
fn a_varied_setting_comes_back_when_the_run_is_killed() {
    require!(need::root());
    let before = std::fs::read_to_string(BUDGET).unwrap();
    let mut command = overlane(["lab", "run", "--modes", "host", "--offload", "full"]);
    command.args(["--workloads", "tcp_rr", "--blocks", "100", "--duration", "1"]);
    command.args(["--vary", "sysctl:net.core.netdev_budget=298"]);
    let running = Running::start(command);
    let wait_for = |value: &str| {
        eventually(BUDGET, || {
            let now = std::fs::read_to_string(BUDGET).unwrap();
            if now.trim() == value.trim() { Ok(()) } else { Err(now) }
        });
    };
    wait_for("298");
    running.signal(Signal::SIGKILL);
    wait_for(&before);
}
