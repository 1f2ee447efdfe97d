//! Multicast groups of the underlay, on the link that has the endpoint's address.
//!
//! The kernel keeps a membership while the link is down. With the link it ends, and the
//! address may come back with another: then the groups are joined there. So are those
//! whose address was away for a while, as an IPv6 address is while its link is down.
//! Limit: a socket for a group of link-local scope (ff02::/16) stays bound to the link that
//! it was opened for.

use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use netstate::Netlink;
use netstate::watch::Watch;
use sys::datagram::{self, ReceiverOptions};
use sys::errno::Errno;

use super::config::Config;
use crate::Error;

/// The groups of an endpoint, each with the socket that receives what is sent to it.
pub(super) struct Groups {
    local: IpAddr,
    sockets: Vec<UdpSocket>,
    groups: Vec<IpAddr>,
    /// Of the underlay's namespace, wherever the thread is.
    netlink: Netlink,
    watch: Watch,
    /// Index of the link on which the groups are joined; none: the address is nowhere.
    link: Mutex<Option<u32>>,
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl Groups {
    /// Joins them in the calling thread's namespace; `None` where none is configured.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when no link has the endpoint's address; those of the sockets.
    pub(super) fn join(
        config: &Config,
        options: &ReceiverOptions,
    ) -> Result<Option<Groups>, Error> {
        let networks = config.networks.iter();
        let mut groups: Vec<_> = networks.filter_map(|network| network.group).collect();
        groups.sort_unstable();
        groups.dedup();
        if groups.is_empty() {
            return Ok(None);
        }
        let local = config.local;
        // Before the first reading: nothing is missed between.
        let (watch, netlink) = (Watch::open()?, Netlink::open()?);
        let none = || {
            sys::Error::new("join groups by the link of", local.to_string(), Errno::EADDRNOTAVAIL)
        };
        let link = link_of(&netlink, local)?.ok_or_else(none)?;
        let socket =
            |group: &IpAddr| datagram::group_receiver(*group, config.port, (link, local), options);
        let sockets = groups.iter().map(socket).collect::<sys::Result<_>>()?;
        Ok(Some(Groups { local, sockets, groups, netlink, watch, link: Mutex::new(Some(link)) }))
    }

    /// The sockets, by group.
    pub(super) fn sockets(&self) -> &[UdpSocket] {
        &self.sockets
    }

    /// Index of the link on which the groups are joined.
    pub(super) fn link(&self) -> Option<u32> {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to poll for reading.
    pub(super) fn watched(&self) -> impl Iterator<Item = (BorrowedFd<'_>, &'static str)> {
        self.watch.fds()
    }

    /// Joins the groups where the endpoint's address is by now; `lead` is to make what is
    /// sent to them leave by that link. True if that has changed. What fails is tried
    /// again at the next call.
    pub(super) fn follow(&self, lead: impl Fn(u32) -> sys::Result<()>) -> bool {
        let mut joined = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.watch.changed() && joined.is_some() {
            return false;
        }
        // The kernel that does not answer now may later.
        let Ok(link) = link_of(&self.netlink, self.local) else { return false };
        if link == *joined {
            return false;
        }
        if let Some(old) = joined.take() {
            for (socket, group) in self.sockets.iter().zip(&self.groups) {
                // It was joined there; the socket's membership outlives the link.
                let _ = datagram::leave_group(socket, *group, old);
            }
        }
        let Some(link) = link else { return false };
        for (socket, group) in self.sockets.iter().zip(&self.groups) {
            // At the last attempt it may have been joined already.
            match datagram::join_group(socket, *group, link) {
                Err(error) if error.errno != Errno::EADDRINUSE => return false,
                _ => {}
            }
        }
        if lead(link).is_err() {
            return false;
        }
        *joined = Some(link);
        true
    }
}

/// Index of the link with that address, in the namespace of `netlink`.
fn link_of(netlink: &Netlink, local: IpAddr) -> Result<Option<u32>, netstate::Error> {
    let addresses = netlink.addresses()?;
    Ok(addresses.iter().find(|address| address.address == local).map(|address| address.link))
}
