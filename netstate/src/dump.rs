//! Netlink below the routing family: dumps of other protocols, by bytes.

use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use crate::netlink::{Error, Result};

// include/uapi/linux/netlink.h.
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `NLA_TYPE_MASK`: the two highest bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;

/// The attributes (`struct nlattr`) of a message's or another attribute's payload,
/// by type. Ends at the first one that does not fit.
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

/// The first attribute of a type.
pub fn attribute(payload: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(payload).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A text with its terminating zero.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Asks for all objects of a kind: a message of type `kind` with `payload`, by a
/// socket of `protocol` of the calling thread's namespace. Each answer's type and
/// payload goes to `each`.
///
/// # Errors
/// When the kernel refuses; `object` is what was asked for.
pub(crate) fn dump(
    protocol: isize,
    (kind, payload): (u16, &[u8]),
    object: &'static str,
    mut each: impl FnMut(u16, &[u8]),
) -> Result<()> {
    let failed =
        |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, object, &e));
    let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
    socket.bind_auto().map_err(failed("bind"))?;
    let mut request = Vec::with_capacity(HEADER + payload.len());
    request.extend(((HEADER + payload.len()) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    // Sequence number and port: this socket has one request.
    request.extend([0; 8]);
    request.extend(payload);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(failed("list"))?;
    loop {
        let (bytes, _) = socket.recv_from_full().map_err(failed("list"))?;
        let mut rest = &bytes[..];
        while let Some((kind, payload, next)) = message(rest) {
            rest = next;
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
                    return Err(Error::Kernel {
                        operation: "list",
                        object: object.to_owned(),
                        errno: Errno::from_raw(code.saturating_neg()),
                    });
                }
                kind => each(kind, payload),
            }
        }
    }
}

/// Type, payload and what follows of the first netlink message.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let payload = bytes.get(HEADER..length)?;
    Some((kind, payload, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}
