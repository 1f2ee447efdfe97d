//! UDP sockets of a namespace, including those of the kernel's tunnels: `/proc/net/udp` and
//! `/proc/net/udp6`.
//!
//! Source: `udp4_format_sock()` in `net/ipv4/udp.c`, `__ip6_dgram_sock_seq_show()`
//! in `net/ipv6/datagram.c`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::proc::{ParseError, ProcError, ProcFile, Result, decimal, hexadecimal};

/// IPv4 sockets of the thread's namespace.
pub const PROC_UDP: &str = "/proc/thread-self/net/udp";
/// IPv6 sockets of the thread's namespace.
pub const PROC_UDP6: &str = "/proc/thread-self/net/udp6";

/// A bound UDP socket, of a process or of a tunnel in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpSocket {
    /// Local address; unspecified: any.
    pub address: IpAddr,
    /// Local UDP port, in host byte order.
    pub port: u16,
    /// Connected, so that it receives only from its remote address.
    pub connected: bool,
    /// Bytes in its receive buffer.
    pub queued: u64,
    /// Datagrams dropped, mostly because the receive buffer was full.
    pub drops: u64,
}

/// Parses the text of either file.
///
/// # Errors
/// A line with fewer than 13 columns, an address of another length, or an invalid number.
pub fn parse(file: &str, text: &str) -> std::result::Result<Vec<UdpSocket>, ParseError> {
    let mut all = Vec::new();
    for (index, line) in text.lines().enumerate().skip(1) {
        let number = index + 1;
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        // The drops are in column 13.
        if columns.len() < 13 {
            return Err(ParseError::new(file, number, "line", "at least 13 columns", line));
        }
        let (address, port) = endpoint(file, number, "local_address", columns[1])?;
        let (_, remote) = endpoint(file, number, "rem_address", columns[2])?;
        let (_, queued) = columns[4].split_once(':').ok_or_else(|| {
            ParseError::new(file, number, "rx_queue", "two numbers and a colon", columns[4])
        })?;
        all.push(UdpSocket {
            address,
            port,
            connected: remote != 0,
            queued: hexadecimal(file, number, "rx_queue", Some(queued))?,
            drops: decimal(file, number, "drops", Some(columns[12]))?,
        });
    }
    Ok(all)
}

/// Parses address and port in hexadecimal. The address consists of 32-bit words in the machine's
/// byte order.
pub(crate) fn endpoint(
    file: &str,
    line: usize,
    field: &str,
    word: &str,
) -> std::result::Result<(IpAddr, u16), ParseError> {
    let error = |expected| ParseError::new(file, line, field, expected, word);
    let (address, port) = word.split_once(':').ok_or_else(|| error("ADDRESS:PORT"))?;
    let port = u16::from_str_radix(port, 16).map_err(|_| error("a port of 16 bits"))?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..address.len()).step_by(8) {
        let word = address
            .get(at..at + 8)
            .and_then(|word| u32::from_str_radix(word, 16).ok())
            .ok_or_else(|| error("words of 8 hexadecimal digits"))?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match (<[u8; 4]>::try_from(&bytes[..]), <[u8; 16]>::try_from(&bytes[..])) {
        (Ok(bytes), _) => IpAddr::V4(Ipv4Addr::from(bytes)),
        (_, Ok(bytes)) => IpAddr::V6(Ipv6Addr::from(bytes)),
        _ => return Err(error("an address of 1 or 4 words")),
    };
    Ok((address, port))
}

/// Lists all UDP sockets of the calling thread's namespace.
///
/// # Errors
/// As [`ProcFile::read`] and [`parse`].
pub fn read() -> Result<Vec<UdpSocket>> {
    both([PROC_UDP, PROC_UDP6], parse)
}

/// Reads the sockets of both IP versions.
pub(super) fn both<T>(
    [v4, v6]: [&'static str; 2],
    parse: fn(&str, &str) -> std::result::Result<Vec<T>, ParseError>,
) -> Result<Vec<T>> {
    let mut all = parse(v4, &ProcFile::open(v4)?.read()?)?;
    match ProcFile::open(v6) {
        Ok(file) => all.extend(parse(v6, &file.read()?)?),
        // The kernel has no IPv6.
        Err(error) if error.errno == Errno::ENOENT => {}
        Err(error) => return Err(ProcError::Read(error)),
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18, a VXLAN device up.
    const GOLDEN: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode ref pointer drops            \n 2177: 00000000:12B5 \
        00000000:0000 07 00000000:00000A00 00:00000000 00000000     0        0 31181 2 \
        000000006bb47827 3         \n";

    #[test]
    fn the_kernels_file_is_parsed() {
        let socket = UdpSocket {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 4789,
            connected: false,
            queued: 2560,
            drops: 3,
        };
        assert_eq!(parse(PROC_UDP, GOLDEN).unwrap(), [socket]);
        let six = GOLDEN.replace("00000000:12B5", "00000000000000000000000001000000:12B5");
        assert_eq!(parse(PROC_UDP6, &six).unwrap()[0].address, IpAddr::V6(Ipv6Addr::LOCALHOST));
    }

    #[test]
    fn damage_is_named() {
        let field = |text: &str| parse(PROC_UDP, text).unwrap_err().field;
        assert_eq!(field("x\n1 2\n"), "line");
        assert_eq!(field(&GOLDEN.replace(":12B5", ":12B5F")), "local_address");
        assert_eq!(field(&GOLDEN.replace("00000000:12B5", "000000:12B5")), "local_address");
        assert_eq!(field(&GOLDEN.replace("00000A00", "x")), "rx_queue");
    }

    #[test]
    fn this_namespaces_sockets_are_read() {
        let own = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = own.local_addr().unwrap().port();
        assert!(read().unwrap().iter().any(|socket| socket.port == port));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "x\n([0-9A-F:é]{0,34} ?){0,14}") {
            let _ = parse(PROC_UDP, &text);
        }
    }
}
