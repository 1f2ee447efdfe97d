//! A control connection: whole messages, with a time limit for each.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::frame::{Cipher, FrameError, HEAD_BYTES, sealed_length};

/// Interval at which a wait checks whether to go on.
pub const TICK: Duration = Duration::from_millis(100);
/// Longer interval while no event is expected soon: a message after [`QUIET_AFTER`], or a new client.
/// On a busy machine each check takes CPU time from other programs.
pub(crate) const QUIET_TICK: Duration = Duration::from_millis(500);
/// Time after which a wait for a message uses [`QUIET_TICK`].
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Time limit for a message, from its first byte to its last, and for sending one.
pub const MESSAGE_LIMIT: Duration = Duration::from_secs(10);

/// Socket options of a control connection.
pub(crate) const OPTIONS: sys::tcp::SocketOptions =
    sys::tcp::SocketOptions { limit: TICK, nodelay: true, buffer_bytes: None, dscp: None };

/// A control connection after its handshake.
#[derive(Debug)]
pub struct Channel {
    stream: TcpStream,
    cipher: Cipher,
}

/// Reason why a channel is no longer usable.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end closed it.
    #[error("the other end closed the connection")]
    Closed,
    /// No message began within this time.
    #[error("no message within {0:.1?}")]
    Silent(Duration),
    /// A message began and did not end, or the other end did not accept one.
    #[error("a message was incomplete for more than {MESSAGE_LIMIT:.0?}")]
    Slow,
    /// The waiting caller gave up.
    #[error("ended")]
    Ended,
    /// A socket operation failed.
    #[error("{operation}: {error}")]
    Io { operation: &'static str, error: std::io::Error },
    /// A frame was refused.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Sets up a control connection: bounded calls, no Nagle algorithm, and keepalive probes that
/// detect a vanished machine within 30 s.
pub(crate) fn prepare(stream: &TcpStream) -> Result<(), ChannelError> {
    let io = |operation| move |error| ChannelError::Io { operation, error };
    stream.set_nonblocking(false).map_err(io("fcntl"))?;
    stream.set_read_timeout(Some(TICK)).map_err(io("setsockopt(SO_RCVTIMEO)"))?;
    stream.set_write_timeout(Some(TICK)).map_err(io("setsockopt(SO_SNDTIMEO)"))?;
    stream.set_nodelay(true).map_err(io("setsockopt(TCP_NODELAY)"))?;
    let keepalive = || {
        setsockopt(stream, sockopt::KeepAlive, &true)?;
        setsockopt(stream, sockopt::TcpKeepIdle, &10)?;
        setsockopt(stream, sockopt::TcpKeepInterval, &5)?;
        setsockopt(stream, sockopt::TcpKeepCount, &4)
    };
    keepalive()
        .map_err(|e| ChannelError::Io { operation: "setsockopt(SO_KEEPALIVE)", error: e.into() })
}

/// Waits up to `patience`, while `alive`, until data is readable or the other end has closed.
/// A signal to this thread triggers a check at once.
fn begins(
    stream: &TcpStream,
    patience: Duration,
    alive: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    let begun = Instant::now();
    loop {
        // The caller ends: a wait must not keep the program alive.
        if !alive() {
            return Err(ChannelError::Ended);
        }
        let waited = begun.elapsed();
        let left = patience.saturating_sub(waited);
        if left.is_zero() {
            return Err(ChannelError::Silent(patience));
        }
        let tick = if waited < QUIET_AFTER { TICK } else { QUIET_TICK };
        let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, sys::wait::at_most(left.min(tick))) {
            // A tick or a signal: check again.
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => {
                return Err(ChannelError::Io { operation: "poll", error: error.into() });
            }
        }
    }
}

/// Fills the buffer before `deadline`, while `alive`.
pub(crate) fn read_exact(
    mut stream: &TcpStream,
    buffer: &mut [u8],
    deadline: Instant,
    alive: &dyn Fn() -> bool,
) -> Result<(), ChannelError> {
    let mut filled = 0;
    while filled < buffer.len() {
        // The caller ends: a wait must not keep the program alive.
        if !alive() {
            return Err(ChannelError::Ended);
        }
        // A peer that sends byte by byte must not hold the thread.
        if Instant::now() >= deadline {
            return Err(ChannelError::Slow);
        }
        match stream.read(&mut buffer[filled..]) {
            // A frame cut short is not processed.
            Ok(0) => return Err(ChannelError::Closed),
            Ok(n) => filled += n,
            Err(e) if is_a_tick(&e) => {}
            Err(error) => return Err(ChannelError::Io { operation: "recv", error }),
        }
    }
    Ok(())
}

/// Sends all bytes within [`MESSAGE_LIMIT`].
pub(crate) fn write_all(mut stream: &TcpStream, bytes: &[u8]) -> Result<(), ChannelError> {
    let deadline = Instant::now() + MESSAGE_LIMIT;
    let mut written = 0;
    while written < bytes.len() {
        // A peer that does not read must not block this thread either.
        if Instant::now() >= deadline {
            return Err(ChannelError::Slow);
        }
        match stream.write(&bytes[written..]) {
            Ok(n) => written += n,
            // The socket's buffer is full for a tick: check whether to go on.
            Err(e) if is_a_tick(&e) => {}
            Err(error) => return Err(ChannelError::Io { operation: "send", error }),
        }
    }
    Ok(())
}

pub(crate) fn is_a_tick(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Channel {
    pub(crate) fn new(stream: TcpStream, cipher: Cipher) -> Channel {
        Channel { stream, cipher }
    }

    /// Sends a message as one frame, encrypted and authenticated.
    ///
    /// # Errors
    /// [`ChannelError`]. The channel is then unusable.
    pub fn send(&mut self, payload: &[u8]) -> Result<(), ChannelError> {
        let frame = self.cipher.seal(payload)?;
        write_all(&self.stream, &frame)
    }

    /// Receives the next message. Its first byte may take `patience`, the rest [`MESSAGE_LIMIT`].
    ///
    /// # Errors
    /// [`ChannelError`]. The channel is then unusable.
    pub fn receive(
        &mut self,
        patience: Duration,
        alive: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, ChannelError> {
        begins(&self.stream, patience, alive)?;
        let deadline = Instant::now() + MESSAGE_LIMIT;
        let mut head = [0; HEAD_BYTES];
        read_exact(&self.stream, &mut head, deadline, alive)?;
        let length = self.cipher.length(&head)?;
        let mut sealed = vec![0; sealed_length(length)];
        read_exact(&self.stream, &mut sealed, deadline, alive)?;
        Ok(self.cipher.open(length, &sealed)?)
    }

    /// Returns the reason if the other end has closed, as far as the kernel knows.
    pub fn is_gone(&self) -> Option<String> {
        // Unknown for now: the next message will report it.
        if self.stream.set_nonblocking(true).is_err() {
            return None;
        }
        let peeked = self.stream.peek(&mut [0]);
        // A socket that fails here also fails at the next message, which reports the error.
        let _ = self.stream.set_nonblocking(false);
        match peeked {
            Ok(0) => Some(ChannelError::Closed.to_string()),
            Err(error) if !is_a_tick(&error) => Some(error.to_string()),
            // No data, or data that is read later: the connection lives.
            _ => None,
        }
    }

    /// Returns the local address and port of the connection.
    ///
    /// # Errors
    /// Only if the descriptor is not a connected socket.
    pub fn local(&self) -> std::io::Result<std::net::SocketAddr> {
        self.stream.local_addr()
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn pair() -> (Channel, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let channel = |stream: TcpStream, cipher| {
            prepare(&stream).unwrap();
            Channel::new(stream, cipher)
        };
        let ciphers = crate::frame::tests::pair();
        (channel(client, ciphers.0), channel(server, ciphers.1))
    }

    #[test]
    fn a_message_is_received_at_any_time_and_silence_ends_on_request() {
        let (mut client, mut server) = pair();
        let limit = Duration::from_secs(60);
        let looks = AtomicU32::new(0);
        let looking = || {
            looks.fetch_add(1, Ordering::Relaxed);
            true
        };
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Long enough to switch to the longer interval.
                std::thread::sleep(QUIET_AFTER + 2 * QUIET_TICK);
                client.send(b"late").unwrap();
            });
            assert_eq!(server.receive(limit, &looking).unwrap(), b"late");
        });
        let ticks = begun.elapsed().as_millis() / TICK.as_millis();
        let looks = looks.into_inner();
        assert!(u128::from(looks) < ticks, "{looks} looks in {ticks} ticks");
        client.send(b"early").unwrap();
        assert_eq!(server.receive(limit, &|| true).unwrap(), b"early");
        let patience = Duration::from_millis(20);
        let silent = server.receive(patience, &|| true);
        assert!(matches!(silent, Err(ChannelError::Silent(waited)) if waited == patience));
        assert!(matches!(server.receive(limit, &|| false), Err(ChannelError::Ended)));
        drop(client);
        assert!(matches!(server.receive(limit, &|| true), Err(ChannelError::Closed)));
    }
}
