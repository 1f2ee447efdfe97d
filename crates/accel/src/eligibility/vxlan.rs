//! Rules about a VXLAN device by itself.

use super::address::unusable;
use super::{Verdict, VxlanCase};
use crate::model::Refusal;

pub(super) fn option(case: &VxlanCase<'_>) -> Verdict {
    match case.vxlan.options.first() {
        Some(option) => Err(Refusal::VxlanOption { option }),
        None => Ok(()),
    }
}

/// What a newer kernel than those that are known here says of the device.
pub(super) fn unknown_attribute(case: &VxlanCase<'_>) -> Verdict {
    match case.vxlan.unknown.first() {
        Some(number) => Err(Refusal::UnknownVxlanAttribute { number: *number }),
        None => Ok(()),
    }
}

pub(super) fn inherited_type_of_service(case: &VxlanCase<'_>) -> Verdict {
    // drivers/net/vxlan: 1 stands for the inner packet's.
    if case.vxlan.tos == 1 {
        return Err(Refusal::VxlanOption { option: "tos inherit" });
    }
    Ok(())
}

pub(super) fn inherited_dont_fragment(case: &VxlanCase<'_>) -> Verdict {
    // IPv6 has no such flag, and the kernel no use for the option then.
    if case.vxlan.df.is_none() && !case.vxlan.ipv6 {
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
    if case.view.number == 0 && case.device.link_netns.is_some() {
        return Err(Refusal::UnderlayElsewhere {});
    }
    Ok(())
}

pub(super) fn down(case: &VxlanCase<'_>) -> Verdict {
    if case.device.running { Ok(()) } else { Err(Refusal::DeviceDown {}) }
}

pub(super) fn no_crossing(case: &VxlanCase<'_>) -> Verdict {
    match case.view.problem {
        Some(problem) => Err(Refusal::NoCrossing { problem: problem.to_owned() }),
        None => Ok(()),
    }
}
