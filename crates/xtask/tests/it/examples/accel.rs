//! Checks `examples/kubernetes/accel`: compares manifests, Kustomize base and Helm chart with the
//! schema of the API and with each other.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use test_support::{need, require};

use super::api::{self, documents, errors, parse};

const BASE: &str = "accel/base";

fn directory(name: &str) -> PathBuf {
    api::directory().join(name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn daemonset(all: &[Value]) -> &Value {
    all.iter().find(|document| document["kind"] == "DaemonSet").unwrap()
}

fn pod(all: &[Value]) -> &Value {
    &daemonset(all)["spec"]["template"]["spec"]
}

fn arguments(pod: &Value) -> Vec<&str> {
    let arguments = pod["containers"][0]["args"].as_array().unwrap();
    arguments.iter().map(|word| word.as_str().unwrap()).collect()
}

fn base() -> Vec<Value> {
    ["namespace.yaml", "daemonset.yaml"]
        .into_iter()
        .flat_map(|name| documents(&format!("{BASE}/{name}")))
        .collect()
}

#[test]
fn the_base_is_what_the_api_takes() {
    let all = base();
    for document in &all {
        let errors = errors(document);
        assert!(errors.is_empty(), "{document:#}\n{}", errors.join("\n"));
    }
    assert_eq!(all.len(), 2);
}

#[test]
fn a_slip_is_seen() {
    let good = daemonset(&base()).clone();
    for (pointer, key, value) in [
        ("/spec", "updateStrateg", json!({})),
        ("/spec/template/spec", "hostPid", json!(true)),
        ("/spec/template/spec/containers/0/securityContext", "capabilites", json!({})),
        ("/spec/template/spec/containers/0/livenessProbe/httpGet", "paht", json!("/")),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(pointer).unwrap()[key] = value;
        assert!(!errors(&bad).is_empty(), "{pointer}/{key}");
    }
}

/// The capabilities of the agent are listed one by one.
#[test]
fn the_agent_has_these_rights_and_no_more() {
    let all = base();
    let pod = pod(&all);
    assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &Value::Null));
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["tolerations"], json!([{ "operator": "Exists" }]));
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(
        (&security["privileged"], &security["readOnlyRootFilesystem"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(
        security["capabilities"],
        json!({
            "drop": ["ALL"],
            "add": ["NET_ADMIN", "BPF", "PERFMON", "SYS_ADMIN", "SYS_NICE", "SYSLOG"],
        })
    );
    for kind in ["requests", "limits"] {
        for what in ["cpu", "memory"] {
            assert!(container["resources"][kind][what].is_string(), "{kind} {what}");
        }
    }
    // A declared port would keep the second pod of an upgrade off the node.
    assert!(container["ports"].is_null());
}

/// The kubelet probes the address where the program serves.
#[test]
fn probes_are_at_the_place_of_the_metrics() {
    let all = base();
    let pod = pod(&all);
    let arguments = arguments(pod);
    let at = arguments.iter().position(|word| *word == "--metrics").unwrap();
    let (host, port) = arguments[at + 1].rsplit_once(':').unwrap();
    for (probe, path) in
        [("startupProbe", "/readyz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")]
    {
        let get = &pod["containers"][0][probe]["httpGet"];
        assert_eq!((&get["host"], &get["path"]), (&json!(host), &json!(path)), "{probe}");
        assert_eq!(get["port"].to_string(), port, "{probe}");
    }
    // During an upgrade two pods run: the second takes over, and the first lingers so that the
    // kubelet does not restart it.
    assert!(arguments.contains(&"--takeover") && arguments.contains(&"--linger"));
    let update = &daemonset(&all)["spec"]["updateStrategy"]["rollingUpdate"];
    assert_eq!(update, &json!({ "maxSurge": 1, "maxUnavailable": 0 }));
    // The shared directory, in which the second pod finds the first.
    let volume = &pod["volumes"][0];
    assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate");
    let mounted = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str().unwrap();
    let named = pod["containers"][0]["env"][0]["value"].as_str().unwrap();
    // A subdirectory, because the program creates a directory with mode 0700.
    assert!(named.starts_with(&format!("{mounted}/")), "{named}");
}

#[test]
fn kustomize_builds_the_base() {
    require!(need::tool("kubectl"));
    let built = Command::new("kubectl").arg("kustomize").arg(directory(BASE)).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let all = parse(&text(&built.stdout));
    for document in &all {
        let errors = errors(document);
        assert!(errors.is_empty(), "{document:#}\n{}", errors.join("\n"));
    }
    assert_eq!(pod(&all)["containers"][0]["image"], "overlane:0.1.0");
    assert_eq!(arguments(pod(&all)), arguments(pod(&base())));
}

/// Returns whether the affinity of a pod admits a node with these labels of Node Feature Discovery.
fn admits(affinity: &Value, major: u32, minor: u32) -> bool {
    let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let fits = |expression: &Value| {
        let key = expression["key"].as_str().unwrap();
        let label = match key.strip_prefix("feature.node.kubernetes.io/kernel-version.") {
            Some("major") => major,
            Some("minor") => minor,
            _ => panic!("{expression}"),
        };
        let value: u32 = expression["values"][0].as_str().unwrap().parse().unwrap();
        match expression["operator"].as_str() {
            Some("Gt") => label > value,
            Some("In") => label == value,
            _ => panic!("{expression}"),
        }
    };
    let term = |term: &Value| term["matchExpressions"].as_array().unwrap().iter().all(fits);
    terms.as_array().unwrap().iter().any(term)
}

fn only_later_kernels(affinity: &Value) {
    for (major, minor, admitted) in
        [(5, 15, false), (6, 1, false), (6, 5, false), (6, 6, true), (6, 12, true), (7, 0, true)]
    {
        assert_eq!(admits(affinity, major, minor), admitted, "{major}.{minor}: {affinity}");
    }
}

#[test]
fn nodes_with_earlier_kernels_can_be_left_out() {
    let patch = documents("accel/kernel-selector/affinity.yaml");
    only_later_kernels(&pod(&patch)["affinity"]);
    require!(need::tool("kubectl"));
    let selector = directory("accel/kernel-selector");
    let built = Command::new("kubectl").arg("kustomize").arg(selector).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let all = parse(&text(&built.stdout));
    only_later_kernels(&pod(&all)["affinity"]);
    assert_eq!(arguments(pod(&all)), arguments(pod(&base())), "the rest is the base");
    require!(need::tool("helm"));
    only_later_kernels(&pod(&rendered(&["kernelSelector=true"]))["affinity"]);
}

fn helm(set: &[&str]) -> Output {
    let mut command = Command::new("helm");
    command.args(["template", "overlane-accel"]).arg(directory("accel/chart"));
    command.args(["--namespace", "overlane", "--api-versions", "monitoring.coreos.com/v1"]);
    // A helm built by `go install` takes Kubernetes 1.20 for the cluster's version.
    command.args(["--kube-version", "1.31.0"]);
    for value in set {
        command.args(["--set", value]);
    }
    // Use a temporary HOME, because helm reads and writes the user's configuration.
    let home = tempfile::tempdir().unwrap();
    command.env("HOME", home.path()).output().unwrap()
}

fn rendered(set: &[&str]) -> Vec<Value> {
    let output = helm(set);
    assert!(output.status.success(), "{set:?}: {}", text(&output.stderr));
    let all = parse(&text(&output.stdout));
    for document in all.iter().filter(|document| document["kind"] != "PodMonitor") {
        let errors = errors(document);
        assert!(errors.is_empty(), "{set:?}: {document:#}\n{}", errors.join("\n"));
    }
    all
}

#[test]
fn the_chart_gives_what_the_base_has() {
    require!(need::tool("helm"));
    let (chart, base) = (rendered(&[]), base());
    let (chart, base) = (pod(&chart), pod(&base));
    for field in [
        "hostNetwork",
        "hostPID",
        "tolerations",
        "nodeSelector",
        "priorityClassName",
        "securityContext",
        "volumes",
    ] {
        assert_eq!(chart[field], base[field], "{field}");
    }
    for field in [
        "args",
        "securityContext",
        "resources",
        "volumeMounts",
        "startupProbe",
        "livenessProbe",
        "readinessProbe",
    ] {
        // Compare without order: the order of arguments does not matter.
        let sorted = |value: &Value| {
            let mut words: Vec<String> = match value.as_array() {
                Some(words) => words.iter().map(Value::to_string).collect(),
                None => vec![value.to_string()],
            };
            words.sort();
            words
        };
        let [ours, theirs] = [chart, base].map(|pod| sorted(&pod["containers"][0][field]));
        assert_eq!(ours, theirs, "{field}");
    }
}

#[test]
fn values_do_what_they_say() {
    require!(need::tool("helm"));
    let all = rendered(&[
        "device=flannel.1",
        "maxEntries=100000",
        "events=false",
        "takeover.enabled=false",
    ]);
    let words =
        ["accel", "run", "--max-entries", "100000", "--metrics", "127.0.0.1:9473", "flannel.1"];
    assert_eq!(arguments(pod(&all)), words);
    assert_eq!(pod(&all)["volumes"][0]["emptyDir"]["medium"], "Memory");
    assert!(arguments(pod(&rendered(&["noAccounting=true"]))).contains(&"--no-accounting"));
    let image = |set: &str| pod(&rendered(&[set]))["containers"][0]["image"].clone();
    assert_eq!(image("image.repository=r/overlane"), "r/overlane:0.1.0");
    let digest = format!("sha256:{}", "0a".repeat(32));
    let named = image(&format!("image.digest={digest}"));
    assert_eq!(named, format!("overlane@{digest}"));
    let all = rendered(&["otherNamespaces=true"]);
    assert_eq!(pod(&all)["hostPID"], true);
    let added = &pod(&all)["containers"][0]["securityContext"]["capabilities"]["add"];
    assert!(added.as_array().unwrap().contains(&json!("SYS_PTRACE")), "{added}");
    let all = rendered(&["metrics.address=$(NODE_IP)", "metrics.podMonitor.enabled=true"]);
    assert!(arguments(pod(&all)).contains(&"$(NODE_IP):9473"));
    assert!(pod(&all)["containers"][0]["readinessProbe"]["httpGet"]["host"].is_null());
    assert!(all.iter().any(|document| document["kind"] == "PodMonitor"));
}

#[test]
fn values_that_cannot_be_are_refused() {
    require!(need::tool("helm"));
    for (value, wanted) in [
        ("maxEntries=-1", "maxEntries"),
        ("metrics.port=70000", "port"),
        ("no.such=1", "no"),
        ("device=-rf", "device"),
        ("device=a/b", "device"),
        ("image.repository=", "repository"),
        ("image.digest=sha256:0", "digest"),
        ("metrics.podMonitor.enabled=true", "Prometheus does not reach 127.0.0.1"),
        ("kernelSelector=true,affinity.nodeAffinity.x=1", "one of kernelSelector and affinity"),
    ] {
        let output = helm(&[value]);
        assert!(!output.status.success(), "{value}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains(wanted), "{value}: {}", text(&output.stderr));
    }
}
