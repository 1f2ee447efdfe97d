//! Standing testbeds: a holder process each, found by an abstract Unix socket.
//!
//! Its name carries the user's id, and the holder answers that user and root only.

use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::control::{self, user};
use crate::exit::usage;

/// A standing testbed, as its holder describes it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Standing {
    /// Name of the testbed.
    pub name: String,
    /// Mode.
    pub mode: String,
    /// Offload profile.
    pub offload: String,
    /// Underlay MTU, bytes.
    pub mtu: u32,
    /// Process id of the holder.
    pub pid: u32,
    /// Hosts and tenants.
    pub hosts: Vec<StandingHost>,
    /// Where a server in the server's tenant is reached by the client.
    pub target: String,
    /// Tenant or host that the client side is.
    pub client: String,
    /// Tenant or host that the server side is.
    pub server: String,
    /// What the mode says of itself.
    pub notes: Vec<String>,
}

/// A host or tenant of a standing testbed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StandingHost {
    /// Name.
    pub name: String,
    /// Path of its network namespace, for `nsenter --net=`.
    pub netns: String,
    /// Process id of the first process of its programs, if the mode has any.
    pub init: Option<u32>,
}

/// The requests a holder understands, a line each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Describe the testbed.
    Status,
    /// Remove it.
    Down,
}

impl Request {
    fn word(self) -> &'static str {
        match self {
            Request::Status => "status",
            Request::Down => "down",
        }
    }
}

fn prefix(user: u32) -> String {
    format!("overlane/{user}/")
}

/// Checks a testbed's name.
///
/// # Errors
/// A usage error for one that is empty, long, or not plain.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    if name.is_empty() || name.len() > 40 || !name.chars().all(plain) {
        return Err(usage(
            "--name",
            format!("{name:?}: allowed are 1 to 40 of A-Z a-z 0-9 - _ . +"),
        ));
    }
    Ok(())
}

/// Claims a name for this holder. `user` is the id outside any user namespace.
///
/// # Errors
/// When a testbed of that name stands already.
pub fn claim(user: u32, name: &str) -> anyhow::Result<UnixListener> {
    control::claim(&(prefix(user) + name), &format!("a testbed named {name} is standing already"))
}

/// Answers requests until told to end; gives the connection of who asked for
/// it, who waits for its end.
///
/// # Errors
/// When the socket fails.
pub fn serve(
    listener: &UnixListener,
    user: u32,
    standing: &Standing,
) -> anyhow::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept()?;
        // A client that is slow, or gone, must not keep the testbed from going.
        if let Ok(Request::Down) = answer(&stream, user, standing) {
            return Ok(stream);
        }
    }
}

fn answer(stream: &UnixStream, user: u32, standing: &Standing) -> anyhow::Result<Request> {
    // In a user namespace the same user appears as 0, this process's own id.
    let request = match control::read(stream, &[user, self::user()])?.trim() {
        "status" => Request::Status,
        "down" => Request::Down,
        other => bail!("unknown request {other:?}"),
    };
    control::answer(stream, standing)?;
    Ok(request)
}

/// Asks the holder of a testbed of this user, and to end waits until it is gone.
///
/// # Errors
/// When there is none of that name, or it does not answer.
pub fn ask(name: &str, request: Request) -> anyhow::Result<Standing> {
    let socket = prefix(user()) + name;
    let (who, ends) = (format!("testbed {name}"), request == Request::Down);
    // What the answer says is entered: root's is not taken for this user's.
    control::ask(&who, &socket, &[user()], request.word(), ends)?.ok_or_else(|| {
        usage("testbed", format!("none named {name:?} is standing (overlane lab status)"))
    })
}

/// Every testbed of this user.
///
/// # Errors
/// When the kernel's list of sockets cannot be read.
pub fn all() -> anyhow::Result<Vec<Standing>> {
    // One may go down while it is asked: then it is not standing.
    let names = control::names(&prefix(user()))?;
    Ok(names.iter().filter_map(|name| ask(name, Request::Status).ok()).collect())
}
