//! How a process of ours in the background is found and asked: by an abstract Unix
//! socket, which has no file and is gone with its process, however that ends. A
//! line is asked, a line of JSON answered.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long either side may take.
const LIMIT: Duration = Duration::from_secs(5);

fn address(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

/// This process's user.
pub fn user() -> u32 {
    nix::unistd::getuid().as_raw()
}

/// Claims a name; `taken` says what it means that another process has it.
///
/// # Errors
/// `taken`, or whatever else the kernel says.
pub fn claim(name: &str, taken: &str) -> anyhow::Result<UnixListener> {
    let listener = address(name).and_then(|address| UnixListener::bind_addr(&address));
    listener.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!("{taken}"),
        _ => anyhow::anyhow!("socket {name}: {error}"),
    })
}

fn peer(stream: &UnixStream) -> anyhow::Result<u32> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

/// Reads what is asked by root or one of `users`.
///
/// # Errors
/// When somebody else asks, or too slowly.
pub fn read(stream: &UnixStream, users: &[u32]) -> anyhow::Result<String> {
    let peer = peer(stream)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if peer != 0 && !users.contains(&peer) {
        bail!("user {peer} may not ask");
    }
    Ok(line)
}

/// Answers it.
///
/// # Errors
/// When the asker is gone, or too slow.
pub fn answer(mut stream: &UnixStream, answer: &impl Serialize) -> anyhow::Result<()> {
    Ok(stream.write_all((serde_json::to_string(answer)? + "\n").as_bytes())?)
}

/// What follows `prefix` in the names claimed in this network namespace.
///
/// # Errors
/// When the kernel's list of sockets cannot be read.
pub fn names(prefix: &str) -> anyhow::Result<BTreeSet<String>> {
    let table =
        std::fs::read_to_string("/proc/self/net/unix").context("read /proc/self/net/unix")?;
    // An abstract name is printed with an @ for its leading NUL byte.
    let marker = format!("@{prefix}");
    let names = table.lines().filter_map(|line| line.split_once(&marker));
    Ok(names.map(|(_, name)| name.trim().to_owned()).collect())
}

/// Asks the process that has this name and belongs to one of `owners`; `None` where
/// there is none. `who` it is, for errors. With `until_closed` it waits until the
/// process has closed the connection: when it ends, by ending.
///
/// # Errors
/// When it does not answer, or is another user's.
pub fn ask<T: DeserializeOwned>(
    who: &str,
    name: &str,
    owners: &[u32],
    request: &str,
    until_closed: bool,
) -> anyhow::Result<Option<T>> {
    let stream = match address(name).and_then(|address| UnixStream::connect_addr(&address)) {
        Ok(stream) => stream,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("socket of {who}")),
    };
    // Anyone may bind any abstract name.
    let owner = peer(&stream)?;
    if !owners.contains(&owner) {
        bail!("the socket of {who} belongs to user {owner}");
    }
    (&stream).write_all(format!("{request}\n").as_bytes())?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line).with_context(|| format!("{who} does not answer"))?;
    let answer = serde_json::from_str(&line).with_context(|| format!("{who} answered {line:?}"))?;
    if until_closed {
        let _ = reader.read_line(&mut String::new());
    }
    Ok(Some(answer))
}
