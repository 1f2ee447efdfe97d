//! `overlane lab down`: removes standing testbeds.

use crate::args::Down;
use crate::exit::Exit;
use crate::holder::{self, Request};
use crate::output::{print, print_json};

/// Removes the named ones, or all.
pub fn run(arguments: &Down) -> anyhow::Result<Exit> {
    let names = if arguments.all {
        holder::all()?.into_iter().map(|standing| standing.name).collect()
    } else {
        // All names are known before the first is removed.
        for name in &arguments.names {
            holder::ask(name, Request::Status)?;
        }
        arguments.names.clone()
    };
    for name in &names {
        holder::ask(name, Request::Down)?;
    }
    if arguments.json {
        print_json(&names)?;
    } else {
        print(&names.iter().map(|name| format!("removed {name}\n")).collect::<String>())?;
    }
    Ok(Exit::Done)
}
