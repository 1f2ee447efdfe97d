//! Listening TCP sockets of a namespace, by `sock_diag`.
//!
//! The kernel filters by state, so that the answer does not grow with the number of connections, as
//! `/proc/net/tcp` does. Source: `include/uapi/linux/inet_diag.h`, `net/ipv4/inet_diag.c`. Needs
//! `CONFIG_INET_TCP_DIAG`; without it, `/proc/net/tcp` is read.

use std::net::IpAddr;

use super::sock_diag::{Answers, SockDiag, SockDiagError, dump_header};
use crate::proc::{ParseError, Result};
use crate::procfs::tcp_listener;

/// `TCP_LISTEN` of `include/net/tcp_states.h`.
const TCP_LISTEN: u32 = 10;
/// `struct inet_diag_sockid`: ports, addresses, link, cookie.
const SOCKID_BYTES: usize = 48;
/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 16 + 8 + SOCKID_BYTES;
/// `struct inet_diag_msg`: family, state, timer, retransmits, the sockid, five counts.
const ANSWERS: Answers = Answers {
    kind: "inet_diag",
    object: OBJECT,
    message: "inet_diag_msg",
    bytes: 4 + SOCKID_BYTES + 20,
    expected: "72 bytes",
};
/// Name of an answer in errors.
const OBJECT: &str = "inet_diag answer";

/// Lists addresses and ports of the listening TCP sockets of the calling thread's namespace.
///
/// # Errors
/// Without `sock_diag`: if `/proc/net/tcp` or `tcp6` cannot be read or parsed.
pub fn tcp_listeners() -> Result<Vec<(IpAddr, u16)>> {
    dumped().or_else(|_| tcp_listener::read())
}

fn dumped() -> std::result::Result<Vec<(IpAddr, u16)>, SockDiagError> {
    let socket = SockDiag::open()?;
    let mut all: Vec<(IpAddr, u16)> = Vec::new();
    for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
        all.append(&mut socket.dump(&ANSWERS, &request(family as u8), add)?);
    }
    Ok(all)
}

/// Asks for listening TCP sockets of an address family.
fn request(family: u8) -> Vec<u8> {
    let mut bytes = dump_header(REQUEST_BYTES as u32);
    // idiag_ext, pad.
    bytes.extend([family, nix::libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend((1_u32 << TCP_LISTEN).to_ne_bytes());
    // A dump ignores the sockid.
    bytes.extend([0; SOCKID_BYTES]);
    bytes
}

/// Adds address and port of a socket, which are in network byte order.
fn add(
    number: usize,
    body: &[u8],
    all: &mut Vec<(IpAddr, u16)>,
) -> std::result::Result<(), ParseError> {
    let wrong = |field: &str, expected| {
        let got = format!("{:?}", body.get(..24));
        ParseError::new(OBJECT, number, field, expected, &got)
    };
    let bytes = |at: usize, count: usize| body.get(at..at + count);
    let port = bytes(4, 2).and_then(|port| port.try_into().ok()).map(u16::from_be_bytes);
    let port = port.ok_or_else(|| wrong("idiag_sport", "2 bytes"))?;
    let address = match body.first().map(|family| i32::from(*family)) {
        Some(nix::libc::AF_INET) => {
            bytes(8, 4).and_then(|four| <[u8; 4]>::try_from(four).ok()).map(IpAddr::from)
        }
        Some(nix::libc::AF_INET6) => {
            bytes(8, 16).and_then(|six| <[u8; 16]>::try_from(six).ok()).map(IpAddr::from)
        }
        _ => None,
    };
    all.push((address.ok_or_else(|| wrong("idiag_src", "an address of IPv4 or IPv6"))?, port));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use super::*;

    /// `struct inet_diag_msg` of a socket.
    fn message(family: i32, address: &[u8]) -> Vec<u8> {
        let mut body = vec![family as u8, TCP_LISTEN as u8, 0, 0, 0x1f, 0x90, 0, 0];
        body.extend(address);
        body.resize(ANSWERS.bytes, 0);
        body
    }

    #[test]
    fn messages_are_read_as_the_headers_lay_them_out() {
        assert_eq!(request(nix::libc::AF_INET as u8).len(), 72);
        let mut all = Vec::new();
        add(1, &message(nix::libc::AF_INET, &[127, 0, 0, 1]), &mut all).unwrap();
        add(2, &message(nix::libc::AF_INET6, &[0; 16]), &mut all).unwrap();
        let [four, six] = [Ipv4Addr::LOCALHOST.into(), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
        assert_eq!(all, [(four, 8080), (six, 8080)]);
        let error = add(3, &message(1, &[0; 4]), &mut all).unwrap_err();
        assert_eq!((error.line, error.field.as_str()), (3, "idiag_src"));
        assert_eq!(add(4, &[2, 0], &mut all).unwrap_err().field, "idiag_sport");
    }

    #[test]
    fn listeners_are_listed_and_connections_are_not() {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = TcpListener::bind("[::1]:0");
        let client = TcpStream::connect(own.local_addr().unwrap()).unwrap();
        let all = match dumped() {
            Err(SockDiagError::Kernel(error)) => {
                test_support::skip!("the kernel has no INET_TCP_DIAG: {error}");
            }
            all => all.unwrap(),
        };
        let ends = |address: std::net::SocketAddr| (address.ip(), address.port());
        assert!(all.contains(&ends(own.local_addr().unwrap())), "{all:?}");
        assert!(!all.contains(&ends(client.local_addr().unwrap())), "{all:?}");
        if let Ok(six) = six {
            assert!(all.contains(&ends(six.local_addr().unwrap())), "{all:?}");
        }
    }
}
