//! Validates the program's output and files against `schema/`.

use std::path::PathBuf;

use serde_json::Value;

/// A file of `schema/`.
pub fn read(name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../schema").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Panics with every place where `value` violates `schema/NAME.schema.json`.
#[track_caller]
pub fn validate(name: &str, value: &Value) {
    let errors = errors(name, value);
    assert!(errors.is_empty(), "{name}: {}", errors.join("\n"));
}

/// Every place where `value` violates the schema.
pub fn errors(name: &str, value: &Value) -> Vec<String> {
    let testbed = read("lab-testbed.schema.json");
    let schema = read(&format!("{name}.schema.json"));
    assert!(jsonschema::meta::is_valid(&schema), "{name} is no JSON Schema");
    let results = read("results.schema.json");
    let id = |schema: &Value| schema["$id"].as_str().unwrap().to_owned();
    let registry = jsonschema::Registry::new().add(id(&testbed), testbed).unwrap();
    let registry = registry.add(id(&results), results).unwrap().prepare().unwrap();
    let validator = jsonschema::options().with_registry(&registry).build(&schema).unwrap();
    validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}
