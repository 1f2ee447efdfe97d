//! That something has changed: the kernel's notifications, as a wake-up.
//!
//! What changed is not read from them: they come without the rest of the state,
//! and some are lost when the socket overflows. Whoever is woken reads anew.

use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_XFRM};
use sys::netns::NetNs;

use crate::netlink::{Error, Result};

/// `RTNLGRP_*` (include/uapi/linux/rtnetlink.h): links, neighbours and FDBs, tc,
/// IPv4 addresses, routes and rules, IPv6 addresses, routes and rules, forwarding
/// and other settings of devices (IPv4, IPv6), namespace ids.
const ROUTE_GROUPS: [u32; 12] = [1, 3, 4, 5, 7, 8, 9, 11, 19, 24, 25, 28];
/// `NFNLGRP_NFTABLES` (include/uapi/linux/netfilter/nfnetlink.h).
const NETFILTER_GROUPS: [u32; 1] = [7];
/// `XFRMNLGRP_POLICY` (include/uapi/linux/xfrm.h).
const XFRM_GROUPS: [u32; 1] = [4];

/// What has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// Links, addresses, routes, neighbours, tc, IPsec policies.
    pub links: bool,
    /// nftables.
    pub filters: bool,
}

/// A receiver of the notifications of one network namespace.
pub struct Watch {
    /// Packet filters' is the second.
    sockets: Vec<Socket>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Watch {
    /// Listens in the calling thread's namespace.
    ///
    /// Not notified by the kernel: rules of the older iptables and ebtables,
    /// programs attached by BPF links, sysctls, path MTUs learned from ICMP.
    ///
    /// # Errors
    /// When descriptors have run out or a group is refused.
    pub fn open() -> Result<Watch> {
        let mut sockets = vec![
            listen(NETLINK_ROUTE, "NETLINK_ROUTE", &ROUTE_GROUPS)?,
            listen(NETLINK_NETFILTER, "NETLINK_NETFILTER", &NETFILTER_GROUPS)?,
        ];
        // A kernel without IPsec has no such protocol, and no policies.
        sockets.extend(listen(NETLINK_XFRM, "NETLINK_XFRM", &XFRM_GROUPS).ok());
        Ok(Watch { sockets })
    }

    /// Listens in `netns`.
    ///
    /// # Errors
    /// As [`Watch::open`], and when the namespace cannot be entered.
    pub fn open_in(netns: &NetNs) -> Result<Watch> {
        netns.run(Watch::open)?
    }

    /// What to poll for reading.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.as_fd())
    }

    /// Whether anything has changed since the last call; forgets it.
    pub fn changed(&self) -> bool {
        let Changed { links, filters } = self.what_changed();
        links || filters
    }

    /// [`Watch::changed`], told apart.
    pub fn what_changed(&self) -> Changed {
        let mut changed = Changed { links: false, filters: false };
        for (number, socket) in self.sockets.iter().enumerate() {
            let which = if number == 1 { &mut changed.filters } else { &mut changed.links };
            *which |= has_spoken(socket);
        }
        changed
    }
}

/// Whether there was a message; takes all.
fn has_spoken(socket: &Socket) -> bool {
    let mut spoken = false;
    let mut buffer = Vec::with_capacity(32 << 10);
    loop {
        buffer.clear();
        match socket.recv(&mut buffer, libc::MSG_DONTWAIT) {
            Ok(_) => spoken = true,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return spoken,
            // ENOBUFS: some were lost, so something has changed.
            Err(_) => return true,
        }
    }
}

fn listen(protocol: isize, name: &'static str, groups: &[u32]) -> Result<Socket> {
    let failed =
        |operation| move |e: std::io::Error| Error::Sys(sys::Error::io(operation, name, &e));
    let mut socket = Socket::new(protocol).map_err(failed("socket"))?;
    socket.bind_auto().map_err(failed("bind"))?;
    for group in groups {
        socket.add_membership(*group).map_err(failed("join multicast group of"))?;
    }
    if protocol == NETLINK_ROUTE {
        // Namespaces that have an id here: where the tenants' ends of veth pairs
        // are. Without the right to it, those are read anew periodically only.
        let _ = socket.set_listen_all_namespaces(true);
    }
    Ok(socket)
}
