//! Rules of the results schema beyond the types: a verified path for every figure, and a reason for
//! every gap. [`crate::Results::check`] checks the same.

use serde_json::{Value, json};

/// Returns a rule: if `name` is `value`, `then` holds for the other fields, else `otherwise`.
fn rule(name: &str, value: Value, then: Value, otherwise: Value) -> Value {
    let fields = |fields: Value| json!({ "properties": fields });
    let mut rule = json!({ "if": { "properties": { name: { "const": value } } } });
    if !then.is_null() {
        rule["then"] = fields(then);
    }
    rule["else"] = fields(otherwise);
    json!([rule])
}

fn of(kind: &str) -> Value {
    json!({ "type": kind })
}

/// A mode that is not ok has a reason.
pub(crate) fn mode_rules() -> Value {
    let string = of("string");
    rule("status", json!("ok"), Value::Null, json!({ "reason": string }))
}

/// A cell has a figure or a reason.
pub(crate) fn cell_rules() -> Value {
    let (string, nothing) = (of("string"), of("null"));
    let figure = json!({ "median": { "type": "number" }, "reason": nothing });
    rule("status", json!("ok"), figure, json!({ "reason": string, "median": nothing }))
}

/// A valid sample has a verified path; a discarded one has a reason.
pub(crate) fn sample_rules() -> Value {
    let (string, nothing) = (of("string"), of("null"));
    let proved = json!({ "path_proved": { "const": true }, "invalid_reason": nothing });
    rule("valid", json!(true), proved, json!({ "invalid_reason": string }))
}

/// Makes fields optional that files of older versions lack, as when reading.
pub(crate) fn newer(schema: &mut schemars::Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    let mut missing = Vec::new();
    if let Some(fields) = object.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, field) in fields {
            if field.as_object_mut().is_some_and(|field| field.remove("default").is_some()) {
                missing.push(name.clone());
            }
        }
    }
    if let Some(required) = object.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !missing.iter().any(|missing| name == missing));
    }
}
