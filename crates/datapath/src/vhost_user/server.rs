//! The thread that serves a client's requests. It serves one client at a time and never blocks on
//! it.

use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::PollTimeout;
use nix::sys::epoll::{EpollEvent, EpollFlags};
use sys::descriptors::{DESCRIPTORS_MAX, receive};

use super::device::Device;
use super::message::{HEADER, Header, PAYLOAD_MAX};
use super::session::Session;
use crate::Result;
use crate::threads::{Sources, Threads};

/// How long a client may take for its first message, and for the rest of a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long new clients are not accepted after one was disconnected for an error. It limits the log
/// lines of a client that reconnects again and again.
const QUIET: Duration = Duration::from_secs(1);
/// Maximum number of messages of a client before other sources are checked.
const BUDGET: usize = 64;

/// Indices of the sources: the listener and the client.
const LISTENER: usize = 0;
const CLIENT: usize = 1;

/// Starts the thread.
///
/// # Errors
/// If there are no more threads or descriptors.
pub(super) fn spawn(
    threads: &mut Threads,
    device: Arc<Device>,
    listener: UnixListener,
) -> Result<()> {
    let names = [Some((listener.as_fd(), "vhost-user socket")), None];
    let sources = threads.places(&names, Duration::ZERO)?;
    let server = Server { device, listener, sources, client: None, closed: None, refused: false };
    Ok(threads.spawn("vhost-user", move || server.run())?)
}

struct Server {
    device: Arc<Device>,
    listener: UnixListener,
    sources: Sources,
    client: Option<Client>,
    /// Until when no client is accepted.
    closed: Option<Instant>,
    /// Whether the refusal of another client was already reported.
    refused: bool,
}

/// A connected client, and the part of the next message received so far.
struct Client {
    stream: UnixStream,
    session: Session,
    bytes: [u8; HEADER + PAYLOAD_MAX],
    filled: usize,
    descriptors: Vec<OwnedFd>,
    /// Since when the rest of a message is awaited.
    since: Option<Instant>,
}

/// Reason for the end of a connection.
enum ConnectionEnd {
    Closed,
    /// The client is disconnected, with the reason.
    Dismissed(String),
}

impl Server {
    fn run(mut self) -> Result<()> {
        let mut ready = [false; 2];
        while self.sources.wait_for(&mut ready, self.limit())? {
            let now = Instant::now();
            if std::mem::take(&mut ready[CLIENT])
                && let Some(client) = &mut self.client
                && let Err(end) = client.serve(now)
            {
                self.dismiss(end, now)?;
            }
            if let Some(Client { since: Some(since), .. }) = &self.client
                && now.duration_since(*since) >= PATIENCE
            {
                let silent =
                    format!("no data for {} s in the middle of a message", PATIENCE.as_secs());
                self.dismiss(ConnectionEnd::Dismissed(silent), now)?;
            }
            if self.closed.is_some_and(|until| now >= until) {
                self.closed = None;
                self.listen(true)?;
            }
            if std::mem::take(&mut ready[LISTENER]) {
                self.accept(now)?;
            }
        }
        Ok(())
    }

    /// Returns the longest time to wait.
    fn limit(&self) -> PollTimeout {
        let patience = self.client.as_ref().and_then(|client| client.since);
        let ends = [patience.map(|since| since + PATIENCE), self.closed];
        // There is no deadline, so only events wake the thread.
        let Some(next) = ends.into_iter().flatten().min() else { return PollTimeout::NONE };
        sys::wait::at_most(next.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self, now: Instant) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) if self.client.is_none() && self.closed.is_none() => {
                    let event = EpollEvent::new(EpollFlags::EPOLLIN, CLIENT as u64);
                    let watched = self.sources.epoll().add(&stream, event);
                    let watched = watched.map_err(std::io::Error::from);
                    if let Err(error) = watched.and_then(|()| stream.set_nonblocking(true)) {
                        self.device
                            .tell(&format!("cannot watch the connection of a client: {error}"));
                        // The client is served again when it connects again.
                        continue;
                    }
                    // The next refusal is reported again.
                    self.refused = false;
                    let client = Client {
                        stream,
                        session: Session::new(self.device.clone()),
                        bytes: [0; HEADER + PAYLOAD_MAX],
                        filled: 0,
                        descriptors: Vec::with_capacity(DESCRIPTORS_MAX),
                        since: Some(now),
                    };
                    self.client = Some(client);
                }
                // A guest has one process, and so one client.
                Ok(_) if !std::mem::replace(&mut self.refused, true) => {
                    self.device.tell("another client was refused, because one is connected");
                }
                // The first connection is served; it was accepted above.
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    // A signal arrived, or the client gave up before it was accepted.
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.device.tell(&format!("accept: {error}"));
                        return self.close(now);
                    }
                },
            }
        }
    }

    /// Ends the connection of the client.
    fn dismiss(&mut self, end: ConnectionEnd, now: Instant) -> Result<()> {
        // Dropping it ends its session, and discards everything that it set up.
        let Some(client) = self.client.take() else { return Ok(()) };
        let _ = self.sources.epoll().delete(&client.stream);
        drop(client);
        match end {
            ConnectionEnd::Closed => self.device.tell("the client has disconnected"),
            ConnectionEnd::Dismissed(why) => {
                self.device.tell(&format!("the client was disconnected: {why}"));
                self.close(now)?;
            }
        }
        Ok(())
    }

    /// Stops accepting clients for a while.
    fn close(&mut self, now: Instant) -> Result<()> {
        if self.closed.replace(now + QUIET).is_none() {
            self.listen(false)?;
        }
        Ok(())
    }

    fn listen(&self, listen: bool) -> Result<()> {
        let epoll = self.sources.epoll();
        let done = match listen {
            true => {
                epoll.add(&self.listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER as u64))
            }
            false => epoll.delete(&self.listener),
        };
        done.map_err(|e| sys::Error::new("epoll_ctl", "vhost-user socket", e).into())
    }
}

impl Client {
    /// Processes the received messages.
    fn serve(&mut self, now: Instant) -> std::result::Result<(), ConnectionEnd> {
        for _ in 0..BUDGET {
            // Read no further than this message, because descriptors belong to its bytes.
            let wanted = match self.header()? {
                None => HEADER,
                Some(header) if self.filled == HEADER + header.size => {
                    self.message(&header)?;
                    // More than one message may have arrived.
                    continue;
                }
                Some(header) => HEADER + header.size,
            };
            let room = &mut self.bytes[self.filled..wanted];
            match receive(&self.stream, room, &mut self.descriptors) {
                // The connection ended between two messages, as it should.
                Ok(0) if self.filled == 0 => return Err(ConnectionEnd::Closed),
                // Half a message must not be carried out.
                Ok(0) => {
                    return Err(ConnectionEnd::Dismissed(
                        "connection closed in the middle of a message".to_owned(),
                    ));
                }
                Ok(length) => self.filled += length,
                // The rest of the message comes with the next event.
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(ConnectionEnd::Dismissed(format!("recvmsg: {errno}"))),
            }
            // A client must not make this process collect descriptors.
            if self.descriptors.len() > DESCRIPTORS_MAX {
                let count = self.descriptors.len();
                let why = format!("{count} descriptors in a message, expected {DESCRIPTORS_MAX}");
                return Err(ConnectionEnd::Dismissed(why));
            }
            // Single bytes do not extend the time limit of a message.
            self.since.get_or_insert(now);
        }
        Ok(())
    }

    fn header(&self) -> std::result::Result<Option<Header>, ConnectionEnd> {
        let header = self.bytes.first_chunk().filter(|_| self.filled >= HEADER);
        let header = header.map(Header::parse).transpose();
        header.map_err(|error| ConnectionEnd::Dismissed(error.to_string()))
    }

    fn message(&mut self, header: &Header) -> std::result::Result<(), ConnectionEnd> {
        let payload = &self.bytes[HEADER..HEADER + header.size];
        let descriptors = std::mem::take(&mut self.descriptors);
        let answer = self.session.message(header, payload, descriptors);
        let answer = answer.map_err(|error| ConnectionEnd::Dismissed(error.to_string()))?;
        (self.filled, self.since) = (0, None);
        let Some(answer) = answer else { return Ok(()) };
        // It fits into the socket's buffer unless the client does not read its answers.
        match self.stream.write(&answer) {
            Ok(length) if length == answer.len() => Ok(()),
            // Part of the answer did not fit.
            Ok(_) => Err(ConnectionEnd::Dismissed("it does not read answers".to_owned())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(ConnectionEnd::Dismissed("it does not read answers".to_owned()))
            }
            Err(error) => Err(ConnectionEnd::Dismissed(format!("write: {error}"))),
        }
    }
}
