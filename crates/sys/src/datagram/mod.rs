//! UDP sockets for a tunnel. One system call sends different datagrams to different peers, each
//! with its own control messages: `UDP_SEGMENT`, `UDP_GRO`, the TOS octet or traffic class.
//! [`crate::udp`] sends one payload to one peer.

pub mod probing;
mod slots;

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{Ipv6V6Only, ReusePort, SndBuf, SndBufForce};
use nix::sys::socket::{SockFlag, setsockopt};

use crate::udp::{open_bound, set_int, set_receive_buffer};
use crate::{Error, Result};
pub use slots::{Incoming, Outgoing, ReceiveSlots, SendSlots};

/// Space for one received message: no UDP payload is longer.
pub const MESSAGE_BYTES: usize = 1 << 16;

/// `include/uapi/linux/udp.h`.
const UDP_NO_CHECK6_TX: libc::c_int = 101;
const UDP_NO_CHECK6_RX: libc::c_int = 102;
/// `include/uapi/linux/in.h`, `in6.h`: the values are the same in both families.
const PMTUDISC_DONT: libc::c_int = 0;
const PMTUDISC_DO: libc::c_int = 2;

/// Options of a sending socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderOptions {
    /// TTL or hop limit, at least 1.
    pub ttl: u8,
    /// Don't Fragment: a datagram that is too long is an error (`EMSGSIZE`) instead of being
    /// fragmented.
    pub dont_fragment: bool,
    /// Whether datagrams have a UDP checksum.
    pub checksum: bool,
    /// Send buffer in bytes.
    pub buffer: usize,
    /// Index of the link through which multicast is sent; if there is none, routes apply.
    pub group_link: Option<u32>,
}

/// Options of a receiving socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// Whether to receive merged datagrams (`UDP_GRO`).
    pub merged: bool,
    /// Whether to accept datagrams without a checksum over IPv6 (RFC 6935).
    pub zero_checksum: bool,
    /// Receive buffer in bytes.
    pub buffer: usize,
}

fn open(address: SocketAddr, shared: bool) -> Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    open_bound(address, flags, |socket| {
        if address.is_ipv6() {
            setsockopt(socket, Ipv6V6Only, &true).map_err(|e| ("setsockopt(IPV6_V6ONLY)", e))?;
        }
        if shared {
            setsockopt(socket, ReusePort, &true).map_err(|e| ("setsockopt(SO_REUSEPORT)", e))?;
        }
        Ok(())
    })
}

fn set(
    socket: &UdpSocket,
    operation: &'static str,
    (level, name): (libc::c_int, libc::c_int),
    value: libc::c_int,
) -> Result<()> {
    set_int(socket, level, name, value)
        .map_err(|errno| Error::new(operation, format!("{socket:?}"), errno))
}

/// Opens a nonblocking socket that only sends. The kernel discards packets that arrive at its port
/// (by a filter that accepts nothing).
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn sender(address: SocketAddr, options: &SenderOptions) -> Result<UdpSocket> {
    let socket = open(address, false)?;
    take_nothing(&socket)?;
    if let Some(link) = options.group_link {
        lead_groups_by(&socket, address, link, options.ttl)?;
    }
    let discovery = if options.dont_fragment { PMTUDISC_DO } else { PMTUDISC_DONT };
    let ttl = options.ttl.into();
    match address {
        SocketAddr::V4(_) => {
            set(&socket, "setsockopt(IP_TTL)", (libc::IPPROTO_IP, libc::IP_TTL), ttl)?;
            let name = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
            set(&socket, "setsockopt(IP_MTU_DISCOVER)", name, discovery)?;
            let name = (libc::SOL_SOCKET, libc::SO_NO_CHECK);
            set(&socket, "setsockopt(SO_NO_CHECK)", name, (!options.checksum).into())?;
        }
        SocketAddr::V6(_) => {
            let name = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS);
            set(&socket, "setsockopt(IPV6_UNICAST_HOPS)", name, ttl)?;
            let name = (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER);
            set(&socket, "setsockopt(IPV6_MTU_DISCOVER)", name, discovery)?;
            let name = (libc::SOL_UDP, UDP_NO_CHECK6_TX);
            set(&socket, "setsockopt(UDP_NO_CHECK6_TX)", name, (!options.checksum).into())?;
        }
    }
    // Beyond net.core.wmem_max if the kernel allows it, otherwise up to it.
    if setsockopt(&socket, SndBufForce, &options.buffer).is_err() {
        setsockopt(&socket, SndBuf, &options.buffer)
            .map_err(|e| Error::new("setsockopt(SO_SNDBUF)", format!("{socket:?}"), e))?;
    }
    Ok(socket)
}

/// Opens a nonblocking receiving socket, one of several at the same address (a flow always uses the
/// same socket). It also receives the TOS octet or traffic class of each datagram.
///
/// # Errors
/// `EADDRINUSE` (for example by the kernel's VXLAN device at the same port), `EADDRNOTAVAIL`,
/// `ENOPROTOOPT` before Linux 5.0.
pub fn receiver(address: SocketAddr, options: &ReceiverOptions) -> Result<UdpSocket> {
    let socket = open(address, true)?;
    set_received(&socket, address.is_ipv6(), options)?;
    Ok(socket)
}

fn set_received(socket: &UdpSocket, v6: bool, options: &ReceiverOptions) -> Result<()> {
    if v6 {
        let name = (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS);
        set(socket, "setsockopt(IPV6_RECVTCLASS)", name, 1)?;
        let name = (libc::SOL_UDP, UDP_NO_CHECK6_RX);
        set(socket, "setsockopt(UDP_NO_CHECK6_RX)", name, options.zero_checksum.into())?;
    } else {
        set(socket, "setsockopt(IP_RECVTOS)", (libc::IPPROTO_IP, libc::IP_RECVTOS), 1)?;
    }
    if options.merged {
        crate::udp::set_gro(socket)?;
    }
    set_receive_buffer(socket, options.buffer)?;
    Ok(())
}

/// Sends multicast through the link that has the address, with the TTL or hop limit, and without
/// returning it to this host.
///
/// # Errors
/// `EADDRNOTAVAIL`, `ENODEV`.
pub fn lead_groups_by(socket: &UdpSocket, address: SocketAddr, link: u32, ttl: u8) -> Result<()> {
    let v6 = address.is_ipv6();
    let options = match address {
        // Selects the link by its address (struct in_addr).
        SocketAddr::V4(own) => [
            ("setsockopt(IP_MULTICAST_IF)", libc::IP_MULTICAST_IF, {
                libc::c_int::from_ne_bytes(own.ip().octets())
            }),
            ("setsockopt(IP_MULTICAST_TTL)", libc::IP_MULTICAST_TTL, ttl.into()),
            ("setsockopt(IP_MULTICAST_LOOP)", libc::IP_MULTICAST_LOOP, 0),
        ],
        SocketAddr::V6(_) => [
            ("setsockopt(IPV6_MULTICAST_IF)", libc::IPV6_MULTICAST_IF, link.cast_signed()),
            ("setsockopt(IPV6_MULTICAST_HOPS)", libc::IPV6_MULTICAST_HOPS, ttl.into()),
            ("setsockopt(IPV6_MULTICAST_LOOP)", libc::IPV6_MULTICAST_LOOP, 0),
        ],
    };
    let level = if v6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    options
        .into_iter()
        .try_for_each(|(operation, name, value)| set(socket, operation, (level, name), value))
}

/// Opens a nonblocking socket that joins a group on the link and receives its packets, otherwise
/// like [`receiver`]. `local` is an address of the link.
///
/// # Errors
/// `EADDRINUSE` if another socket has the port of the group; `ENODEV`.
pub fn group_receiver(
    group: IpAddr,
    port: u16,
    (link, local): (u32, IpAddr),
    options: &ReceiverOptions,
) -> Result<UdpSocket> {
    let failed = |operation: &'static str| {
        move |error: io::Error| Error::io(operation, format!("group {group}"), &error)
    };
    // Each socket of a group gets a copy, so there is only one, which is not shared.
    let socket = match (group, local) {
        (IpAddr::V4(_), IpAddr::V4(_)) => open(SocketAddr::new(group, port), false)?,
        // Groups with link-local scope are bound on a link.
        (IpAddr::V6(group), _) => open(SocketAddrV6::new(group, port, 0, link).into(), false)?,
        // A socket of one family cannot join a group of the other one.
        (IpAddr::V4(_), IpAddr::V6(_)) => {
            let family = io::Error::from(Errno::EAFNOSUPPORT);
            return Err(failed("join")(family));
        }
    };
    join_group(&socket, group, link)?;
    set_received(&socket, group.is_ipv6(), options)?;
    Ok(socket)
}

/// Joins a group on a link.
///
/// # Errors
/// `ENODEV`; `EADDRINUSE` if the socket has already joined it there.
pub fn join_group(socket: &UdpSocket, group: IpAddr, link: u32) -> Result<()> {
    let joined = match group {
        IpAddr::V4(group) => set_membership(socket, libc::IP_ADD_MEMBERSHIP, group, link),
        IpAddr::V6(group) => socket.join_multicast_v6(&group, link),
    };
    joined.map_err(|error| Error::io("join", format!("group {group}"), &error))
}

/// Leaves a group on a link, which may no longer exist.
///
/// # Errors
/// `EADDRNOTAVAIL` if the socket has not joined it there.
pub fn leave_group(socket: &UdpSocket, group: IpAddr, link: u32) -> Result<()> {
    let left = match group {
        IpAddr::V4(group) => set_membership(socket, libc::IP_DROP_MEMBERSHIP, group, link),
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, link),
    };
    left.map_err(|error| Error::io("leave", format!("group {group}"), &error))
}

/// Uses the index of the link: if an address has moved to another link, the kernel would change the
/// membership there.
fn set_membership(
    socket: &UdpSocket,
    option: libc::c_int,
    group: Ipv4Addr,
    link: u32,
) -> io::Result<()> {
    let request = libc::ip_mreqn {
        imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group.octets()) },
        imr_address: libc::in_addr { s_addr: 0 },
        imr_ifindex: link.cast_signed(),
    };
    // SAFETY: both options read one ip_mreqn of the passed length, which outlives the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            option,
            (&raw const request).cast(),
            size_of::<libc::ip_mreqn>() as libc::socklen_t,
        )
    };
    Ok(Errno::result(answer).map(drop)?)
}

fn take_nothing(socket: &UdpSocket) -> Result<()> {
    // One instruction: return 0 bytes.
    let mut code =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    // SAFETY: SO_ATTACH_FILTER reads one sock_fprog and the instructions to which it points; both
    // outlive the call and have the passed length.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    Errno::result(answer)
        .map(drop)
        .map_err(|e| Error::new("setsockopt(SO_ATTACH_FILTER)", format!("{socket:?}"), e))
}

/// Queries the path MTU to a peer, which the kernel knows from its routes, devices and ICMP.
#[derive(Debug)]
pub struct PathProbe {
    socket: UdpSocket,
}

impl PathProbe {
    /// Creates a probe with that address in the namespace of the calling thread; for groups it uses
    /// that link.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`.
    pub fn new(local: IpAddr, group_link: Option<u32>) -> Result<PathProbe> {
        let local = SocketAddr::new(local, 0);
        let socket = open(local, false)?;
        if let Some(link) = group_link {
            lead_groups_by(&socket, local, link, 1)?;
        }
        take_nothing(&socket)?;
        Ok(PathProbe { socket })
    }

    /// Returns the socket, through which nothing is sent.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Uses the link, which has the address, for groups from now on.
    pub fn lead_groups_by(&self, local: IpAddr, link: u32) -> Result<()> {
        lead_groups_by(&self.socket, SocketAddr::new(local, 0), link, 1)
    }

    /// Returns the MTU in bytes, including the IP header. Nothing is sent.
    ///
    /// # Errors
    /// `ENETUNREACH` without a route.
    pub fn mtu(&self, peer: SocketAddr) -> Result<u32> {
        let failed = |operation, errno| Error::new(operation, format!("UDP {peer}"), errno);
        // Connecting again repeats the route lookup.
        self.socket.connect(peer).map_err(|e| Error::io("connect", format!("UDP {peer}"), &e))?;
        let (level, name) = match peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mut mtu: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: both options write one int to the pointer with the passed size; `mtu` and
        // `length` are exclusively borrowed and outlive the call.
        let answer = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                (&raw mut mtu).cast(),
                &raw mut length,
            )
        };
        Errno::result(answer).map_err(|e| failed("getsockopt(IP_MTU)", e))?;
        u32::try_from(mtu).map_err(|_| failed("getsockopt(IP_MTU)", Errno::EINVAL))
    }
}

/// Waits at most `limit` until a socket can send.
///
/// # Errors
/// No error is known for an open socket.
pub fn wait_writable(socket: &UdpSocket, limit: PollTimeout) -> io::Result<bool> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    match poll(&mut fds, limit) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: SenderOptions = SenderOptions {
        ttl: 64,
        dont_fragment: true,
        checksum: true,
        buffer: 1 << 20,
        group_link: None,
    };

    #[test]
    fn unlike_datagrams_arrive_with_what_goes_beside_them() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().unwrap();
            let options = ReceiverOptions { merged: true, zero_checksum: false, buffer: 1 << 20 };
            let receiver = match receiver(any, &options) {
                Err(e) if e.errno == Errno::EADDRNOTAVAIL || e.errno == Errno::EAFNOSUPPORT => {
                    test_support::left_out(&format!("this machine has no IPv6: {e}"));
                    continue;
                }
                receiver => receiver.unwrap(),
            };
            let to = receiver.local_addr().unwrap();
            let sender = sender(any, &SENDER).unwrap();
            let payload: Vec<u8> = (0..=255).collect();
            let message = |range, segment, tos| Outgoing { to, range, segment, tos };
            let messages = [
                message(0..10, None, 0),
                message(10..110, Some(40), 3),
                message(200..201, None, 1),
            ];
            let mut slots = SendSlots::new(8);
            assert_eq!(slots.send(&sender, &messages, &payload), Ok(3));
            let mut got = ReceiveSlots::new(4);
            assert_eq!(got.receive(&receiver), Ok(3));
            for (index, sent) in messages.iter().enumerate() {
                let m = got.message(index).unwrap();
                assert_eq!(m.from, sender.local_addr().unwrap());
                assert_eq!(m.bytes, &payload[sent.range.clone()]);
                assert_eq!((m.segment, m.tos, m.truncated), (sent.segment, sent.tos, false));
            }
            assert!(got.message(4).is_none());
            // Packets sent to a sender are discarded.
            receiver.send_to(&[1], sender.local_addr().unwrap()).unwrap();
            assert_eq!(got.receive(&sender), Err(Errno::EAGAIN));
            assert!(PathProbe::new(any.ip(), None).unwrap().mtu(to).unwrap() > 1500);
        }
    }
}
