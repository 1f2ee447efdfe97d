//! The JSON schema of plan files, derived from the options of `lab run`, which are the keys of a
//! plan. Editors use it to complete keys and to mark wrong ones.

use std::any::TypeId;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Args as _, Command};
use serde_json::{Map, Value, json};

use super::NOT_IN_A_PLAN;
use crate::args::{Asking, Run};

/// Returns the schema of a plan. TOML tables are JSON objects.
pub fn schema() -> Value {
    let run = Run::augment_args(Command::new("run"));
    let mut whole = options(&run);
    whole.insert(
        "description".to_owned(),
        json!({ "description": "Purpose of the plan, in one line.", "type": "string" }),
    );
    whole.insert("quick".to_owned(), table("Values to use with --quick.", options(&run)));
    let part = Asking::augment_args(Command::new("part"));
    whole.insert(
        "part".to_owned(),
        json!({
            "description": "Workloads for every path; the parts run one after another.",
            "type": "array",
            "items": table("One part.", options(&part)),
        }),
    );
    let mut schema = table(
        "A plan: keys are long options of overlane lab run. [[part]] tables set different \
         workloads for the same paths; [quick] has the values to use with --quick.",
        whole,
    );
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["$id"] = "urn:overlane:schema:plan:1".into();
    schema["title"] = "overlane lab run --plan FILE".into();
    schema
}

fn table(description: &str, properties: Map<String, Value>) -> Value {
    json!({
        "description": description,
        "type": "object",
        // Unknown keys are errors, as in the reader.
        "additionalProperties": false,
        "properties": properties,
    })
}

/// Returns the options of a command that a plan may contain, with the schema of their values.
fn options(command: &Command) -> Map<String, Value> {
    let named = command.get_arguments().filter_map(|option| Some((option.get_long()?, option)));
    named
        // These options depend on the run, not on the plan.
        .filter(|(name, _)| !NOT_IN_A_PLAN.contains(name))
        .map(|(name, option)| (name.to_owned(), value(option)))
        .collect()
}

/// Returns the schema of an option's value. A number may also be a string, as on a command line,
/// and a list may be one string with commas.
fn value(option: &Arg) -> Value {
    let names = option.get_possible_values();
    let names: Vec<&str> = names.iter().map(clap::builder::PossibleValue::get_name).collect();
    let kind = option.get_value_parser().type_id();
    let is = |number: TypeId| kind == number;
    let mut value = match option.get_action() {
        // Flags are true or false in TOML.
        ArgAction::SetTrue => json!({ "type": "boolean" }),
        _ if !names.is_empty() => json!({ "enum": names }),
        _ if is(TypeId::of::<u32>()) || is(TypeId::of::<u64>()) => {
            json!({ "type": ["integer", "string"], "minimum": 0 })
        }
        _ if is(TypeId::of::<f64>()) => json!({ "type": ["number", "string"] }),
        // Other options are text, but TOML also allows a bare number or a list.
        _ => json!({
            "type": ["string", "number", "array"],
            "items": { "type": ["string", "number"] },
        }),
    };
    let help = option.get_help().map(StyledStr::to_string).unwrap_or_default();
    value["description"] = help.into();
    // Flags have an implicit default of false, which the schema need not repeat.
    if let [default] = option.get_default_values()
        && option.get_action().takes_values()
    {
        value["default"] = default.to_string_lossy().into();
    }
    value
}
