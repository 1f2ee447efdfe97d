//! The JSON schema of plan files, derived from the options of `lab run` that a plan's keys
//! are. An editor that knows it completes keys and marks wrong ones.

use std::any::TypeId;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Args as _, Command};
use serde_json::{Map, Value, json};

use super::NOT_IN_A_PLAN;
use crate::args::{Asking, Run};

/// The schema of a plan as the reader takes it, TOML's tables being JSON's objects.
pub fn schema() -> Value {
    let run = Run::augment_args(Command::new("run"));
    let mut whole = options(&run);
    whole.insert(
        "description".to_owned(),
        json!({ "description": "What the plan is for, in a line.", "type": "string" }),
    );
    whole.insert("quick".to_owned(), table("What --quick changes.", options(&run)));
    let part = Asking::augment_args(Command::new("part"));
    whole.insert(
        "part".to_owned(),
        json!({
            "description": "What is asked of every path; the parts are asked one after another.",
            "type": "array",
            "items": table("One part.", options(&part)),
        }),
    );
    let mut schema = table(
        "What to run: keys are long options of overlane lab run. [[part]] tables ask different \
         things of the same paths; [quick] is what --quick changes.",
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
        "additionalProperties": false,
        "properties": properties,
    })
}

/// The options of a command that a plan may hold, each with its values.
fn options(command: &Command) -> Map<String, Value> {
    let named = command.get_arguments().filter_map(|option| Some((option.get_long()?, option)));
    named
        .filter(|(name, _)| !NOT_IN_A_PLAN.contains(name))
        .map(|(name, option)| (name.to_owned(), value(option)))
        .collect()
}

/// What an option's value may be. A number may also be given as a string, as on a command
/// line, and a list as one string with commas.
fn value(option: &Arg) -> Value {
    let names = option.get_possible_values();
    let names: Vec<&str> = names.iter().map(clap::builder::PossibleValue::get_name).collect();
    let kind = option.get_value_parser().type_id();
    let is = |number: TypeId| kind == number;
    let mut value = match option.get_action() {
        ArgAction::SetTrue => json!({ "type": "boolean" }),
        _ if !names.is_empty() => json!({ "enum": names }),
        _ if is(TypeId::of::<u32>()) || is(TypeId::of::<u64>()) => {
            json!({ "type": ["integer", "string"], "minimum": 0 })
        }
        _ if is(TypeId::of::<f64>()) => json!({ "type": ["number", "string"] }),
        _ => json!({
            "type": ["string", "number", "array"],
            "items": { "type": ["string", "number"] },
        }),
    };
    let help = option.get_help().map(StyledStr::to_string).unwrap_or_default();
    value["description"] = help.into();
    if let [default] = option.get_default_values()
        && option.get_action().takes_values()
    {
        value["default"] = default.to_string_lossy().into();
    }
    value
}
