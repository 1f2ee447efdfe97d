//! Packets dropped at packet sockets (`AF_PACKET`), by `sock_diag`.
//!
//! A program that receives packets from a device through a packet socket (Open vSwitch's user-space
//! datapath) loses them if the socket's receive buffer is full. No device or protocol counter shows
//! these drops. Source: `include/uapi/linux/packet_diag.h`, `net/packet/diag.c`, sock_diag(7).
//! Needs `CONFIG_PACKET_DIAG`.

use std::collections::BTreeMap;

use sys::netns::NetNs;

use super::sock_diag::{Answers, SockDiag, SockDiagError, attribute, dump_header, u16_at, u32_at};
use crate::proc::ParseError;

/// `PACKET_SHOW_MEMINFO`.
const PACKET_SHOW_MEMINFO: u32 = 0x10;
/// `PACKET_SHOW_INFO`, `PACKET_DIAG_INFO`: `struct packet_diag_info`, a link's index first.
const PACKET_SHOW_INFO: u32 = 1;
const PACKET_DIAG_INFO: u16 = 0;
/// `PACKET_SHOW_MCLIST`, `PACKET_DIAG_MCLIST`: an array of `struct packet_diag_mclist`, of
/// [`MEMBERSHIP_BYTES`] each: index of a link, count, type.
const PACKET_SHOW_MCLIST: u32 = 2;
const PACKET_DIAG_MCLIST: u16 = 1;
const MEMBERSHIP_BYTES: usize = 44;
/// `PACKET_MR_PROMISC`.
const PACKET_MR_PROMISC: u16 = 1;
/// `PACKET_DIAG_MEMINFO`.
const PACKET_DIAG_MEMINFO: u16 = 6;
/// `SK_MEMINFO_DROPS`, an index into `u32`s.
const SK_MEMINFO_DROPS: usize = 8;

/// `struct packet_diag_msg`: family, type, protocol number, inode, cookie.
const MESSAGE_BYTES: usize = 16;
const ANSWERS: Answers = Answers {
    kind: "packet_diag",
    object: OBJECT,
    message: "packet_diag_msg",
    bytes: MESSAGE_BYTES,
    expected: "16 bytes",
};

/// Name of an answer in errors.
const OBJECT: &str = "packet_diag answer";

/// A `sock_diag` socket, bound to the namespace in which it was opened.
#[derive(Debug)]
pub struct PacketDiag {
    socket: SockDiag,
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
        Ok(PacketDiag { socket: SockDiag::open()? })
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
    pub fn listeners(&self) -> std::result::Result<Vec<PacketSocket>, SockDiagError> {
        self.socket.dump(&ANSWERS, &request(PACKET_SHOW_INFO), add_socket)
    }

    /// Counts the requests of packet sockets to receive all frames of a link, by the link's index. A
    /// socket counts once per link (`packet_mc_add`).
    ///
    /// # Errors
    /// As [`PacketDiag::read`].
    pub fn promiscuous(&self) -> std::result::Result<BTreeMap<u32, u32>, SockDiagError> {
        self.socket.dump(&ANSWERS, &request(PACKET_SHOW_MCLIST), add_memberships)
    }

    /// Reads the drops of all packet sockets of the namespace. Any thread may call this.
    ///
    /// # Errors
    /// `ENOENT` if the kernel has no `packet_diag`; an answer in another format.
    pub fn read(&self) -> std::result::Result<PacketDrops, SockDiagError> {
        self.socket.dump(&ANSWERS, &request(PACKET_SHOW_MEMINFO), add_drops)
    }
}

/// Adds protocol and link of a socket.
fn add_socket(
    number: usize,
    body: &[u8],
    sockets: &mut Vec<PacketSocket>,
) -> std::result::Result<(), ParseError> {
    let info = attribute(OBJECT, number, &body[MESSAGE_BYTES..], PACKET_DIAG_INFO)?;
    sockets.push(PacketSocket {
        inode: u32_at(body, 4).unwrap_or(0),
        protocol: u16_at(body, 2).unwrap_or(0),
        link: info.and_then(|info| u32_at(info, 0)).unwrap_or(0),
    });
    Ok(())
}

/// Adds the links whose frames a socket wants.
fn add_memberships(
    number: usize,
    body: &[u8],
    links: &mut BTreeMap<u32, u32>,
) -> std::result::Result<(), ParseError> {
    let list = attribute(OBJECT, number, &body[MESSAGE_BYTES..], PACKET_DIAG_MCLIST)?;
    for membership in list.unwrap_or_default().chunks_exact(MEMBERSHIP_BYTES) {
        if let (Some(link), Some(PACKET_MR_PROMISC)) =
            (u32_at(membership, 0), u16_at(membership, 8))
        {
            *links.entry(link).or_default() += 1;
        }
    }
    Ok(())
}

/// Adds the drops of a socket.
fn add_drops(
    number: usize,
    body: &[u8],
    drops: &mut PacketDrops,
) -> std::result::Result<(), ParseError> {
    let inode = u32_at(body, 4).unwrap_or(0);
    let meminfo = attribute(OBJECT, number, &body[MESSAGE_BYTES..], PACKET_DIAG_MEMINFO)?;
    // Kernels before 3.18 have a shorter meminfo.
    if let Some(count) = meminfo.and_then(|meminfo| u32_at(meminfo, 4 * SK_MEMINFO_DROPS)) {
        drops.sockets.insert(inode, count);
    }
    Ok(())
}

/// Builds `struct nlmsghdr` and `struct packet_diag_req`, in the machine's byte order.
fn request(show: u32) -> Vec<u8> {
    let mut bytes = dump_header(36);
    // sdiag_family, sdiag_protocol (0: all), padding.
    bytes.extend([nix::libc::AF_PACKET as u8, 0, 0, 0]);
    // pdiag_ino: unused by the kernel.
    bytes.extend([0; 4]);
    bytes.extend(show.to_ne_bytes());
    // pdiag_cookie: unused by the kernel.
    bytes.extend([0; 8]);
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socket, sockopt};
    use proptest::prelude::*;

    use nix::errno::Errno;

    use super::super::sock_diag::{SOCK_DIAG_BY_FAMILY, is_interrupted, parse};
    use super::*;
    use crate::dump::NLM_F_DUMP_INTR;

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

    fn parsed(datagram: &[u8]) -> std::result::Result<(bool, PacketDrops), SockDiagError> {
        let mut drops = PacketDrops::default();
        let done = parse(&ANSWERS, datagram, |number, body| add_drops(number, body, &mut drops))?;
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
        let SockDiagError::Kernel(error) = parsed(&refused).unwrap_err() else {
            panic!("not the kernel's errno")
        };
        assert_eq!(error.errno, Errno::ENOENT);
        let field = |datagram: &[u8]| match parsed(datagram).unwrap_err() {
            SockDiagError::Parse(error) => error.field,
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
            Err(SockDiagError::Kernel(e)) if e.errno == Errno::ENOENT => {
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
