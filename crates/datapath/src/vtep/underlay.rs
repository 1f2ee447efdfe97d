//! The endpoint's sockets on the underlay, and path MTUs.
//!
//! RFC 7348 recommends to derive the source port from the flow, so that routers spread flows over
//! paths and NICs over queues. A UDP socket has one source port, so there are [`SENDERS`] sockets,
//! bound to ports of the recommended range and shared by all threads. The hash of a flow selects
//! one. Each thread has its own receiving socket on the tunnel's port. Packets to a multicast group
//! ([`super::groups`]) have a separate socket, read by the first thread, because each socket in a
//! group gets a copy.
//! each socket of a group would get a copy.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use netstate::Netlink;
use netstate::defects::{Defect, of_udp_segmentation};
use netstate::machine::MachineFacts;
use packet::ecn::Ingress;
use packet::encap::{Addresses, Dscp, Encap, OuterChecksum, SOURCE_PORTS, Tunnel, source_port};
use packet::vxlan::Vni;
use sys::datagram::{self, PathProbe, ReceiverOptions, SenderOptions};
use sys::errno::Errno;
use sys::ethtool::Ethtool;
use sys::netns::NetNs;

use super::config::{Config, HandOver};
use super::groups::Groups;
use super::handover::{HandOverMode, SecondTap};
use crate::Error;

/// Number of source ports, which limits over how many paths and queues flows are spread.
pub const SENDERS: usize = 64;

/// Requested size of socket buffers in bytes: some tens of GSO packets.
const SOCKET_BUFFER: usize = 4 << 20;

/// Maximum number of ports tried for the senders. The range has 16,384 ports, and other programs
/// may use some.
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
    /// Whether the kernel segments super-datagrams (`UDP_SEGMENT`).
    cuts: AtomicBool,
    /// Reported defect because of which it has not done so from the start.
    uncut: Option<String>,
    /// Source ports of the senders.
    ports: Vec<u16>,
    /// Passes GSO packets on unsegmented, or the reason why that is not done.
    second_tap: Result<SecondTap, String>,
}

/// Returns a reported defect of UDP segmentation with this kernel and the driver of the device that
/// has this address.
fn defect_of(local: IpAddr) -> Option<&'static Defect> {
    let facts = MachineFacts::read().ok()?;
    let driver = || {
        let netlink = Netlink::open().ok()?;
        let addresses = netlink.addresses().ok()?;
        let link = addresses.into_iter().find(|one| one.address == local)?.link;
        let device = netlink.links().ok()?.into_iter().find(|one| one.index == link)?.name;
        Ethtool::open().ok()?.driver(&device).ok()
    };
    of_udp_segmentation(&facts, driver().as_deref())
}

/// Returns why a reported defect keeps the kernel from segmenting super-datagrams.
fn uncut(config: &Config, defect: Option<&Defect>) -> Option<String> {
    // An explicit choice overrides a report.
    let defect = defect.filter(|_| config.hand_over == HandOver::Auto)?;
    Some(format!(
        "reported with this kernel: {} ({}); hand-over udp-segment overrides this",
        defect.symptom,
        defect.reports()
    ))
}

impl Underlay {
    /// Opens all sockets in that namespace. `merged`: receivers accept merged datagrams.
    ///
    /// # Errors
    /// Errors of the sockets. A missing second TAP is an error only if the configuration demands
    /// it.
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
            let defect = defect_of(config.local);
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
            let uncut = uncut(config, defect);
            // UDP_SEGMENT does not work without checksums (udp_send_skb).
            let cuts = AtomicBool::new(config.checksum && uncut.is_none());
            let ports = senders.iter().map(local_port).collect::<sys::Result<_>>()?;
            let Config { local, port, df, ttl, checksum, .. } = *config;
            let second_tap = Err("disabled by configuration".to_owned());
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
                uncut,
                ports,
                second_tap,
            })
        })?
    }

    /// Returns the second TAP, if GSO packets are passed on unsegmented.
    pub(super) fn second_tap(&self) -> Option<&SecondTap> {
        self.second_tap.as_ref().ok()
    }

    /// Returns how GSO packets are passed to the kernel.
    pub(super) fn way(&self) -> HandOverMode {
        match &self.second_tap {
            Ok(tap) => tap.way(),
            Err(reason) => HandOverMode::UdpSegment {
                reason: match &self.uncut {
                    None => reason.clone(),
                    Some(uncut) => format!("{reason}; datagrams are sent one by one: {uncut}"),
                },
            },
        }
    }

    /// Returns the outer headers for a remote endpoint in a network; `None` if there is no second
    /// TAP.
    pub(super) fn encap(&self, vni: Vni, remote: IpAddr) -> Option<Encap> {
        let mac = self.second_tap()?.mac();
        let addresses = match (self.local, remote) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => Addresses::V6 { source, destination },
            // Mixed families are refused by the configuration's check.
            _ => return None,
        };
        Some(Encap::new(&Tunnel {
            // The kernel replaces these by the addresses of NIC and next hop.
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

    pub(super) fn source_port(&self, sender: usize) -> u16 {
        self.ports[sender]
    }

    /// Returns the UDP port of the endpoint and of its remote endpoints.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the socket address of a remote endpoint.
    pub(super) fn peer(&self, remote: IpAddr) -> SocketAddr {
        SocketAddr::new(remote, self.port)
    }

    /// Returns the length of outer headers before the inner frame, without the link header.
    pub(super) fn headers(&self) -> usize {
        (if self.local.is_ipv4() { 20 } else { 40 }) + 16
    }

    /// Returns whether packets that exceed the path MTU are not sent.
    pub(super) fn dont_fragment(&self) -> bool {
        self.df
    }

    /// Returns the sending sockets, each with its own source port.
    pub(super) fn senders(&self) -> &[UdpSocket] {
        &self.senders
    }

    pub(super) fn receivers(&self, thread: usize) -> impl Iterator<Item = &UdpSocket> {
        let groups = self.groups.as_ref().filter(|_| thread == 0);
        let groups = groups.into_iter().flat_map(Groups::sockets);
        std::iter::once(&self.receivers[thread]).chain(groups)
    }

    /// Returns the range of descriptor numbers of the sockets that carry datagrams. All numbers in
    /// the range belong to the endpoint.
    pub(super) fn descriptors(&self) -> RangeInclusive<RawFd> {
        let sockets = self.senders.iter().chain(&self.receivers);
        let groups = self.groups.iter().flat_map(Groups::sockets);
        let numbers = || sockets.clone().chain(groups.clone()).map(AsRawFd::as_raw_fd);
        numbers().min().unwrap_or(0)..=numbers().max().unwrap_or(0)
    }

    /// Returns the descriptor number of the socket for path MTU queries.
    pub(super) fn probe_descriptor(&self) -> RawFd {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        probe.as_fd().as_raw_fd()
    }

    pub(super) fn groups(&self) -> Option<&Groups> {
        self.groups.as_ref()
    }

    /// Joins the groups on the link that now has the endpoint's address; returns whether that
    /// changed.
    pub(super) fn follow_groups(&self) -> bool {
        // No network uses a multicast group.
        let Some(groups) = &self.groups else { return false };
        groups.follow(|link| {
            for sender in &self.senders {
                datagram::lead_groups_by(sender, SocketAddr::new(self.local, 0), link, self.ttl)?;
            }
            let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
            probe.lead_groups_by(self.local, link)
        })
    }

    /// Queries the path MTU to a remote endpoint in bytes.
    pub(super) fn path_mtu(&self, remote: IpAddr) -> sys::Result<u32> {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        probe.mtu(self.peer(remote))
    }

    /// Returns whether the kernel segments super-datagrams.
    pub(super) fn cuts(&self) -> bool {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Switches to sending single datagrams.
    pub(super) fn cut_no_more(&self) {
        self.cuts.store(false, Ordering::Relaxed);
    }
}

fn local_port(socket: &UdpSocket) -> sys::Result<u16> {
    let address = socket.local_addr();
    address.map(|a| a.port()).map_err(|e| sys::Error::io("getsockname", "UDP socket", &e))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use netstate::defects::DEFECTS;

    use super::*;

    #[test]
    fn a_reported_defect_of_udp_segmentation_is_avoided_unless_segmentation_is_asked_for() {
        let config = Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let defect = DEFECTS.iter().find(|defect| defect.feature == "tx-udp-segmentation");
        assert_eq!(uncut(&config, None), None);
        let reason = uncut(&config, defect).unwrap();
        assert!(reason.contains("tailscale/tailscale#19918"), "{reason}");
        let asked = Config { hand_over: HandOver::UdpSegment, ..config };
        assert_eq!(uncut(&asked, defect), None);
    }
}
