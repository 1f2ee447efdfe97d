//! `overlane lab exec`: runs a command inside a host or tenant of a running testbed.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use report::listing::StandingTestbed;
use sys::netns::NetNs;

use crate::args::Exec;
use crate::exit::{Exit, usage};
use crate::lab_socket::{self, Found, ambiguous, qualified};

/// Replaces this process by the command. Runs it as a child if the host has a PID namespace.
///
/// # Errors
/// A usage error for an unknown testbed or host; a command that cannot be executed.
pub fn run(arguments: &Exec) -> anyhow::Result<Exit> {
    let standing = lab_socket::all()?;
    let (testbed, host) = find(&standing, &arguments.host)?;
    let (program, rest) = arguments
        .command
        .split_first()
        .ok_or_else(|| usage("COMMAND", "expected a command and its arguments"))?;
    // Testbeds of ordinary users are in a user namespace, which owns their network namespaces.
    sys::join::user_namespace(testbed.pid)?;
    let netns = NetNs::open(Path::new(&host.netns))?;
    let mut command = Command::new(program);
    command.args(rest);
    if let Some(init) = host.init {
        // The command must see the testbed's /run and processes. It is a child, because a process
        // cannot enter a PID namespace itself.
        sys::join::process_tree(init)?;
        netns.enter_for_good()?;
        let status =
            command.status().with_context(|| format!("run {}", program.to_string_lossy()))?;
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        return Ok(Exit::Code(u8::try_from(code.unwrap_or(1)).unwrap_or(1)));
    }
    netns.enter_for_good()?;
    Err(command.exec()).with_context(|| format!("run {}", program.to_string_lossy()))
}

/// Finds `HOST` or `TESTBED/HOST`.
fn find<'a>(standing: &'a [StandingTestbed], wanted: &str) -> anyhow::Result<Found<'a>> {
    let found = lab_socket::hosts(standing, wanted);
    match found[..] {
        [found] => Ok(found),
        [] => {
            let all = standing.iter().flat_map(|one| one.hosts.iter().map(move |host| (one, host)));
            let known: Vec<String> = all.map(|(one, host)| qualified(one, host)).collect();
            let known = if known.is_empty() {
                "no testbed is running".to_owned()
            } else {
                format!("known: {}", known.join(", "))
            };
            Err(usage("HOST", format!("no host {wanted:?}; {known}")))
        }
        // Hosts of several testbeds have the same names.
        _ => Err(usage("HOST", ambiguous(wanted, &found))),
    }
}
