//! `overlane lab down`: removes running testbeds.

use crate::args::Down;
use crate::exit::Exit;
use crate::lab_socket::{self, LabRequest};
use crate::output::{print, print_json};

/// Removes the named testbeds, or all of this user's.
///
/// # Errors
/// A usage error for an unknown name; a holder process that does not answer.
pub fn run(arguments: &Down) -> anyhow::Result<Exit> {
    let names = if arguments.all {
        lab_socket::all()?.into_iter().map(|standing| standing.name).collect()
    } else {
        // Check all names first, so that a wrong one removes nothing.
        for name in &arguments.names {
            lab_socket::ask(name, LabRequest::Status)?;
        }
        arguments.names.clone()
    };
    for name in &names {
        // Waits until the testbed is gone.
        lab_socket::ask(name, LabRequest::Down)?;
    }
    if arguments.json {
        print_json(&names)?;
    } else {
        print(&names.iter().map(|name| format!("removed {name}\n")).collect::<String>())?;
    }
    Ok(Exit::Done)
}
