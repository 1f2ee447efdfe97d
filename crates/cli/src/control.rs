//! How a process of ours in the background is found and asked: by a Unix socket in a
//! directory that only its user may enter ([`sys::runtime_dir`]). A line is asked, a line
//! of JSON answered.
//!
//! The file of a socket stays when its process is killed, and where a confined process
//! may not remove it. Nobody listens at it then: whoever claims a name next, or asks,
//! removes such files. All of that happens under the directory's lock, so that of two
//! starters one gets the name.

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

/// How long an exchange may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a process may take to end, once it has said that it will.
const ENDING: Duration = Duration::from_secs(60);
/// How long the directory may be locked by others.
const LOCKED: Duration = Duration::from_secs(2);
/// Between two attempts to connect to a queue that is full.
const TICK: Duration = Duration::from_millis(10);
/// Connections that may wait to be accepted.
const WAITING: i32 = 64;
/// Longest answer, bytes.
const LONGEST: u64 = 64 << 20;
/// What names of sockets end with.
const SUFFIX: &str = ".sock";

/// Real user ID of this process (getuid(2)).
pub fn user() -> u32 {
    nix::unistd::getuid().as_raw()
}

/// How a network namespace is called in names: by its cookie, which no other namespace
/// gets before the machine restarts. Kernels before 5.14 have inodes only.
///
/// # Errors
/// When the namespace cannot be entered.
pub fn name_of(netns: &NetNs) -> sys::Result<String> {
    Ok(match netns.cookie()? {
        Some(cookie) => cookie.to_string(),
        None => format!("inode-{}", netns.inode()),
    })
}

/// A name that was claimed, and the socket that has it.
#[derive(Debug)]
pub struct Claim {
    /// Bound to the claimed name, and listening.
    pub listener: UnixListener,
    directory: RuntimeDir,
    file: String,
}

impl Claim {
    /// Gives the name back. A process that may not remove files drops the claim instead.
    pub fn give_back(self) {
        // Under the lock: nobody else has claimed the name before the file is gone. What
        // cannot be removed is removed by whoever comes next.
        let _lock = self.directory.lock(LOCKED);
        let _ = self.directory.remove(&self.file);
    }
}

/// Claims a name; `taken` says what it means that another process has it.
///
/// # Errors
/// `taken`; a directory that is not safe; whatever else the kernel says.
pub fn claim(name: &str, taken: &str) -> anyhow::Result<Claim> {
    let directory = RuntimeDir::open()?;
    let file = file_of(name);
    let lock = directory.lock(LOCKED)?.with_context(|| {
        format!("lock {}: another process keeps it", directory.path().display())
    })?;
    if is_alive(&directory, &file)? {
        bail!("{taken}");
    }
    tidy(&directory);
    directory.remove(&file)?;
    let listener = UnixListener::bind(directory.place(&file))
        .with_context(|| format!("socket {}", directory.path().join(&file).display()))?;
    // As many as are answered at a time, and some who wait.
    listen(&listener, Backlog::new(WAITING)?)?;
    drop(lock);
    Ok(Claim { listener, directory, file })
}

impl Claim {
    /// The same place under another name, by the process that it is called in: for one that
    /// hands over a name.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn directory(&self) -> sys::Result<RuntimeDir> {
        self.directory.try_clone()
    }

    /// The name of its file.
    pub fn file(&self) -> &str {
        &self.file
    }
}

/// Takes the name that another process has, under the directory's lock. That process is not
/// found any more, but by the connection to it; none where nobody listened there.
///
/// # Errors
/// When the directory cannot be locked, or the file not be renamed.
pub fn take_name(
    directory: &RuntimeDir,
    from: &str,
    name: &str,
) -> anyhow::Result<Option<UnixStream>> {
    let _lock = directory.lock(LOCKED)?.with_context(|| {
        format!("lock {}: another process keeps it", directory.path().display())
    })?;
    let predecessor = try_connect(directory, &file_of(name)).ok();
    directory.rename(from, &file_of(name))?;
    Ok(predecessor)
}

fn file_of(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// Removes what processes have left that were killed, or may not remove files. Not while
/// somebody claims a name.
fn tidy_up(directory: &RuntimeDir) {
    if let Ok(Some(_lock)) = directory.lock(Duration::ZERO) {
        tidy(directory);
    }
}

/// Removes files of sockets at which nobody listens, under the directory's lock.
fn tidy(directory: &RuntimeDir) {
    for name in directory.names().unwrap_or_default() {
        if name.ends_with(SUFFIX) && is_alive(directory, &name).is_ok_and(|alive| !alive) {
            // It is only litter.
            let _ = directory.remove(&name);
        }
    }
}

/// Whether somebody listens at a name, however busy.
fn is_alive(directory: &RuntimeDir, file: &str) -> anyhow::Result<bool> {
    match try_connect(directory, file) {
        Ok(_) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("socket {file}")),
    }
}

/// Connects or says why not, without waiting.
fn try_connect(directory: &RuntimeDir, file: &str) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(&directory.place(file))?)?;
    Ok(socket.into())
}

/// What follows `prefix` in the names that are claimed. Removes what killed processes
/// have left.
///
/// # Errors
/// When the directory is not safe, or cannot be read.
pub fn names(prefix: &str) -> anyhow::Result<BTreeSet<String>> {
    let Some(directory) = RuntimeDir::find()? else { return Ok(BTreeSet::new()) };
    tidy_up(&directory);
    let names = directory.names()?;
    let names = names.iter().filter_map(|name| name.strip_suffix(SUFFIX)?.strip_prefix(prefix));
    Ok(names.map(str::to_owned).collect())
}

/// Whose processes are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The caller's own: what they answer is acted upon.
    Own,
    /// Root's too, and those of a service whose directory root has named.
    Daemons,
}

/// Asks the process that has this name; `None` where
/// there is none. `who` it is, for errors. With `until_closed` it waits until the
/// process has closed the connection: when it ends, by ending.
///
/// # Errors
/// When it does not answer in time, or is another user's.
pub fn ask<T: DeserializeOwned>(
    who: &str,
    name: &str,
    of: Of,
    request: &str,
    until_closed: bool,
) -> anyhow::Result<Option<T>> {
    let end = Instant::now() + LIMIT;
    let Some(directory) = RuntimeDir::find()? else { return Ok(None) };
    let file = file_of(name);
    let stream = loop {
        match try_connect(&directory, &file) {
            Ok(stream) => break stream,
            Err(Errno::ECONNREFUSED | Errno::ENOENT) => {
                tidy_up(&directory);
                return Ok(None);
            }
            Err(Errno::EAGAIN) if Instant::now() < end => std::thread::sleep(TICK),
            Err(Errno::EAGAIN) => bail!("{who} does not answer: its queue stays full"),
            Err(error) => return Err(error).with_context(|| format!("socket of {who}")),
        }
    };
    let owner = getsockopt(&stream, PeerCredentials)?.uid();
    let is_daemon = || owner == 0 || owner == directory.owner();
    if owner != user() && !(of == Of::Daemons && is_daemon()) {
        bail!("the socket of {who} belongs to user {owner}");
    }
    let answer = match exchange(who, &stream, end, request, until_closed) {
        Ok(answer) => answer,
        // It has ended while it was asked, by a kill perhaps: nobody listens there by now.
        Err(error) => match is_alive(&directory, &file) {
            Ok(false) => {
                tidy_up(&directory);
                return Ok(None);
            }
            _ => return Err(error),
        },
    };
    if until_closed {
        tidy_up(&directory);
    }
    Ok(Some(answer))
}

/// Asks by a connection. With `until_closed` it waits until the process has closed it.
///
/// # Errors
/// When it does not answer before `end`.
fn exchange<T: DeserializeOwned>(
    who: &str,
    stream: &UnixStream,
    end: Instant,
    request: &str,
    until_closed: bool,
) -> anyhow::Result<T> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut writer = stream;
    writer.write_all(format!("{request}\n").as_bytes())?;
    let silent = || format!("{who} does not answer");
    let line = read_until(stream, end, |bytes| bytes.ends_with(b"\n")).with_context(silent)?;
    let answer = serde_json::from_slice(&line)
        .with_context(|| format!("{who} answered {:?}", String::from_utf8_lossy(&line)))?;
    if until_closed {
        let end = Instant::now() + ENDING;
        read_until(stream, end, |_| false).with_context(|| format!("{who} has not ended"))?;
    }
    Ok(answer)
}

/// Asks by a connection that is there already, and waits until it is closed.
///
/// # Errors
/// When there is no answer, or no end.
pub fn ask_to_end<T: DeserializeOwned>(
    who: &str,
    stream: &UnixStream,
    request: &str,
) -> anyhow::Result<T> {
    exchange(who, stream, Instant::now() + LIMIT, request, true)
}

/// What comes until it is whole or the other end closes.
fn read_until(
    mut stream: &UnixStream,
    end: Instant,
    is_whole: impl Fn(&[u8]) -> bool,
) -> std::io::Result<Vec<u8>> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() as u64 > LONGEST {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(length) => bytes.extend(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if is_whole(&bytes) {
            return Ok(bytes);
        }
    }
}
