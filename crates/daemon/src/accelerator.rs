//! Requests to a running `overlane accel`. There is one process per network namespace; the name
//! of its control socket contains the namespace. It answers only its own user and root.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use accel::{Accel, Status, Wanted};
use anyhow::anyhow;
use serde::{Deserialize, Serialize};
use sys::netns::NetNs;

use crate::confinement;
use crate::control::{self, Claim, Of, user};
use crate::serving::{Door, Reply};

/// Name of the process in errors.
const WHO: &str = "the accelerator";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlRequest {
    /// `status`: report the status.
    Status,
    /// `add DEVICE`: also accelerate this device.
    Add(String),
    /// `add-all`: accelerate every VXLAN device of the namespace.
    AddAll,
    /// `remove DEVICE`: stop accelerating this device.
    Remove(String),
    /// `programs`: report the [`Predecessor`] data that a takeover needs.
    Programs,
    /// `hand-over`: exit, because a successor's fast path is in force.
    HandOver,
    /// `down`: exit without a successor.
    Down,
}

/// Data about the running process that its successor needs for a takeover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// Process ID in the PID namespace of that process.
    pub pid: u32,
    /// Kernel IDs of its BPF programs.
    pub programs: BTreeSet<u32>,
}

impl ControlRequest {
    fn line(&self) -> String {
        match self {
            ControlRequest::Status => "status".to_owned(),
            ControlRequest::Add(device) => format!("add {device}"),
            ControlRequest::AddAll => "add-all".to_owned(),
            ControlRequest::Remove(device) => format!("remove {device}"),
            ControlRequest::Programs => "programs".to_owned(),
            ControlRequest::HandOver => "hand-over".to_owned(),
            ControlRequest::Down => "down".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<ControlRequest> {
        // Splitting is safe: device names contain no whitespace (dev_valid_name).
        let mut words = line.split_whitespace();
        let request = match (words.next()?, words.next()) {
            ("status", None) => ControlRequest::Status,
            ("add", Some(device)) => ControlRequest::Add(device.to_owned()),
            ("add-all", None) => ControlRequest::AddAll,
            ("remove", Some(device)) => ControlRequest::Remove(device.to_owned()),
            ("programs", None) => ControlRequest::Programs,
            ("hand-over", None) => ControlRequest::HandOver,
            ("down", None) => ControlRequest::Down,
            _ => return None,
        };
        words.next().is_none().then_some(request)
    }
}

/// Returns the socket name for a namespace.
pub fn name(netns: &NetNs) -> anyhow::Result<String> {
    Ok(format!("accel.{}", control::name_of(netns)?))
}

/// Claims a namespace.
///
/// # Errors
/// If another process serves it.
pub fn claim(netns: &NetNs) -> anyhow::Result<Claim> {
    let inode = netns.inode();
    // Only for the error message: other users' processes refuse to tell their ID.
    let process = match ask(netns, &ControlRequest::Status) {
        Ok(Some(Status { pid: Some(pid), .. })) => format!(" by process {pid}"),
        _ => String::new(),
    };
    let taken = format!(
        "network namespace {inode} is already accelerated{process} (overlane accel status)"
    );
    control::claim(&name(netns)?, &taken)
}

/// Returns the door that answers requests. `wanted` are the devices accelerated at first.
/// `handed_over` becomes true when a successor requests the exit.
///
/// # Errors
/// If no descriptors are left.
pub fn door(
    claim: &Claim,
    accel: Arc<Accel>,
    mut wanted: Wanted,
    handed_over: Arc<AtomicBool>,
) -> anyhow::Result<Door> {
    Door::of_lines(claim, &[user()], move |line| {
        let request =
            ControlRequest::parse(line).ok_or_else(|| anyhow!("unknown request {line:?}"))?;
        if request == ControlRequest::Programs {
            let pid = std::process::id();
            return Reply::line(&Predecessor { pid, programs: accel.programs() }, false);
        }
        // Set it before the exit begins: `accel run` reads it then.
        if request == ControlRequest::HandOver {
            handed_over.store(true, Ordering::Release);
        }
        let down = follow(&request, &accel, &mut wanted)?;
        let confinement = Some(confinement::in_force()).filter(|text| !text.is_empty());
        Reply::line(&Status { confinement, ..accel.status() }, down)
    })
}

/// Executes a request. Returns whether the process must exit.
fn follow(request: &ControlRequest, accel: &Accel, wanted: &mut Wanted) -> anyhow::Result<bool> {
    let mut down = matches!(request, ControlRequest::Down | ControlRequest::HandOver);
    match (request, &mut *wanted) {
        (ControlRequest::AddAll, wanted) => *wanted = Wanted::All,
        (ControlRequest::Add(device), Wanted::Named(names)) => drop(names.insert(device.clone())),
        (ControlRequest::Remove(device), Wanted::Named(names)) => {
            names.remove(device);
            down = names.is_empty();
        }
        (ControlRequest::Remove(device), Wanted::All) => {
            let others = accel.status().devices.into_iter().map(|other| other.device);
            let names: BTreeSet<String> = others.filter(|other| other != device).collect();
            down = names.is_empty();
            *wanted = Wanted::Named(names);
        }
        // These do not change which devices are accelerated.
        (ControlRequest::Status | ControlRequest::Programs | ControlRequest::Add(_), _) => {}
        (ControlRequest::Down | ControlRequest::HandOver, _) => {}
    }
    // An unchanged request may be one that was not followed in time.
    if !down && !matches!(request, ControlRequest::Status | ControlRequest::Programs) {
        accel.want(wanted.clone())?;
    }
    Ok(down)
}

/// Sends a request to the accelerator of a namespace. For a request to exit, waits until
/// everything is detached. Returns `None` if no process is running.
///
/// # Errors
/// If the process does not answer, or belongs to another user.
pub fn ask(netns: &NetNs, request: &ControlRequest) -> anyhow::Result<Option<Status>> {
    // `remove` of the last device also ends the process.
    let ends = matches!(request, ControlRequest::Down | ControlRequest::Remove(_));
    control::ask(WHO, &name(netns)?, Of::Daemons, &request.line(), ends)
}

/// Returns the process to take over from, or `None`.
///
/// # Errors
/// If the process does not answer, or belongs to another user.
pub fn predecessor(netns: &NetNs) -> anyhow::Result<Option<Predecessor>> {
    control::ask(WHO, &name(netns)?, Of::Own, &ControlRequest::Programs.line(), false)
}

/// Tells the predecessor to exit, and waits until it has detached everything.
///
/// # Errors
/// If it does not answer or exit.
pub fn hand_over(predecessor: &UnixStream) -> anyhow::Result<()> {
    control::ask_to_end::<Status>(WHO, predecessor, &ControlRequest::HandOver.line()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        for request in [
            ControlRequest::Status,
            ControlRequest::Add("vxlan0".into()),
            ControlRequest::AddAll,
            ControlRequest::Remove("vxlan0".into()),
            ControlRequest::Programs,
            ControlRequest::HandOver,
            ControlRequest::Down,
        ] {
            assert_eq!(ControlRequest::parse(&request.line()), Some(request));
        }
        for wrong in ["", "\n", "add", "add a b", "status vxlan0", "halt"] {
            assert_eq!(ControlRequest::parse(wrong), None, "{wrong:?}");
        }
    }
}
