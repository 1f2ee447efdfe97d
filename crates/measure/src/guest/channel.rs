//! Frames of a control channel: a length (4 bytes, little-endian), then JSON.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum size of a message, bytes. A full histogram is smaller.
const LIMIT: usize = 4 << 20;
/// Interval at which waiting checks whether to go on.
const TICK: Duration = Duration::from_millis(100);
/// Time limit for sending a message.
const SEND_LIMIT: Duration = Duration::from_secs(10);

/// Reason why a channel is no longer usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    /// The other end closed it.
    #[error("its control channel is closed")]
    Closed,
    /// No message arrived in time.
    #[error("no message within {0:.1?}")]
    Silent(Duration),
    /// The caller ended the wait.
    #[error("ended")]
    Ended,
    /// A system call failed.
    #[error("control channel: {operation}: {error}")]
    Io { operation: &'static str, error: std::io::Error },
    /// A malformed message.
    #[error("malformed message: {0}")]
    Form(String),
}

/// Reads a message. Blocks without a time limit.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, ChannelError> {
    let mut fill = |buffer: &mut [u8]| match from.read_exact(buffer) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(ChannelError::Closed),
        other => other.map_err(|error| ChannelError::Io { operation: "read", error }),
    };
    let mut head = [0; 4];
    fill(&mut head)?;
    let mut payload = vec![0; length(head)?];
    fill(&mut payload)?;
    parse(&payload)
}

pub(super) fn write(to: &mut impl Write, message: &impl Serialize) -> Result<(), ChannelError> {
    let written = to.write_all(&frame(message)?).and_then(|()| to.flush());
    written.map_err(|error| ChannelError::Io { operation: "write", error })
}

fn frame(message: &impl Serialize) -> Result<Vec<u8>, ChannelError> {
    let payload = serde_json::to_vec(message).map_err(|e| ChannelError::Form(e.to_string()))?;
    let length = u32::try_from(payload.len()).ok().filter(|length| *length as usize <= LIMIT);
    let length = length.ok_or_else(|| ChannelError::Form(format!("{} bytes", payload.len())))?;
    Ok([&length.to_le_bytes()[..], &payload].concat())
}

fn length(head: [u8; 4]) -> Result<usize, ChannelError> {
    let length = u32::from_le_bytes(head) as usize;
    // Check before allocating: the other end is not trusted.
    match length <= LIMIT {
        true => Ok(length),
        false => Err(ChannelError::Form(format!("{length} bytes: at most {LIMIT} are allowed"))),
    }
}

fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ChannelError> {
    serde_json::from_slice(payload).map_err(|error| ChannelError::Form(error.to_string()))
}

/// This machine's end of a channel. The other end may never answer.
#[derive(Debug)]
pub(super) struct Channel(UnixStream);

impl Channel {
    pub fn new(stream: UnixStream) -> Result<Channel, ChannelError> {
        let io = |operation| move |error| ChannelError::Io { operation, error };
        stream.set_nonblocking(false).map_err(io("fcntl"))?;
        stream.set_read_timeout(Some(TICK)).map_err(io("setsockopt(SO_RCVTIMEO)"))?;
        stream.set_write_timeout(Some(SEND_LIMIT)).map_err(io("setsockopt(SO_SNDTIMEO)"))?;
        Ok(Channel(stream))
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        write(&mut self.0, message)
    }

    /// Receives the next message completely before `deadline`, while `alive`.
    pub fn receive<T: DeserializeOwned>(
        &mut self,
        deadline: Instant,
        alive: &dyn Fn() -> bool,
    ) -> Result<T, ChannelError> {
        let begun = Instant::now();
        let mut head = [0; 4];
        self.fill(&mut head, begun, deadline, alive)?;
        let mut payload = vec![0; length(head)?];
        self.fill(&mut payload, begun, deadline, alive)?;
        parse(&payload)
    }

    fn fill(
        &mut self,
        buffer: &mut [u8],
        begun: Instant,
        deadline: Instant,
        alive: &dyn Fn() -> bool,
    ) -> Result<(), ChannelError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read(&mut buffer[filled..]) {
                Ok(0) => return Err(ChannelError::Closed),
                Ok(n) => filled += n,
                // A tick without data: check whether to go on.
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    // The caller ends: a silent guest must not keep it waiting.
                    if !alive() {
                        return Err(ChannelError::Ended);
                    }
                    if Instant::now() >= deadline {
                        return Err(ChannelError::Silent(begun.elapsed()));
                    }
                }
                // The other end closed with unread data.
                Err(e) if e.kind() == ErrorKind::ConnectionReset => {
                    return Err(ChannelError::Closed);
                }
                Err(error) => return Err(ChannelError::Io { operation: "read", error }),
            }
        }
        Ok(())
    }

    /// Returns whether the other end has closed, as far as the kernel knows.
    pub fn is_closed(&self) -> bool {
        use nix::sys::socket::{MsgFlags, recv};
        use std::os::fd::AsRawFd;
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        matches!(recv(self.0.as_raw_fd(), &mut [0], flags), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{FromGuest, ToGuest};
    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel::new(ours).unwrap(), theirs)
    }

    fn received(channel: &mut Channel) -> Result<FromGuest, ChannelError> {
        channel.receive(Instant::now() + Duration::from_secs(60), &|| true)
    }

    #[test]
    fn messages_arrive_in_order() {
        let (mut ours, mut theirs) = pair();
        write(&mut theirs, &FromGuest::Begin).unwrap();
        write(&mut theirs, &FromGuest::Failed("no".to_owned())).unwrap();
        assert_eq!(received(&mut ours).unwrap(), FromGuest::Begin);
        assert_eq!(received(&mut ours).unwrap(), FromGuest::Failed("no".to_owned()));
        ours.send(&ToGuest::Go).unwrap();
        assert_eq!(read::<ToGuest>(&mut theirs).unwrap(), ToGuest::Go);
        assert!(!ours.is_closed());
        drop(theirs);
        assert!(ours.is_closed());
        assert!(matches!(received(&mut ours), Err(ChannelError::Closed)));
    }

    #[test]
    fn invalid_messages_are_refused() {
        for bytes in [&[0xff; 8][..], b"\x02\0\0\0{}", b"\x03\0\0\0\"x\"", b"\x01\0\0\0\xff"] {
            let (mut ours, mut theirs) = pair();
            theirs.write_all(bytes).unwrap();
            assert!(matches!(received(&mut ours), Err(ChannelError::Form(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_wait_ends_at_its_deadline_or_on_request() {
        let (mut ours, mut theirs) = pair();
        theirs.write_all(&[9, 0]).unwrap();
        let silent = ours.receive::<FromGuest>(Instant::now(), &|| true);
        assert!(matches!(silent, Err(ChannelError::Silent(_))));
        let later = Instant::now() + Duration::from_secs(60);
        assert!(matches!(ours.receive::<FromGuest>(later, &|| false), Err(ChannelError::Ended)));
    }
}
