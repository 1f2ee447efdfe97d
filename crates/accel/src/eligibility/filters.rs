//! Rules about packet filters and IPsec, in both namespaces that packets cross.

use super::{Verdict, VxlanCase};
use crate::model::{Accounting, OtherFilter, Refusal};

impl VxlanCase<'_> {
    /// Whether packets inside the tunnel pass the IP hooks in the NICs' namespace, by a route or
    /// through a bridge with br_netfilter.
    fn is_at_hooks_of_home(&self) -> bool {
        self.view.number == 0 && !self.is_past_ip()
    }

    /// Whether packets inside the tunnel pass no IP chain: bridged frames pass them only with
    /// br_netfilter.
    pub(super) fn is_past_ip(&self) -> bool {
        self.device.master.is_some_and(|bridge| !self.view.domain(bridge).checked)
    }
}

/// Refuses chains that overlane cannot evaluate. If only the tunnel's outer packets pass a chain,
/// [`underlay::rules`](super::underlay::rules) evaluates it. Inner packets at the IP hooks need a
/// verdict per flow (`admission`), which sandboxes do not have.
pub(super) fn base_chain(case: &VxlanCase<'_>) -> Verdict {
    let read_elsewhere = case.is_past_ip() || case.is_at_hooks_of_home();
    let mut chains = case.view.snapshot.ruleset.base_chains();
    match chains.find(|chain| !(read_elsewhere && chain.is_of_ip())) {
        // Neither the underlay's rules nor verdicts cover this chain.
        Some(chain) => Err(Refusal::BaseChain { chain: chain.to_string() }),
        None => Ok(()),
    }
}

/// Verdicts are given on connections, so programs must be able to look them up.
pub(super) fn no_connections(case: &VxlanCase<'_>) -> Verdict {
    let rules = &case.view.snapshot.ruleset;
    let comes_to_rules = rules.concerns_forwarded(false) || rules.concerns_forwarded(true);
    let wants_verdicts = case.is_at_hooks_of_home() && comes_to_rules;
    // Without connection lookup no flow could get a verdict.
    if wants_verdicts && !case.view.snapshot.connections {
        return Err(Refusal::NoConnections {});
    }
    Ok(())
}

/// Counters of rules and of conntrack in the NICs' namespace, also those of the tunnel's datagrams, do
/// not count packets on the fast path.
pub(super) fn accounting(case: &VxlanCase<'_>) -> Verdict {
    let home = case.view.underlay;
    match home.accounting {
        Accounting::Exact if home.tracks || home.ruleset.base_chains().next().is_some() => {
            Err(Refusal::Accounting { why: "rules or conntrack count packets (--accounting)" })
        }
        Accounting::AsConntrack if home.tracks && home.counts_packets => {
            let why = "conntrack counts packets (net.netfilter.nf_conntrack_acct is 1)";
            Err(Refusal::Accounting { why })
        }
        Accounting::Exact | Accounting::AsConntrack | Accounting::Never => Ok(()),
    }
}

pub(super) fn rules_not_understood(case: &VxlanCase<'_>) -> Verdict {
    for snapshot in [case.view.snapshot, case.view.underlay] {
        // The unknown part may apply to any packet.
        if let Some(what) = snapshot.ruleset.unsupported.first() {
            return Err(Refusal::RulesNotUnderstood { what: what.clone() });
        }
    }
    Ok(())
}

pub(super) fn unexplained_hook(case: &VxlanCase<'_>) -> Verdict {
    // Packets cross the hooks of both namespaces.
    for snapshot in [case.view.snapshot, case.view.underlay] {
        // The function may drop or change any packet.
        if let Some(hook) = snapshot.hooks.iter().flatten().next() {
            return Err(Refusal::UnexplainedHook { hook: hook.clone() });
        }
    }
    Ok(())
}

pub(super) fn other_filter(case: &VxlanCase<'_>) -> Verdict {
    // Packets cross both namespaces.
    for snapshot in [case.view.snapshot, case.view.underlay] {
        // Their rules cannot be evaluated, or their effect is not limited to a flow.
        let Some(filter) = snapshot.filters.first() else { continue };
        return Err(match filter.clone() {
            OtherFilter::Legacy(table) => Refusal::LegacyTable { table },
            OtherFilter::Ebtables(table) => Refusal::Ebtables { table },
            OtherFilter::Ipvs => Refusal::Ipvs {},
            OtherFilter::Flowtable(table) => Refusal::Flowtable { table },
        });
    }
    Ok(())
}

pub(super) fn ipsec(case: &VxlanCase<'_>) -> Verdict {
    let both = [case.view.snapshot, case.view.underlay];
    if both.iter().any(|snapshot| snapshot.ipsec) { Err(Refusal::Ipsec {}) } else { Ok(()) }
}
