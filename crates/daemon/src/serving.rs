//! A thread that answers short requests: control requests such as `status`, and Prometheus.
//!
//! Clients are untrusted: on control sockets, the kernel reports their user ID before a byte is
//! read. Requests are short, each exchange has one deadline, and when a door has too many clients,
//! the oldest is disconnected. The thread never waits for a single client, so a slow one does not
//! delay the others. Signals and packets have separate threads.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send};
use serde::Serialize;

use crate::control::Claim;

/// Time limit of an exchange, from the connection to its end.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent clients per door.
const MOST: usize = 16;
/// Maximum length of a request line, in bytes.
const LINE: usize = 512;
/// Pause after a temporary error such as EMFILE, so that retries do not use all CPU time.
const REST: Duration = Duration::from_millis(100);

/// Answer to one request.
pub struct Reply {
    bytes: Vec<u8>,
    /// The process must exit. The connection stays open until then.
    ends: bool,
}

impl Reply {
    /// Returns a line of JSON. With `ends`, the process must exit after sending it.
    pub fn line(answer: &impl Serialize, ends: bool) -> anyhow::Result<Reply> {
        Ok(Reply { bytes: (serde_json::to_string(answer)? + "\n").into_bytes(), ends })
    }

    /// Returns an answer of raw bytes.
    pub fn bytes(bytes: Vec<u8>) -> Reply {
        Reply { bytes, ends: false }
    }
}

/// Answers a request. `None` closes the connection.
type Answer = Box<dyn FnMut(&[u8]) -> Option<Reply> + Send>;

/// A socket whose connections the thread of [`Serving`] accepts.
#[derive(Debug)]
pub enum Listener {
    /// A Unix stream socket. The kernel reports the user IDs of its peers.
    Unix(UnixListener),
    /// A TCP socket. Anyone on the network may connect.
    Tcp(TcpListener),
}

impl Listener {
    fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            Listener::Unix(listener) => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> std::io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) => Ok(listener.accept()?.0.into()),
            Listener::Tcp(listener) => Ok(listener.accept()?.0.into()),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// A listening socket with its allowed users and its answers.
pub struct Door {
    listener: Listener,
    /// Allowed users. `None`: everyone who can connect.
    users: Option<Vec<u32>>,
    longest: usize,
    is_whole: fn(&[u8]) -> bool,
    answer: Answer,
}

impl Door {
    /// Creates a door for request lines of root and `users`.
    ///
    /// # Errors
    /// If no descriptors are left.
    pub fn of_lines(
        claim: &Claim,
        users: &[u32],
        mut answer: impl FnMut(&str) -> anyhow::Result<Reply> + Send + 'static,
    ) -> anyhow::Result<Door> {
        let listener = claim.listener.try_clone().context("duplicate the control socket")?;
        let mut users = users.to_vec();
        users.push(0);
        Ok(Door {
            listener: Listener::Unix(listener),
            users: Some(users),
            longest: LINE,
            is_whole: |bytes| bytes.ends_with(b"\n"),
            // Close the connection on an unknown request.
            answer: Box::new(move |line| answer(std::str::from_utf8(line).ok()?.trim()).ok()),
        })
    }

    /// Creates a door for everyone who can connect.
    pub fn open_to_all(
        listener: Listener,
        longest: usize,
        is_whole: fn(&[u8]) -> bool,
        answer: impl FnMut(&[u8]) -> Option<Reply> + Send + 'static,
    ) -> Door {
        Door { listener, users: None, longest, is_whole, answer: Box::new(answer) }
    }
}

/// The serving thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Serving {
    stop: Option<UnixStream>,
    ended: UnixStream,
    asker: Arc<Mutex<Option<OwnedFd>>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no descriptors or threads are left.
    pub fn start(doors: Vec<Door>) -> anyhow::Result<Serving> {
        for door in &doors {
            door.listener.set_nonblocking().context("listening socket")?;
        }
        let (stop, stopped) = UnixStream::pair().context("socket pair")?;
        let (ended, tell) = UnixStream::pair().context("socket pair")?;
        let asker = Arc::new(Mutex::new(None));
        let mut room = Room { doors, clients: Vec::new(), rest: None };
        let theirs = asker.clone();
        let thread = std::thread::Builder::new()
            .name("serving".into())
            .spawn(move || {
                if let Some(last) = room.serve(&stopped) {
                    *theirs.lock().unwrap_or_else(PoisonError::into_inner) = Some(last);
                    // Ignore errors: closing the socket also makes `ended` readable.
                    let _ = (&tell).write_all(&[1]);
                }
            })
            .context("start thread serving")?;
        Ok(Serving { stop: Some(stop), ended, asker, thread: Some(thread) })
    }

    /// Returns a descriptor that becomes readable when a client has requested the exit.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Stops the thread. Returns the connection of the client that requested the exit and waits
    /// for it.
    pub fn stop(mut self) -> Option<OwnedFd> {
        self.finish();
        self.asker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn finish(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.finish();
    }
}

struct Client {
    stream: OwnedFd,
    door: usize,
    end: Instant,
    asked: Vec<u8>,
    answer: Option<Reply>,
    sent: usize,
}

/// State of a client after an event.
enum ClientState {
    Waits,
    Gone,
    /// The client has requested the exit of the process.
    Last,
}

struct Room {
    doors: Vec<Door>,
    /// In order of arrival. If a door has too many clients, its first one is dropped.
    clients: Vec<Client>,
    /// Accept no connections before this time.
    rest: Option<Instant>,
}

impl Room {
    /// Serves until `stopped` or a request to exit. Returns the connection of that request.
    fn serve(&mut self, stopped: &UnixStream) -> Option<OwnedFd> {
        loop {
            let (ready, doors) = self.wait(stopped)?;
            let now = Instant::now();
            let mut at = 0;
            for ready in ready {
                let outcome = match ready {
                    true => self.go_on(at),
                    // The deadline covers the whole exchange, so trickling bytes does not extend
                    // it.
                    false if now >= self.clients[at].end => ClientState::Gone,
                    false => ClientState::Waits,
                };
                match outcome {
                    ClientState::Waits => at += 1,
                    ClientState::Gone => drop(self.clients.remove(at)),
                    ClientState::Last => return Some(self.clients.remove(at).stream),
                }
            }
            for (door, _) in doors.into_iter().enumerate().filter(|(_, ready)| *ready) {
                self.admit(door);
            }
        }
    }

    /// Waits, and returns which clients and doors are ready. `None` means stop.
    fn wait(&mut self, stopped: &UnixStream) -> Option<(Vec<bool>, Vec<bool>)> {
        self.rest = self.rest.filter(|rest| Instant::now() < *rest);
        let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        for client in &self.clients {
            let wanted =
                if client.answer.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            fds.push(PollFd::new(client.stream.as_fd(), wanted));
        }
        if self.rest.is_none() {
            let doors = self.doors.iter();
            fds.extend(doors.map(|door| PollFd::new(door.listener.as_fd(), PollFlags::POLLIN)));
        }
        let first = self.clients.iter().map(|client| client.end).chain(self.rest).min();
        let left = first.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(PollTimeout::NONE, sys::wait::at_most);
        if let Err(error) = poll(&mut fds, timeout)
            && error != Errno::EINTR
        {
            // poll(2) failed, for example with ENOMEM: retry later.
            std::thread::sleep(REST);
        }
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        // The event that ends the thread is ready.
        if ready.next() == Some(true) {
            return None;
        }
        let clients = ready.by_ref().take(self.clients.len()).collect();
        Some((clients, ready.collect()))
    }

    /// Accepts a client if its user is allowed.
    fn admit(&mut self, at: usize) {
        let door = &self.doors[at];
        let stream = match door.listener.accept() {
            Ok(stream) => stream,
            Err(error)
                // The client has gone between poll and accept.
                if [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted]
                    .contains(&error.kind()) =>
            {
                // The client has gone before it was accepted, or descriptors are short: others are
                // served.
                return;
            }
            Err(_) => {
                // No descriptor is left: an immediate retry would fail, too.
                self.rest = Some(Instant::now() + REST);
                return;
            }
        };
        if let Some(users) = &door.users {
            let user = getsockopt(&stream, PeerCredentials).map(|peer| peer.uid());
            // Drop other users' connections before reading a byte from them.
            if !user.is_ok_and(|user| users.contains(&user)) {
                return;
            }
        }
        let here = self.clients.iter().filter(|client| client.door == at).count();
        if here >= MOST
            && let Some(oldest) = self.clients.iter().position(|client| client.door == at)
        {
            // Normal exchanges take milliseconds, so the oldest client is the most suspicious one.
            self.clients.remove(oldest);
        }
        let end = Instant::now() + LIMIT;
        let (asked, answer) = (Vec::new(), None);
        self.clients.push(Client { stream, door: at, end, asked, answer, sent: 0 });
    }

    /// Reads or writes without waiting.
    fn go_on(&mut self, at: usize) -> ClientState {
        let client = &mut self.clients[at];
        let door = &mut self.doors[client.door];
        if client.answer.is_none() {
            let mut chunk = [0; 1024];
            let room = (door.longest - client.asked.len()).min(chunk.len());
            match recv(client.stream.as_raw_fd(), &mut chunk[..room], MsgFlags::MSG_DONTWAIT) {
                // The client has gone without a complete request.
                Ok(0) => return ClientState::Gone,
                Ok(length) => client.asked.extend(&chunk[..length]),
                Err(Errno::EAGAIN | Errno::EINTR) => return ClientState::Waits,
                Err(_) => return ClientState::Gone,
            }
            if (door.is_whole)(&client.asked) {
                client.answer = (door.answer)(&client.asked);
                // No answer means an invalid request.
                if client.answer.is_none() {
                    return ClientState::Gone;
                }
            // A request of this length is still incomplete, so it is too long.
            } else if client.asked.len() >= door.longest {
                return ClientState::Gone;
            }
        }
        // The request is not complete: other clients are served.
        let Some(answer) = &client.answer else { return ClientState::Waits };
        let rest = &answer.bytes[client.sent..];
        // No SIGPIPE if the client has closed its end.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(client.stream.as_raw_fd(), rest, flags) {
            Ok(length) => client.sent += length,
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The client has gone. If it requested the exit, it has reported a failure: do not
            // exit.
            Err(_) => return ClientState::Gone,
        }
        match (client.sent == answer.bytes.len(), answer.ends) {
            (false, _) => ClientState::Waits,
            (true, false) => ClientState::Gone,
            (true, true) => ClientState::Last,
        }
    }
}
