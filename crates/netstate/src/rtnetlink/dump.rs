//! Netlink dumps of protocols other than rtnetlink, as bytes.

use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use crate::netlink::{DUMPS, DumpOutcome, Error, Result, interrupted};

// include/uapi/linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// A change interrupted the dump, so objects may be missing.
pub(crate) const NLM_F_DUMP_INTR: u16 = 0x10;
/// Larger than any datagram of a dump.
const ANSWER: usize = 256 << 10;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `NLA_TYPE_MASK`: the two highest bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;

/// Iterates over the attributes (`struct nlattr`) in the payload of a message or attribute. Stops
/// at the first truncated one.
pub fn attributes(payload: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Builds an attribute, padded to whole words. The caller's values are shorter than 64 KiB.
pub fn to_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the first attribute of a type.
pub fn attribute(payload: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(payload).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Decodes a zero-terminated string.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Lists all objects of a kind: sends a message of type `kind` with `payload` through a socket of
/// `protocol` in the calling thread's namespace. Passes each answer's type and payload to `each`.
/// Repeats a dump that a change interrupted.
///
/// # Errors
/// If the kernel refuses. `object` names the request in errors.
pub(crate) fn dump(
    protocol: isize,
    request: (u16, &[u8]),
    object: &'static str,
    each: impl FnMut(u16, &[u8]),
) -> Result<()> {
    Lists::open(protocol, object)?.dump(request, object, each)
}

/// As [`dump`], without repeating.
pub(crate) fn dump_once(
    protocol: isize,
    request: (u16, &[u8]),
    object: &'static str,
    each: impl FnMut(u16, &[u8]),
) -> Result<DumpOutcome> {
    Lists::open(protocol, object)?.dump_once(request, object, each)
}

/// A socket for consecutive requests.
pub(crate) struct Lists {
    protocol: isize,
    socket: Socket,
    /// The last datagram.
    answer: Vec<u8>,
}

impl Lists {
    /// Opens a socket in the calling thread's namespace.
    pub(crate) fn open(protocol: isize, object: &'static str) -> Result<Lists> {
        Ok(Lists { protocol, socket: open(protocol, object)?, answer: Vec::with_capacity(ANSWER) })
    }

    /// As [`dump`].
    pub(crate) fn dump(
        &mut self,
        request: (u16, &[u8]),
        object: &'static str,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<()> {
        for _ in 0..DUMPS {
            let mut answers = Vec::new();
            let collect = |kind, payload: &[u8]| answers.push((kind, payload.to_vec()));
            if self.dump_once(request, object, collect)? == DumpOutcome::Whole {
                answers.iter().for_each(|(kind, payload)| each(*kind, payload));
                return Ok(());
            }
        }
        Err(interrupted("list", object))
    }

    fn dump_once(
        &mut self,
        request: (u16, &[u8]),
        object: &'static str,
        each: impl FnMut(u16, &[u8]),
    ) -> Result<DumpOutcome> {
        let answer = self.list(request, object, each);
        // Reopen the socket, so that remaining answers are not mistaken for those of the next
        // request.
        if let Err(Error::Sys(_) | Error::Answer { .. }) = &answer {
            self.socket = open(self.protocol, object)?;
        }
        answer
    }

    fn list(
        &mut self,
        request: (u16, &[u8]),
        object: &'static str,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<DumpOutcome> {
        self.send(request, NLM_F_DUMP, object)?;
        let mut is_interrupted = false;
        loop {
            self.receive(object)?;
            if let Some(outcome) = take(&self.answer, object, &mut is_interrupted, &mut each)? {
                return Ok(outcome);
            }
        }
    }

    /// Sends a request that is not a dump, and returns type and payload of the answer.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn one(
        &mut self,
        request: (u16, &[u8]),
        object: &'static str,
    ) -> Result<Option<(u16, Vec<u8>)>> {
        self.send(request, 0, object)?;
        self.receive(object)?;
        let mut found = None;
        let mut each = |kind, payload: &[u8]| found = Some((kind, payload.to_vec()));
        take(&self.answer, object, &mut false, &mut each)?;
        Ok(found)
    }

    fn send(&self, (kind, payload): (u16, &[u8]), flags: u16, object: &'static str) -> Result<()> {
        let mut request = Vec::with_capacity(HEADER + payload.len());
        request.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        // Sequence number and port are not needed: each answer is read to its end before the next
        // request.
        request.extend([0; 8]);
        request.extend(payload);
        let sent = self.socket.send_to(&request, &SocketAddr::new(0, 0), 0);
        sent.map(drop).map_err(|e| Error::Sys(sys::Error::io("list", object, &e)))
    }

    fn receive(&mut self, object: &'static str) -> Result<()> {
        self.answer.clear();
        // The kernel fills a datagram up to the size of earlier reads, 32 KiB at most, and searches
        // its position again for each datagram. A large buffer makes long lists fast.
        let length = self.socket.recv(&mut self.answer, libc::MSG_TRUNC);
        let length = length.map_err(|e| Error::Sys(sys::Error::io("list", object, &e)))?;
        // The rest of the datagram is lost.
        if length > self.answer.len() {
            return Err(Error::Answer {
                operation: "list",
                object: object.to_owned(),
                expected: "at most 256 KiB at once",
                got: format!("{length} bytes"),
            });
        }
        Ok(())
    }
}

fn open(protocol: isize, object: &'static str) -> Result<Socket> {
    let failed =
        |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, object, &e));
    let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
    socket.bind_auto().map_err(failed("bind"))?;
    Ok(socket)
}

/// Processes the messages of a datagram. `None`: more datagrams follow.
fn take(
    bytes: &[u8],
    object: &'static str,
    is_interrupted: &mut bool,
    each: &mut impl FnMut(u16, &[u8]),
) -> Result<Option<DumpOutcome>> {
    let status = |payload: &[u8]| payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    let refused = |code: i32| {
        let errno = Errno::from_raw(code.saturating_neg());
        Error::Kernel { operation: "list", object: object.to_owned(), errno }
    };
    let mut rest = bytes;
    while let Some((kind, payload, next)) = message(rest) {
        let flags = u16::from_ne_bytes([rest[6], rest[7]]);
        *is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
        rest = next;
        match kind {
            // Objects may be missing, whatever the status.
            NLMSG_DONE if *is_interrupted => return Ok(Some(DumpOutcome::Interrupted)),
            // A dump that ends early carries an errno.
            NLMSG_DONE if status(payload) < 0 => return Err(refused(status(payload))),
            NLMSG_DONE => return Ok(Some(DumpOutcome::Whole)),
            NLMSG_ERROR => return Err(refused(status(payload))),
            kind => each(kind, payload),
        }
    }
    Ok(None)
}

/// Returns type and payload of the first netlink message, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let payload = bytes.get(HEADER..length)?;
    Some((kind, payload, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a message from header fields and a payload.
    fn of(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn an_interrupted_dump_says_so() {
        let read = |bytes: &[u8]| {
            let (mut count, mut is_interrupted) = (0, false);
            let outcome = take(bytes, "things", &mut is_interrupted, &mut |_, _| count += 1);
            (outcome, count)
        };
        let (plain, marked) = (of(20, 2, &[1; 8]), of(20, 2 | NLM_F_DUMP_INTR, &[1; 8]));
        let end = of(NLMSG_DONE, 2, &[0; 4]);
        let (outcome, count) = read(&[plain.clone(), plain.clone(), end.clone()].concat());
        assert_eq!((outcome.unwrap(), count), (Some(DumpOutcome::Whole), 2));
        let (outcome, _) = read(&[plain.clone(), marked, end].concat());
        assert_eq!(outcome.unwrap(), Some(DumpOutcome::Interrupted));
        let end = of(NLMSG_DONE, 2 | NLM_F_DUMP_INTR, &[0; 4]);
        assert_eq!(read(&[plain.clone(), end].concat()).0.unwrap(), Some(DumpOutcome::Interrupted));
        let end = of(NLMSG_DONE, 2, &(-105_i32).to_ne_bytes());
        assert_eq!(
            read(&[plain.clone(), end].concat()).0.unwrap_err().errno(),
            Some(Errno::ENOBUFS)
        );
        assert_eq!(read(&plain).0.unwrap(), None);
    }
}
