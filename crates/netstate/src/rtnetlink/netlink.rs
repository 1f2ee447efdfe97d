//! A routing netlink socket in a network namespace.
//!
//! The socket stays bound to the namespace of the thread that opened it. Any thread may use it.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use sys::netns::NetNs;

/// A request that the kernel refused, or an answer in another format.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's errno, with operation and object.
    #[error("{operation} {object}: {} ({errno:?})", errno.desc())]
    Kernel {
        /// Operation (`add vxlan`).
        operation: &'static str,
        /// Object of the operation (`vx0`).
        object: String,
        /// Errno of the kernel's answer.
        errno: Errno,
    },
    /// An answer that could not be parsed.
    #[error("{operation} {object}: expected {expected}, got {got}")]
    Answer {
        /// Operation (`list`).
        operation: &'static str,
        /// Object of the operation (`links`).
        object: String,
        /// Expected content.
        expected: &'static str,
        /// Actual content.
        got: String,
    },
    /// A system call outside netlink failed.
    #[error(transparent)]
    Sys(#[from] sys::Error),
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Returns the errno, if the kernel gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Kernel { errno, .. } => Some(*errno),
            Error::Sys(error) => Some(error.errno),
            Error::Answer { .. } => None,
        }
    }
}

/// A netlink socket. Requests are serialised; share it by reference.
pub struct Netlink {
    socket: Mutex<Connection>,
}

struct Connection {
    socket: Socket,
    sequence: u32,
    // Grown to the largest answer and kept: links are dumped twice per sample, which must not cost
    // an allocation per message.
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Netlink")
    }
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// If no file descriptor is available.
    pub fn open() -> Result<Netlink> {
        let failed =
            |error: std::io::Error| Error::Sys(sys::Error::io("socket", "NETLINK_ROUTE", &error));
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind_auto().map_err(failed)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
        Ok(Netlink {
            socket: Mutex::new(Connection {
                socket,
                sequence: 0,
                buffer: Vec::with_capacity(64 << 10),
            }),
        })
    }

    /// Opens a socket in `netns`.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn open_in(netns: &NetNs) -> Result<Netlink> {
        netns.run(Netlink::open)?
    }

    /// Sends a request for a change and waits for the acknowledgement.
    pub(crate) fn change(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        operation: &'static str,
        object: &str,
    ) -> Result<()> {
        self.exchange(message, NLM_F_REQUEST | NLM_F_ACK | flags, operation, object, |_| {})?;
        Ok(())
    }

    /// Sends a dump request and passes every answer to `each`. Repeats a dump that a change has
    /// interrupted, because objects may be missing.
    pub(crate) fn dump(
        &self,
        message: RouteNetlinkMessage,
        operation: &'static str,
        object: &str,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<()> {
        for _ in 0..DUMPS {
            let mut answers = Vec::new();
            let (request, flags) = (message.clone(), NLM_F_REQUEST | NLM_F_DUMP);
            match self.exchange(request, flags, operation, object, |answer| answers.push(answer))? {
                DumpOutcome::Whole => {
                    answers.into_iter().for_each(&mut each);
                    return Ok(());
                }
                DumpOutcome::Interrupted => {}
            }
        }
        Err(interrupted(operation, object))
    }

    /// Sends a request for one object and passes the answer to `each`.
    pub(crate) fn get(
        &self,
        message: RouteNetlinkMessage,
        operation: &'static str,
        object: &str,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<()> {
        self.exchange(message, NLM_F_REQUEST | NLM_F_ACK, operation, object, each)?;
        Ok(())
    }

    fn exchange(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        operation: &'static str,
        object: &str,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<DumpOutcome> {
        // If another thread panicked, at most unread answers remain. The sequence number below
        // skips them.
        let mut state = self.socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.sequence = state.sequence.wrapping_add(1);
        let sequence = state.sequence;
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        request.header.sequence_number = sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        let io = |operation, error: std::io::Error| {
            Error::Sys(sys::Error::io(operation, object, &error))
        };
        state.socket.send(&bytes, 0).map_err(|e| io("netlink send", e))?;
        let mut reader = Reader { sequence, operation, object, interrupted: false, each };
        loop {
            let Connection { socket, buffer, .. } = &mut *state;
            // MSG_PEEK | MSG_TRUNC returns the length of the next datagram.
            buffer.clear();
            let length = socket
                .recv(buffer, libc::MSG_PEEK | libc::MSG_TRUNC)
                .map_err(|e| io("netlink recv", e))?;
            buffer.clear();
            // The next datagram is larger than any before.
            if buffer.capacity() < length {
                buffer.reserve(length);
            }
            socket.recv(buffer, 0).map_err(|e| io("netlink recv", e))?;
            if let Some(outcome) = reader.take(buffer)? {
                return Ok(outcome);
            }
        }
    }
}

/// Attempts at a dump.
pub(crate) const DUMPS: usize = 10;

/// Result of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpOutcome {
    /// All objects, from one moment.
    Whole,
    /// A change interrupted the dump (`NLM_F_DUMP_INTR`): objects may be missing or from different
    /// moments.
    Interrupted,
}

/// Returns the error of a dump that was interrupted every time.
pub(crate) fn interrupted(operation: &'static str, object: &str) -> Error {
    Error::Answer {
        operation,
        object: object.to_owned(),
        expected: "an uninterrupted dump",
        got: format!("changes during each of {DUMPS} attempts"),
    }
}

/// Parses the answers to a request.
struct Reader<'a, E> {
    sequence: u32,
    operation: &'static str,
    object: &'a str,
    interrupted: bool,
    each: E,
}

impl<E: FnMut(RouteNetlinkMessage)> Reader<'_, E> {
    /// Processes the messages of a datagram. `None`: more datagrams follow.
    fn take(&mut self, buffer: &[u8]) -> Result<Option<DumpOutcome>> {
        let refused = |code: i32| Error::Kernel {
            operation: self.operation,
            object: self.object.to_owned(),
            errno: Errno::from_raw(code.saturating_abs()),
        };
        let mut offset = 0;
        while offset + 16 <= buffer.len() {
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&buffer[offset..])
                .map_err(|e| Error::Answer {
                    operation: self.operation,
                    object: self.object.to_owned(),
                    expected: "a netlink message",
                    got: e.to_string(),
                })?;
            let step = (answer.header.length as usize).next_multiple_of(4);
            offset += step.max(16);
            // Answer to an earlier request that was not read to its end.
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            // Any message may have the flag, even the last one.
            self.interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::Done(_) if self.interrupted => {
                    return Ok(Some(DumpOutcome::Interrupted));
                }
                // A dump that ends early carries an errno.
                NetlinkPayload::Done(done) if done.code < 0 => return Err(refused(done.code)),
                NetlinkPayload::Done(_) => return Ok(Some(DumpOutcome::Whole)),
                NetlinkPayload::Error(error) => {
                    return match error.code {
                        None => Ok(Some(DumpOutcome::Whole)),
                        Some(code) => Err(refused(code.get())),
                    };
                }
                NetlinkPayload::InnerMessage(message) => (self.each)(message),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl Netlink {
    /// Returns the id of a namespace in the socket's namespace (`IFLA_LINK_NETNSID` refers to it).
    /// `None`: no id is assigned.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn number_of(&self, netns: &NetNs) -> Result<Option<u32>> {
        let mut message = NsidMessage::default();
        let descriptor = netns.as_fd().as_raw_fd().unsigned_abs();
        message.attributes.push(NsidAttribute::Fd(descriptor));
        self.number(message, &format!("net:[{}]", netns.inode()))
    }

    /// Returns the id that namespace `of` has in namespace `there`. Both arguments are ids in the
    /// socket's namespace. `None`: no id is assigned.
    ///
    /// # Errors
    /// If the kernel refuses, or an id does not exist.
    pub fn number_there(&self, of: u32, there: u32) -> Result<Option<u32>> {
        let mut message = NsidMessage::default();
        message.attributes = vec![
            NsidAttribute::Id(of.cast_signed()),
            NsidAttribute::TargetNsid(there.cast_signed()),
        ];
        self.number(message, &format!("namespace id {of} in id {there}"))
    }

    fn number(&self, message: NsidMessage, object: &str) -> Result<Option<u32>> {
        let mut number = None;
        let request = RouteNetlinkMessage::GetNsId(message);
        self.get(request, "find the id of", object, |answer| {
            if let RouteNetlinkMessage::NewNsId(message) = answer {
                for attribute in message.attributes {
                    if let NsidAttribute::Id(id) = attribute {
                        // NETNSA_NSID_NOT_ASSIGNED is -1.
                        number = u32::try_from(id).ok();
                    }
                }
            }
        })?;
        Ok(number)
    }

    /// Assigns an id to a namespace in the socket's namespace, if it has none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn give_number(&self, netns: &NetNs) -> Result<()> {
        // The kernel refuses a second id.
        if self.number_of(netns)?.is_some() {
            return Ok(());
        }
        let mut message = NsidMessage::default();
        message.attributes = vec![
            NsidAttribute::Fd(netns.as_fd().as_raw_fd().unsigned_abs()),
            // Any id.
            NsidAttribute::Id(-1),
        ];
        let object = format!("net:[{}]", netns.inode());
        self.change(RouteNetlinkMessage::NewNsId(message), 0, "assign an id to", &object)
    }
}

#[cfg(test)]
mod interrupted;
#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;

    use super::*;

    const SEQUENCE: u32 = 7;

    /// Builds a link message with these header flags.
    fn link(index: u32, flags: u16) -> Vec<u8> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let mut message = NetlinkMessage::from(RouteNetlinkMessage::NewLink(message));
        message.header.flags = flags;
        message.header.sequence_number = SEQUENCE;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    /// Builds `NLMSG_DONE` with a status.
    fn done(flags: u16, status: i32) -> Vec<u8> {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(3_u16.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(SEQUENCE.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(status.to_ne_bytes());
        bytes
    }

    /// Returns the outcome of a stream of datagrams, and the links in it.
    fn read(datagrams: &[Vec<u8>]) -> (Result<Option<DumpOutcome>>, Vec<u32>) {
        let mut links = Vec::new();
        let each = |answer| {
            let RouteNetlinkMessage::NewLink(link) = answer else { panic!("{answer:?}") };
            links.push(link.header.index);
        };
        let (operation, object) = ("list", "links");
        let mut reader = Reader { sequence: SEQUENCE, operation, object, interrupted: false, each };
        let mut outcome = Ok(None);
        for datagram in datagrams {
            outcome = reader.take(datagram);
        }
        (outcome, links)
    }

    #[test]
    fn a_dump_that_was_interrupted_says_so_wherever_the_kernel_marks_it() {
        let whole = [link(1, 2), link(2, 2), done(2, 0)];
        let (outcome, links) = read(&whole);
        assert_eq!((outcome.unwrap(), links), (Some(DumpOutcome::Whole), vec![1, 2]));
        let mark = 2 | NLM_F_DUMP_INTR;
        for marked in [
            [link(1, mark), link(2, 2), done(2, 0)],
            [link(1, 2), link(2, mark), done(2, 0)],
            [link(1, 2), link(2, 2), done(mark, 0)],
        ] {
            assert_eq!(read(&marked).0.unwrap(), Some(DumpOutcome::Interrupted));
            let together = [marked.concat()];
            assert_eq!(read(&together).0.unwrap(), Some(DumpOutcome::Interrupted));
        }
        assert_eq!(read(&whole[..2]).0.unwrap(), None);
    }

    #[test]
    fn a_dump_that_ends_with_an_error_is_one() {
        let error = read(&[link(1, 2), done(2, -105)]).0.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOBUFS));
    }
}
