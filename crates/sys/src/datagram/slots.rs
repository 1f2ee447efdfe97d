//! Messages of a system call; the memory is allocated once and filled for each call.

use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::ops::Range;

use nix::errno::Errno;

use super::MESSAGE_BYTES;
use crate::message::{
    self, CONTROL_BYTES, Control, NO_CONTROL, empty_header, merged_segment_bytes,
};

/// A payload to send, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Recipient of the datagram.
    pub to: SocketAddr,
    /// Position of the data in the buffer passed to [`SendSlots::send`].
    pub range: Range<usize>,
    /// Segment size in bytes if the kernel shall segment it (`UDP_SEGMENT`).
    pub segment: Option<u16>,
    /// TOS octet or traffic class; 0: that of the socket, which is 0.
    pub tos: u8,
}

/// An address of either family in the layout of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

fn empty_name() -> Name {
    // SAFETY: all zeroes is a valid value of either address.
    unsafe { zeroed() }
}

const EMPTY_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Headers for a number of messages, allocated once.
pub struct SendSlots {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

// SAFETY: `send` writes the pointers in `headers` and `vectors` before the kernel reads them. They
// point to the heap memory of the other fields or to memory borrowed for the call, and are not used
// between calls.
unsafe impl Send for SendSlots {}

impl SendSlots {
    /// Creates slots for up to `count` messages in one call.
    pub fn new(count: usize) -> SendSlots {
        SendSlots {
            headers: (0..count).map(|_| empty_header()).collect(),
            vectors: vec![EMPTY_VECTOR; count].into_boxed_slice(),
            names: (0..count).map(|_| empty_name()).collect(),
            controls: vec![NO_CONTROL; count].into_boxed_slice(),
        }
    }

    /// Returns the maximum number of messages that one call sends.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Sends as many of the messages as fit, or fewer if the kernel stops before an error; returns
    /// the number of messages sent. A range outside `payload` counts as empty.
    ///
    /// # Errors
    /// The kernel's error for the first message.
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
                // sendmmsg only reads it.
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
        // SAFETY: the first `count` headers have just been filled. They point to memory that `self`
        // owns or that is borrowed (`payload`), with the lengths in them.
        unsafe { message::send(socket, &mut self.headers, count) }
    }
}

/// Writes a control message as `CMSG_FIRSTHDR` and `CMSG_DATA` expect it. Returns the space it
/// uses; 0 if there is too little.
fn put_control(room: &mut [u8], (level, kind): (libc::c_int, libc::c_int), value: &[u8]) -> usize {
    // SAFETY: both only compute sizes.
    let (length, space) = unsafe {
        let bytes = value.len() as libc::c_uint;
        (libc::CMSG_LEN(bytes) as usize, libc::CMSG_SPACE(bytes) as usize)
    };
    let Some(room) = room.get_mut(..space) else { return 0 };
    // struct cmsghdr: length, level, type; then the data, aligned.
    let at = size_of::<usize>();
    room[..at].copy_from_slice(&length.to_ne_bytes());
    room[at..at + 4].copy_from_slice(&level.to_ne_bytes());
    room[at + 4..at + 8].copy_from_slice(&kind.to_ne_bytes());
    room[length - value.len()..length].copy_from_slice(value);
    space
}

// On musl the length field is narrower, with padding; that would need another layout here.
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

/// A received message: one datagram, or several that the kernel has merged.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Sender of the datagram.
    pub from: SocketAddr,
    /// The data, which may be changed in place.
    pub bytes: &'a mut [u8],
    /// The size of the datagrams in it, if the kernel reports it: of merged datagrams (`UDP_GRO`),
    /// or of UDP datagrams inside the GSO packet of a tunnel.
    pub segment: Option<u16>,
    /// TOS octet or traffic class.
    pub tos: u8,
    pub truncated: bool,
}

/// Buffers for a number of messages, allocated once.
pub struct ReceiveSlots {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
    buffer: Box<[u8]>,
}

// SAFETY: `receive` writes the pointers in `headers` and `vectors` before the kernel uses them.
// They point to the heap memory of the other fields.
unsafe impl Send for ReceiveSlots {}

impl ReceiveSlots {
    /// Creates slots for up to `count` messages in one call, with [`MESSAGE_BYTES`] each.
    pub fn new(count: usize) -> ReceiveSlots {
        ReceiveSlots {
            headers: (0..count).map(|_| empty_header()).collect(),
            vectors: vec![EMPTY_VECTOR; count].into_boxed_slice(),
            names: (0..count).map(|_| empty_name()).collect(),
            controls: vec![NO_CONTROL; count].into_boxed_slice(),
            buffer: vec![0; count * MESSAGE_BYTES].into_boxed_slice(),
        }
    }

    /// Returns the maximum number of messages that one call receives.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Reads the available messages without waiting; returns the number of messages for
    /// [`ReceiveSlots::message`].
    ///
    /// # Errors
    /// `EAGAIN` if there are none.
    pub fn receive(&mut self, socket: &UdpSocket) -> std::result::Result<usize, Errno> {
        let slots = self.buffer.chunks_exact_mut(MESSAGE_BYTES).enumerate();
        for (index, slot) in slots {
            self.vectors[index] =
                libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
            // musl's structure has private fields between these.
            let header = &mut self.headers[index].msg_hdr;
            *header = empty_header().msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<Name>() as libc::socklen_t;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: all headers have just been filled with the addresses and true lengths of separate
        // memory that `self` owns; no reference to it exists during the call.
        unsafe { message::receive(socket, &mut self.headers) }
    }

    /// Returns a message of the last [`ReceiveSlots::receive`]; `None` after the last slot, or for
    /// an address that is not IP.
    pub fn message(&mut self, index: usize) -> Option<Incoming<'_>> {
        let header = self.headers.get(index)?;
        let from = address(self.names.get(index)?)?;
        let segment = merged_segment_bytes(&header.msg_hdr).and_then(|s| u16::try_from(s).ok());
        let tos = message::tos(&header.msg_hdr).unwrap_or(0);
        let truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        let length = (header.msg_len as usize).min(MESSAGE_BYTES);
        let bytes = &mut self.buffer[index * MESSAGE_BYTES..][..length];
        Some(Incoming { from, bytes, segment, tos, truncated })
    }
}

fn address(name: &Name) -> Option<SocketAddr> {
    // SAFETY: the family is at the same offset in both, and all values of both are valid: plain
    // integers.
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
        // Sockets here have no other family.
        _ => None,
    }
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
