//! `overlane accel explain`: explains the codes of refusals and their remedies.

use std::fmt::Write as _;

use accel::{EXPLANATIONS, Explanation};

use crate::accel_args::AccelExplain;
use crate::exit::{Exit, usage};
use crate::output::{print_folded, print_json};

/// Explains one code, or lists all.
pub fn run(arguments: &AccelExplain) -> anyhow::Result<Exit> {
    let all = match &arguments.code {
        None => EXPLANATIONS,
        Some(code) => match Explanation::of(code) {
            Some(known) => std::slice::from_ref(known),
            None => {
                let problem = format!("unknown code {code:?} (overlane accel explain lists all)");
                return Err(usage("CODE", problem));
            }
        },
    };
    match (all, &arguments.code) {
        (all, _) if arguments.json => print_json(&all)?,
        ([one], Some(_)) => print_folded(&explained(one))?,
        (all, _) => print_folded(&listed(all))?,
    }
    Ok(Exit::Done)
}

fn explained(known: &Explanation) -> String {
    let Explanation { code, title, explanation, remedy, .. } = known;
    format!("{code}: {title}\n\n{}\n\nRemedy: {remedy}\n", explanation)
}

fn listed(all: &[Explanation]) -> String {
    let mut text = String::new();
    for Explanation { code, title, .. } in all {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{code}  {title}");
    }
    text
}
