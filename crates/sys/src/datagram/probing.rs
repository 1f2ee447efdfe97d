//! Sockets of ordinary users that test a path: datagrams of any size up to the device's MTU,
//! whatever path MTU the kernel has learned, and the ICMP errors about them.

use std::io::IoSliceMut;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;

use super::{UDP_NO_CHECK6_TX, open, set};
use crate::Result;
use crate::message::control;

/// `include/uapi/linux/in.h`, `in6.h`: Don't Fragment, and the learned path MTU is ignored.
const PMTUDISC_PROBE: libc::c_int = 3;
/// `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6` of `linux/errqueue.h`.
const ORIGINS: [u8; 2] = [2, 3];

/// Options of a socket that tests a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeOptions {
    /// TTL or hop limit, at least 1.
    pub ttl: u8,
    /// TOS octet or traffic class.
    pub tos: u8,
    /// Whether datagrams have a UDP checksum.
    pub checksum: bool,
}

/// An ICMP error about a datagram of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpReport {
    /// Sender of the message.
    pub from: IpAddr,
    /// ICMP type.
    pub kind: u8,
    pub code: u8,
    /// The MTU, for messages that have one.
    pub info: u32,
}

/// Opens a nonblocking socket that sends datagrams and keeps ICMP errors about them.
///
/// # Errors
/// `EADDRINUSE`, `EADDRNOTAVAIL`.
pub fn prober(address: SocketAddr, options: &ProbeOptions) -> Result<UdpSocket> {
    let socket = open(address, false)?;
    let (ttl, tos, unchecked) =
        (options.ttl.into(), options.tos.into(), libc::c_int::from(!options.checksum));
    match address {
        SocketAddr::V4(_) => {
            let ip = |name| (libc::IPPROTO_IP, name);
            set(&socket, "setsockopt(IP_TTL)", ip(libc::IP_TTL), ttl)?;
            set(&socket, "setsockopt(IP_TOS)", ip(libc::IP_TOS), tos)?;
            let name = ip(libc::IP_MTU_DISCOVER);
            set(&socket, "setsockopt(IP_MTU_DISCOVER)", name, PMTUDISC_PROBE)?;
            set(&socket, "setsockopt(IP_RECVERR)", ip(libc::IP_RECVERR), 1)?;
            let name = (libc::SOL_SOCKET, libc::SO_NO_CHECK);
            set(&socket, "setsockopt(SO_NO_CHECK)", name, unchecked)?;
        }
        SocketAddr::V6(_) => {
            let ip = |name| (libc::IPPROTO_IPV6, name);
            set(&socket, "setsockopt(IPV6_UNICAST_HOPS)", ip(libc::IPV6_UNICAST_HOPS), ttl)?;
            set(&socket, "setsockopt(IPV6_TCLASS)", ip(libc::IPV6_TCLASS), tos)?;
            let name = ip(libc::IPV6_MTU_DISCOVER);
            set(&socket, "setsockopt(IPV6_MTU_DISCOVER)", name, PMTUDISC_PROBE)?;
            set(&socket, "setsockopt(IPV6_RECVERR)", ip(libc::IPV6_RECVERR), 1)?;
            let name = (libc::SOL_UDP, UDP_NO_CHECK6_TX);
            set(&socket, "setsockopt(UDP_NO_CHECK6_TX)", name, unchecked)?;
        }
    }
    Ok(socket)
}

/// Takes the next ICMP error from a socket, without waiting. `None`: there is none. Errors of this
/// host's own are left out.
///
/// # Errors
/// No error is known for an open socket.
pub fn take_icmp_error(socket: &UdpSocket) -> std::result::Result<Option<IcmpReport>, Errno> {
    loop {
        let mut payload = [0_u8; 64];
        let mut space = Space([0; 128]);
        let mut vectors = [IoSliceMut::new(&mut payload)];
        // SAFETY: all zeroes is a valid msghdr without address, data or control message.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = vectors.as_mut_ptr().cast();
        header.msg_iovlen = vectors.len() as _;
        header.msg_control = space.0.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Space>() as _;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: vectors, their bytes and the control buffer are valid for writing and live until
        // the call returns.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
        match Errno::result(got) {
            Ok(_) => {}
            Err(Errno::EAGAIN) => return Ok(None),
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        }
        let report = control(&header, |kind, value| match kind {
            (libc::IPPROTO_IP, libc::IP_RECVERR) => report(&value.bytes::<32>()?),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => report(&value.bytes::<44>()?),
            // Other control messages are not errors.
            _ => None,
        });
        if report.is_some() {
            return Ok(report);
        }
    }
}

/// Space for control messages, aligned like `cmsghdr`.
#[repr(C, align(8))]
struct Space([u8; 128]);

/// Reads a `sock_extended_err` (`linux/errqueue.h`) and the address of the message's sender.
fn report(bytes: &[u8]) -> Option<IcmpReport> {
    // ee_errno (4), ee_origin, ee_type, ee_code, ee_pad, ee_info (4), ee_data (4), sockaddr.
    let [origin, kind, code] = *bytes.get(4..7)?.first_chunk::<3>()?;
    let info = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk::<4>()?);
    let family = u16::from_ne_bytes(*bytes.get(16..)?.first_chunk::<2>()?);
    let from: IpAddr = match i32::from(family) {
        libc::AF_INET => Ipv4Addr::from(*bytes.get(20..)?.first_chunk::<4>()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(*bytes.get(24..)?.first_chunk::<16>()?).into(),
        // Without the sender's address the error cannot be attributed.
        _ => return None,
    };
    ORIGINS.contains(&origin).then_some(IcmpReport { from, kind, code, info })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_read_with_its_sender() {
        let mut bytes = [0; 32];
        bytes[4..8].copy_from_slice(&[2, 3, 4, 0]);
        bytes[8..12].copy_from_slice(&1400_u32.to_ne_bytes());
        bytes[16..18].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[20..24].copy_from_slice(&[10, 9, 0, 254]);
        let from = IpAddr::from([10, 9, 0, 254]);
        assert_eq!(report(&bytes), Some(IcmpReport { from, kind: 3, code: 4, info: 1400 }));
        // SO_EE_ORIGIN_LOCAL: the kernel's own refusal.
        bytes[4] = 1;
        assert_eq!(report(&bytes), None);
        assert_eq!(report(&bytes[..20]), None);
    }

    #[test]
    fn a_closed_port_is_reported_without_privileges() {
        let options = ProbeOptions { ttl: 3, tos: 0x28, checksum: true };
        let socket = prober("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
        let there = closed.local_addr().unwrap();
        drop(closed);
        socket.send_to(b"probe", there).unwrap();
        let wanted = IcmpReport { from: there.ip(), kind: 3, code: 3, info: 0 };
        test_support::program::until("the ICMP error", || {
            take_icmp_error(&socket).unwrap() == Some(wanted)
        });
        assert_eq!(take_icmp_error(&socket), Ok(None));
    }
}
