//! Rules about any link: state, queueing discipline, foreign programs.

use super::{LinkCase, Verdict};
use crate::model::Refusal;

pub(super) fn tc_filters(case: &LinkCase<'_>) -> Verdict {
    let device = || case.link.name.clone();
    // Filters attach to these qdiscs. Whether there are any is not checked.
    match case.snapshot.overlay.filtered.get(&case.index) {
        Some(qdisc) => Err(Refusal::TcFilters { device: device(), qdisc: qdisc.to_string() }),
        None => Ok(()),
    }
}

pub(super) fn tcx_program(case: &LinkCase<'_>) -> Verdict {
    // The program would not see packets of the fast path, or would see them twice.
    if case.snapshot.occupied.contains(&case.index) {
        return Err(Refusal::TcxProgram { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn xdp(case: &LinkCase<'_>) -> Verdict {
    // The program would not see packets that the fast path sends.
    if case.link.detail.xdp_attached {
        return Err(Refusal::Xdp { device: case.link.name.clone() });
    }
    Ok(())
}

/// Refuses a generic XDP program at the far end of a veth pair, as far as that end can be read: the
/// kernel skips it for redirected packets (`skb_is_redirected` in `do_xdp_generic`).
pub(super) fn peer_xdp(case: &LinkCase<'_>) -> Verdict {
    let links = &case.snapshot.overlay.links;
    let (mut index, mut link) = (case.index, case.link);
    // A NIC may be a macvlan or VLAN device above the veth device. Each link is visited once.
    for _ in 0..links.len().max(1) {
        let below = link.link.filter(|_| link.link_netns.is_none());
        let below = below.and_then(|below| Some((below, links.get(&below)?)));
        if link.kind.as_deref() == Some("veth") {
            let peer = case.snapshot.peers.get(&index).or(below.map(|(_, peer)| peer));
            return match peer {
                Some(peer) if peer.detail.xdp_generic => {
                    let (device, peer) = (link.name.clone(), peer.name.clone());
                    Err(Refusal::PeerXdp { device, peer })
                }
                _ => Ok(()),
            };
        }
        let Some(below) = below else { break };
        (index, link) = below;
    }
    Ok(())
}

/// Refuses devices whose frames a macvlan device takes before the host does: tcx programs come even
/// earlier.
pub(super) fn frames_taken(case: &LinkCase<'_>) -> Verdict {
    let device = || case.link.name.clone();
    let links = case.snapshot.overlay.links.values();
    let mut is_shared = false;
    for above in links.filter(|l| l.link == Some(case.index) && l.link_netns.is_none()) {
        match above.detail.macvlan {
            None => {}
            Some("private" | "vepa" | "bridge") => is_shared = true,
            Some(mode) => {
                let macvlan = above.name.clone();
                // The macvlan device receives frames that the fast path would take first.
                return Err(Refusal::Macvlan { device: device(), macvlan, mode });
            }
        }
    }
    // Beside another macvlan device there is none in mode passthru. Their addresses make some drivers
    // promiscuous.
    if !is_shared && case.snapshot.promiscuous.contains(&case.index) {
        return Err(Refusal::Promiscuous { device: device() });
    }
    Ok(())
}

/// Refuses a queueing discipline, because the fast path would bypass it.
pub(crate) fn queueing_discipline(case: &LinkCase<'_>) -> Verdict {
    match case.link.qdisc.as_deref() {
        // There is no queue that could be bypassed.
        None | Some("noqueue") => Ok(()),
        Some(qdisc) => {
            let device = case.link.name.clone();
            Err(Refusal::QueueingDiscipline { device, qdisc: qdisc.to_owned() })
        }
    }
}

pub(super) fn down(case: &LinkCase<'_>) -> Verdict {
    // The kernel would drop the packets.
    if !case.link.detail.running {
        return Err(Refusal::LinkDown { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn port_down(case: &LinkCase<'_>) -> Verdict {
    if case.link.detail.running { Ok(()) } else { Err(Refusal::PortDown {}) }
}

pub(super) fn port_without_ethernet(case: &LinkCase<'_>) -> Verdict {
    // The maps are keyed by MAC address.
    let usable = case.link.detail.ethernet && case.link.mac.is_some();
    if usable { Ok(()) } else { Err(Refusal::PortWithoutEthernet {}) }
}
