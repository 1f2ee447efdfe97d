//! The veth pair that carries packets between a sandbox and the namespace with the NICs.
//!
//! BPF redirects within a namespace, or to a veth peer in another namespace: a packet redirected to
//! one end's peer arrives at the other end. Nothing else uses the pair, and programs at both ends
//! drop other packets. The reconciler removes the pair. A killed process leaves it behind without
//! programs. It has no address, no IPv6 and no route, so nothing uses it; the next start or an
//! explicit request removes it.

use netstate::{MacAddr, Netlink};
use sys::netns::NetNs;
use sys::tcx::{self, Hook};

use super::netns_state::NetnsState;
use crate::Result;

/// Alias of both ends, which marks the pair as created by overlane.
const ALIAS: &str = "overlane accel";
/// Prefix of names; the sandbox's inode follows.
const PREFIX: &str = "ovl";

/// Interface indices of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CrossingVeth {
    pub(crate) inner: u32,
    pub(crate) outer: u32,
    /// The predecessor in a takeover still has the first name.
    second: bool,
}

/// Returns a name of at most 15 bytes: inodes of namespaces have at most ten digits
/// (`PROC_DYNAMIC_FIRST` is 0xF0000000).
fn name(sandbox: &NetnsState, second: bool) -> String {
    let end = if second { "b" } else { "" };
    format!("{PREFIX}{}{end}", sandbox.netns.inode())
}

/// Returns a locally administered address, unique for each end of each pair.
fn mac(sandbox: &NetnsState, second: bool, end: u8) -> MacAddr {
    let [.., a, b, c, d] = sandbox.netns.inode().to_be_bytes();
    MacAddr([0x02, end + if second { 2 } else { 0 }, a, b, c, d])
}

impl CrossingVeth {
    pub(crate) fn make(home: &NetnsState, sandbox: &NetnsState) -> Result<CrossingVeth> {
        // In a takeover, the predecessor's pair keeps its name and stays untouched.
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
            // Do not leave an incomplete pair behind.
            [Err(error), _] | [_, Err(error)] => {
                let _ = home.netlink.delete_link(&name);
                Err(error)
            }
        }
    }

    /// Removes both ends. They are already gone if the sandbox is.
    pub(crate) fn remove(self, home: &NetnsState, sandbox: &NetnsState) {
        if let Err(error) = home.netlink.delete_link(&name(sandbox, self.second)) {
            // The pair may be gone together with the sandbox.
            tracing::debug!("{error}");
        }
    }
}

fn set_up(state: &NetnsState, name: &str) -> Result<u32> {
    let _inside = state.enter()?;
    state.netlink.set_alias(name, ALIAS)?;
    // Missing if the kernel has no IPv6.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    state.netlink.set_up(name)?;
    Ok(state.netlink.link(name)?.index)
}

/// Lists the pairs that a killed process left in the calling thread's namespace: pairs with the
/// alias and without a program.
fn stale(netlink: &Netlink) -> Result<Vec<String>> {
    let links = netlink.overlay()?.links.into_iter();
    let stale = links.filter(|(index, link)| {
        let ours = link.detail.alias.as_deref() == Some(ALIAS)
            && link.name.starts_with(PREFIX)
            && link.kind.as_deref() == Some("veth");
        ours && tcx::count(*index, Hook::Ingress).is_ok_and(|count| count == 0)
    });
    Ok(stale.map(|(_, link)| link.name).collect())
}

/// Removes these pairs and returns their names.
pub(crate) fn remove_stale(netlink: &Netlink) -> Result<Vec<String>> {
    let stale = stale(netlink)?;
    for name in &stale {
        netlink.delete_link(name)?;
    }
    Ok(stale)
}

/// Lists the devices that a killed process left in `netns`. If a process serves that namespace,
/// pairs that it is just creating may be included.
pub fn left_behind(netns: &NetNs) -> Result<Vec<String>> {
    netns.run(|| stale(&Netlink::open()?))?
}

/// Removes the devices that a killed process left in `netns`, and returns their names. No process
/// may serve the namespace meanwhile.
pub fn remove_left_behind(netns: &NetNs) -> Result<Vec<String>> {
    netns.run(|| remove_stale(&Netlink::open()?))?
}
