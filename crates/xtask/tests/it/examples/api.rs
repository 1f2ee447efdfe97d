//! Documents of `examples/kubernetes`, and their schemas from the API.

use std::path::PathBuf;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Service};
use serde_json::{Value, json};

/// Directory of the Kubernetes manifests, `examples/kubernetes`.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/kubernetes")
}

/// Parses the documents of a file.
pub fn documents(name: &str) -> Vec<Value> {
    let path = directory().join(name);
    parse(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

pub fn parse(text: &str) -> Vec<Value> {
    serde_norway::Deserializer::from_str(text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .filter(|document: &Value| !document.is_null())
        .collect()
}

/// Returns the schema of a type, without additional properties.
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

/// Returns all violations of the schema in a document.
pub fn errors(document: &Value) -> Vec<String> {
    let kind = (document["apiVersion"].as_str(), document["kind"].as_str());
    let schema = match kind {
        (Some("apps/v1"), Some("DaemonSet")) => schema::<DaemonSet>(),
        (Some("apps/v1"), Some("Deployment")) => schema::<Deployment>(),
        (Some("batch/v1"), Some("Job")) => schema::<Job>(),
        (Some("v1"), Some("Namespace")) => schema::<Namespace>(),
        (Some("v1"), Some("Service")) => schema::<Service>(),
        other => return vec![format!("a kind that this test does not know: {other:?}")],
    };
    let mut plain = document.clone();
    // Some schemas lack the fields that identify the type.
    if schema["properties"]["kind"].is_null() {
        for field in ["apiVersion", "kind"] {
            plain.as_object_mut().unwrap().remove(field);
        }
    }
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator.iter_errors(&plain).map(|e| format!("{}: {e}", e.instance_path())).collect()
}
