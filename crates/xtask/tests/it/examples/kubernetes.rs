//! Checks `examples/kubernetes/*.yaml` against the schema of the API, in the oldest version of the
//! k8s-openapi crate, whose types are generated from Kubernetes' OpenAPI specification. Unknown
//! fields, which the API server drops with a warning, are errors here.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::api::{documents, errors};

#[test]
fn every_document_is_what_the_api_takes() {
    let mut kinds = BTreeMap::new();
    for file in ["servers.yaml", "jobs.yaml", "watch.yaml", "accel-check.yaml"] {
        for document in documents(file) {
            let errors = errors(&document);
            assert!(errors.is_empty(), "{file}: {document:#}\n{}", errors.join("\n"));
            *kinds.entry(document["kind"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    let expected = [("DaemonSet", 1), ("Deployment", 2), ("Job", 3), ("Service", 2)];
    assert_eq!(kinds, expected.map(|(kind, n)| (kind.to_owned(), n)).into());
}

#[test]
fn a_slip_is_seen() {
    let good = documents("jobs.yaml").remove(0);
    for (pointer, key, value) in [
        ("/spec", "backofLimit", json!(0)),
        ("/spec/template/spec", "hostNetwork", json!("yes")),
        ("/spec/template/spec/containers/0", "argz", json!([])),
        ("/spec/template/spec/volumes/0/secret", "defaultMode", json!("0440")),
    ] {
        let mut bad = good.clone();
        bad.pointer_mut(pointer).unwrap()[key] = value;
        assert!(!errors(&bad).is_empty(), "{pointer}/{key}");
    }
}

/// Servers and clients use the same token, and clients name existing services.
#[test]
fn servers_and_clients_agree() {
    let all: Vec<Value> = ["servers.yaml", "jobs.yaml"].into_iter().flat_map(documents).collect();
    let services: Vec<&str> = all
        .iter()
        .filter(|d| d["kind"] == "Service")
        .map(|d| d["metadata"]["name"].as_str().unwrap())
        .collect();
    for document in all.iter().filter(|d| d["kind"] != "Service") {
        let pod = &document["spec"]["template"]["spec"];
        let secret = &pod["volumes"][0]["secret"];
        assert_eq!(secret["secretName"], "overlane-token");
        // 0440, because the program refuses a token that others can read.
        assert_eq!(secret["defaultMode"], 0o440, "{}", secret["defaultMode"]);
        let arguments: Vec<&str> = pod["containers"][0]["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        assert_eq!(arguments[0], "measure");
        assert!(arguments.windows(2).any(|pair| pair == ["--token", "/secret/token"]));
        for word in arguments.iter().filter(|word| word.ends_with(".svc")) {
            let name = word.strip_suffix(".overlane.svc").unwrap();
            assert!(services.contains(&name), "{word}");
        }
    }
}
