//! `cargo xtask`: maintenance tasks of the source tree.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Runs a task with the arguments after its name.
type Chore = fn(&[String]) -> anyhow::Result<()>;

/// Name, description and function of each task.
const CHORES: &[(&str, &str, Chore)] = &[
    ("schemas", "write schema/*.json from the types", schemas),
    ("corpus", "write the seed inputs of the fuzz targets, fuzz/corpus/", corpus),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chore = arguments.first().and_then(|name| CHORES.iter().find(|(own, ..)| own == name));
    let Some((name, _, run)) = chore else {
        eprintln!("usage: cargo xtask TASK");
        for (name, what, _) in CHORES {
            eprintln!("  {name:<10} {what}");
        }
        return ExitCode::from(2);
    };
    match run(&arguments[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn corpus(_: &[String]) -> anyhow::Result<()> {
    xtask::corpus::write()
}

fn schemas(_: &[String]) -> anyhow::Result<()> {
    for name in xtask::schema::write()? {
        println!("schema/{name}.schema.json");
    }
    if xtask::plans::write()? {
        println!("schema/plan.schema.json");
    }
    Ok(())
}
