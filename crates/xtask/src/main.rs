//! `cargo xtask`: chores of the tree.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Does a chore; takes what follows its name.
type Chore = fn(&[String]) -> anyhow::Result<()>;

/// Each chore: its name, what it does, and how.
const CHORES: &[(&str, &str, Chore)] = &[
    ("schemas", "write schema/*.json from the types", schemas),
    ("corpus", "write what fuzz targets begin with, fuzz/corpus/", corpus),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let chore = arguments.first().and_then(|name| CHORES.iter().find(|(own, ..)| own == name));
    let Some((name, _, run)) = chore else {
        eprintln!("usage: cargo xtask CHORE");
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
