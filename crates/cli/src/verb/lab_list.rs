//! `overlane lab list`: every mode, whether it can be built here, and if not why.

use lab::{Capabilities, modes};
use report::listing::ListedMode;

use crate::args::List;
use crate::exit::Exit;
use crate::output::{print, print_json};

/// Probes and prints every mode.
///
/// # Errors
/// Without the right to make network namespaces; standard output.
pub fn run(arguments: &List) -> anyhow::Result<Exit> {
    let machine = Capabilities::new(testbed::acquire()?)?;
    let listed: Vec<ListedMode> = modes()
        .iter()
        .map(|mode| {
            let unsupported = mode.probe(&machine).err();
            ListedMode {
                mode: mode.name(),
                path: mode.path(),
                supported: unsupported.is_none(),
                reason: unsupported.as_ref().map(|why| why.reason.clone()),
                remedy: unsupported.map(|why| why.remedy),
            }
        })
        .collect();
    if arguments.json {
        print_json(&listed)?;
    } else {
        print(&table(&listed))?;
    }
    Ok(Exit::Done)
}

fn table(listed: &[ListedMode]) -> String {
    let width = listed.iter().map(|mode| mode.mode.len()).max().unwrap_or(0);
    let mut text = String::new();
    for mode in listed {
        let state = if mode.supported { "yes" } else { "no " };
        text += &format!("{:width$}  {state}  {}\n", mode.mode, mode.path);
        if let (Some(reason), Some(remedy)) = (&mode.reason, &mode.remedy) {
            for line in [reason, remedy] {
                text += &format!("{:width$}       {line}\n", "");
            }
        }
    }
    text
}
