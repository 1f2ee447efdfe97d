//! A routing netlink socket of one network namespace.
//!
//! The socket belongs to the namespace of the thread that opened it, for good:
//! its user may be anywhere.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Mutex;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
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
        /// On what (`vx0`).
        object: String,
        /// The answer.
        errno: Errno,
    },
    /// An answer that could not be understood.
    #[error("{operation} {object}: expected {expected}, got {got}")]
    Answer {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        object: String,
        /// What was expected.
        expected: &'static str,
        /// What came.
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
        self.exchange(message, NLM_F_REQUEST | NLM_F_ACK | flags, operation, object, |_| {})
    }

    /// Sends a dump request and hands every answer to `each`.
    pub(crate) fn dump(
        &self,
        message: RouteNetlinkMessage,
        operation: &'static str,
        object: &str,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<()> {
        self.exchange(message, NLM_F_REQUEST | NLM_F_DUMP, operation, object, each)
    }

    /// Sends a request for one object and hands the answer to `each`.
    pub(crate) fn get(
        &self,
        message: RouteNetlinkMessage,
        operation: &'static str,
        object: &str,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<()> {
        self.exchange(message, NLM_F_REQUEST | NLM_F_ACK, operation, object, each)
    }

    fn exchange(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        operation: &'static str,
        object: &str,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<()> {
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
            let mut offset = 0;
            while offset + 16 <= buffer.len() {
                let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&buffer[offset..])
                    .map_err(|e| Error::Answer {
                        operation,
                        object: object.to_owned(),
                        expected: "a netlink message",
                        got: e.to_string(),
                    })?;
                let step = (answer.header.length as usize).next_multiple_of(4);
                let ours = answer.header.sequence_number == sequence;
                offset += step.max(16);
                if !ours {
                    continue;
                }
                match answer.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(()),
                            Some(code) => Err(Error::Kernel {
                                operation,
                                object: object.to_owned(),
                                errno: Errno::from_raw(code.get().abs()),
                            }),
                        };
                    }
                    NetlinkPayload::InnerMessage(message) => each(message),
                    _ => {}
                }
            }
        }
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
