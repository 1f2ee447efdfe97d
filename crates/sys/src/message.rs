//! Messages of `sendmmsg` and `recvmmsg`: their headers and control messages.

use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

/// Room for one control message with an int.
// SAFETY: CMSG_SPACE only computes a size.
pub(crate) const SPACE: usize =
    unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as libc::c_uint) } as usize;

/// Room for two control messages with an int, aligned as `cmsghdr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Control(pub(crate) [u8; CONTROL_BYTES]);

pub(crate) const CONTROL_BYTES: usize = 2 * SPACE;

pub(crate) const NO_CONTROL: Control = Control([0; CONTROL_BYTES]);

/// A header of nothing.
pub(crate) fn empty_header() -> libc::mmsghdr {
    // SAFETY: all zeroes is an mmsghdr without address, data or control message.
    unsafe { zeroed() }
}

/// Sends the first `count` messages, or as many as the kernel takes before it would
/// have to report an error; returns how many.
///
/// # Errors
/// The kernel's answer to the first message.
///
/// # Safety
/// What the first `count` headers point to is alive, of the lengths given.
pub(crate) unsafe fn send(
    socket: &UdpSocket,
    headers: &mut [libc::mmsghdr],
    count: usize,
) -> Result<usize, Errno> {
    let count = count.min(headers.len());
    // SAFETY: the caller vouches for what the headers point to, of which the kernel
    // writes nothing but `msg_len` of the headers themselves.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_NOSIGNAL,
        )
    };
    Errno::result(sent).map(|sent| sent as usize)
}

/// Reads what is there, without waiting; returns how many messages it was.
///
/// # Errors
/// `EAGAIN` when nothing is there; a pending error of the socket.
///
/// # Safety
/// What the headers point to is alive, of the lengths given, exclusively theirs
/// (several may share a place), and no reference to it exists meanwhile.
pub(crate) unsafe fn receive(
    socket: &UdpSocket,
    headers: &mut [libc::mmsghdr],
) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for what the headers point to.
    let messages = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            std::ptr::null_mut(),
        )
    };
    Errno::result(messages).map(|messages| messages as usize)
}

/// The first control message for which `take` has an answer. It gets level and type,
/// and reads the value by one of the functions of [`Value`].
///
/// The header must be one that [`receive`] has filled.
pub(crate) fn control<T>(
    header: &libc::msghdr,
    take: impl Fn((libc::c_int, libc::c_int), Value<'_>) -> Option<T>,
) -> Option<T> {
    // SAFETY: msg_control and msg_controllen describe a buffer that the kernel has
    // just filled, which the CMSG macros walk within bounds.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() };
    while let Some(control) = next {
        if let Some(found) = take((control.cmsg_level, control.cmsg_type), Value(control)) {
            return Some(found);
        }
        // SAFETY: as for CMSG_FIRSTHDR; `control` lies in the same buffer.
        next = unsafe { libc::CMSG_NXTHDR(header, control).as_ref() };
    }
    None
}

/// The value of a control message.
pub(crate) struct Value<'a>(&'a libc::cmsghdr);

impl Value<'_> {
    fn bytes<const N: usize>(&self) -> Option<[u8; N]> {
        // SAFETY: CMSG_LEN only computes a size.
        let wanted = unsafe { libc::CMSG_LEN(N as libc::c_uint) } as usize;
        // SAFETY: cmsg_len, by the kernel, covers so many bytes of data, which need
        // not be aligned.
        (self.0.cmsg_len >= wanted)
            .then(|| unsafe { libc::CMSG_DATA(self.0).cast::<[u8; N]>().read_unaligned() })
    }

    /// The first octet of the payload, if there is one.
    pub(crate) fn octet(&self) -> Option<u8> {
        self.bytes::<1>().map(|[octet]| octet)
    }

    /// A C `int` at the beginning of the payload, if it is long enough.
    pub(crate) fn int(&self) -> Option<libc::c_int> {
        self.bytes().map(libc::c_int::from_ne_bytes)
    }
}

/// The size of the datagrams merged in a message, from its `UDP_GRO` control
/// message; `None` when it is a single datagram.
pub(crate) fn merged_segment_bytes(header: &libc::msghdr) -> Option<u64> {
    // udp_cmsg_recv (net/ipv4/udp.c) puts an int there.
    let segment = control(header, |kind, value| {
        (kind == (libc::SOL_UDP, libc::UDP_GRO)).then(|| value.int()).flatten()
    });
    segment.and_then(|segment| u64::try_from(segment).ok()).filter(|segment| *segment > 0)
}
