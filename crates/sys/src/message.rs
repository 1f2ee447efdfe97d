//! Headers and control messages for `sendmmsg` and `recvmmsg`.

use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

// SAFETY: CMSG_SPACE only computes a size.
pub(crate) const SPACE: usize =
    unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as libc::c_uint) } as usize;

/// Space for two control messages, one with an int and one with a time, aligned like `cmsghdr`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct Control(pub(crate) [u8; CONTROL_BYTES]);

pub(crate) const CONTROL_BYTES: usize = 3 * SPACE;

pub(crate) const NO_CONTROL: Control = Control([0; CONTROL_BYTES]);

pub(crate) fn empty_header() -> libc::mmsghdr {
    // SAFETY: all zeroes is a valid mmsghdr without address, data or control message.
    unsafe { zeroed() }
}

/// Sends the first `count` messages, or fewer if the kernel stops before an error. Returns the
/// number of messages sent.
///
/// # Errors
/// The kernel's error for the first message.
///
/// # Safety
/// The memory to which the first `count` headers point must be valid for the lengths in them.
pub(crate) unsafe fn send(
    socket: &UdpSocket,
    headers: &mut [libc::mmsghdr],
    count: usize,
) -> Result<usize, Errno> {
    let count = count.min(headers.len());
    // SAFETY: the caller guarantees that the memory is valid. The kernel writes only `msg_len` of
    // the headers.
    let sent = unsafe {
        // musl's sendmmsg is a loop of sendmsg.
        libc::syscall(
            libc::SYS_sendmmsg,
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count,
            libc::MSG_NOSIGNAL,
        )
    };
    Errno::result(sent).map(|sent| sent as usize)
}

/// Reads the available messages without waiting; returns their number.
///
/// # Errors
/// `EAGAIN` if there are none; a pending error of the socket.
///
/// # Safety
/// The memory to which the headers point must be valid for the lengths in them and used only by
/// them (several headers may share memory). No reference to it may exist during the call.
pub(crate) unsafe fn receive(
    socket: &UdpSocket,
    headers: &mut [libc::mmsghdr],
) -> Result<usize, Errno> {
    // SAFETY: the caller guarantees that the memory is valid.
    let messages = unsafe {
        libc::syscall(
            libc::SYS_recvmmsg,
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len(),
            libc::MSG_DONTWAIT,
            std::ptr::null_mut::<libc::timespec>(),
        )
    };
    Errno::result(messages).map(|messages| messages as usize)
}

/// Returns the first result of `take` over the control messages. It gets the level and type, and
/// reads the value with a method of [`Value`].
///
/// The header must have been filled by [`receive`], or by `recvmsg`.
pub(crate) fn control<T>(
    header: &libc::msghdr,
    take: impl Fn((libc::c_int, libc::c_int), Value<'_>) -> Option<T>,
) -> Option<T> {
    // SAFETY: msg_control and msg_controllen describe a buffer that the kernel has just filled; the
    // CMSG macros stay within its bounds.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() };
    while let Some(control) = next {
        if let Some(found) = take((control.cmsg_level, control.cmsg_type), Value(control)) {
            return Some(found);
        }
        // SAFETY: as for CMSG_FIRSTHDR; `control` is in the same buffer.
        next = unsafe { libc::CMSG_NXTHDR(header, control).as_ref() };
    }
    None
}

pub(crate) struct Value<'a>(&'a libc::cmsghdr);

impl Value<'_> {
    // musl's cmsg_len is a u32.
    #[allow(clippy::unnecessary_cast)]
    pub(crate) fn bytes<const N: usize>(&self) -> Option<[u8; N]> {
        // SAFETY: CMSG_LEN only computes a size.
        let wanted = unsafe { libc::CMSG_LEN(N as libc::c_uint) };
        // SAFETY: according to cmsg_len, which the kernel set, this number of bytes is present;
        // they need not be aligned.
        (self.0.cmsg_len as usize >= wanted as usize)
            .then(|| unsafe { libc::CMSG_DATA(self.0).cast::<[u8; N]>().read_unaligned() })
    }

    /// Returns the first octet of the payload, if there is one.
    pub(crate) fn octet(&self) -> Option<u8> {
        self.bytes::<1>().map(|[octet]| octet)
    }

    /// Returns the `timespec` at the start of the payload in nanoseconds.
    pub(crate) fn time_ns(&self) -> Option<i64> {
        // put_cmsg_scm_timestampns (net/core/scm.c) writes two longs, of 64 bits here.
        let longs = self.bytes::<16>()?;
        let (longs, _) = longs.as_chunks::<8>();
        let (seconds, ns) = (i64::from_ne_bytes(longs[0]), i64::from_ne_bytes(longs[1]));
        Some(seconds.wrapping_mul(1_000_000_000).wrapping_add(ns))
    }

    /// Returns the C `int` at the start of the payload, if it is long enough.
    pub(crate) fn int(&self) -> Option<libc::c_int> {
        self.bytes().map(libc::c_int::from_ne_bytes)
    }
}

/// Returns the kernel's time of arrival from a `SO_TIMESTAMPNS` control message, ns of
/// CLOCK_REALTIME.
pub(crate) fn arrival_ns(header: &libc::msghdr) -> Option<i64> {
    control(header, |kind, value| {
        (kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)).then(|| value.time_ns()).flatten()
    })
}

/// Returns the TOS octet or traffic class from the control messages.
pub(crate) fn tos(header: &libc::msghdr) -> Option<u8> {
    control(header, |kind, value| match kind {
        // ip_cmsg_recv_tos writes a byte, ip6_datagram_recv_specific_ctl an int.
        (libc::IPPROTO_IP, libc::IP_TOS) => value.octet(),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => value.int().map(|class| class as u8),
        _ => None,
    })
}

/// Returns the size of the merged datagrams in a message from its `UDP_GRO` control message; `None`
/// for a single datagram.
pub(crate) fn merged_segment_bytes(header: &libc::msghdr) -> Option<u64> {
    // udp_cmsg_recv (net/ipv4/udp.c) writes an int.
    let segment = control(header, |kind, value| {
        (kind == (libc::SOL_UDP, libc::UDP_GRO)).then(|| value.int()).flatten()
    });
    segment.and_then(|segment| u64::try_from(segment).ok()).filter(|segment| *segment > 0)
}
