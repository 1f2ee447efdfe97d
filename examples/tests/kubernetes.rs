//! `examples/kubernetes/*.yaml` against the API's own schema, of the oldest
//! version that the k8s-openapi crate has: the schema is generated from its types,
//! which are made from Kubernetes' OpenAPI specification. Unknown fields, which
//! the API server drops with a warning, are errors here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

fn documents(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kubernetes").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_norway::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect()
}

/// A type's schema, closed: an object whose properties are known has no others.
fn schema<T: schemars::JsonSchema>() -> Value {
    let mut schema = schemars::SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    close(&mut schema);
    schema
}

fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.get("properties").is_some_and(Value::is_object) {
                object.entry("additionalProperties").or_insert(json!(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(values) => values.iter_mut().for_each(close),
        _ => {}
    }
}

/// Every place where a document is not what the API says.
fn errors(document: &Value) -> Vec<String> {
    let kind = (document["apiVersion"].as_str(), document["kind"].as_str());
    let schema = match kind {
        (Some("apps/v1"), Some("Deployment")) => schema::<Deployment>(),
        (Some("batch/v1"), Some("Job")) => schema::<Job>(),
        (Some("v1"), Some("Service")) => schema::<Service>(),
        other => return vec![format!("a kind that this test does not know: {other:?}")],
    };
    let mut plain = document.clone();
    // Which type it is; the schemas are of what comes besides.
    if schema["properties"]["kind"].is_null() {
        for field in ["apiVersion", "kind"] {
            plain.as_object_mut().unwrap().remove(field);
        }
    }
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator.iter_errors(&plain).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

#[test]
fn every_document_is_what_the_api_takes() {
    let mut kinds = BTreeMap::new();
    for file in ["servers.yaml", "jobs.yaml"] {
        for document in documents(file) {
            let errors = errors(&document);
            assert!(errors.is_empty(), "{file}: {document:#}\n{}", errors.join("\n"));
            *kinds.entry(document["kind"].as_str().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    let expected = [("Deployment", 2), ("Job", 2), ("Service", 2)];
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

/// What overlane is told to do, it understands; and it is told of one token.
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
        // 0440: others must not read it.
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
