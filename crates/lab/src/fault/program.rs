//! Programs of a network's hosts: found, killed, asked, started again.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::{Error, Host, Process, Processes};

use super::LIMIT;
use crate::bgp::command;
use crate::{Network, Result};

/// A host that the fault is about.
pub(super) fn host<'a>(network: &'a Network, name: &str) -> Result<&'a Host> {
    let all = || network.hosts().iter().map(|host| host.name()).collect::<Vec<_>>().join(", ");
    let found = network.host(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::NoHost { host: name.to_owned(), hosts: all() })
}

/// The process tree of a host's programs.
fn tree<'a>(network: &'a Network, name: &str) -> Result<&'a Processes> {
    network.tree(name).ok_or_else(|| none(&format!("programs of {name}"), "it has none"))
}

fn none(program: &str, status: &str) -> Error {
    Error::Program { program: program.to_owned(), status: status.to_owned(), output: String::new() }
}

/// Runs a command where the programs of a host run. A daemon that hangs does not answer it:
/// it has a limit, too.
pub(super) fn run(network: &Network, name: &str, command: &mut Command) -> Result<()> {
    tree(network, name)?.ask(host(network, name)?, command, LIMIT, &mut []).map(drop)
}

/// Starts what [`command_line`] gave, where the programs of a host run; it stays.
pub(super) fn start(network: &Network, name: &str, line: &[String]) -> Result<Process> {
    let Some((program, arguments)) = line.split_first() else {
        return Err(none(&format!("what was killed in {name}"), "has no command line"));
    };
    tree(network, name)?.start(host(network, name)?, command(program).args(arguments))
}

/// The one of the network's programs that is so called and runs in a host.
pub(super) fn find(network: &Network, name: &str, program: &str) -> Result<u32> {
    let inode = host(network, name)?.netns().inode();
    let is_meant = |pid: &u32| {
        // One that has ended meanwhile is not it.
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net"));
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        namespace.is_ok_and(|namespace| namespace.ino() == inode) && comm.trim() == program
    };
    let found = network.programs().map(Process::pid).find(is_meant);
    found.ok_or_else(|| none(&format!("{program} in {name}"), "is not running"))
}

/// The processes that a program has started, and not their own.
///
/// # Errors
/// That there are none, or that `/proc` cannot be read.
pub(super) fn children(parent: u32) -> Result<Vec<u32>> {
    let all = netstate::process::Processes::read();
    let all = all.map_err(|error| none("programs of this machine", &error.to_string()))?;
    let own = all.by_pid.values().filter(|process| process.parent == parent);
    let children: Vec<u32> = own.map(|process| process.pid).collect();
    if children.is_empty() {
        return Err(none(&format!("child of process {parent}"), "is not running"));
    }
    Ok(children)
}

/// What a program was started with.
pub(super) fn command_line(pid: u32) -> Result<Vec<String>> {
    let path = format!("/proc/{pid}/cmdline");
    let line = std::fs::read_to_string(&path);
    let line = line.map_err(|error| sys::Error::io("read", path, &error))?;
    Ok(line.trim_end_matches('\0').split('\0').map(str::to_owned).collect())
}

/// Sends a program a signal.
pub(super) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let sent = kill(Pid::from_raw(pid as i32), signal);
    Ok(sent.map_err(|error| sys::Error::new("send a signal to", pid.to_string(), error))?)
}
