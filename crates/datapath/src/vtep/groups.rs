//! Multicast groups of the underlay, on the link that has the endpoint's address.
//!
//! The kernel keeps a membership while the link is down, and drops it when the link is removed. If
//! the address then appears on another link, the groups are joined there. The same happens after
//! the address was absent for a while, as an IPv6 address is while its link is down. Limit: a
//! socket for a group of link-local scope (ff02::/16) stays bound to the link for which it was
//! opened.
//! it was opened for.

use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use netstate::Netlink;
use netstate::watch::StateWatch;
use sys::datagram::{self, ReceiverOptions};
use sys::errno::Errno;

use super::config::Config;
use crate::Error;

/// The groups of an endpoint, each with its receiving socket.
pub(super) struct Groups {
    local: IpAddr,
    sockets: Vec<UdpSocket>,
    groups: Vec<IpAddr>,
    /// Belongs to the underlay's namespace, in whatever namespace the thread is.
    netlink: Netlink,
    watch: StateWatch,
    /// Index of the link on which the groups are joined; `None`: no link has the address.
    link: Mutex<Option<u32>>,
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl Groups {
    /// Joins the groups in the calling thread's namespace; `None` if none is configured.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if no link has the endpoint's address; errors of the sockets.
    pub(super) fn join(
        config: &Config,
        options: &ReceiverOptions,
    ) -> Result<Option<Groups>, Error> {
        let networks = config.networks.iter();
        let mut groups: Vec<_> = networks.filter_map(|network| network.group).collect();
        groups.sort_unstable();
        groups.dedup();
        // Without a group there is nothing to join or to follow.
        if groups.is_empty() {
            return Ok(None);
        }
        let local = config.local;
        // Subscribe before the first read, so that no change is missed in between.
        let (watch, netlink) = (StateWatch::open()?, Netlink::open()?);
        let none = || {
            sys::Error::new("join groups on the link of", local.to_string(), Errno::EADDRNOTAVAIL)
        };
        let link = link_of(&netlink, local)?.ok_or_else(none)?;
        let socket =
            |group: &IpAddr| datagram::group_receiver(*group, config.port, (link, local), options);
        let sockets = groups.iter().map(socket).collect::<sys::Result<_>>()?;
        Ok(Some(Groups { local, sockets, groups, netlink, watch, link: Mutex::new(Some(link)) }))
    }

    pub(super) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// Returns the index of the link on which the groups are joined.
    pub(super) fn link(&self) -> Option<u32> {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptors to poll.
    pub(super) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, &'static str)> {
        self.watch.fds()
    }

    /// Joins the groups on the link that now has the endpoint's address. `lead` must direct
    /// outgoing packets of the groups to that link. Returns whether the link changed. Failed steps
    /// are retried at the next call.
    pub(super) fn follow(&self, lead: impl Fn(u32) -> sys::Result<()>) -> bool {
        let mut joined = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        // No address has changed since the groups were joined.
        if !self.watch.changed() && joined.is_some() {
            return false;
        }
        // A failed query is retried at the next call.
        let Ok(link) = link_of(&self.netlink, self.local) else { return false };
        // The address is still on the same link.
        if link == *joined {
            return false;
        }
        if let Some(old) = joined.take() {
            for (socket, group) in self.sockets.iter().zip(&self.groups) {
                // The membership of the socket outlives the link, so leave it.
                let _ = datagram::leave_group(socket, *group, old);
            }
        }
        // At present no link has the address.
        let Some(link) = link else { return false };
        for (socket, group) in self.sockets.iter().zip(&self.groups) {
            // The last attempt may have joined it already.
            match datagram::join_group(socket, *group, link) {
                // EADDRINUSE means that the socket is in the group already.
                Err(error) if error.errno != Errno::EADDRINUSE => return false,
                _ => {}
            }
        }
        // Not complete: the next call tries again.
        if lead(link).is_err() {
            return false;
        }
        *joined = Some(link);
        true
    }
}

/// Returns the index of the link with that address, in the namespace of `netlink`.
fn link_of(netlink: &Netlink, local: IpAddr) -> Result<Option<u32>, netstate::Error> {
    let addresses = netlink.addresses()?;
    Ok(addresses.iter().find(|address| address.address == local).map(|address| address.link))
}
