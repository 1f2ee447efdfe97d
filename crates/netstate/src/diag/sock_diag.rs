//! Dumps of sockets by `sock_diag(7)`: the socket, its messages and their errors.

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use crate::dump::NLM_F_DUMP_INTR;
use crate::netlink::DUMPS;
use crate::proc::ParseError;

/// `SOCK_DIAG_BY_FAMILY` of `include/uapi/linux/sock_diag.h`.
pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// A malformed answer, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum SockDiagError {
    /// The kernel refused; `ENOENT` if it lacks the module for this kind of sockets.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// An answer in another format than documented. The line is the message's number in its
    /// datagram.
    #[error(transparent)]
    Parse(Box<ParseError>),
}

impl From<ParseError> for SockDiagError {
    fn from(error: ParseError) -> Self {
        SockDiagError::Parse(Box::new(error))
    }
}

/// Format of the answers about one kind of sockets.
#[derive(Debug)]
pub(super) struct Answers {
    /// Name of the kind in errors of the kernel.
    pub kind: &'static str,
    /// Name of an answer in errors.
    pub object: &'static str,
    /// Name of the struct that an answer begins with.
    pub message: &'static str,
    /// Its length.
    pub bytes: usize,
    /// Its length as text.
    pub expected: &'static str,
}

/// A `sock_diag` socket, bound to the namespace in which it was opened.
#[derive(Debug)]
pub(super) struct SockDiag {
    socket: Socket,
}

/// Processes one answer of a dump.
type Add<T> = fn(usize, &[u8], &mut T) -> std::result::Result<(), ParseError>;

impl SockDiag {
    /// Opens the socket in the calling thread's namespace.
    pub(super) fn open() -> std::result::Result<SockDiag, sys::Error> {
        let error = |operation, e: std::io::Error| sys::Error::io(operation, "sock_diag", &e);
        let mut socket =
            Socket::new(NETLINK_SOCK_DIAG).map_err(|e| error("socket(NETLINK_SOCK_DIAG)", e))?;
        socket.bind_auto().map_err(|e| error("bind", e))?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(|e| error("connect", e))?;
        Ok(SockDiag { socket })
    }

    /// Sends a request for a dump and collects its answers. Repeats a dump that a change has
    /// interrupted. `add` gets the message's number in its datagram and its body, at least
    /// `answers.bytes` long.
    pub(super) fn dump<T: Default>(
        &self,
        answers: &Answers,
        request: &[u8],
        add: Add<T>,
    ) -> std::result::Result<T, SockDiagError> {
        for _ in 0..DUMPS {
            if let Some(whole) = self.dump_once(answers, request, add)? {
                return Ok(whole);
            }
        }
        let operation = "SOCK_DIAG_BY_FAMILY (interrupted)";
        Err(sys::Error::new(operation, answers.kind, Errno::EINTR).into())
    }

    /// Returns `None` if a change has interrupted the dump, so that sockets may be missing.
    fn dump_once<T: Default>(
        &self,
        answers: &Answers,
        request: &[u8],
        add: Add<T>,
    ) -> std::result::Result<Option<T>, SockDiagError> {
        let error = |operation, e: std::io::Error| sys::Error::io(operation, answers.kind, &e);
        self.socket.send(request, 0).map_err(|e| error("send(SOCK_DIAG_BY_FAMILY)", e))?;
        let (mut all, mut interrupted) = (T::default(), false);
        loop {
            let (datagram, _) = self.socket.recv_from_full().map_err(|e| error("recv", e))?;
            interrupted |= is_interrupted(&datagram);
            if parse(answers, &datagram, |number, body| add(number, body, &mut all))? {
                return Ok((!interrupted).then_some(all));
            }
        }
    }
}

/// Builds the `struct nlmsghdr` of a request for a dump, in the machine's byte order. `bytes` is the
/// length of the whole request.
pub(super) fn dump_header(bytes: u32) -> Vec<u8> {
    let mut header = bytes.to_ne_bytes().to_vec();
    header.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    header.extend(((nix::libc::NLM_F_REQUEST | nix::libc::NLM_F_DUMP) as u16).to_ne_bytes());
    // Sequence number and port are not needed: this socket has one request at a time.
    header.extend([0; 8]);
    header
}

/// Whether a message of a datagram has the flag of an interrupted dump.
pub(super) fn is_interrupted(datagram: &[u8]) -> bool {
    let mut rest = datagram;
    while let (Some(length), Some(flags)) = (u32_at(rest, 0), u16_at(rest, 6)) {
        // The list changed while it was read: entries may be missing or twice.
        if flags & NLM_F_DUMP_INTR != 0 {
            return true;
        }
        let step = (length as usize).next_multiple_of(4).max(HEADER_BYTES);
        rest = rest.get(step..).unwrap_or_default();
    }
    false
}

/// Processes the messages of a datagram. Returns true if the dump is complete.
pub(super) fn parse(
    answers: &Answers,
    datagram: &[u8],
    mut each: impl FnMut(usize, &[u8]) -> std::result::Result<(), ParseError>,
) -> std::result::Result<bool, SockDiagError> {
    let mut rest = datagram;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let short = |field: &str, expected| {
            let got = format!("{} bytes", rest.len());
            ParseError::new(answers.object, number, field, expected, &got)
        };
        let length = u32_at(rest, 0).ok_or_else(|| short("nlmsghdr", "16 bytes"))? as usize;
        let message = rest
            .get(..length)
            // A shorter length would not advance.
            .filter(|message| message.len() >= HEADER_BYTES)
            .ok_or_else(|| short("nlmsg_len", "16 bytes to the end of the datagram"))?;
        let body = &message[HEADER_BYTES..];
        match u16_at(message, 4).map(i32::from) {
            Some(nix::libc::NLMSG_DONE) => {
                check_status(answers, number, body)?;
                return Ok(true);
            }
            Some(nix::libc::NLMSG_ERROR) => {
                check_status(answers, number, body)?;
                return Ok(true);
            }
            // The kernel may send it at any time; it has no content.
            Some(nix::libc::NLMSG_NOOP) => {}
            _ if u16_at(message, 4) == Some(SOCK_DIAG_BY_FAMILY) => {
                if body.len() < answers.bytes {
                    return Err(short(answers.message, answers.expected).into());
                }
                each(number, body)?;
            }
            other => {
                let got = format!("{other:?}");
                let expected = "SOCK_DIAG_BY_FAMILY, NLMSG_DONE or NLMSG_ERROR";
                return Err(
                    ParseError::new(answers.object, number, "nlmsg_type", expected, &got).into()
                );
            }
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns the errno of a final message as an error; 0 is success.
fn check_status(
    answers: &Answers,
    number: usize,
    body: &[u8],
) -> std::result::Result<(), SockDiagError> {
    let status = u32_at(body, 0).ok_or_else(|| {
        let got = format!("{} bytes", body.len());
        ParseError::new(answers.object, number, "status", "4 bytes", &got)
    })?;
    match status.cast_signed() {
        0 => Ok(()),
        errno => {
            let errno = Errno::from_raw(errno.wrapping_neg());
            Err(sys::Error::new("SOCK_DIAG_BY_FAMILY", answers.kind, errno).into())
        }
    }
}

/// Returns the first attribute of a type in a message.
pub(super) fn attribute<'a>(
    object: &str,
    number: usize,
    attributes: &'a [u8],
    wanted: u16,
) -> std::result::Result<Option<&'a [u8]>, ParseError> {
    let mut rest = attributes;
    while !rest.is_empty() {
        let attribute = u16_at(rest, 0)
            .and_then(|length| rest.get(..usize::from(length)))
            .filter(|attribute| attribute.len() >= 4)
            .ok_or_else(|| {
                let got = format!("{} bytes", rest.len());
                let expected = "4 bytes to the end of the message";
                ParseError::new(object, number, "nla_len", expected, &got)
            })?;
        if u16_at(attribute, 2) == Some(wanted) {
            return Ok(attribute.get(4..));
        }
        rest = rest.get(attribute.len().next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}
