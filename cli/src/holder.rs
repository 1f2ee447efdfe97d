//! Standing testbeds: a holder process each, found by an abstract Unix socket.
//!
//! An abstract socket has no file: like the testbed itself it is gone with the
//! holder, however that ends. Its name carries the user's id, and the holder
//! answers that user and root only.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};

use crate::exit::usage;

/// How long a holder may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

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
    /// Process id of the first process of the testbed's programs, if it has any.
    pub init: Option<u32>,
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

fn user() -> u32 {
    nix::unistd::getuid().as_raw()
}

fn prefix(user: u32) -> String {
    format!("overlane/{user}/")
}

fn address(user: u32, name: &str) -> anyhow::Result<SocketAddr> {
    SocketAddr::from_abstract_name(prefix(user) + name).context("name of the holder's socket")
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
    UnixListener::bind_addr(&address(user, name)?).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow!("a testbed named {name} is standing already"),
        _ => anyhow!("socket of testbed {name}: {error}"),
    })
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
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let peer = getsockopt(stream, PeerCredentials)?.uid();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    // In a user namespace the same user appears as 0, this process's own id.
    if peer != user && peer != 0 && peer != self::user() {
        bail!("user {peer} may not ask");
    }
    let request = match line.trim() {
        "status" => Request::Status,
        "down" => Request::Down,
        other => bail!("unknown request {other:?}"),
    };
    let mut stream = stream;
    stream.write_all((serde_json::to_string(standing)? + "\n").as_bytes())?;
    Ok(request)
}

/// Asks the holder of a testbed of this user.
///
/// # Errors
/// When there is none of that name, or it does not answer.
pub fn ask(name: &str, request: Request) -> anyhow::Result<Standing> {
    let stream = UnixStream::connect_addr(&address(user(), name)?).map_err(|_| {
        usage("testbed", format!("none named {name:?} is standing (overlane lab status)"))
    })?;
    // Anyone may bind any abstract name, and what the answer says is entered.
    let owner = getsockopt(&stream, PeerCredentials)?.uid();
    if owner != user() {
        bail!("the socket of testbed {name} belongs to user {owner}");
    }
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    (&stream).write_all(format!("{}\n", request.word()).as_bytes())?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line).with_context(|| format!("testbed {name} does not answer"))?;
    let standing =
        serde_json::from_str(&line).with_context(|| format!("testbed {name} answered {line:?}"))?;
    if request == Request::Down {
        // The holder closes the connection by ending: then all of it is gone.
        let _ = reader.read_line(&mut String::new());
    }
    Ok(standing)
}

/// Every testbed of this user.
///
/// # Errors
/// When the kernel's list of sockets cannot be read.
pub fn all() -> anyhow::Result<Vec<Standing>> {
    let table =
        std::fs::read_to_string("/proc/self/net/unix").context("read /proc/self/net/unix")?;
    // An abstract name is printed with an @ for its leading NUL byte.
    let marker = format!("@{}", prefix(user()));
    let mut names: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_once(&marker).map(|(_, name)| name.trim()))
        .collect();
    names.sort_unstable();
    names.dedup();
    // One may go down while it is asked: then it is not standing.
    Ok(names.into_iter().filter_map(|name| ask(name, Request::Status).ok()).collect())
}
