//! `overlane lab status`: shows the running testbeds.

use crate::args::LabStatus;
use crate::exit::Exit;
use crate::lab_socket;
use crate::output::{print, print_folded, print_json};
use crate::verb::lab_up::describe;

/// Prints the running testbeds of this user.
///
/// # Errors
/// An unsafe or unreadable socket directory; standard output.
pub fn run(arguments: &LabStatus) -> anyhow::Result<Exit> {
    let standing = lab_socket::all()?;
    if arguments.json {
        print_json(&standing)?;
    } else if standing.is_empty() {
        print("no testbed is running (overlane lab up MODE builds one)")?;
    } else {
        print_folded(&standing.iter().map(describe).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Exit::Done)
}
