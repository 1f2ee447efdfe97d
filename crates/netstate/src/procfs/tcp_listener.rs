//! Listening TCP sockets of a namespace: `/proc/net/tcp` and `/proc/net/tcp6`.
//!
//! Source: `get_tcp4_sock()` in `net/ipv4/tcp_ipv4.c`.

use std::net::IpAddr;

use crate::proc::{ParseError, Result};
use crate::procfs::udp_socket::{both, endpoint};

/// IPv4 sockets of the thread's namespace.
pub const PROC_TCP: &str = "/proc/thread-self/net/tcp";
/// IPv6 sockets of the thread's namespace.
pub const PROC_TCP6: &str = "/proc/thread-self/net/tcp6";
/// `TCP_LISTEN` of `include/net/tcp_states.h`.
const LISTEN: &str = "0A";

/// Parses the text of either file: addresses and ports of listening sockets.
///
/// # Errors
/// A line with fewer than four columns, or an invalid address.
pub fn parse(file: &str, text: &str) -> std::result::Result<Vec<(IpAddr, u16)>, ParseError> {
    let mut all = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let number = index + 1;
        let columns: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
        let [_, local, _, state] = columns.as_slice() else {
            return Err(ParseError::new(file, number, "line", "at least 4 columns", line));
        };
        if *state == LISTEN {
            all.push(endpoint(file, number, "local_address", local)?);
        }
    }
    Ok(all)
}

/// Lists the listening sockets of the calling thread's namespace.
///
/// # Errors
/// If a file cannot be read, and as [`parse`].
pub fn read() -> Result<Vec<(IpAddr, u16)>> {
    both([PROC_TCP, PROC_TCP6], parse)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    // Linux 6.18: a listening socket and a connection.
    const GOLDEN: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode\n   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 \
        00:00000000 00000000     0        0 1 1\n   1: 0100007F:0017 0100007F:9C40 01 \
        00000000:00000000 00:00000000 00000000     0        0 2 1\n";

    #[test]
    fn only_listening_sockets_are_listed() {
        assert_eq!(parse(PROC_TCP, GOLDEN).unwrap(), [(Ipv4Addr::LOCALHOST.into(), 22)]);
        assert_eq!(parse(PROC_TCP, "x\n1 2\n").unwrap_err().field, "line");
    }

    #[test]
    fn this_namespaces_listeners_are_read() {
        let own = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let end = own.local_addr().unwrap();
        assert!(read().unwrap().contains(&(end.ip(), end.port())));
    }
}
