//! The endpoint's side towards the wire: sockets, and what the path takes.
//!
//! RFC 7348 wants the source port to tell flows apart, so that routers spread
//! them over paths and NICs over queues. A UDP socket has one source port, so
//! there are [`SENDERS`] of them, bound to ports of the range that the RFC
//! recommends and shared by all threads; a flow's hash picks one. Receiving has
//! its own sockets, one a thread, at the tunnel's port.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use packet::encap::{SOURCE_PORTS, source_port};
use sys::datagram::{self, PathProbe, ReceiverOptions, SenderOptions};
use sys::errno::Errno;
use sys::netns::NetNs;

use super::config::Config;

/// Source ports, and so the paths and queues that flows can be spread over.
pub const SENDERS: usize = 64;

/// Bytes of a socket's buffers asked for: some tens of super-packets.
const SOCKET_BUFFER: usize = 4 << 20;

/// How often another port is tried for a sender; the range has 16,384, of which
/// other programs have some.
const TRIES: u32 = 4096;

/// Sockets of an endpoint.
#[derive(Debug)]
pub(super) struct Underlay {
    local: IpAddr,
    port: u16,
    df: bool,
    senders: Vec<UdpSocket>,
    receivers: Vec<UdpSocket>,
    probe: Mutex<PathProbe>,
    /// Whether the kernel cuts what is sent into datagrams.
    cuts: AtomicBool,
}

impl Underlay {
    /// Opens everything in that namespace. `merged` is whether receivers take
    /// merged datagrams.
    pub(super) fn open(config: &Config, netns: &NetNs, merged: bool) -> sys::Result<Underlay> {
        netns.run(|| {
            let at = |port| SocketAddr::new(config.local, port);
            let options = ReceiverOptions {
                merged,
                zero_checksum: config.zero_checksum6,
                buffer: SOCKET_BUFFER,
            };
            let receivers = (0..config.queues)
                .map(|_| datagram::receiver(at(config.port), &options))
                .collect::<sys::Result<_>>()?;
            let options = SenderOptions {
                ttl: config.ttl,
                dont_fragment: config.df,
                checksum: config.checksum,
                buffer: SOCKET_BUFFER,
            };
            let mut senders = Vec::with_capacity(SENDERS);
            let mut hash = 0x9e37_79b9_u32;
            for attempt in 0.. {
                if senders.len() == SENDERS {
                    break;
                }
                hash = hash.wrapping_mul(0x2c1b_3c6d).wrapping_add(0x297a_2d39);
                match datagram::sender(at(source_port(hash, &SOURCE_PORTS)), &options) {
                    Ok(socket) => senders.push(socket),
                    Err(error) if error.errno == Errno::EADDRINUSE && attempt < TRIES => {}
                    Err(error) => return Err(error),
                }
            }
            let probe = Mutex::new(PathProbe::new(config.local)?);
            // The kernel has no UDP_SEGMENT without checksums (udp_send_skb).
            let cuts = AtomicBool::new(config.checksum);
            let Config { local, port, df, .. } = *config;
            Ok(Underlay { local, port, df, senders, receivers, probe, cuts })
        })?
    }

    /// A remote end's address.
    pub(super) fn peer(&self, remote: IpAddr) -> SocketAddr {
        SocketAddr::new(remote, self.port)
    }

    /// Bytes of an outer packet before the inner frame, without link header.
    pub(super) fn headers(&self) -> usize {
        (if self.local.is_ipv4() { 20 } else { 40 }) + 16
    }

    /// Whether packets that are too long for the path stay here.
    pub(super) fn dont_fragment(&self) -> bool {
        self.df
    }

    /// The sending sockets.
    pub(super) fn senders(&self) -> &[UdpSocket] {
        &self.senders
    }

    /// The receiving socket of that thread.
    pub(super) fn receiver(&self, thread: usize) -> &UdpSocket {
        &self.receivers[thread]
    }

    /// The MTU of the path to a remote end in bytes, as the kernel knows it now.
    pub(super) fn path_mtu(&self, remote: IpAddr) -> sys::Result<u32> {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        probe.mtu(self.peer(remote))
    }

    /// Whether the kernel cuts what is sent.
    pub(super) fn cuts(&self) -> bool {
        self.cuts.load(Ordering::Relaxed)
    }

    /// From now on, datagrams are sent one by one.
    pub(super) fn cut_no_more(&self) {
        self.cuts.store(false, Ordering::Relaxed);
    }
}
