//! The kernel's notifications of changes, as a wake-up.
//!
//! Notifications are a wake-up, not the state. They are incomplete, and some are lost if the socket
//! overflows. So the receiver reads the state again. One exception: if only forwarding entries,
//! neighbours and rules have changed, the changes are returned.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};
use sys::netns::NetNs;

use crate::netlink::{Error, Result};
use crate::overlay::Change;

/// `RTNLGRP_*` (include/uapi/linux/rtnetlink.h): neighbours and FDBs, tc, IPv4 addresses, routes
/// and rules, IPv6 addresses, routes and rules, forwarding and other settings of devices (IPv4,
/// IPv6), namespace ids, next hop objects (whose end ends routes without another message).
const ROUTE_GROUPS: [u32; 12] = [3, 4, 5, 7, 8, 9, 11, 19, 24, 25, 28, 32];
/// Receive buffer for these, bytes: some 10,000 notifications of forwarding entries.
const ROOM: usize = 8 << 20;
/// `RTNLGRP_LINK`.
const LINK_GROUPS: [u32; 1] = [1];
/// `NFNLGRP_NFTABLES` (include/uapi/linux/netfilter/nfnetlink.h).
const NETFILTER_GROUPS: [u32; 1] = [7];
/// Limit of bytes of nf_tables notifications to return. Beyond it, reading all rules is faster.
const RULES: usize = 1 << 20;
/// `XFRMNLGRP_POLICY` (include/uapi/linux/xfrm.h).
const XFRM_GROUPS: [u32; 1] = [4];

/// Kinds of state that have changed since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Links, addresses, routes, neighbours, tc, IPsec policies.
    pub links: bool,
    /// Tables, chains and rules of nftables.
    pub filters: bool,
}

/// Detailed changes since the last call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notified {
    /// No notification.
    Nothing,
    /// These changes and no others.
    These {
        /// Forwarding entries and neighbours, in order.
        entries: Vec<Change>,
        /// Datagrams of nf_tables, in order.
        rules: Vec<Vec<u8>>,
    },
    /// More may have changed, or notifications were lost: read everything again.
    Anything,
}

/// Receives the notifications of a network namespace.
pub struct StateWatch {
    routes: Socket,
    links: Socket,
    filters: Socket,
    /// None if the kernel has no IPsec.
    policies: Option<Socket>,
}

impl std::fmt::Debug for StateWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateWatch")
    }
}

impl StateWatch {
    /// Starts to listen in the calling thread's namespace.
    ///
    /// The kernel does not notify rules of iptables-legacy and ebtables-legacy, programs attached
    /// by BPF links, sysctls, and path MTUs learned from ICMP.
    ///
    /// # Errors
    /// If no file descriptor is available or a group is refused.
    pub fn open() -> Result<StateWatch> {
        let links = listen(NETLINK_ROUTE, "NETLINK_ROUTE", &LINK_GROUPS)?;
        let routes = listen(NETLINK_ROUTE, "NETLINK_ROUTE", &ROUTE_GROUPS)?;
        // Without the privilege, bursts overflow the socket sooner, and everything is read again.
        let _ = sys::buffers::set(&routes, ROOM);
        // Also listen to links in namespaces that have an id here, which contain the tenants' ends
        // of veth pairs. Without the privilege, only the periodic audit sees them.
        let _ = links.set_listen_all_namespaces(true);
        Ok(StateWatch {
            routes,
            links,
            filters: listen(NETLINK_NETFILTER, "NETLINK_NETFILTER", &NETFILTER_GROUPS)?,
            policies: listen(NETLINK_XFRM, "NETLINK_XFRM", &XFRM_GROUPS).ok(),
        })
    }

    /// Starts to listen in `netns`.
    ///
    /// # Errors
    /// As [`StateWatch::open`], and if the namespace cannot be entered.
    pub fn open_in(netns: &NetNs) -> Result<StateWatch> {
        netns.run(StateWatch::open)?
    }

    /// Returns the descriptors to poll for reading, with the subject of each.
    pub fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, &'static str)> {
        let policies = self.policies.iter().map(|socket| (socket, "IPsec policies"));
        [(&self.routes, "routes"), (&self.links, "links"), (&self.filters, "nftables")]
            .into_iter()
            .chain(policies)
            .map(|(socket, name)| (socket.as_fd(), name))
    }

    /// Whether anything has changed since the last call. Consumes the notifications.
    pub fn changed(&self) -> bool {
        let Changed { links, filters } = self.what_changed();
        links || filters
    }

    /// [`StateWatch::changed`] by kind of state.
    pub fn what_changed(&self) -> Changed {
        let routes = has_spoken(&self.routes);
        Changed { links: self.rest_changed() || routes, filters: has_spoken(&self.filters) }
    }

    /// [`StateWatch::changed`] with details, if only forwarding entries, neighbours and nftables rules
    /// have changed, and at most `most` entries that `takes` accepts. Other entries are left out.
    pub fn notified(&self, most: usize, mut takes: impl FnMut(&Change) -> bool) -> Notified {
        let mut entries = Vec::new();
        let mut understood = true;
        let routes = receive(&self.routes, |datagram| {
            let mut these = Vec::new();
            understood = understood && read(datagram, &mut these);
            entries.extend(these.into_iter().filter(&mut takes));
            understood = understood && entries.len() <= most;
        });
        let mut rules = Vec::new();
        let mut room = RULES;
        let filters = receive(&self.filters, |datagram| {
            room = room.saturating_sub(datagram.len());
            if room > 0 {
                rules.push(datagram.to_vec());
            }
        });
        // Lost or skipped notifications may have changed anything.
        let lost = routes == Heard::Lost || filters == Heard::Lost || room == 0;
        if self.rest_changed() || lost || !understood {
            return Notified::Anything;
        }
        match entries.is_empty() && rules.is_empty() {
            true => Notified::Nothing,
            false => Notified::These { entries, rules },
        }
    }

    /// Whether anything has changed that neither routes nor filters report.
    fn rest_changed(&self) -> bool {
        let links = has_spoken(&self.links);
        self.policies.as_ref().is_some_and(has_spoken) || links
    }
}

/// Result of reading a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Nothing,
    All,
    /// ENOBUFS: notifications were lost, so something has changed.
    Lost,
}

/// Reads all waiting messages without blocking, and passes the datagrams to `each`.
fn receive(socket: &Socket, mut each: impl FnMut(&[u8])) -> Heard {
    let mut heard = Heard::Nothing;
    let mut buffer = Vec::with_capacity(32 << 10);
    loop {
        buffer.clear();
        match socket.recv(&mut buffer, libc::MSG_DONTWAIT) {
            Ok(_) => {
                each(&buffer);
                heard = Heard::All;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return heard,
            Err(_) => return Heard::Lost,
        }
    }
}

/// Reads all waiting messages. Returns whether there were any.
fn has_spoken(socket: &Socket) -> bool {
    receive(socket, |_| {}) != Heard::Nothing
}

/// Parses changes of forwarding entries and neighbours. Returns false if the datagram has any other
/// content.
fn read(datagram: &[u8], changes: &mut Vec<Change>) -> bool {
    let mut rest = datagram;
    while !rest.is_empty() {
        let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else {
            return false;
        };
        let length = (message.header.length as usize).next_multiple_of(4).max(16);
        rest = rest.get(length..).unwrap_or_default();
        let (message, gone) = match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(new)) => (new, false),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelNeighbour(old)) => (old, true),
            // A VXLAN device reports an unknown destination (`l2miss`): nothing has changed.
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::GetNeighbour(_)) => continue,
            // Any other message needs a full read.
            _ => return false,
        };
        match Change::read(&message, gone) {
            Some(change) => changes.extend(change),
            None => return false,
        }
    }
    true
}

fn listen(protocol: isize, name: &'static str, groups: &[u32]) -> Result<Socket> {
    let failed =
        |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, name, &e));
    let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
    socket.bind_auto().map_err(failed("bind"))?;
    for group in groups {
        socket.add_membership(*group).map_err(failed("join multicast group of"))?;
    }
    Ok(socket)
}
