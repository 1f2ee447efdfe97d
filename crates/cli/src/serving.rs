//! A thread that answers short requests: `status` and the like, Prometheus.
//!
//! Whoever asks is a stranger until the kernel has said which user it is, and is asked
//! that before a byte is read. A request is short, one deadline is for all of an exchange,
//! and of those who wait at a door the oldest makes room. Nothing here waits for a single
//! client, so one that is silent or slow holds up nobody; signals and packets have threads
//! of their own.

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

/// How long an exchange may take, from the connection to its end.
const LIMIT: Duration = Duration::from_secs(2);
/// Clients at a door at a time.
const MOST: usize = 16;
/// Longest line that asks something, bytes.
const LINE: usize = 512;
/// After an error that a door cannot help (no descriptor is left), bounded work.
const REST: Duration = Duration::from_millis(100);

/// Answer to one request.
pub struct Reply {
    bytes: Vec<u8>,
    /// The process is to end; the connection stays until it has.
    ends: bool,
}

impl Reply {
    /// A line of JSON. With `ends` the process is to end after it.
    ///
    /// # Errors
    /// What cannot be serialised.
    pub fn line(answer: &impl Serialize, ends: bool) -> anyhow::Result<Reply> {
        Ok(Reply { bytes: (serde_json::to_string(answer)? + "\n").into_bytes(), ends })
    }

    /// Bytes as they are.
    pub fn bytes(bytes: Vec<u8>) -> Reply {
        Reply { bytes, ends: false }
    }
}

/// Answers a request, or hangs up.
type Answer = Box<dyn FnMut(&[u8]) -> Option<Reply> + Send>;

/// Socket whose connections are accepted by the thread of [`Serving`].
#[derive(Debug)]
pub enum Listener {
    /// A Unix stream socket, whose peers' user IDs the kernel tells.
    Unix(UnixListener),
    /// At an address and port; anyone on the network may connect.
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

/// A listening socket, and who is answered what.
pub struct Door {
    listener: Listener,
    /// Users who may ask; `None`: anyone who can connect.
    users: Option<Vec<u32>>,
    longest: usize,
    is_whole: fn(&[u8]) -> bool,
    answer: Answer,
}

impl Door {
    /// A socket at which root and `users` ask by a line.
    ///
    /// # Errors
    /// When descriptors have run out.
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
            // Who asks for what there is not is hung up on.
            answer: Box::new(move |line| answer(std::str::from_utf8(line).ok()?.trim()).ok()),
        })
    }

    /// A socket at which anyone asks who can connect.
    pub fn open_to_all(
        listener: Listener,
        longest: usize,
        is_whole: fn(&[u8]) -> bool,
        answer: impl FnMut(&[u8]) -> Option<Reply> + Send + 'static,
    ) -> Door {
        Door { listener, users: None, longest, is_whole, answer: Box::new(answer) }
    }
}

/// The thread. Dropping it ends it.
#[derive(Debug)]
pub struct Serving {
    stop: Option<UnixStream>,
    ended: UnixStream,
    asker: Arc<Mutex<Option<OwnedFd>>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Starts it.
    ///
    /// # Errors
    /// When descriptors or threads have run out.
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
                    // Who waits for this sees the end of the socket anyway.
                    let _ = (&tell).write_all(&[1]);
                }
            })
            .context("start thread serving")?;
        Ok(Serving { stop: Some(stop), ended, asker, thread: Some(thread) })
    }

    /// Becomes readable when somebody has asked for the end.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Ends the thread; gives the connection of who asked for the end of the process, and
    /// waits for it.
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

/// What became of a client.
enum ClientState {
    Waits,
    Gone,
    /// The process is to end.
    Last,
}

struct Room {
    doors: Vec<Door>,
    /// In the order of their arrival: the first is dropped when a door has too many.
    clients: Vec<Client>,
    /// No door is opened before.
    rest: Option<Instant>,
}

impl Room {
    /// Until told to stop, or until a client asks for the end of the process: its connection.
    fn serve(&mut self, stopped: &UnixStream) -> Option<OwnedFd> {
        loop {
            let (ready, doors) = self.wait(stopped)?;
            let now = Instant::now();
            let mut at = 0;
            for ready in ready {
                let outcome = match ready {
                    true => self.go_on(at),
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

    /// Which clients and which doors are ready; `None`: the end.
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
            // No memory is left, for the moment.
            std::thread::sleep(REST);
        }
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        if ready.next() == Some(true) {
            return None;
        }
        let clients = ready.by_ref().take(self.clients.len()).collect();
        Some((clients, ready.collect()))
    }

    /// Lets one in who may ask.
    fn admit(&mut self, at: usize) {
        let door = &self.doors[at];
        let stream = match door.listener.accept() {
            Ok(stream) => stream,
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::ConnectionAborted]
                    .contains(&error.kind()) =>
            {
                return;
            }
            Err(_) => {
                // No descriptor is left: asking at once again would not help.
                self.rest = Some(Instant::now() + REST);
                return;
            }
        };
        if let Some(users) = &door.users {
            let user = getsockopt(&stream, PeerCredentials).map(|peer| peer.uid());
            // Before a byte is read of whoever may not ask.
            if !user.is_ok_and(|user| users.contains(&user)) {
                return;
            }
        }
        let here = self.clients.iter().filter(|client| client.door == at).count();
        if here >= MOST
            && let Some(oldest) = self.clients.iter().position(|client| client.door == at)
        {
            // An honest exchange takes milliseconds: the oldest is the least likely to be one.
            self.clients.remove(oldest);
        }
        let end = Instant::now() + LIMIT;
        let (asked, answer) = (Vec::new(), None);
        self.clients.push(Client { stream, door: at, end, asked, answer, sent: 0 });
    }

    /// Reads or writes what goes without waiting.
    fn go_on(&mut self, at: usize) -> ClientState {
        let client = &mut self.clients[at];
        let door = &mut self.doors[client.door];
        if client.answer.is_none() {
            let mut chunk = [0; 1024];
            let room = (door.longest - client.asked.len()).min(chunk.len());
            match recv(client.stream.as_raw_fd(), &mut chunk[..room], MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return ClientState::Gone,
                Ok(length) => client.asked.extend(&chunk[..length]),
                Err(Errno::EAGAIN | Errno::EINTR) => return ClientState::Waits,
                Err(_) => return ClientState::Gone,
            }
            if (door.is_whole)(&client.asked) {
                client.answer = (door.answer)(&client.asked);
                // What is not understood is not answered.
                if client.answer.is_none() {
                    return ClientState::Gone;
                }
            } else if client.asked.len() >= door.longest {
                return ClientState::Gone;
            }
        }
        let Some(answer) = &client.answer else { return ClientState::Waits };
        let rest = &answer.bytes[client.sent..];
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(client.stream.as_raw_fd(), rest, flags) {
            Ok(length) => client.sent += length,
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            // Who asked for the end and went away has told its user that there was none.
            Err(_) => return ClientState::Gone,
        }
        match (client.sent == answer.bytes.len(), answer.ends) {
            (false, _) => ClientState::Waits,
            (true, false) => ClientState::Gone,
            (true, true) => ClientState::Last,
        }
    }
}
