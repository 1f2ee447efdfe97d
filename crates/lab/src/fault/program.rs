//! Programs of a network's hosts: find, run, signal and restart them.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::{Error, Host, Process, Processes};

use super::LIMIT;
use crate::bgp::command;
use crate::{Network, Result};

pub(super) fn host<'a>(network: &'a Network, name: &str) -> Result<&'a Host> {
    let all = || network.hosts().iter().map(|host| host.name()).collect::<Vec<_>>().join(", ");
    let found = network.host(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::NoHost { host: name.to_owned(), hosts: all() })
}

/// Returns the process tree of a host's programs.
fn tree<'a>(network: &'a Network, name: &str) -> Result<&'a Processes> {
    network.tree(name).ok_or_else(|| none(&format!("programs of {name}"), "there are none"))
}

fn none(program: &str, status: &str) -> Error {
    Error::Program { program: program.to_owned(), status: status.to_owned(), output: String::new() }
}

/// Runs a command in the process tree of a host. It has a time limit, since a hung daemon never
/// answers.
pub(super) fn run(network: &Network, name: &str, command: &mut Command) -> Result<()> {
    tree(network, name)?.ask(host(network, name)?, command, LIMIT, &mut []).map(drop)
}

/// Starts a command line from [`command_line`] in the process tree of a host. It keeps running.
pub(super) fn start(network: &Network, name: &str, line: &[String]) -> Result<Process> {
    // Without a command line it cannot be restarted.
    let Some((program, arguments)) = line.split_first() else {
        return Err(none(&format!("killed program in {name}"), "has no command line"));
    };
    tree(network, name)?.start(host(network, name)?, command(program).args(arguments))
}

/// Returns the PID of the network's program with this name in a host.
pub(super) fn find(network: &Network, name: &str, program: &str) -> Result<u32> {
    let inode = host(network, name)?.netns().inode();
    let is_meant = |pid: &u32| {
        // A process that has ended meanwhile has no such file and does not match.
        let namespace = std::fs::metadata(format!("/proc/{pid}/ns/net"));
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        namespace.is_ok_and(|namespace| namespace.ino() == inode) && comm.trim() == program
    };
    let found = network.programs().map(Process::pid).find(is_meant);
    found.ok_or_else(|| none(&format!("{program} in {name}"), "is not running"))
}

/// Returns the direct children of a process.
///
/// # Errors
/// If there are none, or `/proc` cannot be read.
pub(super) fn children(parent: u32) -> Result<Vec<u32>> {
    let all = netstate::process::Processes::read();
    let all = all.map_err(|error| none("programs of this machine", &error.to_string()))?;
    let own = all.by_pid.values().filter(|process| process.parent == parent);
    let children: Vec<u32> = own.map(|process| process.pid).collect();
    // The program has ended before the fault: there is nothing to kill.
    if children.is_empty() {
        return Err(none(&format!("child of process {parent}"), "is not running"));
    }
    Ok(children)
}

pub(super) fn command_line(pid: u32) -> Result<Vec<String>> {
    let path = format!("/proc/{pid}/cmdline");
    let line = std::fs::read_to_string(&path);
    let line = line.map_err(|error| sys::Error::io("read", path, &error))?;
    Ok(line.trim_end_matches('\0').split('\0').map(str::to_owned).collect())
}

/// Sends a signal to a process.
pub(super) fn signal(pid: u32, signal: Signal) -> Result<()> {
    let sent = kill(Pid::from_raw(pid as i32), signal);
    Ok(sent.map_err(|error| sys::Error::new("send a signal to", pid.to_string(), error))?)
}
