//! `overlane vtep status`: shows the endpoints of this network namespace.

use daemon::endpoint;

use crate::exit::Exit;
use crate::output::{print, print_folded, print_json};
use crate::vtep_args::VtepStatus;

/// Asks every endpoint of this user for its status, and prints it.
///
/// # Errors
/// An unsafe socket directory; standard output.
pub fn run(arguments: &VtepStatus) -> anyhow::Result<Exit> {
    let (all, silent) = endpoint::all()?;
    // Also report endpoints that run but do not answer; they set the exit code.
    for error in &silent {
        tracing::warn!("{error:#}");
    }
    if arguments.json {
        print_json(&all)?;
    } else if all.is_empty() && silent.is_empty() {
        print("no endpoint is running in this network namespace")?;
    }
    if !arguments.json {
        for status in &all {
            print_folded(&format!("{}: hand-over {}", status.local, status.hand_over))?;
            print_folded(&status.describe())?;
            print_folded(&format!("confined: {}", status.confinement))?;
        }
    }
    Ok(if silent.is_empty() { Exit::Done } else { Exit::Partly })
}
