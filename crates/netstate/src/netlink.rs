//! A routing netlink socket of one network namespace.
//!
//! The socket belongs to the namespace of the thread that opened it, for good:
//! its user may be anywhere.

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

/// A request that the kernel refused or answered oddly.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's errno, with what was attempted on what.
    #[error("{operation} {object}: {} ({errno:?})", errno.desc())]
    Kernel {
        /// What was attempted (`add vxlan`).
        operation: &'static str,
        /// The object it was attempted on (`vx0`).
        object: String,
        /// Errno of the kernel's answer.
        errno: Errno,
    },
    /// An answer that could not be understood.
    #[error("{operation} {object}: expected {expected}, got {got}")]
    Answer {
        /// What was attempted (`list`).
        operation: &'static str,
        /// The object it was attempted on (`links`).
        object: String,
        /// What the answer should have had.
        expected: &'static str,
        /// What the answer had.
        got: String,
    },
    /// A system call outside netlink.
    #[error(transparent)]
    Sys(#[from] sys::Error),
}

/// Result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno, where the kernel gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Kernel { errno, .. } => Some(*errno),
            Error::Sys(error) => Some(error.errno),
            Error::Answer { .. } => None,
        }
    }
}

/// The socket. Requests are serialised; clones are not needed: share by reference.
pub struct Netlink {
    socket: Mutex<State>,
}

struct State {
    socket: Socket,
    sequence: u32,
    // Grown to the largest answer and kept: a dump of links is read twice per
    // sample, and must not cost an allocation a message.
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
    /// When descriptors have run out.
    pub fn open() -> Result<Netlink> {
        let failed =
            |error: std::io::Error| Error::Sys(sys::Error::io("socket", "NETLINK_ROUTE", &error));
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind_auto().map_err(failed)?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(failed)?;
        Ok(Netlink {
            socket: Mutex::new(State { socket, sequence: 0, buffer: Vec::with_capacity(64 << 10) }),
        })
    }

    /// Opens a socket in `netns`.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn open_in(netns: &NetNs) -> Result<Netlink> {
        netns.run(Netlink::open)?
    }

    /// Sends a request that changes something and waits for the acknowledgement.
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

    /// Sends a dump request and hands every answer to `each`. A dump that a change has
    /// interrupted may lack objects: it is asked for again.
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
                Outcome::Whole => {
                    answers.into_iter().for_each(&mut each);
                    return Ok(());
                }
                Outcome::Interrupted => {}
            }
        }
        Err(interrupted(operation, object))
    }

    /// Sends a request for one object and hands the answer to `each`.
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
    ) -> Result<Outcome> {
        // A panic of another holder leaves nothing half-done in here but unread
        // answers, which the sequence number below passes over.
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
            let State { socket, buffer, .. } = &mut *state;
            // MSG_PEEK | MSG_TRUNC tells the length of the next datagram.
            buffer.clear();
            let length = socket
                .recv(buffer, libc::MSG_PEEK | libc::MSG_TRUNC)
                .map_err(|e| io("netlink recv", e))?;
            buffer.clear();
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

/// So many times a dump is asked for before it is given up.
pub(crate) const DUMPS: usize = 10;

/// What became of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was told, of one moment.
    Whole,
    /// Something changed meanwhile (`NLM_F_DUMP_INTR`): what was told may not be all, nor of
    /// one moment.
    Interrupted,
}

/// A dump was interrupted each time.
pub(crate) fn interrupted(operation: &'static str, object: &str) -> Error {
    Error::Answer {
        operation,
        object: object.to_owned(),
        expected: "a dump that no change interrupts",
        got: format!("changes during each of {DUMPS} attempts"),
    }
}

/// Reads the answers to a request.
struct Reader<'a, E> {
    sequence: u32,
    operation: &'static str,
    object: &'a str,
    interrupted: bool,
    each: E,
}

impl<E: FnMut(RouteNetlinkMessage)> Reader<'_, E> {
    /// Takes the messages of a datagram; `None`: there are more to come.
    fn take(&mut self, buffer: &[u8]) -> Result<Option<Outcome>> {
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
            // Of an earlier request whose answers were not all read.
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            // Any of them may have it, the last too.
            self.interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::Done(_) if self.interrupted => {
                    return Ok(Some(Outcome::Interrupted));
                }
                // A dump that ends early says why.
                NetlinkPayload::Done(done) if done.code < 0 => return Err(refused(done.code)),
                NetlinkPayload::Done(_) => return Ok(Some(Outcome::Whole)),
                NetlinkPayload::Error(error) => {
                    return match error.code {
                        None => Ok(Some(Outcome::Whole)),
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
    /// The number by which the socket's namespace knows another one
    /// (`IFLA_LINK_NETNSID` refers to it); `None`: it has given it none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn number_of(&self, netns: &NetNs) -> Result<Option<u32>> {
        let mut message = NsidMessage::default();
        let descriptor = netns.as_fd().as_raw_fd().unsigned_abs();
        message.attributes.push(NsidAttribute::Fd(descriptor));
        self.number(message, &format!("net:[{}]", netns.inode()))
    }

    /// The number that the namespace with number `there` has given to the one with number
    /// `of`, both as the socket's namespace numbers them; `None`: none.
    ///
    /// # Errors
    /// When the kernel refuses, or there are no such numbers.
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
        self.get(request, "find number of", object, |answer| {
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

    /// Gives another namespace a number in the socket's own, where it has none.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn give_number(&self, netns: &NetNs) -> Result<()> {
        if self.number_of(netns)?.is_some() {
            return Ok(());
        }
        let mut message = NsidMessage::default();
        message.attributes = vec![
            NsidAttribute::Fd(netns.as_fd().as_raw_fd().unsigned_abs()),
            // Any.
            NsidAttribute::Id(-1),
        ];
        let object = format!("net:[{}]", netns.inode());
        self.change(RouteNetlinkMessage::NewNsId(message), 0, "give a number to", &object)
    }
}

#[cfg(test)]
mod interrupted;
#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;

    use super::*;

    const SEQUENCE: u32 = 7;

    /// A link's message, with these flags of its header.
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

    /// `NLMSG_DONE` with a status.
    fn done(flags: u16, status: i32) -> Vec<u8> {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(3_u16.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(SEQUENCE.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(status.to_ne_bytes());
        bytes
    }

    /// The outcome of a stream of datagrams, and the links that it told.
    fn read(datagrams: &[Vec<u8>]) -> (Result<Option<Outcome>>, Vec<u32>) {
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
        assert_eq!((outcome.unwrap(), links), (Some(Outcome::Whole), vec![1, 2]));
        let mark = 2 | NLM_F_DUMP_INTR;
        for marked in [
            [link(1, mark), link(2, 2), done(2, 0)],
            [link(1, 2), link(2, mark), done(2, 0)],
            [link(1, 2), link(2, 2), done(mark, 0)],
        ] {
            assert_eq!(read(&marked).0.unwrap(), Some(Outcome::Interrupted));
            let together = [marked.concat()];
            assert_eq!(read(&together).0.unwrap(), Some(Outcome::Interrupted));
        }
        assert_eq!(read(&whole[..2]).0.unwrap(), None);
    }

    #[test]
    fn a_dump_that_ends_with_an_error_is_one() {
        let error = read(&[link(1, 2), done(2, -105)]).0.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOBUFS));
    }
}
