//! JSON schemas of the program's output, derived from its types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use datapath::vtep::status;
use doctor::Diagnosis;
use report::listing::{ListedCheck, ListedMode, StandingTestbed, TESTBED};
use report::{Comparison, Trial};
use results::Results;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// One file below `schema/`.
#[derive(Debug, Clone)]
pub struct SchemaFile {
    /// Name, without `.schema.json`.
    pub name: &'static str,
    /// The JSON schema in the form that the file has.
    pub schema: Value,
}

impl SchemaFile {
    pub fn text(&self) -> String {
        let mut text = String::new();
        print(&self.schema, &[], 0, &mut text);
        text + "\n"
    }

    pub fn path(&self) -> PathBuf {
        directory().join(format!("{}.schema.json", self.name))
    }
}

/// Returns the path of `schema/`.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema")
}

/// Writes every schema. Returns the names of the changed ones.
pub fn write() -> anyhow::Result<Vec<&'static str>> {
    let mut changed = Vec::new();
    for file in all() {
        let (path, text) = (file.path(), file.text());
        // Do not touch unchanged files, so that builds do not consider them new.
        if std::fs::read_to_string(&path).is_ok_and(|kept| kept == text) {
            continue;
        }
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        changed.push(file.name);
    }
    Ok(changed)
}

/// Derives all schemas below `schema/`.
pub fn all() -> Vec<SchemaFile> {
    let results = derived::<Results>("results", 2, "overlane results");
    let testbed = derived::<StandingTestbed>("lab-testbed", 1, "overlane lab up --json");
    let mut trial = derived::<Trial>("try", 1, "overlane try --json");
    refer(&mut trial, &results);
    let name = json!({ "type": "string", "pattern": TESTBED });
    vec![
        SchemaFile {
            name: "accel-check",
            schema: derived::<accel::check::Check>("accel-check", 1, "overlane accel check --json"),
        },
        SchemaFile {
            name: "accel-event",
            schema: derived::<accel::events::Event>(
                "accel-event",
                1,
                "overlane accel run --events: a line",
            ),
        },
        SchemaFile {
            name: "accel-explain",
            schema: derived::<Vec<accel::Explanation>>(
                "accel-explain",
                1,
                "overlane accel explain --json",
            )
            .with("description", "All reasons for the slow path, or the requested one.")
            .with("minItems", 1),
        },
        SchemaFile {
            name: "accel-status",
            schema: derived::<Option<accel::Status>>(
                "accel-status",
                2,
                "overlane accel status --json",
            )
            .with(
                "description",
                "The fast path of a network namespace; null if there is none and none was left behind.",
            ),
        },
        SchemaFile {
            name: "compare",
            schema: derived::<Comparison>("compare", 1, "overlane report compare --json"),
        },
        SchemaFile {
            name: "doctor",
            schema: derived::<Diagnosis>("doctor", 1, "overlane doctor --json"),
        },
        SchemaFile {
            name: "doctor-list",
            schema: derived::<Vec<ListedCheck>>("doctor-list", 1, "overlane doctor list --json")
                .with("description", "Every check.")
                .with("minItems", 1),
        },
        SchemaFile {
            name: "lab-down",
            schema: listed(
                "lab-down",
                "overlane lab down --json",
                "Names of the removed testbeds.",
                name,
            ),
        },
        SchemaFile {
            name: "lab-list",
            schema: derived::<Vec<ListedMode>>("lab-list", 1, "overlane lab list --json")
                .with(
                    "description",
                    "Every network mode, in the order of the table, and whether this user can \
                     build it on this machine.",
                )
                .with("minItems", 1),
        },
        SchemaFile {
            name: "lab-status",
            schema: listed(
                "lab-status",
                "overlane lab status --json",
                "The running testbeds of this user, by name.",
                json!({ "$ref": id("lab-testbed", 1) }),
            ),
        },
        SchemaFile { name: "lab-testbed", schema: testbed },
        SchemaFile {
            name: "probe",
            schema: derived::<probe::report::Report>("probe", 1, "overlane probe --json"),
        },
        SchemaFile { name: "results", schema: results },
        SchemaFile { name: "try", schema: trial },
        SchemaFile {
            name: "trace",
            schema: derived::<observe::Packet>("trace", 1, "overlane trace --json: a line"),
        },
        SchemaFile {
            name: "vtep-status",
            schema: derived::<Vec<status::Status>>("vtep-status", 1, "overlane vtep status --json")
                .with("description", "Every endpoint of this network namespace."),
        },
        SchemaFile {
            name: "watch",
            schema: derived::<observe::Snapshot>("watch", 1, "overlane watch --json: a line"),
        },
    ]
}

trait With {
    fn with(self, name: &str, value: impl Into<Value>) -> Self;
}

impl With for Value {
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self[name] = value.into();
        self
    }
}

fn id(name: &str, version: u32) -> String {
    format!("urn:overlane:schema:{name}:{version}")
}

fn listed(name: &str, title: &str, description: &str, items: Value) -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": id(name, 1),
        "title": title,
        "description": description,
        "type": "array",
        "items": items,
    })
}

/// Derives the schema of the serialized form of `T`, without additional fields.
fn derived<T: JsonSchema>(name: &str, version: u32, title: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = plain(generator.into_root_schema_for::<T>().to_value());
    schema["$id"] = id(name, version).into();
    schema["title"] = title.into();
    schema
}

/// Removes details that only matter in Rust: number sizes and documentation markup. Renames
/// definitions to the names used in files.
fn plain(schema: Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let formats = ["double", "uint", "uint8", "uint16", "uint32", "uint64"];
            let fields = fields.into_iter().filter(|(name, value)| {
                name != "format" || !formats.iter().any(|format| value == format)
            });
            Value::Object(
                fields
                    .map(|(name, value)| match (name.as_str(), value) {
                        ("description", Value::String(text)) => (name, words(&text).into()),
                        ("$ref", Value::String(to)) => (name, renamed(&to).into()),
                        ("$defs", Value::Object(defs)) => (
                            name,
                            Value::Object(
                                defs.into_iter()
                                    .map(|(name, value)| (snake(&name), plain(value)))
                                    .collect(),
                            ),
                        ),
                        // Only `Option` makes `anyOf`: a value or null, never both.
                        ("anyOf", value) => ("oneOf".to_owned(), plain(value)),
                        (_, value) => (name, plain(value)),
                    })
                    .collect(),
            )
        }
        Value::Array(items) => items.into_iter().map(plain).collect(),
        other => other,
    }
}

fn renamed(reference: &str) -> String {
    match reference.strip_prefix("#/$defs/") {
        Some(name) => format!("#/$defs/{}", snake(name)),
        None => reference.to_owned(),
    }
}

/// Converts `HopRecord` to `hop_record`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Returns a doc comment as one line, without links and code marks.
fn words(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("[`", "").replace("`]", "").replace('`', "")
}

/// Replaces definitions that `other` also has, and `other` itself, by references into `other`.
fn refer(schema: &mut Value, other: &Value) {
    let Some(id) = other["$id"].as_str() else { return };
    let mut elsewhere = BTreeMap::from([("#/$defs/results".to_owned(), id.to_owned())]);
    if let Some(defs) = schema["$defs"].as_object_mut() {
        // The schema of results is a separate file.
        defs.remove("results");
        defs.retain(|name, value| {
            let same = other["$defs"].get(name) == Some(value);
            if same {
                elsewhere.insert(format!("#/$defs/{name}"), format!("{id}#/$defs/{name}"));
            }
            !same
        });
    }
    follow(schema, &elsewhere);
}

fn follow(schema: &mut Value, elsewhere: &BTreeMap<String, String>) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().and_then(|to| elsewhere.get(to)) {
                    Some(to) if name == "$ref" => *value = to.as_str().into(),
                    _ => follow(value, elsewhere),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| follow(item, elsewhere)),
        _ => {}
    }
}

/// Appends JSON in reading order: title and description first, definitions last, properties in
/// the order of the type's fields.
fn print(value: &Value, order: &[&str], indent: usize, out: &mut String) {
    const FIRST: [&str; 10] = [
        "$schema",
        "$id",
        "title",
        "description",
        "$ref",
        "type",
        "const",
        "enum",
        "additionalProperties",
        "required",
    ];
    let line = |out: &mut String, first: bool, indent: usize| {
        out.push_str(if first { "\n" } else { ",\n" });
        out.push_str(&"  ".repeat(indent));
    };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let required: Vec<&str> = match fields.get("required") {
                Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            };
            let place = |name: &str| {
                let listed = order.iter().chain(&FIRST).position(|first| *first == name);
                listed.unwrap_or(usize::from(name == "$defs") + order.len() + FIRST.len())
            };
            let mut names: Vec<&String> = fields.keys().collect();
            names.sort_by_key(|name| (place(name), *name));
            out.push('{');
            for (i, name) in names.into_iter().enumerate() {
                line(out, i == 0, indent + 1);
                out.push_str(&format!("{}: ", json!(name)));
                let order = if name == "properties" { &required[..] } else { &[] };
                print(&fields[name], order, indent + 1, out);
            }
            line(out, true, indent);
            out.push('}');
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                line(out, i == 0, indent + 1);
                print(item, &[], indent + 1, out);
            }
            line(out, true, indent);
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}
