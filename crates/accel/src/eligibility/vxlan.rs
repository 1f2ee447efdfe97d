//! Rules about a VXLAN device alone.

use super::address::unusable;
use super::{Verdict, VxlanCase};
use crate::model::Refusal;

pub(super) fn option(case: &VxlanCase<'_>) -> Verdict {
    match case.vxlan.detail.option {
        Some(option) => Err(Refusal::VxlanOption { option }),
        None => Ok(()),
    }
}

/// Refuses VXLAN attributes of kernels newer than this program.
pub(super) fn unknown_attribute(case: &VxlanCase<'_>) -> Verdict {
    match case.vxlan.detail.unknown {
        // It may change the packets or their destination.
        Some(number) => Err(Refusal::UnknownVxlanAttribute { number }),
        None => Ok(()),
    }
}

pub(super) fn inherited_dont_fragment(case: &VxlanCase<'_>) -> Verdict {
    // IPv6 has no such flag, so the kernel ignores the option.
    if case.vxlan.detail.df.is_none() && !case.vxlan.is_ipv6() {
        return Err(Refusal::VxlanOption { option: "df inherit" });
    }
    Ok(())
}

pub(super) fn own_address(case: &VxlanCase<'_>) -> Verdict {
    match case.vxlan.local.and_then(unusable) {
        Some(kind) => Err(Refusal::OwnAddress { kind }),
        None => Ok(()),
    }
}

pub(super) fn underlay_elsewhere(case: &VxlanCase<'_>) -> Verdict {
    // This instance attaches only to NICs in its own namespace.
    if case.view.number == 0 && case.device.link_netns.is_some() {
        return Err(Refusal::UnderlayElsewhere {});
    }
    Ok(())
}

pub(super) fn down(case: &VxlanCase<'_>) -> Verdict {
    if case.device.detail.running { Ok(()) } else { Err(Refusal::DeviceDown {}) }
}

pub(super) fn no_crossing(case: &VxlanCase<'_>) -> Verdict {
    match case.view.problem {
        Some(problem) => Err(Refusal::NoCrossing { problem: problem.to_owned() }),
        None => Ok(()),
    }
}
