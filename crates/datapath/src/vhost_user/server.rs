//! The thread that serves a client's requests: one client at a time, who is waited for
//! nowhere.

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

/// How long a client may take for the rest of a message, and for its first one.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is let in after a client was sent away: one that comes again and again
/// is told of so often.
const QUIET: Duration = Duration::from_secs(1);
/// Messages of a client before others are looked at.
const BUDGET: usize = 64;

/// The listener, the client.
const LISTENER: usize = 0;
const CLIENT: usize = 1;

/// Starts the thread.
///
/// # Errors
/// When threads or descriptors have run out.
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
    /// Until when nobody is let in.
    closed: Option<Instant>,
    /// Whether it was told that another client was refused.
    refused: bool,
}

/// Who is connected, and what has come of the next message.
struct Client {
    stream: UnixStream,
    session: Session,
    bytes: [u8; HEADER + PAYLOAD_MAX],
    filled: usize,
    descriptors: Vec<OwnedFd>,
    /// Since when the rest of a message is waited for.
    since: Option<Instant>,
}

/// How a client's connection ends.
enum End {
    /// The client has closed it.
    Closed,
    /// It is sent away, and why.
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
                let silent = format!("it was silent for {} s within a message", PATIENCE.as_secs());
                self.dismiss(End::Dismissed(silent), now)?;
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

    /// How long to wait at most.
    fn limit(&self) -> PollTimeout {
        let patience = self.client.as_ref().and_then(|client| client.since);
        let ends = [patience.map(|since| since + PATIENCE), self.closed];
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
                        self.device.tell(&format!("a client cannot be watched: {error}"));
                        continue;
                    }
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
                    self.device.tell("another client was refused: one is connected");
                }
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.device.tell(&format!("accept: {error}"));
                        return self.close(now);
                    }
                },
            }
        }
    }

    /// The client's end.
    fn dismiss(&mut self, end: End, now: Instant) -> Result<()> {
        // Its session, and all that it has set up, goes with it.
        let Some(client) = self.client.take() else { return Ok(()) };
        let _ = self.sources.epoll().delete(&client.stream);
        drop(client);
        match end {
            End::Closed => self.device.tell("the client has gone"),
            End::Dismissed(why) => {
                self.device.tell(&format!("the client was sent away: {why}"));
                self.close(now)?;
            }
        }
        Ok(())
    }

    /// Nobody is let in for a while.
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
    /// Serves what has come.
    fn serve(&mut self, now: Instant) -> std::result::Result<(), End> {
        for _ in 0..BUDGET {
            // No more than belongs to the message: descriptors come with its bytes.
            let wanted = match self.header()? {
                None => HEADER,
                Some(header) if self.filled == HEADER + header.size => {
                    self.message(&header)?;
                    continue;
                }
                Some(header) => HEADER + header.size,
            };
            let room = &mut self.bytes[self.filled..wanted];
            match receive(&self.stream, room, &mut self.descriptors) {
                Ok(0) if self.filled == 0 => return Err(End::Closed),
                Ok(0) => return Err(End::Dismissed("it went within a message".to_owned())),
                Ok(length) => self.filled += length,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(End::Dismissed(format!("recvmsg: {errno}"))),
            }
            if self.descriptors.len() > DESCRIPTORS_MAX {
                let count = self.descriptors.len();
                let why = format!("{count} descriptors in a message: expected {DESCRIPTORS_MAX}");
                return Err(End::Dismissed(why));
            }
            // Byte by byte is no progress.
            self.since.get_or_insert(now);
        }
        Ok(())
    }

    fn header(&self) -> std::result::Result<Option<Header>, End> {
        let header = self.bytes.first_chunk().filter(|_| self.filled >= HEADER);
        let header = header.map(Header::parse).transpose();
        header.map_err(|error| End::Dismissed(error.to_string()))
    }

    fn message(&mut self, header: &Header) -> std::result::Result<(), End> {
        let payload = &self.bytes[HEADER..HEADER + header.size];
        let descriptors = std::mem::take(&mut self.descriptors);
        let answer = self.session.message(header, payload, descriptors);
        let answer = answer.map_err(|error| End::Dismissed(error.to_string()))?;
        (self.filled, self.since) = (0, None);
        let Some(answer) = answer else { return Ok(()) };
        // It fits into the socket's buffer unless the client reads none of them.
        match self.stream.write(&answer) {
            Ok(length) if length == answer.len() => Ok(()),
            Ok(_) => Err(End::Dismissed("it reads no answers".to_owned())),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(End::Dismissed("it reads no answers".to_owned()))
            }
            Err(error) => Err(End::Dismissed(format!("write: {error}"))),
        }
    }
}
