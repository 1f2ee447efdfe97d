//! A tunnel's UDP sockets: unlike datagrams to unlike peers in one system call,
//! each with what goes beside it (`UDP_SEGMENT`, `UDP_GRO`, the TOS octet or
//! traffic class). [`crate::udp`] is for one payload to one peer.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{Ipv6V6Only, RcvBuf, RcvBufForce, ReusePort, SndBuf, SndBufForce};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, setsockopt, socket,
};

use crate::udp::{merged_segment_bytes, set_int};
use crate::{Error, Result};

/// Room for one received message: no UDP payload is longer.
pub const MESSAGE_BYTES: usize = 1 << 16;

/// `include/uapi/linux/udp.h`.
const UDP_NO_CHECK6_TX: libc::c_int = 101;
const UDP_NO_CHECK6_RX: libc::c_int = 102;
/// `include/uapi/linux/in.h`, `in6.h`: the same values in both families.
const PMTUDISC_DONT: libc::c_int = 0;
const PMTUDISC_DO: libc::c_int = 2;

/// What is set on a sending socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderOptions {
    /// TTL or hop limit, at least 1.
    pub ttl: u8,
    /// Don't Fragment: too long a datagram is an error (`EMSGSIZE`) instead of
    /// several fragments.
    pub dont_fragment: bool,
    /// Whether datagrams have a UDP checksum.
    pub checksum: bool,
    /// Send buffer in bytes.
    pub buffer: usize,
}

/// What is set on a receiving socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverOptions {
    /// Take merged datagrams (`UDP_GRO`).
    pub merged: bool,
    /// Over IPv6, take datagrams without a checksum (RFC 6935), too.
    pub zero_checksum: bool,
    /// Receive buffer in bytes.
    pub buffer: usize,
}

fn open(address: SocketAddr, reuse: bool) -> Result<UdpSocket> {
    let failed = |operation, errno| Error::new(operation, format!("UDP {address}"), errno);
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Datagram, flags, SockProtocol::Udp)
        .map_err(|e| failed("socket", e))?;
    if address.is_ipv6() {
        setsockopt(&fd, Ipv6V6Only, &true).map_err(|e| failed("setsockopt(IPV6_V6ONLY)", e))?;
    }
    if reuse {
        setsockopt(&fd, ReusePort, &true).map_err(|e| failed("setsockopt(SO_REUSEPORT)", e))?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).map_err(|e| failed("bind", e))?;
    Ok(UdpSocket::from(fd))
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

/// A nonblocking socket that only sends: what arrives at its port is discarded
/// by the kernel (a filter that takes nothing).
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn sender(address: SocketAddr, options: &SenderOptions) -> Result<UdpSocket> {
    let socket = open(address, false)?;
    take_nothing(&socket)?;
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
    // Past net.core.wmem_max where the kernel allows it, else up to it.
    if setsockopt(&socket, SndBufForce, &options.buffer).is_err() {
        setsockopt(&socket, SndBuf, &options.buffer)
            .map_err(|e| Error::new("setsockopt(SO_SNDBUF)", format!("{socket:?}"), e))?;
    }
    Ok(socket)
}

/// A nonblocking socket that receives, one of several at that address (a flow
/// always reaches the same one), with the TOS octet or traffic class of each
/// datagram.
///
/// # Errors
/// `EADDRINUSE` (the kernel's VXLAN device at the same port, for one),
/// `EADDRNOTAVAIL`, `ENOPROTOOPT` before Linux 5.0.
pub fn receiver(address: SocketAddr, options: &ReceiverOptions) -> Result<UdpSocket> {
    let socket = open(address, true)?;
    match address {
        SocketAddr::V4(_) => {
            let name = (libc::IPPROTO_IP, libc::IP_RECVTOS);
            set(&socket, "setsockopt(IP_RECVTOS)", name, 1)?;
        }
        SocketAddr::V6(_) => {
            let name = (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS);
            set(&socket, "setsockopt(IPV6_RECVTCLASS)", name, 1)?;
            let name = (libc::SOL_UDP, UDP_NO_CHECK6_RX);
            set(&socket, "setsockopt(UDP_NO_CHECK6_RX)", name, options.zero_checksum.into())?;
        }
    }
    if options.merged {
        crate::udp::set_gro(&socket)?;
    }
    if setsockopt(&socket, RcvBufForce, &options.buffer).is_err() {
        setsockopt(&socket, RcvBuf, &options.buffer)
            .map_err(|e| Error::new("setsockopt(SO_RCVBUF)", format!("{socket:?}"), e))?;
    }
    Ok(socket)
}

fn take_nothing(socket: &UdpSocket) -> Result<()> {
    // One instruction: return 0 bytes.
    let mut code =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_mut_ptr() };
    // SAFETY: SO_ATTACH_FILTER reads one sock_fprog and the instructions it
    // points to; both are alive and of the length given.
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

/// Asks for the MTU of the path to a peer, which the kernel learns from its
/// routes, devices and ICMP.
#[derive(Debug)]
pub struct PathProbe {
    socket: UdpSocket,
}

impl PathProbe {
    /// A probe from that address, in the calling thread's namespace.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`.
    pub fn new(local: IpAddr) -> Result<PathProbe> {
        let socket = open(SocketAddr::new(local, 0), false)?;
        take_nothing(&socket)?;
        Ok(PathProbe { socket })
    }

    /// The MTU in bytes, IP header included. Nothing is sent.
    ///
    /// # Errors
    /// `ENETUNREACH` without a route.
    pub fn mtu(&self, peer: SocketAddr) -> Result<u32> {
        let failed = |operation, errno| Error::new(operation, format!("UDP {peer}"), errno);
        // Connecting anew looks the route up anew.
        self.socket.connect(peer).map_err(|e| Error::io("connect", format!("UDP {peer}"), &e))?;
        let (level, name) = match peer {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        let mut mtu: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: both options write one int through the pointer, whose size is
        // given; `mtu` and `length` are exclusively borrowed and outlive the call.
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

/// Waits until a socket has room to send, `limit` at most.
///
/// # Errors
/// None that an open socket is known to give.
pub fn wait_writable(socket: &UdpSocket, limit: PollTimeout) -> io::Result<bool> {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    match poll(&mut fds, limit) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// A payload to be sent, or a piece of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The peer.
    pub to: SocketAddr,
    /// Where its bytes are in the buffer given to [`SendSlots::send`].
    pub range: Range<usize>,
    /// Has the kernel cut it into datagrams of that many bytes
    /// (`UDP_SEGMENT`).
    pub segment: Option<u16>,
    /// TOS octet or traffic class; 0: the socket's own, which is 0.
    pub tos: u8,
}

/// Room for two control messages with an int, aligned as `cmsghdr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: CMSG_SPACE only computes a size.
const CONTROL_BYTES: usize =
    2 * unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as libc::c_uint) } as usize;

/// An address as the kernel takes it, of either family.
#[repr(C)]
#[derive(Clone, Copy)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: all zeroes is an mmsghdr without address, data or control message.
    unsafe { zeroed() }
}

fn empty_name() -> Name {
    // SAFETY: all zeroes is a valid value of either address.
    unsafe { zeroed() }
}

const EMPTY_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Headers for a number of messages, made once.
pub struct SendSlots {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

// SAFETY: the pointers in `headers` and `vectors` are written by `send` before
// the kernel reads them, and point to the other fields' heap memory or to what
// is borrowed for the call; between calls nobody follows them.
unsafe impl Send for SendSlots {}

impl SendSlots {
    /// Up to `count` messages a call.
    pub fn new(count: usize) -> SendSlots {
        SendSlots {
            headers: (0..count).map(|_| empty_header()).collect(),
            vectors: vec![EMPTY_VECTOR; count].into_boxed_slice(),
            names: (0..count).map(|_| empty_name()).collect(),
            controls: vec![Control([0; CONTROL_BYTES]); count].into_boxed_slice(),
        }
    }

    /// Messages a call.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Sends the first of these messages, as many as there is room for and as
    /// the kernel takes before it would have to report an error; returns how
    /// many. A range outside of `payload` counts as empty.
    ///
    /// # Errors
    /// The kernel's answer to the first message.
    pub fn send<'m>(
        &mut self,
        socket: &UdpSocket,
        messages: impl IntoIterator<Item = &'m Outgoing>,
        payload: &[u8],
    ) -> std::result::Result<usize, Errno> {
        let mut count = 0;
        for (index, message) in messages.into_iter().take(self.headers.len()).enumerate() {
            let bytes = payload.get(message.range.clone()).unwrap_or(&[]);
            self.vectors[index] = libc::iovec {
                // sendmmsg only reads through it.
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut self.names[index]).cast();
            let tos = match message.to {
                SocketAddr::V4(to) => {
                    self.names[index].v4 = name_v4(to);
                    header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
                    (libc::IPPROTO_IP, libc::IP_TOS)
                }
                SocketAddr::V6(to) => {
                    self.names[index].v6 = name_v6(to);
                    header.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                }
            };
            let control = &mut self.controls[index].0;
            let mut used = 0;
            if let Some(segment) = message.segment {
                let kind = (libc::SOL_UDP, libc::UDP_SEGMENT);
                used += put_control(&mut control[used..], kind, &segment.to_ne_bytes());
            }
            if message.tos != 0 {
                let value = libc::c_int::from(message.tos).to_ne_bytes();
                used += put_control(&mut control[used..], tos, &value);
            }
            header.msg_control =
                if used > 0 { control.as_mut_ptr().cast() } else { std::ptr::null_mut() };
            header.msg_controllen = used as _;
            count += 1;
        }
        // SAFETY: the first `count` headers were filled just now; what they point
        // to is owned by `self` or borrowed (`payload`), alive, of the lengths
        // given; the kernel writes only `msg_len`.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_NOSIGNAL,
            )
        };
        Errno::result(sent).map(|sent| sent as usize)
    }
}

/// Writes a control message, as `CMSG_FIRSTHDR` and `CMSG_DATA` would find it,
/// and returns the room it takes; 0 when there is too little.
fn put_control(room: &mut [u8], (level, kind): (libc::c_int, libc::c_int), value: &[u8]) -> usize {
    // SAFETY: both only compute sizes.
    let (length, space) = unsafe {
        let bytes = value.len() as libc::c_uint;
        (libc::CMSG_LEN(bytes) as usize, libc::CMSG_SPACE(bytes) as usize)
    };
    let Some(room) = room.get_mut(..space) else { return 0 };
    // struct cmsghdr: length, level, type; then the data, at its alignment.
    let at = size_of::<usize>();
    room[..at].copy_from_slice(&length.to_ne_bytes());
    room[at..at + 4].copy_from_slice(&level.to_ne_bytes());
    room[at + 4..at + 8].copy_from_slice(&kind.to_ne_bytes());
    room[length - value.len()..length].copy_from_slice(value);
    space
}

// Musl declares the length narrower, with padding; then this module needs its own layout.
const _: () = assert!(size_of::<libc::cmsghdr>() == size_of::<usize>() + 8);

fn name_v4(to: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(to.ip().octets()) },
        sin_zero: [0; 8],
    }
}

fn name_v6(to: SocketAddrV6) -> libc::sockaddr_in6 {
    libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: to.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: to.ip().octets() },
        sin6_scope_id: to.scope_id(),
    }
}

/// A received payload.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The peer.
    pub from: SocketAddr,
    /// The bytes, which may be changed in place.
    pub bytes: &'a mut [u8],
    /// The size of the datagrams in it, if the kernel says so: of those merged
    /// (`UDP_GRO`), or of UDP datagrams inside a tunnel's super-packet.
    pub segment: Option<u16>,
    /// TOS octet or traffic class.
    pub tos: u8,
    /// Whether some of it did not fit.
    pub truncated: bool,
}

/// Buffers for a number of messages, made once.
pub struct ReceiveSlots {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    buffer: Box<[u8]>,
}

// SAFETY: the pointers in `headers` and `vectors` are written by `receive`
// before the kernel follows them, and point to the other fields' heap memory.
unsafe impl Send for ReceiveSlots {}

impl ReceiveSlots {
    /// Up to `count` messages a call, [`MESSAGE_BYTES`] each.
    pub fn new(count: usize) -> ReceiveSlots {
        ReceiveSlots {
            headers: (0..count).map(|_| empty_header()).collect(),
            vectors: vec![EMPTY_VECTOR; count].into_boxed_slice(),
            names: (0..count).map(|_| empty_name()).collect(),
            controls: vec![Control([0; CONTROL_BYTES]); count].into_boxed_slice(),
            buffer: vec![0; count * MESSAGE_BYTES].into_boxed_slice(),
        }
    }

    /// Messages a call.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Reads what is there, without waiting; returns how many messages there are
    /// for [`ReceiveSlots::message`].
    ///
    /// # Errors
    /// `EAGAIN` when nothing is there.
    pub fn receive(&mut self, socket: &UdpSocket) -> std::result::Result<usize, Errno> {
        let slots = self.buffer.chunks_exact_mut(MESSAGE_BYTES).enumerate();
        for (index, slot) in slots {
            self.vectors[index] =
                libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            self.headers[index].msg_hdr = libc::msghdr {
                msg_name: (&raw mut self.names[index]).cast(),
                msg_namelen: size_of::<Name>() as libc::socklen_t,
                msg_iov: &raw mut self.vectors[index],
                msg_iovlen: 1,
                msg_control: self.controls[index].0.as_mut_ptr().cast(),
                msg_controllen: CONTROL_BYTES as _,
                ..empty_header().msg_hdr
            };
        }
        // SAFETY: all headers were filled just now, with the addresses and true
        // lengths of memory that `self` owns, each its own; no reference to it
        // exists during the call.
        let messages = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        Errno::result(messages).map(|messages| messages as usize)
    }

    /// A message that the last [`ReceiveSlots::receive`] has read; `None` past
    /// the last slot, or for an address of another family than IP.
    pub fn message(&mut self, index: usize) -> Option<Incoming<'_>> {
        let header = self.headers.get(index)?;
        let from = address(self.names.get(index)?)?;
        let segment = merged_segment_bytes(&header.msg_hdr).and_then(|s| u16::try_from(s).ok());
        let tos = tos_of(&header.msg_hdr);
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let length = (header.msg_len as usize).min(MESSAGE_BYTES);
        let bytes = &mut self.buffer[index * MESSAGE_BYTES..][..length];
        Some(Incoming { from, bytes, segment, tos, truncated })
    }
}

fn address(name: &Name) -> Option<SocketAddr> {
    // SAFETY: the family is at the same place in both, and every value of either
    // is valid: plain integers.
    let (v4, v6) = unsafe { (name.v4, name.v6) };
    match i32::from(v4.sin_family) {
        libc::AF_INET => {
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
        }
        _ => None,
    }
}

/// The TOS octet (a byte) or traffic class (an int) in the control messages.
fn tos_of(header: &libc::msghdr) -> u8 {
    // SAFETY: msg_control and msg_controllen describe a buffer of the slots that
    // the kernel has just filled, which the CMSG macros walk within bounds.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() };
    while let Some(control) = next {
        match (control.cmsg_level, control.cmsg_type) {
            // SAFETY: the kernel put a byte here (ip_cmsg_recv_tos).
            (libc::IPPROTO_IP, libc::IP_TOS) => return unsafe { *libc::CMSG_DATA(control) },
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // SAFETY: the kernel put an int here (ip6_datagram_recv_specific_ctl).
                let class =
                    unsafe { libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned() };
                return class as u8;
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR; `control` lies in the same buffer.
        next = unsafe { libc::CMSG_NXTHDR(header, control).as_ref() };
    }
    0
}

impl std::fmt::Debug for SendSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendSlots").field("messages", &self.headers.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ReceiveSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveSlots")
            .field("messages", &self.headers.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: SenderOptions =
        SenderOptions { ttl: 64, dont_fragment: true, checksum: true, buffer: 1 << 20 };

    #[test]
    fn unlike_datagrams_arrive_with_what_goes_beside_them() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let any: SocketAddr = any.parse().unwrap();
            let options = ReceiverOptions { merged: true, zero_checksum: false, buffer: 1 << 20 };
            let receiver = match receiver(any, &options) {
                Err(e) if e.errno == Errno::EADDRNOTAVAIL || e.errno == Errno::EAFNOSUPPORT => {
                    eprintln!("skipped: no IPv6 here");
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
            // What is sent to a sender goes nowhere.
            receiver.send_to(&[1], sender.local_addr().unwrap()).unwrap();
            assert_eq!(got.receive(&sender), Err(Errno::EAGAIN));
            assert!(PathProbe::new(any.ip()).unwrap().mtu(to).unwrap() > 1500);
        }
    }
}
