//! The endpoint's side towards the wire: sockets, and what the path takes.
//!
//! RFC 7348 wants the source port to tell flows apart, so that routers spread
//! them over paths and NICs over queues. A UDP socket has one source port, so
//! there are [`SENDERS`] of them, bound to ports of the range that the RFC
//! recommends and shared by all threads; a flow's hash picks one. Receiving has
//! its own sockets, one a thread, at the tunnel's port. What is sent to a multicast
//! group ([`super::groups`]) comes by a socket of its own, which the first thread reads:
//! each socket of a group would get a copy.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use packet::ecn::Ingress;
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, SOURCE_PORTS, Tunnel, source_port};
use packet::vxlan::Vni;
use sys::datagram::{self, PathProbe, ReceiverOptions, SenderOptions};
use sys::errno::Errno;
use sys::netns::NetNs;

use super::config::{Config, HandOver};
use super::groups::Groups;
use super::handover::{SecondTap, Way};
use crate::Error;

/// Source ports, and so the paths and queues that flows can be spread over.
pub const SENDERS: usize = 64;

/// Bytes of a socket's buffers asked for: some tens of GSO packets.
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
    ttl: u8,
    checksum: bool,
    senders: Vec<UdpSocket>,
    receivers: Vec<UdpSocket>,
    groups: Option<Groups>,
    probe: Mutex<PathProbe>,
    /// Whether the kernel cuts what is sent into datagrams.
    cuts: AtomicBool,
    /// Source ports of the senders.
    ports: Vec<u16>,
    /// What hands GSO packets over whole, or why nothing does.
    second_tap: Result<SecondTap, String>,
}

impl Underlay {
    /// Opens everything in that namespace. `merged` is whether receivers take
    /// merged datagrams.
    ///
    /// # Errors
    /// Those of the sockets; that GSO packets cannot be handed over whole is one
    /// only if the configuration insists.
    pub(super) fn open(config: &Config, netns: &NetNs, merged: bool) -> Result<Underlay, Error> {
        let mut underlay = Underlay::sockets(config, netns, merged)?;
        if config.hand_over != HandOver::UdpSegment {
            underlay.second_tap = SecondTap::open(config, netns);
        }
        match &underlay.second_tap {
            Err(reason) if config.hand_over == HandOver::TunnelGso => {
                Err(Error::HandOver(reason.clone()))
            }
            _ => Ok(underlay),
        }
    }

    fn sockets(config: &Config, netns: &NetNs, merged: bool) -> Result<Underlay, Error> {
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
            let groups = Groups::join(config, &options)?;
            let link = groups.as_ref().and_then(Groups::link);
            let options = SenderOptions {
                group_link: link,
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
                    Err(error) => return Err(error.into()),
                }
            }
            let probe = Mutex::new(PathProbe::new(config.local, link)?);
            // The kernel has no UDP_SEGMENT without checksums (udp_send_skb).
            let cuts = AtomicBool::new(config.checksum);
            let ports = senders.iter().map(local_port).collect::<sys::Result<_>>()?;
            let Config { local, port, df, ttl, checksum, .. } = *config;
            let second_tap = Err("as configured".to_owned());
            Ok(Underlay {
                local,
                port,
                df,
                ttl,
                checksum,
                senders,
                receivers,
                groups,
                probe,
                cuts,
                ports,
                second_tap,
            })
        })?
    }

    /// What hands GSO packets over whole, if anything does.
    pub(super) fn second_tap(&self) -> Option<&SecondTap> {
        self.second_tap.as_ref().ok()
    }

    /// How GSO packets go.
    pub(super) fn way(&self) -> Way {
        match &self.second_tap {
            Ok(tap) => tap.way(),
            Err(reason) => Way::UdpSegment { reason: reason.clone() },
        }
    }

    /// The outer headers for a remote end in a network; `None` where nothing is
    /// handed over whole.
    pub(super) fn encap(&self, vni: Vni, remote: IpAddr) -> Option<Encap> {
        let mac = self.second_tap()?.mac();
        let addresses = match (self.local, remote) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => Addresses::V6 { source, destination },
            // Refused by the configuration's check.
            _ => return None,
        };
        Some(Encap::new(&Tunnel {
            // The kernel puts those of NIC and next hop in their place.
            link: (mac, mac),
            addresses,
            vni,
            port: self.port,
            source_ports: SOURCE_PORTS,
            ttl: self.ttl,
            dscp: Dscp::Fixed(0),
            ecn: Ingress::Normal,
            dont_fragment: self.df,
            flow_label: 0,
            checksum: if self.checksum { OuterChecksum::Partial } else { OuterChecksum::Zero },
        }))
    }

    /// The source port of that sender.
    pub(super) fn source_port(&self, sender: usize) -> u16 {
        self.ports[sender]
    }

    /// UDP port of the endpoint and of its remote ends.
    pub(super) fn port(&self) -> u16 {
        self.port
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

    /// Sending sockets, each with a source port of its own.
    pub(super) fn senders(&self) -> &[UdpSocket] {
        &self.senders
    }

    /// The receiving sockets of that thread.
    pub(super) fn receivers(&self, thread: usize) -> impl Iterator<Item = &UdpSocket> {
        let groups = self.groups.as_ref().filter(|_| thread == 0);
        let groups = groups.into_iter().flat_map(Groups::sockets);
        std::iter::once(&self.receivers[thread]).chain(groups)
    }

    /// Numbers of the sockets that datagrams pass through, the first and the last; what is
    /// between them is the endpoint's, too.
    pub(super) fn descriptors(&self) -> RangeInclusive<RawFd> {
        let sockets = self.senders.iter().chain(&self.receivers);
        let groups = self.groups.iter().flat_map(Groups::sockets);
        let numbers = || sockets.clone().chain(groups.clone()).map(AsRawFd::as_raw_fd);
        numbers().min().unwrap_or(0)..=numbers().max().unwrap_or(0)
    }

    /// The number of the socket that path MTUs are looked up by.
    pub(super) fn probe_descriptor(&self) -> RawFd {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        probe.as_fd().as_raw_fd()
    }

    /// The multicast groups, if there are any.
    pub(super) fn groups(&self) -> Option<&Groups> {
        self.groups.as_ref()
    }

    /// Has the groups follow the endpoint's address to another link; true if they did.
    pub(super) fn follow_groups(&self) -> bool {
        let Some(groups) = &self.groups else { return false };
        groups.follow(|link| {
            for sender in &self.senders {
                datagram::lead_groups_by(sender, SocketAddr::new(self.local, 0), link, self.ttl)?;
            }
            let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
            probe.lead_groups_by(self.local, link)
        })
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

fn local_port(socket: &UdpSocket) -> sys::Result<u16> {
    let address = socket.local_addr();
    address.map(|a| a.port()).map_err(|e| sys::Error::io("getsockname", "UDP socket", &e))
}
