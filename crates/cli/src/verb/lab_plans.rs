//! `overlane lab plans`: lists the built-in plans, prints one, or prints the schema of plan files.

use crate::args::Plans;
use crate::exit::{Exit, usage};
use crate::output::{columns, folded, print, print_json};
use crate::plan::{self, PlanFile};
use crate::quantity::alternatives;

/// Lists the plans, prints one, or prints the schema of plan files.
///
/// # Errors
/// A usage error for an unknown plan; standard output.
pub fn run(arguments: &Plans) -> anyhow::Result<Exit> {
    if arguments.schema {
        print_json(&plan::schema())?;
        return Ok(Exit::Done);
    }
    let plans = PlanFile::built_in();
    if let Some(wanted) = &arguments.name {
        let Some((_, text)) = plans.iter().find(|(name, _)| name == wanted) else {
            let known = plans.iter().map(|(name, _)| *name);
            let others = alternatives(wanted, known, "overlane lab plans");
            return Err(usage("NAME", format!("unknown plan {wanted:?}{others}")));
        };
        print(text)?;
        return Ok(Exit::Done);
    }
    let described = plans
        .iter()
        .map(|(name, _)| Ok((*name, PlanFile::find(name)?.description)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if arguments.json {
        let list = described.iter().map(
            |(name, description)| serde_json::json!({ "name": name, "description": description }),
        );
        print_json(&list.collect::<Vec<_>>())?;
        return Ok(Exit::Done);
    }
    let widest = described.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = described.iter().map(|(name, description)| {
        folded(&format!("{name:widest$}  {description}"), columns(), Some(widest + 2)) + "\n"
    });
    print(&lines.collect::<String>())?;
    Ok(Exit::Done)
}
