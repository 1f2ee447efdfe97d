//! A thread that watches routes, path MTUs, packet filters, and the link of multicast groups.
//!
//! # Panics
//! ackets sent through a socket fail if one of these changes. Packets that are passed on
//! unsegmented ([`super::handover`]) do not, so this thread checks: at once when the kernel
//! notifies of a change, and each second for changes without notification (path MTUs learned from
//! ICMP, legacy iptables).

use std::sync::Arc;
use std::time::Duration;

use sys::netns::NetNs;

use super::groups::Groups;
use super::handover::SecondTap;
use super::network::Network;
use super::underlay::Underlay;
use crate::Result;
use crate::threads::{Sources, Threads};

/// Milliseconds between two checks without a notification.
const INTERVAL_MS: u16 = 1000;

/// Minimum time between two checks, because notifications come in bursts.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts the thread, if there is a second TAP or a multicast group.
pub(super) fn spawn(
    underlay: &Arc<Underlay>,
    networks: &[Arc<Network>],
    threads: &mut Threads,
) -> Result<()> {
    let by_tap = underlay.second_tap().into_iter().flat_map(SecondTap::watched);
    let by_groups = underlay.groups().into_iter().flat_map(Groups::watched);
    let watched: Vec<_> = by_tap.chain(by_groups).collect();
    // Nothing that a change could affect: no thread is needed.
    if watched.is_empty() {
        return Ok(());
    }
    let sources = threads.sources(&watched, Duration::ZERO)?;
    // Determined here, because the thread may not be allowed to open files when it runs.
    let here = match underlay.second_tap() {
        Some(tap) => NetNs::current()?.inode() == tap.netns().inode(),
        None => true,
    };
    let (underlay, networks) = (underlay.clone(), networks.to_vec());
    Ok(threads.spawn("vtep paths", move || watch(&underlay, &networks, sources, here))?)
}

fn watch(
    underlay: &Underlay,
    networks: &[Arc<Network>],
    mut sources: Sources,
    here: bool,
) -> Result<()> {
    let tap = underlay.second_tap();
    // Entering a namespace needs a capability that the program may have dropped. In that case its
    // threads are in the namespace already.
    if let Some(tap) = tap
        && !here
    {
        tap.netns().enter_for_good()?;
    }
    while sources.wait_for(&mut [false; 2], INTERVAL_MS)? {
        let regrouped = underlay.follow_groups();
        let routes = tap.is_some_and(SecondTap::look);
        if tap.is_some() || regrouped {
            for network in networks {
                network.policy().look_at_paths(underlay, routes);
            }
        }
        if routes || underlay.groups().is_some() {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}
