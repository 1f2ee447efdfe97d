//! A running `overlane accel`, found by an abstract Unix socket.
//!
//! Like the fast path itself the socket is gone with its process, however that
//! ends. Its name carries the inode of the network namespace that is served:
//! there is one for each. It answers its own user and root only.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use accel::{Accel, Status, Wanted};
use anyhow::{Context, anyhow, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// How long either side may take.
const LIMIT: Duration = Duration::from_secs(5);

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
            Request::Status => "status\n".to_owned(),
            Request::Add(device) => format!("add {device}\n"),
            Request::AddAll => "add-all\n".to_owned(),
            Request::Remove(device) => format!("remove {device}\n"),
            Request::Down => "down\n".to_owned(),
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

fn address(netns: u64) -> anyhow::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("overlane-accel/{netns}"))
        .context("name of the accelerator's socket")
}

/// Claims a namespace.
///
/// # Errors
/// When it is served already.
pub fn claim(netns: u64) -> anyhow::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&address(netns)?).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => {
            anyhow!("network namespace {netns} is accelerated already (overlane accel status)")
        }
        _ => anyhow!("socket of the accelerator: {e}"),
    })?;
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
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let peer = getsockopt(stream, PeerCredentials)?.uid();
    if peer != 0 && peer != nix::unistd::getuid().as_raw() {
        bail!("user {peer} may not ask");
    }
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
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
    let mut stream = stream;
    stream.write_all((serde_json::to_string(&accel.status())? + "\n").as_bytes())?;
    Ok(down)
}

/// Asks the accelerator of a namespace; `None` where there is none.
///
/// # Errors
/// When it does not answer, or is another user's.
pub fn ask(netns: u64, request: &Request) -> anyhow::Result<Option<Status>> {
    let stream = match UnixStream::connect_addr(&address(netns)?) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error).context("socket of the accelerator"),
    };
    // Anyone may bind any abstract name.
    let owner = getsockopt(&stream, PeerCredentials)?.uid();
    if owner != 0 && owner != nix::unistd::getuid().as_raw() {
        bail!("the accelerator's socket belongs to user {owner}");
    }
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    (&stream).write_all(request.line().as_bytes())?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line).context("the accelerator does not answer")?;
    let status = serde_json::from_str(&line)
        .with_context(|| format!("the accelerator answered {line:?}"))?;
    if matches!(request, Request::Down | Request::Remove(_)) {
        // Where it ends, it closes the connection when everything is detached;
        // else at once.
        let _ = reader.read_line(&mut String::new());
    }
    Ok(Some(status))
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
