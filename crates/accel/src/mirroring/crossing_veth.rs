//! The veth pair by which packets cross between a sandbox and the namespace with the NICs.
//!
//! BPF redirects inside of a namespace, or to the peer of a device in another: a packet
//! that is handed to one end's peer appears at the other end as received. Nothing else
//! uses the pair, and programs at both ends drop what else comes. It is removed with the
//! reconciler. A killed process leaves it behind, without programs: no address, no IPv6, no
//! route, so nothing uses it; the next start removes it, or who asks for that.

use netstate::{MacAddr, Netlink};
use sys::netns::NetNs;
use sys::tcx::{self, Hook};

use super::netns_state::NetnsState;
use crate::Result;

/// Both ends' alias, by which it is known as ours.
const ALIAS: &str = "overlane accel";
/// Names are this and the inode of the sandbox.
const PREFIX: &str = "ovl";

/// Indices of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CrossingVeth {
    pub(crate) inner: u32,
    pub(crate) outer: u32,
    /// Another process had the first name, from which this one took over.
    second: bool,
}

/// A name of at most 15 bytes: inodes of namespaces have ten digits at most
/// (`PROC_DYNAMIC_FIRST` is 0xF0000000).
fn name(sandbox: &NetnsState, second: bool) -> String {
    let end = if second { "b" } else { "" };
    format!("{PREFIX}{}{end}", sandbox.netns.inode())
}

/// Locally administered, and different for each end of each pair.
fn mac(sandbox: &NetnsState, second: bool, end: u8) -> MacAddr {
    let [.., a, b, c, d] = sandbox.netns.inode().to_be_bytes();
    MacAddr([0x02, end + if second { 2 } else { 0 }, a, b, c, d])
}

impl CrossingVeth {
    pub(crate) fn make(home: &NetnsState, sandbox: &NetnsState) -> Result<CrossingVeth> {
        // Whoever else has the name, nothing is done beside them.
        let second = home.succeeds() && home.netlink.link(&name(sandbox, false)).is_ok();
        let name = name(sandbox, second);
        home.netlink.add_veth(
            &name,
            mac(sandbox, second, 0),
            &name,
            mac(sandbox, second, 1),
            &sandbox.netns,
            1500,
        )?;
        let made = [home, sandbox].map(|state| set_up(state, &name));
        match made {
            [Ok(outer), Ok(inner)] => Ok(CrossingVeth { inner, outer, second }),
            [Err(error), _] | [_, Err(error)] => {
                let _ = home.netlink.delete_link(&name);
                Err(error)
            }
        }
    }

    /// Removes both ends; where the sandbox has gone they have, too.
    pub(crate) fn remove(self, home: &NetnsState, sandbox: &NetnsState) {
        if let Err(error) = home.netlink.delete_link(&name(sandbox, self.second)) {
            tracing::debug!("{error}");
        }
    }
}

fn set_up(state: &NetnsState, name: &str) -> Result<u32> {
    let _inside = state.enter()?;
    state.netlink.set_alias(name, ALIAS)?;
    // Not there where the kernel has no IPv6.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    state.netlink.set_up(name)?;
    Ok(state.netlink.link(name)?.index)
}

/// What a killed process left in the calling thread's namespace: pairs of ours without a
/// program, by name.
fn stale(netlink: &Netlink) -> Result<Vec<String>> {
    let links = netlink.overlay()?.links.into_iter();
    let stale = links.filter(|(index, link)| {
        let ours = link.alias.as_deref() == Some(ALIAS)
            && link.name.starts_with(PREFIX)
            && link.kind.as_deref() == Some("veth");
        ours && tcx::count(*index, Hook::Ingress).is_ok_and(|count| count == 0)
    });
    Ok(stale.map(|(_, link)| link.name).collect())
}

/// Removes it, and says what it was.
pub(crate) fn remove_stale(netlink: &Netlink) -> Result<Vec<String>> {
    let stale = stale(netlink)?;
    for name in &stale {
        netlink.delete_link(name)?;
    }
    Ok(stale)
}

/// What a killed process left in `netns`, by the names of devices. Where a process serves
/// that namespace, what it is about to make may be among them.
///
/// # Errors
/// When the namespace's devices cannot be read.
pub fn left_behind(netns: &NetNs) -> Result<Vec<String>> {
    netns.run(|| stale(&Netlink::open()?))?
}

/// Removes what a killed process left in `netns`, and names it. No process may serve that
/// namespace meanwhile.
///
/// # Errors
/// When the devices cannot be read or removed.
pub fn remove_left_behind(netns: &NetNs) -> Result<Vec<String>> {
    netns.run(|| remove_stale(&Netlink::open()?))?
}
