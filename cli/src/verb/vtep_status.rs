//! `overlane vtep status`: what the endpoints of this network namespace have done.

use crate::endpoint;
use crate::exit::Exit;
use crate::output::{print, print_json};
use crate::vtep_args::VtepStatus;

/// Asks every endpoint.
pub fn run(arguments: &VtepStatus) -> anyhow::Result<Exit> {
    let all = endpoint::all()?;
    if arguments.json {
        print_json(&all)?;
    } else if all.is_empty() {
        print("no endpoint runs in this network namespace")?;
    }
    if !arguments.json {
        for status in &all {
            print(&format!("{}: hand-over {}", status.local, status.hand_over))?;
            print(&status.describe())?;
        }
    }
    Ok(Exit::Done)
}
