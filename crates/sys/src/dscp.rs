//! Marks the packets of a socket with a DSCP (RFC 2474), and datagrams with an ECN codepoint
//! (RFC 3168).

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Largest value: six bits.
pub const MOST: u8 = 63;

/// Codepoint ECT(0): the ends support ECN (RFC 3168, section 5).
const ECT_0: libc::c_int = 2;

/// Sets the DSCP of all packets of a socket whose own address has this family (`IP_TOS`,
/// `IPV6_TCLASS`), and ECT(0) of its datagrams if `ect` is set. The ECN bits of TCP remain the
/// kernel's. Accepted connections inherit it.
///
/// # Errors
/// The system call and the errno; only if the descriptor is not such a socket.
pub fn set(
    socket: &impl AsFd,
    address: &SocketAddr,
    dscp: u8,
    ect: bool,
) -> Result<(), (&'static str, Errno)> {
    let value = libc::c_int::from(dscp.min(MOST)) << 2 | if ect { ECT_0 } else { 0 };
    let ipv4 = set_int(socket, libc::IPPROTO_IP, libc::IP_TOS, value);
    match address {
        SocketAddr::V4(_) => ipv4.map_err(|errno| ("setsockopt(IP_TOS)", errno)),
        // The first call was for IPv4 clients of a socket of both families. Other sockets have none.
        SocketAddr::V6(_) => set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, value)
            .map_err(|errno| ("setsockopt(IPV6_TCLASS)", errno)),
    }
}

fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    // SAFETY: the value of the option is the int passed by pointer and size; the descriptor is open
    // while `socket` is borrowed.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn the_kernel_has_the_value_of_either_family() {
        for (address, ect) in [("127.0.0.1:0", false), ("[::1]:0", false), ("[::1]:0", true)] {
            let address: SocketAddr = address.parse().unwrap();
            let socket = UdpSocket::bind(address).unwrap();
            set(&socket, &address, 46, ect).unwrap();
            let (level, name) = match address {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            let (mut value, mut length) = (0, size_of::<libc::c_int>() as libc::socklen_t);
            // SAFETY: value and length describe an int that the kernel fills.
            let answer = unsafe {
                let value = (&raw mut value).cast();
                libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut length)
            };
            assert_eq!((answer, value), (0, (46 << 2) | (2 * i32::from(ect))), "{address}");
        }
    }
}
