//! Rules about foreign programs that are not bound to a namespace.

use super::{Verdict, VxlanCase};
use crate::model::{Foreign, Links, Refusal};

/// include/uapi/linux/netfilter.h.
const NF_INET_FORWARD: u32 = 2;

pub(super) fn program(case: &VxlanCase<'_>) -> Verdict {
    refused_by(&case.view.underlay.links, case.vxlan.is_ipv6(), !case.is_past_ip())
}

/// Refuses a program that may see outer packets of this family, or with `inner` the packets inside
/// the tunnel.
fn refused_by(links: &Links, ipv6: bool, inner: bool) -> Verdict {
    for (id, foreign) in &links.foreign {
        match foreign {
            Foreign::Netfilter { ipv6: of_six, hook } => {
                // Outer packets start or end on this host, so they never pass the forward hook.
                if inner || (*of_six == ipv6 && *hook != NF_INET_FORWARD) {
                    let family = if *of_six { "ip6" } else { "ip" };
                    return Err(Refusal::BpfNetfilter { family, hook: *hook, link: *id });
                }
            }
            Foreign::Function(function) => {
                // Such programs see packets of every namespace and family.
                return Err(Refusal::BpfFunction { function: function.clone(), link: *id });
            }
            // The link rules query the device.
            Foreign::Device => {}
        }
    }
    Ok(())
}

pub(super) fn links_hidden(case: &VxlanCase<'_>) -> Verdict {
    let snapshot = case.view.underlay;
    // The kernel's list of hooks includes BPF programs.
    if snapshot.links.hidden && snapshot.hooks.is_none() {
        return Err(Refusal::LinksHidden {});
    }
    Ok(())
}

pub(super) fn socket_lookup(case: &VxlanCase<'_>) -> Verdict {
    if case.view.underlay.socket_lookups { Err(Refusal::SocketLookup {}) } else { Ok(()) }
}

pub(super) fn security_module(case: &VxlanCase<'_>) -> Verdict {
    match case.view.underlay.security.first() {
        Some(module) => Err(Refusal::SecurityModule { module: module.clone() }),
        None => Ok(()),
    }
}

pub(super) fn selinux(case: &VxlanCase<'_>) -> Verdict {
    match &case.view.underlay.selinux {
        Some(reason) => Err(Refusal::Selinux { reason: reason.clone() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_concerns_its_family_and_what_is_inside() {
        let at = |netfilter_ipv6, hook, ipv6, inner| {
            let foreign = [(7, Foreign::Netfilter { ipv6: netfilter_ipv6, hook })].into();
            refused_by(&Links { foreign, hidden: false }, ipv6, inner).is_err()
        };
        assert!(at(false, 1, false, false));
        assert!(!at(false, 1, true, false));
        assert!(at(false, 1, true, true));
        assert!(at(true, 4, true, false));
        assert!(!at(false, NF_INET_FORWARD, false, false));
        assert!(at(false, NF_INET_FORWARD, false, true));
    }
}
