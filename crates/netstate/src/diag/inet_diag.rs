//! TCP sockets of a namespace, by `sock_diag`: those that listen, and the connections to a port.
//!
//! The kernel filters by state and port, so that the answer does not grow with the number of connections, as
//! `/proc/net/tcp` does. Source: `include/uapi/linux/inet_diag.h`, `net/ipv4/inet_diag.c`. Needs
//! `CONFIG_INET_TCP_DIAG`; without it, `/proc/net/tcp` is read.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::sock_diag::{Answers, SockDiag, SockDiagError, dump_header};
use crate::proc::{ParseError, Result};
use crate::procfs::tcp_listener;

/// `TCP_ESTABLISHED` of `include/net/tcp_states.h`.
const TCP_ESTABLISHED: u32 = 1;
/// `TCP_LISTEN` of the same file.
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

/// A listening TCP socket with its queue of accepted connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TcpListener {
    /// Own address; unspecified: any.
    pub address: IpAddr,
    /// Own port.
    pub port: u16,
    /// Connections that the program has not accepted yet (`idiag_rqueue`).
    pub waiting: u32,
    /// Largest number of them (`idiag_wqueue`), by `listen` and `net.core.somaxconn`.
    pub limit: u32,
}

/// Lists the listening TCP sockets of the calling thread's namespace with their queues.
///
/// # Errors
/// If the kernel has no `INET_TCP_DIAG`, or its answer cannot be parsed.
pub fn tcp_queues() -> std::result::Result<Vec<TcpListener>, SockDiagError> {
    let socket = SockDiag::open()?;
    let mut all: Vec<TcpListener> = Vec::new();
    for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
        all.append(&mut socket.dump(&ANSWERS, &request(family as u8, TCP_LISTEN, 0), add_queue)?);
    }
    Ok(all)
}

/// Adds a listening socket with the lengths of its queue, which follow `idiag_expires`.
fn add_queue(
    number: usize,
    body: &[u8],
    all: &mut Vec<TcpListener>,
) -> std::result::Result<(), ParseError> {
    const QUEUES: usize = 4 + SOCKID_BYTES + 4;
    let (address, port) = end(number, body, SOURCE)?;
    let word = |at: usize| {
        let bytes = body.get(at..).and_then(|rest| rest.first_chunk().copied());
        bytes.map(u32::from_ne_bytes)
    };
    let (Some(waiting), Some(limit)) = (word(QUEUES), word(QUEUES + 4)) else {
        let got = format!("{} bytes", body.len());
        return Err(ParseError::new(OBJECT, number, "idiag_rqueue", "8 bytes", &got));
    };
    all.push(TcpListener { address, port, waiting, limit });
    Ok(())
}

/// Lists addresses and ports of the listening TCP sockets of the calling thread's namespace.
///
/// # Errors
/// Without `sock_diag`: if `/proc/net/tcp` or `tcp6` cannot be read or parsed.
pub fn tcp_listeners() -> Result<Vec<(IpAddr, u16)>> {
    dumped().or_else(|_| tcp_listener::read())
}

/// Lists the ends of connections to a local TCP port in the calling thread's namespace: own address
/// and the other end's.
///
/// # Errors
/// If the kernel has no `INET_TCP_DIAG`, or its answer cannot be parsed.
pub fn tcp_connections_to(port: u16) -> std::result::Result<Vec<(IpAddr, IpAddr)>, SockDiagError> {
    let socket = SockDiag::open()?;
    let mut all: Vec<Connection> = Vec::new();
    for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
        let request = request(family as u8, TCP_ESTABLISHED, port);
        all.append(&mut socket.dump(&ANSWERS, &request, add_connection)?);
    }
    // Kernels before 3.3 do not filter by port.
    all.retain(|((_, own), _)| *own == port);
    let addresses = |((own, _), other): Connection| (own.to_canonical(), other.to_canonical());
    Ok(all.into_iter().map(addresses).collect())
}

/// Own address and port, and the other end's address.
type Connection = ((IpAddr, u16), IpAddr);

fn add_connection(
    number: usize,
    body: &[u8],
    all: &mut Vec<Connection>,
) -> std::result::Result<(), ParseError> {
    all.push((end(number, body, SOURCE)?, end(number, body, DESTINATION)?.0));
    Ok(())
}

fn dumped() -> std::result::Result<Vec<(IpAddr, u16)>, SockDiagError> {
    let socket = SockDiag::open()?;
    let mut all: Vec<(IpAddr, u16)> = Vec::new();
    for family in [nix::libc::AF_INET, nix::libc::AF_INET6] {
        all.append(&mut socket.dump(&ANSWERS, &request(family as u8, TCP_LISTEN, 0), add)?);
    }
    Ok(all)
}

/// Asks for TCP sockets of an address family in a state, with a local port; 0: any.
fn request(family: u8, state: u32, port: u16) -> Vec<u8> {
    let mut bytes = dump_header(REQUEST_BYTES as u32);
    // idiag_ext, pad.
    bytes.extend([family, nix::libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend((1_u32 << state).to_ne_bytes());
    // A dump ignores the rest of the sockid (`inet_diag_dump_icsk`).
    bytes.extend(port.to_be_bytes());
    bytes.extend([0; SOCKID_BYTES - 2]);
    bytes
}

/// Place of an end of a socket in `struct inet_diag_msg`.
struct End {
    port: usize,
    port_name: &'static str,
    address: usize,
    address_name: &'static str,
}

const SOURCE: End =
    End { port: 4, port_name: "idiag_sport", address: 8, address_name: "idiag_src" };
const DESTINATION: End =
    End { port: 6, port_name: "idiag_dport", address: 24, address_name: "idiag_dst" };

/// Adds own address and port of a socket.
fn add(
    number: usize,
    body: &[u8],
    all: &mut Vec<(IpAddr, u16)>,
) -> std::result::Result<(), ParseError> {
    all.push(end(number, body, SOURCE)?);
    Ok(())
}

/// Reads address and port of an end, which are in network byte order.
fn end(number: usize, body: &[u8], at: End) -> std::result::Result<(IpAddr, u16), ParseError> {
    let wrong = |field: &str, expected| {
        let got = format!("{:?}", body.get(..40));
        ParseError::new(OBJECT, number, field, expected, &got)
    };
    let bytes = |at: usize, count: usize| body.get(at..at + count);
    let port = bytes(at.port, 2).and_then(|port| port.try_into().ok()).map(u16::from_be_bytes);
    let port = port.ok_or_else(|| wrong(at.port_name, "2 bytes"))?;
    let address = match body.first().map(|family| i32::from(*family)) {
        Some(nix::libc::AF_INET) => {
            bytes(at.address, 4).and_then(|four| <[u8; 4]>::try_from(four).ok()).map(IpAddr::from)
        }
        Some(nix::libc::AF_INET6) => {
            bytes(at.address, 16).and_then(|six| <[u8; 16]>::try_from(six).ok()).map(IpAddr::from)
        }
        // Sockets of other families have no address here.
        _ => None,
    };
    let address = address.ok_or_else(|| wrong(at.address_name, "an address of IPv4 or IPv6"))?;
    Ok((address, port))
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
        assert_eq!(request(nix::libc::AF_INET as u8, TCP_LISTEN, 0).len(), 72);
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

    #[test]
    fn connections_to_a_port_have_both_ends() {
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = own.local_addr().unwrap();
        let port = address.port();
        let _client = TcpStream::connect(address).unwrap();
        let _accepted = own.accept().unwrap();
        let all = match tcp_connections_to(port) {
            Err(SockDiagError::Kernel(error)) => {
                test_support::skip!("the kernel has no INET_TCP_DIAG: {error}");
            }
            all => all.unwrap(),
        };
        // The client's own end has another local port.
        assert_eq!(all, [(address.ip(), address.ip())]);
    }
}
