//! Socket buffers of a requested size (`SO_SNDBUF`, `SO_RCVBUF`; `socket(7)`).
//!
//! The kernel accounts for the whole memory of an skb, including headers and padding. It therefore
//! reserves twice the requested size and reports the doubled value. Sizes in this module are as
//! requested: half of what `getsockopt` returns.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, SndBufForce};
use nix::sys::socket::{getsockopt, setsockopt};

/// The sizes that the kernel granted, in the unit of the request, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    pub send: usize,
    pub receive: usize,
}

/// Sets both buffers to `bytes`: beyond `net.core.wmem_max` and `rmem_max` if the kernel allows it
/// (`CAP_NET_ADMIN`), otherwise up to these limits. The kernel raises smaller values to its minimum
/// (`SOCK_MIN_SNDBUF`, `SOCK_MIN_RCVBUF`) and stops its automatic tuning of the socket's buffers.
/// For TCP, call this before `connect` or `listen`, because the window scale is negotiated in the
/// handshake.
///
/// # Errors
/// The system call and the errno; only if the descriptor is not a socket.
pub fn set(socket: &impl AsFd, bytes: usize) -> Result<Granted, (&'static str, Errno)> {
    if setsockopt(socket, SndBufForce, &bytes).is_err() {
        setsockopt(socket, SndBuf, &bytes).map_err(|e| ("setsockopt(SO_SNDBUF)", e))?;
    }
    if setsockopt(socket, RcvBufForce, &bytes).is_err() {
        setsockopt(socket, RcvBuf, &bytes).map_err(|e| ("setsockopt(SO_RCVBUF)", e))?;
    }
    of(socket)
}

/// Returns the current sizes of the buffers.
pub fn of(socket: &impl AsFd) -> Result<Granted, (&'static str, Errno)> {
    Ok(Granted {
        send: getsockopt(socket, SndBuf).map_err(|e| ("getsockopt(SO_SNDBUF)", e))? / 2,
        receive: getsockopt(socket, RcvBuf).map_err(|e| ("getsockopt(SO_RCVBUF)", e))? / 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn requested_buffers_are_granted_and_reported_in_the_same_unit() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let granted = set(&socket, 32 << 10).unwrap();
        assert_eq!(granted, Granted { send: 32 << 10, receive: 32 << 10 });
        assert_eq!(of(&socket), Ok(granted));
        // The kernel's minimum is larger than that.
        let least = set(&socket, 1).unwrap();
        assert!(least.send > 1 && least.receive > 1, "{least:?}");
    }
}
