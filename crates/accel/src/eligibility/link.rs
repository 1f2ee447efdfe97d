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
    if case.snapshot.occupied.contains(&case.index) {
        return Err(Refusal::TcxProgram { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn xdp(case: &LinkCase<'_>) -> Verdict {
    if case.link.xdp {
        return Err(Refusal::Xdp { device: case.link.name.clone() });
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
    if !case.link.running {
        return Err(Refusal::LinkDown { device: case.link.name.clone() });
    }
    Ok(())
}

pub(super) fn port_down(case: &LinkCase<'_>) -> Verdict {
    if case.link.running { Ok(()) } else { Err(Refusal::PortDown {}) }
}

pub(super) fn port_without_ethernet(case: &LinkCase<'_>) -> Verdict {
    // The maps are keyed by MAC address.
    let usable = case.link.ethernet && case.link.mac.is_some();
    if usable { Ok(()) } else { Err(Refusal::PortWithoutEthernet {}) }
}
