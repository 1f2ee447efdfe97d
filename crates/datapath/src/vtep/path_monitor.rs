//! A thread that notices what becomes of the paths to the remote ends: routes,
//! path MTUs, packet filters, and the link of multicast groups.
//!
//! What goes through a socket learns of these by the kernel's answer. What is
//! handed over whole ([`super::handover`]) is past that, so this thread looks: at
//! once when the kernel notifies of a change, each second for what it does not
//! notify (path MTUs learned from ICMP, the older iptables).

use std::sync::Arc;
use std::time::Duration;

use sys::netns::NetNs;

use super::groups::Groups;
use super::handover::SecondTap;
use super::network::Network;
use super::underlay::Underlay;
use crate::Result;
use crate::threads::{Sources, Threads};

/// Milliseconds between two looks that nothing has called for.
const INTERVAL_MS: u16 = 1000;

/// At least that between two: notifications come in bursts.
const PAUSE: Duration = Duration::from_millis(10);

/// Starts the thread; none where nothing is handed over whole and there is no group.
pub(super) fn spawn(
    underlay: &Arc<Underlay>,
    networks: &[Arc<Network>],
    threads: &mut Threads,
) -> Result<()> {
    let by_tap = underlay.second_tap().into_iter().flat_map(SecondTap::watched);
    let by_groups = underlay.groups().into_iter().flat_map(Groups::watched);
    let watched: Vec<_> = by_tap.chain(by_groups).collect();
    if watched.is_empty() {
        return Ok(());
    }
    let sources = threads.sources(&watched, Duration::ZERO)?;
    // Asked here: the thread may not open files by the time that it runs.
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
    // Entering needs a right that a program has given up by now; its threads are
    // there already.
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
