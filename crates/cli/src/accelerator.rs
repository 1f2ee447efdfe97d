//! A running `overlane accel`, found by a socket whose name carries the network namespace
//! that is served: there is one for each. It answers its own user and root only.

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

/// How it is called in errors.
const WHO: &str = "the accelerator";

/// What is asked, a line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// `status`: changes nothing.
    Status,
    /// Accelerate this device too.
    Add(String),
    /// `add-all`: every VXLAN device of the namespace.
    AddAll,
    /// Give this one back.
    Remove(String),
    /// What a successor has to know.
    Programs,
    /// End: a successor's fast path is in force.
    HandOver,
    /// `down`: end, with no successor.
    Down,
}

/// What a successor has to know of the process that it takes over from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// Process ID in the PID namespace of the process that was asked.
    pub pid: u32,
    /// Its programs, by the kernel's ids.
    pub programs: BTreeSet<u32>,
}

impl Request {
    fn line(&self) -> String {
        match self {
            Request::Status => "status".to_owned(),
            Request::Add(device) => format!("add {device}"),
            Request::AddAll => "add-all".to_owned(),
            Request::Remove(device) => format!("remove {device}"),
            Request::Programs => "programs".to_owned(),
            Request::HandOver => "hand-over".to_owned(),
            Request::Down => "down".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Request> {
        // A device's name has no blank in it (dev_valid_name).
        let mut words = line.split_whitespace();
        let request = match (words.next()?, words.next()) {
            ("status", None) => Request::Status,
            ("add", Some(device)) => Request::Add(device.to_owned()),
            ("add-all", None) => Request::AddAll,
            ("remove", Some(device)) => Request::Remove(device.to_owned()),
            ("programs", None) => Request::Programs,
            ("hand-over", None) => Request::HandOver,
            ("down", None) => Request::Down,
            _ => return None,
        };
        words.next().is_none().then_some(request)
    }
}

/// The name of who serves a namespace.
///
/// # Errors
/// When the namespace cannot be entered.
pub fn name(netns: &NetNs) -> anyhow::Result<String> {
    Ok(format!("accel.{}", control::name_of(netns)?))
}

/// Claims a namespace.
///
/// # Errors
/// When it is served already.
pub fn claim(netns: &NetNs) -> anyhow::Result<Claim> {
    let inode = netns.inode();
    // Asked before: who may not ask is told less.
    let process = match ask(netns, &Request::Status) {
        Ok(Some(Status { pid: Some(pid), .. })) => format!(" by process {pid}"),
        _ => String::new(),
    };
    let taken = format!(
        "network namespace {inode} is accelerated already{process} (overlane accel status)"
    );
    control::claim(&name(netns)?, &taken)
}

/// Answers who asks; `wanted` is what is accelerated at first. `handed_over` becomes true
/// when a successor has asked for the end.
///
/// # Errors
/// When descriptors have run out.
pub fn door(
    claim: &Claim,
    accel: Arc<Accel>,
    mut wanted: Wanted,
    handed_over: Arc<AtomicBool>,
) -> anyhow::Result<Door> {
    Door::of_lines(claim, &[user()], move |line| {
        let request = Request::parse(line).ok_or_else(|| anyhow!("unknown request {line:?}"))?;
        if request == Request::Programs {
            let pid = std::process::id();
            return Reply::line(&Predecessor { pid, programs: accel.programs() }, false);
        }
        if request == Request::HandOver {
            handed_over.store(true, Ordering::Release);
        }
        let down = follow(&request, &accel, &mut wanted)?;
        let confinement = Some(confinement::in_force()).filter(|text| !text.is_empty());
        Reply::line(&Status { confinement, ..accel.status() }, down)
    })
}

/// Does what is asked; whether that is to end.
fn follow(request: &Request, accel: &Accel, wanted: &mut Wanted) -> anyhow::Result<bool> {
    let mut down = matches!(request, Request::Down | Request::HandOver);
    let before = wanted.clone();
    match (request, &mut *wanted) {
        (Request::AddAll, wanted) => *wanted = Wanted::All,
        (Request::Add(device), Wanted::Named(names)) => drop(names.insert(device.clone())),
        (Request::Remove(device), Wanted::Named(names)) => {
            names.remove(device);
            down = names.is_empty();
        }
        (Request::Remove(device), Wanted::All) => {
            let others = accel.status().devices.into_iter().map(|other| other.device);
            let names: BTreeSet<String> = others.filter(|other| other != device).collect();
            down = names.is_empty();
            *wanted = Wanted::Named(names);
        }
        (Request::Status | Request::Programs | Request::Add(_), _) => {}
        (Request::Down | Request::HandOver, _) => {}
    }
    if *wanted != before && !down {
        accel.want(wanted.clone())?;
    }
    Ok(down)
}

/// Asks the accelerator of a namespace, and to end waits until all is detached;
/// `None` where there is none.
///
/// # Errors
/// When it does not answer, or is another user's.
pub fn ask(netns: &NetNs, request: &Request) -> anyhow::Result<Option<Status>> {
    let ends = matches!(request, Request::Down | Request::Remove(_));
    control::ask(WHO, &name(netns)?, Of::Daemons, &request.line(), ends)
}

/// Who serves a namespace, as its successor asks it; `None` where there is nobody. A version
/// that knows no successors is asked to end, and there is nobody then.
///
/// # Errors
/// When it does not answer, or is another user's.
pub fn predecessor(netns: &NetNs) -> anyhow::Result<Option<Predecessor>> {
    let line = Request::Programs.line();
    match control::ask(WHO, &name(netns)?, Of::Own, &line, false) {
        Ok(answer) => Ok(answer),
        Err(error) => match ask(netns, &Request::Status) {
            // It hangs up on what it does not understand, and answers what it does.
            Ok(Some(_)) => ask(netns, &Request::Down).map(|_| None),
            Ok(None) => Ok(None),
            Err(_) => Err(error),
        },
    }
}

/// Has the predecessor end, by a connection to it, and waits until it has detached all.
///
/// # Errors
/// When it does not answer or end.
pub fn hand_over(predecessor: &UnixStream) -> anyhow::Result<()> {
    control::ask_to_end::<Status>(WHO, predecessor, &Request::HandOver.line()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_are_written() {
        for request in [
            Request::Status,
            Request::Add("vxlan0".into()),
            Request::AddAll,
            Request::Remove("vxlan0".into()),
            Request::Programs,
            Request::HandOver,
            Request::Down,
        ] {
            assert_eq!(Request::parse(&request.line()), Some(request));
        }
        for wrong in ["", "\n", "add", "add a b", "status vxlan0", "halt"] {
            assert_eq!(Request::parse(wrong), None, "{wrong:?}");
        }
    }
}
