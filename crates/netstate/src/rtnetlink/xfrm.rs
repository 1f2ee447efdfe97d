//! Checks whether IPsec has policies in a namespace.

use netlink_sys::protocols::NETLINK_XFRM;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use crate::dump::attribute;
use crate::netlink::{Error, Result};

// include/uapi/linux/xfrm.h, include/uapi/linux/netlink.h.
const XFRM_MSG_NEWSPDINFO: u16 = 0x24;
const XFRM_MSG_GETSPDINFO: u16 = 0x25;
const XFRM_MSG_GETDEFAULT: u16 = 0x28;
const XFRMA_SPD_INFO: u16 = 1;
const XFRM_USERPOLICY_BLOCK: u8 = 1;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// `struct nlmsghdr`.
const HEADER: usize = 16;

/// Whether a policy affects packets that this namespace receives, sends or forwards: there is a
/// policy, or unmatched packets are blocked. Does not check policies of sockets.
///
/// # Errors
/// If the kernel refuses. A kernel without IPsec is not an error.
pub fn has_policies() -> Result<bool> {
    let failed = |operation| {
        move |e: std::io::Error| Error::Sys(sys::Error::io(operation, "IPsec policies", &e))
    };
    let mut socket = match Socket::new(NETLINK_XFRM) {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => {
            return Ok(false);
        }
        Err(error) => return Err(failed("socket")(error)),
    };
    socket.bind_auto().map_err(failed("bind"))?;
    let ask = |kind: u16| {
        let mut request = Vec::new();
        request.extend((HEADER as u32 + 4).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(NLM_F_REQUEST.to_ne_bytes());
        request.extend([0; 12]);
        socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(failed("count"))?;
        let (bytes, _) = socket.recv_from_full().map_err(failed("count"))?;
        answer(&bytes, kind)
    };
    Ok(counted(&ask(XFRM_MSG_GETSPDINFO)?) || blocks(&ask(XFRM_MSG_GETDEFAULT)?))
}

/// Returns the payload of an answer; empty if the kernel does not know the request.
fn answer(bytes: &[u8], asked: u16) -> Result<Vec<u8>> {
    let malformed = |got: String| Error::Answer {
        operation: "count",
        object: "IPsec policies".to_owned(),
        expected: "an answer",
        got,
    };
    let kind = bytes.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let payload = bytes.get(HEADER..).unwrap_or_default();
    match kind {
        Some(NLMSG_ERROR) => {
            let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
            match Errno::from_raw(-code) {
                // Older kernels do not know the request.
                Errno::EINVAL => Ok(Vec::new()),
                errno => Err(Error::Kernel {
                    operation: "count",
                    object: "IPsec policies".to_owned(),
                    errno,
                }),
            }
        }
        Some(XFRM_MSG_NEWSPDINFO) if asked == XFRM_MSG_GETSPDINFO => Ok(payload.to_vec()),
        Some(XFRM_MSG_GETDEFAULT) if asked == XFRM_MSG_GETDEFAULT => Ok(payload.to_vec()),
        other => Err(malformed(format!("message type {other:?}"))),
    }
}

/// Whether `XFRMA_SPD_INFO` (`struct xfrmu_spdinfo`) counts policies for input, output or
/// forwarding: its first three numbers.
fn counted(payload: &[u8]) -> bool {
    // 32 bits of flags precede the attributes.
    let info = attribute(payload.get(4..).unwrap_or_default(), XFRMA_SPD_INFO);
    info.is_some_and(|counts| counts.iter().take(12).any(|byte| *byte != 0))
}

/// Whether `struct xfrm_userpolicy_default` blocks in any direction.
fn blocks(payload: &[u8]) -> bool {
    payload.iter().take(3).any(|action| *action == XFRM_USERPOLICY_BLOCK)
}
