//! `overlane lab status`: the standing testbeds.

use crate::args::Status;
use crate::exit::Exit;
use crate::holder;
use crate::output::{print, print_json};
use crate::verb::lab_up::describe;

/// Prints every testbed of this user.
pub fn run(arguments: &Status) -> anyhow::Result<Exit> {
    let standing = holder::all()?;
    if arguments.json {
        print_json(&standing)?;
    } else if standing.is_empty() {
        print("no testbed is standing (overlane lab up MODE builds one)")?;
    } else {
        print(&standing.iter().map(describe).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Exit::Done)
}
