//! Control sockets of background processes: Unix sockets in a directory that only their user may
//! enter ([`sys::runtime_dir`]). A request is one line, the answer one line of JSON.
//!
//! The socket file stays behind when its process is killed, or when confinement forbids removing
//! it. The next process that claims a name or sends a request removes such files. The lock of the
//! directory protects all of this, so that only one of two concurrent starts gets the name.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, getsockopt, listen, socket,
};
use serde::de::DeserializeOwned;
use sys::netns::NetNs;
use sys::runtime_dir::RuntimeDir;

/// Time limit of an exchange.
const LIMIT: Duration = Duration::from_secs(5);
/// Time limit for an answer if the process closes connections without one.
const ANSWERED: Duration = Duration::from_secs(30);
/// Time limit for a process to exit after it has confirmed the request.
const ENDING: Duration = Duration::from_secs(60);
/// Time limit for the lock of the directory.
const LOCKED: Duration = Duration::from_secs(2);
/// Time between two attempts to connect to a full queue.
const TICK: Duration = Duration::from_millis(10);
/// Length of the accept queue.
const WAITING: i32 = 64;
/// Maximum length of an answer, in bytes.
const LONGEST: u64 = 64 << 20;
/// Suffix of socket names.
const SUFFIX: &str = ".sock";

/// Returns the real user ID of this process (getuid(2)).
pub fn user() -> u32 {
    nix::unistd::getuid().as_raw()
}

/// Returns the name of a network namespace for socket names: its cookie, which is unique until the
/// next reboot. Kernels before 5.14 have no cookies; the inode number replaces them.
pub fn name_of(netns: &NetNs) -> sys::Result<String> {
    Ok(match netns.cookie()? {
        Some(cookie) => cookie.to_string(),
        None => format!("inode-{}", netns.inode()),
    })
}

/// A claimed name and its socket.
#[derive(Debug)]
pub struct Claim {
    /// Listens on the claimed name.
    pub listener: UnixListener,
    directory: RuntimeDir,
    file: String,
}

impl Claim {
    /// Releases the name. A process that may not remove files drops the claim instead.
    pub fn give_back(self) {
        // Under the lock, so that no other process claims the name before the file is removed. On
        // failure, the next process removes the file.
        let _lock = self.directory.lock(LOCKED);
        let _ = self.directory.remove(&self.file);
    }
}

/// Claims a name.
///
/// # Errors
/// `taken` if another process has the name; an unsafe directory; other errors of the kernel.
pub fn claim(name: &str, taken: &str) -> anyhow::Result<Claim> {
    let directory = RuntimeDir::open()?;
    let file = file_of(name);
    let lock = directory.lock(LOCKED)?.with_context(|| {
        format!("lock {}: another process holds the lock", directory.path().display())
    })?;
    if is_alive(&directory, &file)? {
        bail!("{taken}");
    }
    tidy(&directory);
    directory.remove(&file)?;
    let listener = UnixListener::bind(directory.place(&file))
        .with_context(|| format!("socket {}", directory.path().join(&file).display()))?;
    // Enough for all clients that `serving` handles at a time, and some more.
    listen(&listener, Backlog::new(WAITING)?)?;
    drop(lock);
    Ok(Claim { listener, directory, file })
}

impl Claim {
    /// Duplicates the directory, for the process that renames the socket at a takeover.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn directory(&self) -> sys::Result<RuntimeDir> {
        self.directory.try_clone()
    }

    /// Returns the name of the socket file.
    pub fn file(&self) -> &str {
        &self.file
    }
}

/// Takes over the name of another process, under the lock of the directory. Returns a connection
/// to that process, which can no longer be found by name. `None` if it was not listening.
///
/// # Errors
/// If the directory cannot be locked, or the file cannot be renamed.
pub fn take_name(
    directory: &RuntimeDir,
    from: &str,
    name: &str,
) -> anyhow::Result<Option<UnixStream>> {
    let _lock = directory.lock(LOCKED)?.with_context(|| {
        format!("lock {}: another process holds the lock", directory.path().display())
    })?;
    // Without a predecessor nothing is connected: the name is free.
    let predecessor = try_connect(directory, &file_of(name)).ok();
    directory.rename(from, &file_of(name))?;
    Ok(predecessor)
}

fn file_of(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// Removes leftover socket files, unless another process holds the lock.
fn tidy_up(directory: &RuntimeDir) {
    if let Ok(Some(_lock)) = directory.lock(Duration::ZERO) {
        tidy(directory);
    }
}

/// Removes socket files without a listener. The caller holds the lock of the directory.
fn tidy(directory: &RuntimeDir) {
    for name in directory.names().unwrap_or_default() {
        if name.ends_with(SUFFIX) && is_alive(directory, &name).is_ok_and(|alive| !alive) {
            // Ignore errors: leftovers are harmless.
            let _ = directory.remove(&name);
        }
    }
}

/// Returns whether a process listens on a name, even if its queue is full.
fn is_alive(directory: &RuntimeDir, file: &str) -> anyhow::Result<bool> {
    match try_connect(directory, file) {
        // EAGAIN means a full accept queue, so a process listens.
        Ok(_) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("socket {file}")),
    }
}

/// Connects without waiting.
fn try_connect(directory: &RuntimeDir, file: &str) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(&directory.place(file))?)?;
    Ok(socket.into())
}

/// Returns the claimed names that start with `prefix`, without the prefix. Removes leftovers of
/// killed processes.
///
/// # Errors
/// If the directory is unsafe or cannot be read.
pub fn names(prefix: &str) -> anyhow::Result<BTreeSet<String>> {
    // Without the directory, no process has ever claimed a name.
    let Some(directory) = RuntimeDir::find()? else { return Ok(BTreeSet::new()) };
    tidy_up(&directory);
    let names = directory.names()?;
    let names = names.iter().filter_map(|name| name.strip_suffix(SUFFIX)?.strip_prefix(prefix));
    Ok(names.map(str::to_owned).collect())
}

/// Which users' processes are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Only the caller's, because the caller acts on the answer.
    Own,
    /// Also root's, and those of a service whose directory root has configured.
    Daemons,
}

/// Sends a request to the process with this name. Returns `None` if there is none. `who` names the
/// process in errors. With `until_closed`, waits until the process closes the connection, which it
/// does when it exits.
///
/// # Errors
/// If the process does not answer in time, or belongs to another user.
pub fn ask<T: DeserializeOwned>(
    who: &str,
    name: &str,
    of: Of,
    request: &str,
    until_closed: bool,
) -> anyhow::Result<Option<T>> {
    // Without a directory no process has ever served here.
    let Some(directory) = RuntimeDir::find()? else { return Ok(None) };
    let file = file_of(name);
    let until = Instant::now() + ANSWERED;
    let answer = loop {
        let Some((stream, owner)) = connect_to(who, &directory, &file, of)? else {
            tidy_up(&directory);
            return Ok(None);
        };
        match exchange(who, &stream, Instant::now() + LIMIT, request, until_closed) {
            Ok(Some(answer)) => break answer,
            // Processes answer their own user and root.
            Ok(None) if ![owner, 0].contains(&user()) => {
                bail!("{who} belongs to user {owner} and does not answer user {}", user())
            }
            // The process closes the connection if it has too many clients, or has not yet followed
            // the request. Requests can be repeated.
            Ok(None) if Instant::now() < until => std::thread::sleep(TICK),
            Ok(None) => {
                bail!("{who} closed each connection without an answer to {request:?}")
            }
            // The process may have exited during the exchange: check whether it still listens.
            Err(error) => match is_alive(&directory, &file) {
                Ok(false) => {
                    tidy_up(&directory);
                    return Ok(None);
                }
                _ => return Err(error),
            },
        }
    };
    if until_closed {
        tidy_up(&directory);
    }
    Ok(Some(answer))
}

/// Connects to the process that listens on a name. Returns the connection and the user of the
/// process, or `None` if there is none.
///
/// # Errors
/// If its queue stays full, or it belongs to a user who is not trusted.
fn connect_to(
    who: &str,
    directory: &RuntimeDir,
    file: &str,
    of: Of,
) -> anyhow::Result<Option<(UnixStream, u32)>> {
    let end = Instant::now() + LIMIT;
    let stream = loop {
        match try_connect(directory, file) {
            Ok(stream) => break stream,
            // A socket file without a listener is left over from a killed process.
            Err(Errno::ECONNREFUSED | Errno::ENOENT) => return Ok(None),
            // connect(2) does not wait on a full queue of a non-blocking Unix socket.
            Err(Errno::EAGAIN) if Instant::now() < end => std::thread::sleep(TICK),
            Err(Errno::EAGAIN) => bail!("{who} does not answer: its queue stays full"),
            Err(error) => return Err(error).with_context(|| format!("socket of {who}")),
        }
    };
    let owner = getsockopt(&stream, PeerCredentials)?.uid();
    let is_daemon = || owner == 0 || owner == directory.owner();
    // Another user could create a socket with this name and send false answers.
    if owner != user() && !(of == Of::Daemons && is_daemon()) {
        bail!("the socket of {who} belongs to user {owner}");
    }
    Ok(Some((stream, owner)))
}

/// Sends a request over a connection and reads the answer. With `until_closed`, also waits until
/// the process closes the connection. Returns `None` if it closes the connection without an answer.
///
/// # Errors
/// If there is no answer before `end`.
fn exchange<T: DeserializeOwned>(
    who: &str,
    stream: &UnixStream,
    end: Instant,
    request: &str,
    until_closed: bool,
) -> anyhow::Result<Option<T>> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut writer = stream;
    let silent = || format!("{who} does not answer");
    let line = match writer.write_all(format!("{request}\n").as_bytes()) {
        Ok(()) => read_until(stream, end, |bytes| bytes.ends_with(b"\n")),
        Err(error) => Err(error),
    };
    let line = match line {
        Ok(line) if line.is_empty() => return Ok(None),
        // It closed the connection before the request was sent or read.
        Err(error)
            if [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()) =>
        {
            return Ok(None);
        }
        line => line.with_context(silent)?,
    };
    let answer = serde_json::from_slice(&line)
        .with_context(|| format!("{who} answered {:?}", String::from_utf8_lossy(&line)))?;
    if until_closed {
        let end = Instant::now() + ENDING;
        read_until(stream, end, |_| false).with_context(|| format!("{who} has not exited"))?;
    }
    Ok(Some(answer))
}

/// Sends a request over an existing connection, and waits until it is closed.
///
/// # Errors
/// If there is no answer, or the connection stays open.
pub fn ask_to_end<T: DeserializeOwned>(
    who: &str,
    stream: &UnixStream,
    request: &str,
) -> anyhow::Result<T> {
    exchange(who, stream, Instant::now() + LIMIT, request, true)?
        .with_context(|| format!("{who} closed the connection without an answer to {request:?}"))
}

/// Reads until `is_whole` returns true or the peer closes the connection.
fn read_until(
    mut stream: &UnixStream,
    end: Instant,
    is_whole: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        // The peer may be another user's process, so bound time and memory.
        if left.is_zero() || bytes.len() as u64 > LONGEST {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend(&chunk[..length]),
            // A signal interrupted the call.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The time limit is checked at the beginning of each round.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if is_whole(&bytes) {
            return Ok(bytes);
        }
    }
}
