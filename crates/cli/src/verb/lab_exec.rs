//! `overlane lab exec`: a command inside a host or tenant of a standing testbed.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use report::listing::{StandingHost, StandingTestbed};
use sys::netns::NetNs;

use crate::args::Exec;
use crate::exit::{Exit, usage};
use crate::lab_socket;

/// Becomes the command, or runs it where programs of the testbed must be seen.
///
/// # Errors
/// A usage error for a testbed or host that is not there; a command that cannot be executed.
pub fn run(arguments: &Exec) -> anyhow::Result<Exit> {
    let standing = lab_socket::all()?;
    let (testbed, host) = find(&standing, &arguments.host)?;
    let (program, rest) = arguments
        .command
        .split_first()
        .ok_or_else(|| usage("COMMAND", "expected a command and its arguments"))?;
    sys::join::user_namespace(testbed.pid)?;
    let netns = NetNs::open(Path::new(&host.netns))?;
    let mut command = Command::new(program);
    command.args(rest);
    if let Some(init) = host.init {
        // Sees the testbed's own /run and programs; a child, because a process
        // cannot move into a PID namespace itself.
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
fn find<'a>(
    standing: &'a [StandingTestbed],
    wanted: &str,
) -> anyhow::Result<(&'a StandingTestbed, &'a StandingHost)> {
    let (testbed, host) = match wanted.split_once('/') {
        Some((testbed, host)) => (Some(testbed), host),
        None => (None, wanted),
    };
    let all = || standing.iter().flat_map(|one| one.hosts.iter().map(move |host| (one, host)));
    let found: Vec<_> = all()
        .filter(|(one, known)| testbed.is_none_or(|name| name == one.name) && known.name == host)
        .collect();
    let name =
        |(one, host): &(&StandingTestbed, &StandingHost)| format!("{}/{}", one.name, host.name);
    match found[..] {
        [found] => Ok(found),
        [] => {
            let known: Vec<String> = all().map(|pair| name(&pair)).collect();
            let known = if known.is_empty() {
                "no testbed is standing".to_owned()
            } else {
                format!("known: {}", known.join(", "))
            };
            Err(usage("HOST", format!("no host {wanted:?}; {known}")))
        }
        _ => {
            let names: Vec<String> = found.iter().map(name).collect();
            Err(usage("HOST", format!("{wanted:?} is one of several: {}", names.join(", "))))
        }
    }
}
