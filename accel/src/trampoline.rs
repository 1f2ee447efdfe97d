//! The veth pair by which packets cross between a sandbox and the namespace with the NICs.
//!
//! BPF redirects inside of a namespace, or to the peer of a device in another: a packet
//! that is handed to one end's peer appears at the other end as received. Nothing else
//! uses the pair, and programs at both ends drop what else comes. It is removed with the
//! mirror. A killed process leaves it behind, without programs: no address, no IPv6, no
//! route, so nothing uses it; the next start removes it, or who asks for that.

use netstate::{MacAddr, Netlink};
use sys::netns::NetNs;
use sys::tcx::{self, Hook};

use crate::Result;
use crate::space::Space;

/// Both ends' alias, by which it is known as ours.
const ALIAS: &str = "overlane accel";
/// Names are this and the inode of the sandbox.
const PREFIX: &str = "ovl";

/// Indices of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trampoline {
    pub(crate) inner: u32,
    pub(crate) outer: u32,
}

fn name(sandbox: &Space) -> String {
    format!("{PREFIX}{}", sandbox.netns.inode())
}

/// Locally administered, and different for each end.
fn mac(sandbox: &Space, end: u8) -> MacAddr {
    let [.., a, b, c, d] = sandbox.netns.inode().to_be_bytes();
    MacAddr([0x02, end, a, b, c, d])
}

impl Trampoline {
    pub(crate) fn make(home: &Space, sandbox: &Space) -> Result<Trampoline> {
        let name = name(sandbox);
        home.netlink.add_veth(
            &name,
            mac(sandbox, 0),
            &name,
            mac(sandbox, 1),
            &sandbox.netns,
            1500,
        )?;
        let made = [home, sandbox].map(|space| set_up(space, &name));
        match made {
            [Ok(outer), Ok(inner)] => Ok(Trampoline { inner, outer }),
            [Err(error), _] | [_, Err(error)] => {
                let _ = home.netlink.delete_link(&name);
                Err(error)
            }
        }
    }

    /// Removes both ends; where the sandbox has gone they have, too.
    pub(crate) fn remove(home: &Space, sandbox: &Space) {
        if let Err(error) = home.netlink.delete_link(&name(sandbox)) {
            tracing::debug!("{error}");
        }
    }
}

fn set_up(space: &Space, name: &str) -> Result<u32> {
    let _inside = space.enter()?;
    space.netlink.set_alias(name, ALIAS)?;
    // Not there where the kernel has no IPv6.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    space.netlink.set_up(name)?;
    Ok(space.netlink.link(name)?.index)
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
