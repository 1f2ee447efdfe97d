//! UDP sockets with batches: `sendmmsg` and `recvmmsg` with reusable buffers and headers, and
//! segmentation offload by socket option (`UDP_SEGMENT`, `UDP_GRO`; `linux/udp.h`). Opening,
//! connecting and single datagrams use `std`.

use std::mem::size_of;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, getsockopt, setsockopt,
    socket,
};

use crate::message::{
    self, CONTROL_BYTES, Control, NO_CONTROL, arrival_ns, empty_header, merged_segment_bytes,
};
use crate::{Error, Result};

/// Maximum number of segments of one GSO packet that every kernel with `UDP_SEGMENT` accepts
/// (`UDP_MAX_SEGMENTS` was 64 until Linux 6.9, 128 since).
pub const MAX_SEGMENTS: usize = 64;

/// Maximum payload of a UDP datagram, or of a GSO packet, over IPv4.
pub const MAX_PAYLOAD: usize = 65507;

/// Binds a socket that shares its address with others (`SO_REUSEADDR`), so that a socket for each
/// peer can be connected in addition to the socket for new peers.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES` (ports below 1024).
pub fn bind_shared(address: SocketAddr) -> Result<UdpSocket> {
    open_bound(address, SockFlag::SOCK_CLOEXEC, |socket| {
        setsockopt(socket, ReuseAddr, &true).map_err(|e| ("setsockopt(SO_REUSEADDR)", e))
    })
}

/// Opens a socket, prepares it and binds it.
pub(crate) fn open_bound(
    address: SocketAddr,
    flags: SockFlag,
    prepare: impl FnOnce(&OwnedFd) -> std::result::Result<(), (&'static str, Errno)>,
) -> Result<UdpSocket> {
    let failed = |operation, errno| Error::new(operation, format!("UDP {address}"), errno);
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Datagram, flags, SockProtocol::Udp)
        .map_err(|e| failed("socket", e))?;
    prepare(&fd).map_err(|(operation, e)| failed(operation, e))?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).map_err(|e| failed("bind", e))?;
    Ok(UdpSocket::from(fd))
}

/// Requests a receive buffer of `bytes` for payload and overhead. With `CAP_NET_ADMIN` it may
/// exceed `net.core.rmem_max`; otherwise this is the limit. Returns the size that the kernel
/// granted: it counts the whole memory of an skb, and reports twice the requested size.
///
/// # Errors
/// Only if the descriptor is not a socket.
pub fn set_receive_buffer(socket: &UdpSocket, bytes: usize) -> Result<usize> {
    let failed = |operation, errno| Error::new(operation, format!("{socket:?}"), errno);
    if setsockopt(socket, RcvBufForce, &bytes).is_err() {
        setsockopt(socket, RcvBuf, &bytes).map_err(|e| failed("setsockopt(SO_RCVBUF)", e))?;
    }
    getsockopt(socket, RcvBuf).map_err(|e| failed("getsockopt(SO_RCVBUF)", e))
}

/// Makes the kernel segment each sent payload into datagrams of `segment_bytes` (`UDP_SEGMENT`).
///
/// # Errors
/// `ENOPROTOOPT` before Linux 4.18.
pub fn set_segment_bytes(socket: &UdpSocket, segment_bytes: u16) -> Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, segment_bytes.into())
        .map_err(|e| Error::new("setsockopt(UDP_SEGMENT)", format!("{socket:?}"), e))
}

/// Allows the kernel to return merged datagrams of one size, with that size in a control message
/// (`UDP_GRO`).
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.0.
pub fn set_gro(socket: &UdpSocket) -> Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1)
        .map_err(|e| Error::new("setsockopt(UDP_GRO)", format!("{socket:?}"), e))
}

/// Makes the kernel return the time of arrival of each datagram (`SO_TIMESTAMPNS`).
///
/// # Errors
/// Only if the descriptor is not a socket.
pub fn set_arrival_times(socket: &UdpSocket) -> Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
        .map_err(|e| Error::new("setsockopt(SO_TIMESTAMPNS)", format!("{socket:?}"), e))
}

/// Makes the kernel return the ECN codepoint of each datagram (`IP_RECVTOS`, `IPV6_RECVTCLASS`), for
/// [`ReceiveBatch::counting_ecn`] and [`receive_with_ecn`].
///
/// # Errors
/// Only if the descriptor is not a socket.
pub fn set_receive_ecn(socket: &UdpSocket) -> Result<()> {
    let of = |level, name, operation: &'static str| {
        set_int(socket, level, name, 1).map_err(|e| Error::new(operation, format!("{socket:?}"), e))
    };
    if let Ok(SocketAddr::V6(_)) = socket.local_addr() {
        of(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, "setsockopt(IPV6_RECVTCLASS)")?;
    }
    // Also on a socket of IPv6, for IPv4 peers of a socket of both families.
    of(libc::IPPROTO_IP, libc::IP_RECVTOS, "setsockopt(IP_RECVTOS)")
}

/// Sets whether non-fatal ICMP errors (host or network unreachable) are also reported on a
/// connected socket (`IP_RECVERR`, `IPV6_RECVERR`). If it is on, a send to a full queueing
/// discipline also returns `ENOBUFS`.
///
/// # Errors
/// Only if the descriptor is not a socket.
pub fn set_report_icmp(socket: &UdpSocket, on: bool) -> Result<()> {
    let (level, name) = match socket.local_addr() {
        Ok(SocketAddr::V6(_)) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        _ => (libc::IPPROTO_IP, libc::IP_RECVERR),
    };
    set_int(socket, level, name, on.into())
        .map_err(|e| Error::new("setsockopt(IP_RECVERR)", format!("{socket:?}"), e))
}

pub(crate) fn set_int(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> std::result::Result<(), Errno> {
    // SAFETY: the value of the option is the int passed by pointer and size; the descriptor is open
    // while `socket` is borrowed.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    Errno::result(answer).map(drop)
}

/// Number of bytes at the beginning of a datagram that may differ within a batch.
pub const HEAD_BYTES: usize = 16;

/// Beginning of a datagram.
pub type Head = [u8; HEAD_BYTES];

/// One payload that is sent many times in one system call.
pub struct SendBatch {
    headers: Box<[libc::mmsghdr]>,
    // The headers point to them; on the heap, so that moving the batch does not move them. One for
    // all messages, or two per message: its head, and the rest of the payload.
    vectors: Box<[libc::iovec]>,
    // Empty if all messages are equal.
    heads: Box<[Head]>,
    _payload: Box<[u8]>,
}

fn vector(bytes: &[u8]) -> libc::iovec {
    // sendmmsg only reads it.
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

impl SendBatch {
    /// Creates `count` messages with the same payload, for a connected socket.
    pub fn new(payload: Box<[u8]>, count: usize) -> SendBatch {
        let vectors = vec![vector(&payload)].into_boxed_slice();
        let headers = (0..count)
            .map(|_| {
                let mut header = empty_header();
                header.msg_hdr.msg_iov = vectors.as_ptr().cast_mut();
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        SendBatch { headers, vectors, heads: Box::default(), _payload: payload }
    }

    /// Creates `count` messages whose heads may differ. A payload shorter than a head is filled up
    /// to its length.
    pub fn with_heads(payload: Box<[u8]>, count: usize) -> SendBatch {
        let heads = vec![[0; HEAD_BYTES]; count].into_boxed_slice();
        let rest = payload.get(HEAD_BYTES..).unwrap_or_default();
        let mut vectors: Box<[libc::iovec]> =
            heads.iter().flat_map(|head| [vector(head), vector(rest)]).collect();
        let headers = vectors
            .chunks_mut(2)
            .map(|pair| {
                let mut header = empty_header();
                header.msg_hdr.msg_iov = pair.as_mut_ptr();
                header.msg_hdr.msg_iovlen = 2;
                header
            })
            .collect();
        SendBatch { headers, vectors, heads, _payload: payload }
    }

    /// Sets the head of a message. No effect on a batch of equal messages, or past its end.
    pub fn set_head(&mut self, message: usize, head: Head) {
        let Some(place) = self.heads.get_mut(message) else { return };
        *place = head;
        // The pointer is derived anew from the head that was just written.
        self.vectors[2 * message] = vector(place);
    }

    /// Returns the number of messages in a full batch.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Sends the first `count` messages, or fewer if the kernel stops before an error; returns the
    /// number of messages sent.
    ///
    /// # Errors
    /// The kernel's error for the first message.
    pub fn send(&mut self, socket: &UdpSocket, count: usize) -> std::result::Result<usize, Errno> {
        // SAFETY: `self` owns the headers, the vectors to which they point, and their heads and
        // payload.
        unsafe { message::send(socket, &mut self.headers, count) }
    }
}

/// The result of one [`ReceiveBatch::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// Messages: units that the kernel returned.
    pub messages: usize,
    /// Datagrams: more than messages if the kernel has merged some.
    pub datagrams: u64,
    /// Payload in bytes.
    pub bytes: u64,
    /// Datagrams by ECN codepoint; all zero unless the batch counts them.
    pub ecn: Codepoints,
}

/// Datagrams by ECN codepoint (RFC 3168, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Codepoints {
    /// Not-ECT: without ECN.
    pub not_ect: u64,
    /// ECT(0) or ECT(1).
    pub ect: u64,
    /// CE: a queue on the path reports congestion.
    pub ce: u64,
}

impl Codepoints {
    fn count(&mut self, tos: u8, datagrams: u64) {
        match tos & 3 {
            0 => self.not_ect += datagrams,
            3 => self.ce += datagrams,
            _ => self.ect += datagrams,
        }
    }
}

/// Receives and counts many datagrams in one system call. Every payload is copied from the kernel
/// into the same buffer.
pub struct ReceiveBatch {
    headers: Box<[libc::mmsghdr]>,
    // Empty if neither merged datagrams, nor times of arrival, nor codepoints are requested.
    controls: Box<[Control]>,
    // One for all messages, or two per message: its head, and the landing.
    _vectors: Box<[libc::iovec]>,
    // Empty if heads are not kept.
    heads: Box<[Head]>,
    _landing: Box<[u8]>,
    gro: bool,
    ecn: bool,
}

impl ReceiveBatch {
    /// Creates a batch of up to `count` messages; `gro` is for a socket with [`set_gro`].
    pub fn new(count: usize, gro: bool) -> ReceiveBatch {
        let mut landing = vec![0; usize::from(u16::MAX)].into_boxed_slice();
        let mut vectors = vec![writable(&mut landing)].into_boxed_slice();
        let mut controls = vec![NO_CONTROL; if gro { count } else { 0 }].into_boxed_slice();
        let headers = (0..count).map(|i| filled_by(&mut vectors, controls.get_mut(i))).collect();
        let heads = Box::default();
        ReceiveBatch {
            headers,
            controls,
            _vectors: vectors,
            heads,
            _landing: landing,
            gro,
            ecn: false,
        }
    }

    /// Counts the datagrams by ECN codepoint, for a socket with [`set_receive_ecn`].
    #[must_use]
    pub fn counting_ecn(mut self) -> ReceiveBatch {
        if self.controls.is_empty() {
            self.controls = vec![NO_CONTROL; self.headers.len()].into_boxed_slice();
            for (header, control) in self.headers.iter_mut().zip(&mut self.controls) {
                set_control(header, control);
            }
        }
        ReceiveBatch { ecn: true, ..self }
    }

    /// Creates a batch of up to `count` messages that keeps their heads, for a socket with
    /// [`set_arrival_times`].
    pub fn with_heads(count: usize) -> ReceiveBatch {
        let mut landing = vec![0; usize::from(u16::MAX)].into_boxed_slice();
        let mut heads = vec![[0; HEAD_BYTES]; count].into_boxed_slice();
        let mut vectors: Box<[libc::iovec]> =
            heads.iter_mut().flat_map(|head| [writable(head), writable(&mut landing)]).collect();
        let mut controls = vec![NO_CONTROL; count].into_boxed_slice();
        let headers = vectors
            .chunks_mut(2)
            .zip(&mut controls)
            .map(|(pair, control)| filled_by(pair, Some(control)))
            .collect();
        let gro = false;
        ReceiveBatch {
            headers,
            controls,
            _vectors: vectors,
            heads,
            _landing: landing,
            gro,
            ecn: false,
        }
    }

    /// Returns the number of messages in a full batch.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Calls `each` with the head and the time of arrival (ns of CLOCK_REALTIME) of each of the
    /// first `messages` messages of the last [`receive`](ReceiveBatch::receive). Messages that are
    /// shorter than a head are left out.
    pub fn heads(&mut self, messages: usize, mut each: impl FnMut(&Head, i64)) {
        for (header, head) in self.headers.iter_mut().zip(&self.heads).take(messages) {
            // Without the kernel's time, there is nothing to compare.
            if let Some(at) = arrival_ns(&header.msg_hdr)
                && header.msg_len as usize >= HEAD_BYTES
            {
                each(head, at);
            }
            // The kernel has replaced it by the length it used.
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
    }

    /// Reads the available datagrams without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if there are none; a pending error of the socket (`ECONNREFUSED`).
    pub fn receive(&mut self, socket: &UdpSocket) -> std::result::Result<Received, Errno> {
        // SAFETY: `self` owns the headers, the vectors, the heads, the landing buffer and the control
        // buffers, with their true lengths. All messages may use one landing buffer, because the
        // kernel fills them one after the other and no reference to the bytes exists during the
        // call.
        let messages = unsafe { message::receive(socket, &mut self.headers) }?;
        let mut received = Received { messages, ..Received::default() };
        for header in &mut self.headers[..messages] {
            let bytes = u64::from(header.msg_len);
            received.bytes += bytes;
            let datagrams = if self.gro {
                let segment = merged_segment_bytes(&header.msg_hdr);
                segment.map_or(1, |segment| bytes.div_ceil(segment).max(1))
            } else {
                1
            };
            received.datagrams += datagrams;
            if self.ecn {
                // The kernel merges only datagrams of one codepoint.
                received.ecn.count(message::tos(&header.msg_hdr).unwrap_or(0), datagrams);
            }
            // With heads, the times of arrival are still to be read.
            if !self.controls.is_empty() && self.heads.is_empty() {
                // The kernel has replaced it by the length it used.
                header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            }
        }
        Ok(received)
    }
}

/// Reads one datagram, like `recv`, and its ECN codepoint, from a socket with [`set_receive_ecn`].
/// Returns its length in bytes, at most that of the buffer. Waits for a datagram up to the socket's
/// time limit.
///
/// # Errors
/// `EAGAIN` after the time limit, `EINTR`; a pending error of the socket (`ECONNREFUSED`).
pub fn receive_with_ecn(
    socket: &UdpSocket,
    buffer: &mut [u8],
) -> std::io::Result<(usize, Codepoints)> {
    let mut control = NO_CONTROL;
    let mut vectors = [writable(buffer)];
    let mut header = filled_by(&mut vectors, Some(&mut control)).msg_hdr;
    // SAFETY: the header points to the vector and the control buffer, and the vector to `buffer`, with
    // their true lengths; nothing else uses them during the call.
    let read = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    let read = usize::try_from(read).map_err(|_| std::io::Error::last_os_error())?;
    let mut ecn = Codepoints::default();
    ecn.count(message::tos(&header).unwrap_or(0), 1);
    Ok((read, ecn))
}

fn writable(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn filled_by(vectors: &mut [libc::iovec], control: Option<&mut Control>) -> libc::mmsghdr {
    let mut header = empty_header();
    header.msg_hdr.msg_iov = vectors.as_mut_ptr();
    header.msg_hdr.msg_iovlen = vectors.len() as _;
    if let Some(control) = control {
        set_control(&mut header, control);
    }
    header
}

fn set_control(header: &mut libc::mmsghdr, control: &mut Control) {
    header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
    header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
}

impl std::fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendBatch").field("messages", &self.headers.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveBatch")
            .field("messages", &self.headers.len())
            .field("gro", &self.gro)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pair() -> (UdpSocket, UdpSocket) {
        let server = bind_shared("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        (client, server)
    }

    /// Reads until `datagrams` have arrived (loopback delivers before send returns).
    fn read_all(batch: &mut ReceiveBatch, socket: &UdpSocket) -> Received {
        let mut total = Received::default();
        loop {
            match batch.receive(socket) {
                Ok(read) => {
                    total.messages += read.messages;
                    total.datagrams += read.datagrams;
                    total.bytes += read.bytes;
                }
                Err(Errno::EAGAIN) => return total,
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    #[test]
    fn a_batch_arrives_whole() {
        let (client, server) = pair();
        let mut send = SendBatch::new(vec![7; 100].into(), 10);
        assert_eq!(send.send(&client, 10), Ok(10));
        assert_eq!(send.send(&client, 3), Ok(3));
        let mut receive = ReceiveBatch::new(4, false);
        let expected = Received { messages: 13, datagrams: 13, bytes: 1300, ..Received::default() };
        assert_eq!(read_all(&mut receive, &server), expected);
        assert_eq!(receive.receive(&server), Err(Errno::EAGAIN));
    }

    #[test]
    fn merged_datagrams_are_counted_one_by_one() {
        let (client, server) = pair();
        set_segment_bytes(&client, 100).unwrap();
        set_gro(&server).unwrap();
        // 450 bytes in segments of 100: four full ones and one of 50.
        let mut send = SendBatch::new(vec![7; 450].into(), 2);
        assert_eq!(send.send(&client, 2), Ok(2));
        let mut receive = ReceiveBatch::new(4, true);
        let read = read_all(&mut receive, &server);
        assert_eq!((read.datagrams, read.bytes), (10, 900));
        assert_eq!(read.messages, 2, "loopback does not cut GSO packets");
        // The length of the control buffer is restored, so a second round reads the same.
        assert_eq!(send.send(&client, 1), Ok(1));
        assert_eq!(read_all(&mut receive, &server).datagrams, 5);
    }

    #[test]
    fn codepoints_are_counted_by_datagram() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let server = bind_shared(address).unwrap();
            let client = UdpSocket::bind(address).unwrap();
            client.connect(server.local_addr().unwrap()).unwrap();
            set_receive_ecn(&server).unwrap();
            set_segment_bytes(&client, 100).unwrap();
            set_gro(&server).unwrap();
            let mut send = SendBatch::new(vec![7; 300].into(), 2);
            let mut receive = ReceiveBatch::new(4, true).counting_ecn();
            // Twice, because the kernel overwrites the length of the control buffers.
            for (ect, expected) in [
                (true, Codepoints { ect: 6, ..Codepoints::default() }),
                (false, Codepoints { not_ect: 6, ..Codepoints::default() }),
                (true, Codepoints { ect: 6, ..Codepoints::default() }),
            ] {
                crate::dscp::set(&client, &address, 0, ect).unwrap();
                assert_eq!(send.send(&client, 2), Ok(2));
                let received = receive.receive(&server).unwrap();
                assert_eq!((received.datagrams, received.ecn), (6, expected), "{address}");
            }
        }
    }

    #[test]
    fn codepoints_arrive_beside_times() {
        let (client, server) = pair();
        set_arrival_times(&server).unwrap();
        set_receive_ecn(&server).unwrap();
        let address = client.local_addr().unwrap();
        crate::dscp::set(&client, &address, 0, true).unwrap();
        let mut send = SendBatch::with_heads(vec![7; 100].into(), 3);
        let mut receive = ReceiveBatch::with_heads(4).counting_ecn();
        for _ in 0..2 {
            assert_eq!(send.send(&client, 3), Ok(3));
            assert_eq!(receive.receive(&server).unwrap().ecn.ect, 3);
            let mut timed = 0;
            receive.heads(3, |_, _| timed += 1);
            assert_eq!(timed, 3);
        }
    }

    #[test]
    fn single_datagrams_arrive_with_their_codepoint() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let server = bind_shared(address).unwrap();
            server.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
            let client = UdpSocket::bind(address).unwrap();
            client.connect(server.local_addr().unwrap()).unwrap();
            set_receive_ecn(&server).unwrap();
            let mut buffer = [0; 8];
            for (ect, expected) in [
                (true, Codepoints { ect: 1, ..Codepoints::default() }),
                (false, Codepoints { not_ect: 1, ..Codepoints::default() }),
            ] {
                crate::dscp::set(&client, &address, 0, ect).unwrap();
                client.send(b"abc").unwrap();
                assert_eq!(receive_with_ecn(&server, &mut buffer).unwrap(), (3, expected));
                assert_eq!(&buffer[..3], b"abc");
            }
            let none = receive_with_ecn(&server, &mut buffer).unwrap_err();
            assert_eq!(none.kind(), std::io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn heads_arrive_with_times() {
        let (client, server) = pair();
        set_arrival_times(&server).unwrap();
        for (size, rest) in [(100, 84), (HEAD_BYTES, 0)] {
            let mut send = SendBatch::with_heads(vec![7; size].into(), 3);
            let mut receive = ReceiveBatch::with_heads(4);
            // Twice, because the kernel overwrites the length of the control buffers.
            for round in 0..2_u8 {
                for message in 0..3_u8 {
                    send.set_head(message.into(), [message + 10 * round; HEAD_BYTES]);
                }
                assert_eq!(send.send(&client, 3), Ok(3));
                client.send(b"short").unwrap();
                let bytes = 3 * (HEAD_BYTES as u64 + rest) + 5;
                let expected = Received { messages: 4, datagrams: 4, bytes, ..Received::default() };
                assert_eq!(receive.receive(&server), Ok(expected));
                let (mut firsts, mut times) = (Vec::new(), Vec::new());
                receive.heads(4, |head, at| {
                    firsts.push(head[0]);
                    times.push(at);
                });
                assert_eq!(firsts, [0, 1, 2].map(|message| message + 10 * round));
                assert!(times.is_sorted() && times[0] > 0, "{times:?}");
            }
        }
    }

    #[test]
    fn an_empty_datagram_counts() {
        let (client, server) = pair();
        client.send(&[]).unwrap();
        let mut receive = ReceiveBatch::new(4, true);
        set_gro(&server).unwrap();
        let expected = Received { messages: 1, datagrams: 1, ..Received::default() };
        assert_eq!(read_all(&mut receive, &server), expected);
    }

    #[test]
    fn a_closed_port_is_reported_to_the_sender() {
        let (client, server) = pair();
        drop(server);
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.send(b"x").unwrap();
        let mut byte = [0];
        assert_eq!(
            client.recv(&mut byte).unwrap_err().raw_os_error(),
            Some(Errno::ECONNREFUSED as i32)
        );
    }

    #[test]
    fn addresses_can_be_shared_and_peers_distinguished() {
        let (client, server) = pair();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        other.connect(server.local_addr().unwrap()).unwrap();
        let own = bind_shared(server.local_addr().unwrap()).unwrap();
        own.connect(client.local_addr().unwrap()).unwrap();
        client.send(b"mine").unwrap();
        other.send(b"others").unwrap();
        let mut receive = ReceiveBatch::new(4, false);
        assert_eq!(receive.receive(&own).unwrap().bytes, 4);
        assert_eq!(receive.receive(&server).unwrap().bytes, 6);
    }

    #[test]
    fn the_receive_buffer_is_what_the_kernel_granted() {
        let (_, server) = pair();
        let granted = set_receive_buffer(&server, 1 << 16).unwrap();
        assert_eq!(granted, 2 << 16);
    }
}
