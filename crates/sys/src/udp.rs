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
    self, CONTROL_BYTES, Control, NO_CONTROL, empty_header, merged_segment_bytes,
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

/// One payload that is sent many times in one system call.
pub struct SendBatch {
    headers: Box<[libc::mmsghdr]>,
    // All headers point to it; on the heap, so that moving the batch does not move it.
    _vector: Box<libc::iovec>,
    _payload: Box<[u8]>,
}

impl SendBatch {
    /// Creates `count` messages with the same payload, for a connected socket.
    pub fn new(payload: Box<[u8]>, count: usize) -> SendBatch {
        let vector = Box::new(libc::iovec {
            // sendmmsg only reads it.
            iov_base: payload.as_ptr().cast_mut().cast(),
            iov_len: payload.len(),
        });
        let headers = (0..count)
            .map(|_| {
                let mut header = empty_header();
                header.msg_hdr.msg_iov = (&raw const *vector).cast_mut();
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        SendBatch { headers, _vector: vector, _payload: payload }
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
        // SAFETY: `self` owns the headers, the vector to which they point, and its payload.
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
}

/// Receives and counts many datagrams in one system call. Every payload is copied from the kernel
/// into the same buffer.
pub struct ReceiveBatch {
    headers: Box<[libc::mmsghdr]>,
    // Empty if merged datagrams are not requested.
    _controls: Box<[Control]>,
    _vector: Box<libc::iovec>,
    _landing: Box<[u8]>,
    gro: bool,
}

impl ReceiveBatch {
    /// Creates a batch of up to `count` messages; `gro` is for a socket with [`set_gro`].
    pub fn new(count: usize, gro: bool) -> ReceiveBatch {
        let mut landing = vec![0; usize::from(u16::MAX)].into_boxed_slice();
        let mut vector =
            Box::new(libc::iovec { iov_base: landing.as_mut_ptr().cast(), iov_len: landing.len() });
        let mut controls = vec![NO_CONTROL; if gro { count } else { 0 }].into_boxed_slice();
        let headers = (0..count)
            .map(|i| {
                let mut header = empty_header();
                header.msg_hdr.msg_iov = &raw mut *vector;
                header.msg_hdr.msg_iovlen = 1;
                if let Some(control) = controls.get_mut(i) {
                    header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
                    header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
                }
                header
            })
            .collect();
        ReceiveBatch { headers, _controls: controls, _vector: vector, _landing: landing, gro }
    }

    /// Returns the number of messages in a full batch.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Reads the available datagrams without waiting.
    ///
    /// # Errors
    /// `EAGAIN` if there are none; a pending error of the socket (`ECONNREFUSED`).
    pub fn receive(&mut self, socket: &UdpSocket) -> std::result::Result<Received, Errno> {
        // SAFETY: `self` owns the headers, the vector, the landing buffer and the control buffers,
        // with their true lengths. All messages may use one buffer, because the kernel fills them
        // one after the other and no reference to the bytes exists during the call.
        let messages = unsafe { message::receive(socket, &mut self.headers) }?;
        let mut received = Received { messages, ..Received::default() };
        for header in &mut self.headers[..messages] {
            let bytes = u64::from(header.msg_len);
            received.bytes += bytes;
            received.datagrams += if self.gro {
                let segment = merged_segment_bytes(&header.msg_hdr);
                // The kernel has replaced it by the length it used.
                header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
                segment.map_or(1, |segment| bytes.div_ceil(segment).max(1))
            } else {
                1
            };
        }
        Ok(received)
    }
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
        let expected = Received { messages: 13, datagrams: 13, bytes: 1300 };
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
    fn an_empty_datagram_counts() {
        let (client, server) = pair();
        client.send(&[]).unwrap();
        let mut receive = ReceiveBatch::new(4, true);
        set_gro(&server).unwrap();
        let expected = Received { messages: 1, datagrams: 1, bytes: 0 };
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
    fn addresses_can_be_shared_and_peers_told_apart() {
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
