//! Socket buffers of a size asked for (`SO_SNDBUF`, `SO_RCVBUF`; `socket(7)`).
//!
//! The kernel books an skb's whole memory, headers and slack included. It therefore
//! sets aside twice what is asked for, and reports that. Sizes here are as asked: half of
//! what `getsockopt` says.

use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SndBuf, SndBufForce};
use nix::sys::socket::{getsockopt, setsockopt};

/// What the kernel granted, in the terms in which it was asked, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Of the send buffer.
    pub send: usize,
    /// Of the receive buffer.
    pub receive: usize,
}

/// Sets both buffers to `bytes`, past `net.core.wmem_max` and `rmem_max` where
/// the kernel allows it (`CAP_NET_ADMIN`), else up to them. The kernel raises
/// what is below its least (`SOCK_MIN_SNDBUF`, `SOCK_MIN_RCVBUF`), and ends its
/// own tuning of the socket's buffers. For TCP before `connect` or `listen`:
/// the window scale is agreed on in the handshake.
///
/// # Errors
/// The system call and the kernel's answer; only when the descriptor is no
/// socket.
pub fn set(socket: &impl AsFd, bytes: usize) -> Result<Granted, (&'static str, Errno)> {
    if setsockopt(socket, SndBufForce, &bytes).is_err() {
        setsockopt(socket, SndBuf, &bytes).map_err(|e| ("setsockopt(SO_SNDBUF)", e))?;
    }
    if setsockopt(socket, RcvBufForce, &bytes).is_err() {
        setsockopt(socket, RcvBuf, &bytes).map_err(|e| ("setsockopt(SO_RCVBUF)", e))?;
    }
    of(socket)
}

/// The buffers' present sizes.
///
/// # Errors
/// As [`set`].
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
    fn what_is_asked_for_is_granted_and_reported_in_the_same_terms() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let granted = set(&socket, 32 << 10).unwrap();
        assert_eq!(granted, Granted { send: 32 << 10, receive: 32 << 10 });
        assert_eq!(of(&socket), Ok(granted));
        // The kernel's least is above that.
        let least = set(&socket, 1).unwrap();
        assert!(least.send > 1 && least.receive > 1, "{least:?}");
    }
}
