//! Packets dropped at packet sockets (`AF_PACKET`), by `sock_diag`.
//!
//! A program that receives packets from a device through a packet socket (Open vSwitch's user-space
//! datapath) loses them if the socket's receive buffer is full. No device or protocol counter shows
//! these drops. Source: `include/uapi/linux/packet_diag.h`, `net/packet/diag.c`, sock_diag(7).
//! Needs `CONFIG_PACKET_DIAG`.

use std::collections::BTreeMap;

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use sys::netns::NetNs;

use crate::dump::NLM_F_DUMP_INTR;
use crate::netlink::DUMPS;
use crate::proc::ParseError;

/// `SOCK_DIAG_BY_FAMILY` of `include/uapi/linux/sock_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `PACKET_SHOW_MEMINFO`.
const PACKET_SHOW_MEMINFO: u32 = 0x10;
/// `PACKET_SHOW_INFO`, `PACKET_DIAG_INFO`: `struct packet_diag_info`, a link's index first.
const PACKET_SHOW_INFO: u32 = 1;
const PACKET_DIAG_INFO: u16 = 0;
/// `PACKET_DIAG_MEMINFO`.
const PACKET_DIAG_MEMINFO: u16 = 6;
/// `SK_MEMINFO_DROPS`, an index into `u32`s.
const SK_MEMINFO_DROPS: usize = 8;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct packet_diag_msg`: family, type, protocol number, inode, cookie.
const MESSAGE_BYTES: usize = 16;

/// Name of an answer in errors.
const OBJECT: &str = "packet_diag answer";

/// A malformed answer, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum PacketDiagError {
    /// The kernel refused; `ENOENT` without `CONFIG_PACKET_DIAG`.
    #[error(transparent)]
    Kernel(#[from] sys::Error),
    /// An answer in another format than documented. The line is the message's number in its
    /// datagram.
    #[error(transparent)]
    Parse(Box<ParseError>),
}

impl From<ParseError> for PacketDiagError {
    fn from(error: ParseError) -> Self {
        PacketDiagError::Parse(Box::new(error))
    }
}

/// A `sock_diag` socket, bound to the namespace in which it was opened.
#[derive(Debug)]
pub struct PacketDiag {
    socket: Socket,
}

/// Packets dropped since each packet socket was opened, by the socket's inode
/// (`socket:[inode]` in `/proc/<pid>/fd`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PacketDrops {
    /// Inode → packets; 32-bit counters.
    pub sockets: BTreeMap<u32, u32>,
}

/// An open `AF_PACKET` socket, which may receive copies of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketSocket {
    /// Inode of the socket: `socket:[inode]` in `/proc/PID/fd`.
    pub inode: u32,
    /// `ETH_P_*` that it receives; 0: none.
    pub protocol: u16,
    /// Link that it is bound to; 0: all links.
    pub link: u32,
}

impl PacketDrops {
    /// Returns the packets dropped since `before`. A socket opened in between counts with its whole
    /// count; the count of a closed socket is lost.
    #[must_use]
    pub fn since(&self, before: &PacketDrops) -> u64 {
        let sockets = self.sockets.iter();
        sockets
            .map(|(inode, after)| {
                u64::from(after.wrapping_sub(before.sockets.get(inode).copied().unwrap_or(0)))
            })
            .sum()
    }
}

impl PacketDiag {
    /// Opens the socket in the calling thread's namespace.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` if the kernel has no `sock_diag`.
    pub fn open() -> std::result::Result<PacketDiag, sys::Error> {
        let error = |operation, e: std::io::Error| sys::Error::io(operation, "sock_diag", &e);
        let mut socket =
            Socket::new(NETLINK_SOCK_DIAG).map_err(|e| error("socket(NETLINK_SOCK_DIAG)", e))?;
        socket.bind_auto().map_err(|e| error("bind", e))?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(|e| error("connect", e))?;
        Ok(PacketDiag { socket })
    }

    /// Opens the socket in a namespace.
    ///
    /// # Errors
    /// As [`PacketDiag::open`], and if the namespace cannot be entered.
    pub fn open_in(namespace: &NetNs) -> std::result::Result<PacketDiag, sys::Error> {
        namespace.run(PacketDiag::open)?
    }

    /// Lists the packet sockets of the namespace, with protocol and link.
    ///
    /// # Errors
    /// As [`PacketDiag::read`].
    pub fn listeners(&self) -> std::result::Result<Vec<PacketSocket>, PacketDiagError> {
        self.dump(PACKET_SHOW_INFO, add_socket)
    }

    /// Reads the drops of all packet sockets of the namespace. Any thread may call this.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no `packet_diag`; an answer in another format.
    pub fn read(&self) -> std::result::Result<PacketDrops, PacketDiagError> {
        self.dump(PACKET_SHOW_MEMINFO, add_drops)
    }

    /// Lists all packet sockets with these attributes. Repeats a dump that a change has
    /// interrupted. `add` gets the message's number in its datagram and its body, at least a
    /// `struct packet_diag_msg`.
    fn dump<T: Default>(&self, show: u32, add: Add<T>) -> std::result::Result<T, PacketDiagError> {
        for _ in 0..DUMPS {
            if let Some(whole) = self.dump_once(show, add)? {
                return Ok(whole);
            }
        }
        Err(sys::Error::new("SOCK_DIAG_BY_FAMILY (interrupted)", "packet_diag", Errno::EINTR)
            .into())
    }

    /// Returns `None` if a change has interrupted the dump, so that sockets may be missing.
    fn dump_once<T: Default>(
        &self,
        show: u32,
        add: Add<T>,
    ) -> std::result::Result<Option<T>, PacketDiagError> {
        let error = |operation, e: std::io::Error| sys::Error::io(operation, "packet_diag", &e);
        self.socket.send(&request(show), 0).map_err(|e| error("send(SOCK_DIAG_BY_FAMILY)", e))?;
        let (mut all, mut interrupted) = (T::default(), false);
        loop {
            let (datagram, _) = self.socket.recv_from_full().map_err(|e| error("recv", e))?;
            interrupted |= is_interrupted(&datagram);
            if parse(&datagram, |number, body| add(number, body, &mut all))? {
                return Ok((!interrupted).then_some(all));
            }
        }
    }
}

/// Processes one answer of a dump.
type Add<T> = fn(usize, &[u8], &mut T) -> std::result::Result<(), ParseError>;

/// Whether a message of a datagram has the flag of an interrupted dump.
fn is_interrupted(datagram: &[u8]) -> bool {
    let mut rest = datagram;
    while let (Some(length), Some(flags)) = (u32_at(rest, 0), u16_at(rest, 6)) {
        if flags & NLM_F_DUMP_INTR != 0 {
            return true;
        }
        let step = (length as usize).next_multiple_of(4).max(HEADER_BYTES);
        rest = rest.get(step..).unwrap_or_default();
    }
    false
}

/// Adds protocol and link of a socket.
fn add_socket(
    number: usize,
    body: &[u8],
    sockets: &mut Vec<PacketSocket>,
) -> std::result::Result<(), ParseError> {
    let info = attribute(number, &body[MESSAGE_BYTES..], PACKET_DIAG_INFO)?;
    sockets.push(PacketSocket {
        inode: u32_at(body, 4).unwrap_or(0),
        protocol: u16_at(body, 2).unwrap_or(0),
        link: info.and_then(|info| u32_at(info, 0)).unwrap_or(0),
    });
    Ok(())
}

/// Adds the drops of a socket.
fn add_drops(
    number: usize,
    body: &[u8],
    drops: &mut PacketDrops,
) -> std::result::Result<(), ParseError> {
    let inode = u32_at(body, 4).unwrap_or(0);
    let meminfo = attribute(number, &body[MESSAGE_BYTES..], PACKET_DIAG_MEMINFO)?;
    // Kernels before 3.18 have a shorter meminfo.
    if let Some(count) = meminfo.and_then(|meminfo| u32_at(meminfo, 4 * SK_MEMINFO_DROPS)) {
        drops.sockets.insert(inode, count);
    }
    Ok(())
}

/// Builds `struct nlmsghdr` and `struct packet_diag_req`, in the machine's byte order.
fn request(show: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(36);
    bytes.extend(36_u32.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(((nix::libc::NLM_F_REQUEST | nix::libc::NLM_F_DUMP) as u16).to_ne_bytes());
    // Sequence number and port are not needed: this socket has one request at a time.
    bytes.extend([0; 8]);
    // sdiag_family, sdiag_protocol (0: all), padding.
    bytes.extend([nix::libc::AF_PACKET as u8, 0, 0, 0]);
    // pdiag_ino: unused by the kernel.
    bytes.extend([0; 4]);
    bytes.extend(show.to_ne_bytes());
    // pdiag_cookie: unused by the kernel.
    bytes.extend([0; 8]);
    bytes
}

/// Processes the messages of a datagram. Returns true if the dump is complete.
fn parse(
    datagram: &[u8],
    mut each: impl FnMut(usize, &[u8]) -> std::result::Result<(), ParseError>,
) -> std::result::Result<bool, PacketDiagError> {
    let mut rest = datagram;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let short = |field: &str, expected| {
            let got = format!("{} bytes", rest.len());
            ParseError::new(OBJECT, number, field, expected, &got)
        };
        let length = u32_at(rest, 0).ok_or_else(|| short("nlmsghdr", "16 bytes"))? as usize;
        let message = rest
            .get(..length)
            // A shorter length would not advance.
            .filter(|message| message.len() >= HEADER_BYTES)
            .ok_or_else(|| short("nlmsg_len", "16 bytes to the end of the datagram"))?;
        let body = &message[HEADER_BYTES..];
        match u16_at(message, 4).map(i32::from) {
            Some(nix::libc::NLMSG_DONE) => {
                check_status(number, body)?;
                return Ok(true);
            }
            Some(nix::libc::NLMSG_ERROR) => {
                check_status(number, body)?;
                return Ok(true);
            }
            Some(nix::libc::NLMSG_NOOP) => {}
            _ if u16_at(message, 4) == Some(SOCK_DIAG_BY_FAMILY) => {
                if body.len() < MESSAGE_BYTES {
                    return Err(short("packet_diag_msg", "16 bytes").into());
                }
                each(number, body)?;
            }
            other => {
                let got = format!("{other:?}");
                let expected = "SOCK_DIAG_BY_FAMILY, NLMSG_DONE or NLMSG_ERROR";
                return Err(ParseError::new(OBJECT, number, "nlmsg_type", expected, &got).into());
            }
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// Returns the errno of a final message as an error; 0 is success.
fn check_status(number: usize, body: &[u8]) -> std::result::Result<(), PacketDiagError> {
    let status = u32_at(body, 0).ok_or_else(|| {
        let got = format!("{} bytes", body.len());
        ParseError::new(OBJECT, number, "status", "4 bytes", &got)
    })?;
    match status.cast_signed() {
        0 => Ok(()),
        errno => {
            let errno = Errno::from_raw(errno.wrapping_neg());
            Err(sys::Error::new("SOCK_DIAG_BY_FAMILY", "packet_diag", errno).into())
        }
    }
}

/// Returns the first attribute of a type in a message.
fn attribute(
    number: usize,
    attributes: &[u8],
    wanted: u16,
) -> std::result::Result<Option<&[u8]>, ParseError> {
    let mut rest = attributes;
    while !rest.is_empty() {
        let attribute = u16_at(rest, 0)
            .and_then(|length| rest.get(..usize::from(length)))
            .filter(|attribute| attribute.len() >= 4)
            .ok_or_else(|| {
                let got = format!("{} bytes", rest.len());
                let expected = "4 bytes to the end of the message";
                ParseError::new(OBJECT, number, "nla_len", expected, &got)
            })?;
        if u16_at(attribute, 2) == Some(wanted) {
            return Ok(attribute.get(4..));
        }
        rest = rest.get(attribute.len().next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(None)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    /// Builds a socket's message: an attribute to skip, then meminfo.
    fn socket_message(inode: u32, dropped: u32) -> Vec<u8> {
        let mut body = vec![17, 3, 0, 3];
        body.extend(inode.to_ne_bytes());
        body.extend([0; 8]);
        body.extend([5, 0, 5, 0, 1, 0, 0, 0]);
        body.extend(40_u16.to_ne_bytes());
        body.extend(PACKET_DIAG_MEMINFO.to_ne_bytes());
        body.extend([0; 32]);
        body.extend(dropped.to_ne_bytes());
        message(SOCK_DIAG_BY_FAMILY, &body)
    }

    fn parsed(datagram: &[u8]) -> std::result::Result<(bool, PacketDrops), PacketDiagError> {
        let mut drops = PacketDrops::default();
        let done = parse(datagram, |number, body| add_drops(number, body, &mut drops))?;
        Ok((done, drops))
    }

    #[test]
    fn an_interrupted_dump_is_noticed() {
        let plain = socket_message(1, 2);
        let mut marked = socket_message(2, 2);
        marked[6] = NLM_F_DUMP_INTR as u8;
        assert!(!is_interrupted(&[plain.clone(), plain.clone()].concat()));
        assert!(is_interrupted(&[plain, marked].concat()));
    }

    #[test]
    fn the_request_is_laid_out_as_in_the_headers() {
        let bytes = request(PACKET_SHOW_MEMINFO);
        assert_eq!(bytes.len(), 36);
        assert_eq!(u32_at(&bytes, 0), Some(36));
        assert_eq!(bytes[16], 17);
        assert_eq!(u32_at(&bytes, 24), Some(0x10));
    }

    #[test]
    fn sockets_are_collected_until_the_dump_is_done() {
        let mut datagram = socket_message(7, 3);
        datagram.extend(socket_message(9, 0));
        let (done, drops) = parsed(&datagram).unwrap();
        assert!(!done);
        assert_eq!(drops.sockets, [(7, 3), (9, 0)].into());
        datagram.extend(message(nix::libc::NLMSG_DONE as u16, &[0; 4]));
        assert!(parsed(&datagram).unwrap().0);
    }

    #[test]
    fn refusals_and_damage_are_errors() {
        let refused = message(nix::libc::NLMSG_ERROR as u16, &(-2_i32).to_ne_bytes());
        let PacketDiagError::Kernel(error) = parsed(&refused).unwrap_err() else {
            panic!("not the kernel's errno")
        };
        assert_eq!(error.errno, Errno::ENOENT);
        let field = |datagram: &[u8]| match parsed(datagram).unwrap_err() {
            PacketDiagError::Parse(error) => error.field,
            other => panic!("{other}"),
        };
        assert_eq!(field(&[1, 0]), "nlmsghdr");
        assert_eq!(field(&message(99, &[])), "nlmsg_type");
        assert_eq!(field(&message(SOCK_DIAG_BY_FAMILY, &[0; 8])), "packet_diag_msg");
        let whole = socket_message(7, 3);
        assert_eq!(field(&whole[..whole.len() - 1]), "nlmsg_len");
        let mut attribute = whole.clone();
        attribute[32] = 2;
        assert_eq!(field(&attribute), "nla_len");
    }

    #[test]
    fn counters_wrap_and_sockets_come_and_go() {
        let before = PacketDrops { sockets: [(1, u32::MAX), (2, 5)].into() };
        let after = PacketDrops { sockets: [(1, 2), (3, 4)].into() };
        assert_eq!(after.since(&before), 3 + 4);
    }

    #[test]
    fn a_full_packet_socket_is_seen_from_outside_its_namespace() {
        test_support::require!(test_support::need::networks());
        let namespace = NetNs::new().unwrap();
        let diag = PacketDiag::open_in(&namespace).unwrap();
        match diag.read() {
            Ok(drops) => assert_eq!(drops, PacketDrops::default()),
            Err(PacketDiagError::Kernel(e)) if e.errno == Errno::ENOENT => {
                test_support::skip!("the kernel has no PACKET_DIAG: {e}");
            }
            Err(e) => panic!("{e}"),
        }
        let packets = namespace.run(full_packet_socket).unwrap();
        let inode = std::fs::read_link(format!("/proc/self/fd/{}", packets.as_raw_fd())).unwrap();
        let inode = inode.to_str().unwrap().trim_start_matches("socket:[").trim_end_matches(']');
        let drops = diag.read().unwrap();
        let dropped = drops.sockets[&inode.parse::<u32>().unwrap()];
        assert!(dropped > 0, "{drops:?}");
    }

    /// Returns a packet socket with the smallest receive buffer, which is never read, after sending
    /// more loopback packets than fit.
    fn full_packet_socket() -> std::os::fd::OwnedFd {
        let packets = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            Some(nix::sys::socket::SockProtocol::EthAll),
        )
        .unwrap();
        setsockopt(&packets, sockopt::RcvBuf, &0).unwrap();
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..64 {
            sender.send_to(&[0; 1000], sender.local_addr().unwrap()).unwrap();
        }
        packets
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            garbage in prop::collection::vec(any::<u8>(), 0..96),
            flips in prop::collection::vec((0_usize..68, any::<u8>()), 0..4),
        ) {
            let _ = parsed(&garbage);
            let mut damaged = socket_message(7, 3);
            for (at, value) in flips {
                if let Some(byte) = damaged.get_mut(at) {
                    *byte = value;
                }
            }
            let _ = parsed(&damaged);
        }
    }
}
