//! Packet sockets (`AF_PACKET`): frames of one device, with their offload metadata.
//!
//! A frame is received with its vnet header (`PACKET_VNET_HDR`), which shows partial checksums and
//! uncut GSO packets, and before the network stack drops packets with a wrong checksum. Only the
//! creation of a socket needs `CAP_NET_RAW`: a process can open sockets, give up the right, and
//! [`PacketSocket::listen`] later. Until then the socket receives nothing and costs nothing.
//!
//! Layouts: `include/uapi/linux/if_packet.h`, `include/uapi/linux/virtio_net.h`.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use crate::{Error, Result};

/// Length of the vnet header before each frame, bytes (`struct virtio_net_hdr`).
pub const VNET_HEADER: usize = 10;

const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_OUTGOING: u8 = 4;
/// `TP_STATUS_CSUMNOTREADY`: the checksum is partial.
const CSUM_NOT_READY: u32 = 1 << 3;
/// `TP_STATUS_CSUM_VALID`: the device has verified the checksum.
const CSUM_VALID: u32 = 1 << 7;
/// `TP_STATUS_VLAN_VALID`: the frame had a tag, which the kernel removed.
const VLAN_VALID: u32 = 1 << 4;
/// IEEE 802 local experimental EtherType: no packet has it, so a hook on it costs nothing.
const NO_PROTOCOL: u16 = 0x88b5;

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AuxData {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan_tci: u16,
    vlan_tpid: u16,
}

const _: () = assert!(size_of::<AuxData>() == 20);

/// Space for the control message with [`AuxData`], aligned like `cmsghdr`.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// An instruction of a classic BPF filter (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the comparison is true.
    pub jt: u8,
    /// Instructions to skip otherwise.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// A received frame: its length and metadata. The bytes are in the caller's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Length of the frame in the buffer, bytes.
    pub length: usize,
    /// Whether this machine sent it.
    pub outgoing: bool,
    /// Whether the frame was longer than the buffer.
    pub truncated: bool,
    pub partial_checksum: bool,
    /// Whether the device claims to have verified its checksum.
    pub verified: bool,
    /// VLAN tag that the kernel removed.
    pub vlan: Option<u16>,
}

/// A packet socket with vnet headers, not blocking.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket that receives nothing yet, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW` in the namespace, `EAFNOSUPPORT` without packet sockets.
    pub fn open() -> Result<PacketSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(Error::last("socket(AF_PACKET)", "packet socket"));
        }
        // SAFETY: the descriptor has just been returned to this function alone.
        let socket = PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        socket.set("setsockopt(PACKET_VNET_HDR)", libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        socket.set("setsockopt(PACKET_AUXDATA)", libc::SOL_PACKET, PACKET_AUXDATA, 1)?;
        Ok(socket)
    }

    fn set(
        &self,
        operation: &'static str,
        level: libc::c_int,
        name: libc::c_int,
        value: libc::c_int,
    ) -> Result<()> {
        // SAFETY: the value is an int, passed by pointer and size; the descriptor is open.
        let answer = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        match answer {
            0 => Ok(()),
            _ => Err(Error::last(operation, "packet socket")),
        }
    }

    /// Requests a receive buffer of `bytes`; without `CAP_NET_ADMIN`, `net.core.rmem_max` limits
    /// it.
    ///
    /// # Errors
    /// If the kernel refuses both ways.
    pub fn set_receive_buffer(&self, bytes: i32) -> Result<()> {
        self.set("setsockopt(SO_RCVBUFFORCE)", libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
            // Without CAP_NET_ADMIN the kernel's limit applies (net.core.rmem_max).
            .or_else(|_| {
                self.set("setsockopt(SO_RCVBUF)", libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
            })
    }

    /// Receives only frames that the filter accepts.
    ///
    /// # Errors
    /// `EINVAL` for an invalid program.
    pub fn filter(&self, program: &[Instruction]) -> Result<()> {
        let operation = "setsockopt(SO_ATTACH_FILTER)";
        let length = u16::try_from(program.len())
            .map_err(|_| Error::new(operation, "packet socket", Errno::EINVAL))?;
        let mut program: Vec<libc::sock_filter> = program
            .iter()
            .map(|one| libc::sock_filter { code: one.code, jt: one.jt, jf: one.jf, k: one.k })
            .collect();
        let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
        // SAFETY: the kernel copies `len` instructions, which live until the call returns.
        let answer = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        match answer {
            0 => Ok(()),
            _ => Err(Error::last(operation, "packet socket")),
        }
    }

    /// Receives all frames of the device with this index from now on, in both directions.
    ///
    /// # Errors
    /// `ENODEV` if there is no such device.
    pub fn listen(&self, device: u32) -> Result<()> {
        self.bind(device, libc::ETH_P_ALL as u16)
    }

    /// Receives nothing more. The frames received so far stay readable.
    ///
    /// # Errors
    /// `ENODEV` if there is no such device.
    pub fn rest(&self, device: u32) -> Result<()> {
        self.bind(device, NO_PROTOCOL)
    }

    fn bind(&self, device: u32, protocol: u16) -> Result<()> {
        let address = address(device, protocol);
        // SAFETY: the address is a complete sockaddr_ll of the length given.
        let answer = unsafe {
            libc::bind(
                self.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        match answer {
            0 => Ok(()),
            _ => Err(Error::last("bind", format!("packet socket on device {device}"))),
        }
    }

    /// Sends a frame with its vnet header by the device with this index.
    ///
    /// # Errors
    /// `EMSGSIZE` for a frame larger than the device's MTU, `EINVAL` for a vnet header that does
    /// not match the frame, `ENETDOWN`, `ENOBUFS`.
    pub fn send(
        &self,
        device: u32,
        header: &[u8; VNET_HEADER],
        frame: &[u8],
    ) -> std::result::Result<(), Errno> {
        // Without the EtherType the kernel would have to guess the protocol.
        let protocol = frame.get(12..14).map_or(0, |two| u16::from_be_bytes([two[0], two[1]]));
        self.send_as(protocol, device, header, frame)
    }

    /// As [`PacketSocket::send`], for a device without Ethernet headers: an IP packet, and its
    /// EtherType.
    pub fn send_as(
        &self,
        protocol: u16,
        device: u32,
        header: &[u8; VNET_HEADER],
        frame: &[u8],
    ) -> std::result::Result<(), Errno> {
        let mut address = address(device, protocol);
        let vectors = [IoSlice::new(header), IoSlice::new(frame)];
        // SAFETY: all zeroes is a valid msghdr without address, data or control message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // An `IoSlice` has the layout of an iovec, and sendmsg only reads it.
        message.msg_iov = vectors.as_ptr().cast_mut().cast();
        message.msg_iovlen = vectors.len() as _;
        // SAFETY: address, vectors and their bytes live until the call returns.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &raw const message, 0) };
        Errno::result(sent).map(drop)
    }

    /// Receives the next frame with its vnet header, without waiting. `None`: there is none.
    ///
    /// # Errors
    /// `ENETDOWN` after the device was set down; other errors of the socket.
    pub fn receive(
        &self,
        header: &mut [u8; VNET_HEADER],
        frame: &mut [u8],
    ) -> std::result::Result<Option<Received>, Errno> {
        let mut address = address(0, 0);
        let mut control = Control([0; 64]);
        let mut vectors = [IoSliceMut::new(header), IoSliceMut::new(frame)];
        // SAFETY: all zeroes is a valid msghdr without address, data or control message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut address).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = vectors.as_mut_ptr().cast();
        message.msg_iovlen = vectors.len() as _;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        // SAFETY: address, vectors, their bytes and the control buffer are valid for writing and
        // live until the call returns.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        let length = match Errno::result(got) {
            Ok(length) => length as usize,
            // No frame is there, or a signal interrupted the call.
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let aux = aux_data(&message).unwrap_or_default();
        Ok(Some(Received {
            length: length.saturating_sub(VNET_HEADER),
            outgoing: address.sll_pkttype == PACKET_OUTGOING,
            truncated: message.msg_flags & libc::MSG_TRUNC != 0,
            partial_checksum: aux.status & CSUM_NOT_READY != 0,
            verified: aux.status & CSUM_VALID != 0,
            vlan: (aux.status & VLAN_VALID != 0).then_some(aux.vlan_tci),
        }))
    }

    /// Returns the number of frames that found the receive buffer full since the last call.
    ///
    /// # Errors
    /// Only if the descriptor is not a packet socket.
    pub fn missed(&self) -> Result<u32> {
        // struct tpacket_stats: packets, drops.
        let mut statistics = [0_u32; 2];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the buffer has the length given, and is valid for writing.
        let answer = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        match answer {
            0 => Ok(statistics[1]),
            _ => Err(Error::last("getsockopt(PACKET_STATISTICS)", "packet socket")),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn address(device: u32, protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: all zeroes is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = device as libc::c_int;
    address
}

fn aux_data(message: &libc::msghdr) -> Option<AuxData> {
    // SAFETY: the kernel has filled the control buffer of `message`, which is still alive, and
    // has set its length.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    if first.is_null() {
        return None;
    }
    // SAFETY: a header that is not null lies within the control buffer, which is aligned for it.
    let header = unsafe { &*first };
    let is_whole = header.cmsg_len as usize >= size_of::<AuxData>() + size_of::<libc::cmsghdr>();
    let is_aux = header.cmsg_level == libc::SOL_PACKET && header.cmsg_type == PACKET_AUXDATA;
    // SAFETY: the message is of this type and long enough, so its data is an AuxData. It is read
    // without requiring alignment.
    (is_whole && is_aux)
        .then(|| unsafe { libc::CMSG_DATA(first).cast::<AuxData>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::NetNs;
    use std::net::UdpSocket;
    use test_support::{need, require};

    #[test]
    fn frames_are_received_after_listen_and_sent_frames_arrive() {
        require!(need::root());
        let netns = NetNs::new().unwrap();
        netns
            .run(|| {
                let socket = PacketSocket::open().unwrap();
                let loopback = 1;
                let up =
                    std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
                assert!(up.unwrap().success());
                let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
                let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
                sender.send_to(b"early", receiver.local_addr().unwrap()).unwrap();
                let (mut header, mut frame) = ([0; VNET_HEADER], vec![0; 2000]);
                assert_eq!(socket.receive(&mut header, &mut frame), Ok(None));
                socket.listen(loopback).unwrap();
                sender.send_to(b"now", receiver.local_addr().unwrap()).unwrap();
                let first = socket.receive(&mut header, &mut frame).unwrap().unwrap();
                assert!(first.outgoing && first.partial_checksum && !first.truncated, "{first:?}");
                assert_eq!(&frame[first.length - 3..first.length], b"now");
                let second = socket.receive(&mut header, &mut frame).unwrap().unwrap();
                assert!(!second.outgoing);
                // The same frame again, as it was received.
                let bytes = frame[..second.length].to_vec();
                assert_eq!(socket.send(loopback, &header, &bytes), Ok(()));
                let again = socket.receive(&mut header, &mut frame).unwrap().unwrap();
                assert_eq!(&frame[..again.length], bytes);
                assert_eq!(
                    socket.send(loopback, &[0; VNET_HEADER], &vec![8; 70_000]),
                    Err(Errno::EMSGSIZE)
                );
                socket.filter(&[Instruction { code: 0x06, jt: 0, jf: 0, k: 0 }]).unwrap();
                sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
                while socket.receive(&mut header, &mut frame).unwrap().is_some_and(|one| {
                    assert_ne!(&frame[one.length - 1..one.length], b"x");
                    true
                }) {}
                socket.rest(loopback).unwrap();
                assert_eq!(socket.missed().unwrap(), 0);
            })
            .unwrap();
    }
}
