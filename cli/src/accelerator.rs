//! A running `overlane accel`, found by an abstract Unix socket.
//!
//! Its name carries the inode of the network namespace that is served: there is one
//! for each. It answers its own user and root only.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};

use accel::{Accel, Status, Wanted};
use anyhow::{Context, anyhow};

use crate::control::{self, user};

/// What is asked, a line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Only the status.
    Status,
    /// Accelerate this device too.
    Add(String),
    /// Accelerate every device.
    AddAll,
    /// Give this one back.
    Remove(String),
    /// End.
    Down,
}

impl Request {
    fn line(&self) -> String {
        match self {
            Request::Status => "status".to_owned(),
            Request::Add(device) => format!("add {device}"),
            Request::AddAll => "add-all".to_owned(),
            Request::Remove(device) => format!("remove {device}"),
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
            ("down", None) => Request::Down,
            _ => return None,
        };
        words.next().is_none().then_some(request)
    }
}

fn name(netns: u64) -> String {
    format!("overlane-accel/{netns}")
}

/// Claims a namespace.
///
/// # Errors
/// When it is served already.
pub fn claim(netns: u64) -> anyhow::Result<UnixListener> {
    let taken = format!("network namespace {netns} is accelerated already (overlane accel status)");
    let listener = control::claim(&name(netns), &taken)?;
    listener.set_nonblocking(true).context("socket of the accelerator")?;
    Ok(listener)
}

/// Answers who is waiting. Gives the connection of who asked for the end, and
/// waits for it; `wanted` follows what is asked.
///
/// # Errors
/// When the socket fails.
pub fn serve(
    listener: &UnixListener,
    accel: &Accel,
    wanted: &mut Wanted,
) -> anyhow::Result<Option<UnixStream>> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("socket of the accelerator"),
        };
        // One that is slow or gone must not keep the others waiting.
        if let Ok(true) = answer(&stream, accel, wanted) {
            return Ok(Some(stream));
        }
    }
}

fn answer(stream: &UnixStream, accel: &Accel, wanted: &mut Wanted) -> anyhow::Result<bool> {
    stream.set_nonblocking(false)?;
    let line = control::read(stream, &[user()])?;
    let request = Request::parse(&line).ok_or_else(|| anyhow!("unknown request {line:?}"))?;
    let mut down = request == Request::Down;
    let before = wanted.clone();
    match (request, &mut *wanted) {
        (Request::AddAll, wanted) => *wanted = Wanted::All,
        (Request::Add(device), Wanted::Named(names)) => drop(names.insert(device)),
        (Request::Remove(device), Wanted::Named(names)) => {
            names.remove(&device);
            down = names.is_empty();
        }
        (Request::Remove(device), Wanted::All) => {
            let others = accel.status().devices.into_iter().map(|other| other.device);
            let names: BTreeSet<String> = others.filter(|other| *other != device).collect();
            down = names.is_empty();
            *wanted = Wanted::Named(names);
        }
        (Request::Status | Request::Down | Request::Add(_), _) => {}
    }
    if *wanted != before && !down {
        accel.want(wanted.clone())?;
    }
    control::answer(stream, &accel.status())?;
    Ok(down)
}

/// Asks the accelerator of a namespace, and to end waits until all is detached;
/// `None` where there is none.
///
/// # Errors
/// When it does not answer, or is another user's.
pub fn ask(netns: u64, request: &Request) -> anyhow::Result<Option<Status>> {
    let ends = matches!(request, Request::Down | Request::Remove(_));
    control::ask("the accelerator", &name(netns), &[0, user()], &request.line(), ends)
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
            Request::Down,
        ] {
            assert_eq!(Request::parse(&request.line()), Some(request));
        }
        for wrong in ["", "\n", "add", "add a b", "status vxlan0", "halt"] {
            assert_eq!(Request::parse(wrong), None, "{wrong:?}");
        }
    }
}
