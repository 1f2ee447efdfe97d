//! OV111: The counter of a rule that drops packets increases.

use std::collections::BTreeMap;

use super::packet_filter::{delete_rule, is_legacy, named_rule};
use super::{Check, CheckOutcome, Confidence, Cost, Severity, View};
use crate::finding::Finding;
use crate::host::{DropRule, Filtered, Namespace, PassageKind};

pub(super) const CHECK: Check = Check {
    code: "OV111",
    title: "A packet filter rule drops packets now",
    severity: Severity::Info,
    explanation: "The counter of a rule that drops or rejects packets increased between the two \
        readings, on a host or in a tenant whose packets doctor asks the rules about. Network \
        policies and firewalls drop packets on purpose, so it is a remark. If something does not \
        arrive, compare the rule with it: a policy may not name the source that packets have after \
        masquerading, a service may have no endpoints, connections may be above a limit, or \
        replies without a tracked request may be invalid. A rule that exempts packets to a \
        translated service from connection tracking (notrack) keeps the service from working. \
        Rules of nftables without a counter are not counted. For packets to this host itself a rule \
        is reported only if doctor cannot decide about a tunnel's packets. doctor does not know what \
        a rule is for, so it deletes none: it prints commands that save the chain, delete the rule \
        and restore it.",
    run,
};

fn run(view: &View<'_>, outcome: &mut CheckOutcome) {
    for namespace in &view.host().namespaces {
        // Nothing that doctor knows of depends on the rules.
        let Some(passages) = namespace.passages.get().filter(|all| !all.is_empty()) else {
            continue;
        };
        let Some(pair) = namespace.drop_rules.get() else { continue };
        let is_undecided = passages.iter().any(|passage| {
            passage.kind == PassageKind::TunnelIn && passage.verdict == Filtered::Undecided
        });
        // There may be tens of thousands of rules.
        let before: BTreeMap<Key<'_>, u64> =
            pair.before.iter().map(|rule| (key(rule), rule.packets)).collect();
        let moved: Vec<(&DropRule, u64)> = pair
            .after
            .iter()
            .filter_map(|rule| Some((rule, increase(*before.get(&key(rule))?, rule.packets)?)))
            .filter(|(rule, _)| is_undecided || !rule.for_host)
            .collect();
        let exempt = moved.iter().find(|(rule, _)| rule.untracks);
        for (rule, count) in &moved {
            // Other checks report it with the packets that it drops.
            if is_reported(namespace, rule) || rule.untracks && !breaks(view, namespace, rule) {
                continue;
            }
            let verb = if rule.untracks { "exempted from tracking" } else { "dropped" };
            let comment = rule.comment.as_ref().map(|text| format!(" ({text})"));
            let mut finding = CHECK
                .in_namespace(namespace, object(rule))
                .evidence(
                    format!("{}{} {verb} +{count}", name(rule), comment.unwrap_or_default()),
                    counter_source(&rule.family),
                )
                .cost(Cost::estimated(0.3, "packets that the rule matches"))
                .confidence(Confidence::Medium);
            if let (false, Some((other, count))) = (rule.untracks, exempt) {
                finding = finding.evidence(
                    format!(
                        "{} exempted +{count} from connection tracking: their replies are invalid",
                        name(other)
                    ),
                    counter_source(&other.family),
                );
            }
            outcome.add(deletable(namespace, rule, finding));
        }
    }
}

/// Adds commands that delete the rule and restore it.
fn deletable(namespace: &Namespace, rule: &DropRule, finding: Finding) -> Finding {
    let Some(handle) = rule.handle else { return finding };
    let place = (rule.family.as_str(), rule.table.as_str(), rule.chain.as_str());
    let (delete, restore) = delete_rule(namespace, place, handle);
    finding.by_hand(
        delete,
        "only if nobody needs the rule: the packets that it stops then pass. Its owner (a network \
         policy, a firewall, a proxy) may set it again, and is the right place for the change",
        restore,
    )
}

/// Source of the counters of a family's rules.
pub(super) fn counter_source(family: &str) -> &'static str {
    if is_legacy(family) { "struct xt_counters" } else { "NFTA_COUNTER_PACKETS" }
}

fn object(rule: &DropRule) -> String {
    format!("{} {} {}", rule.family, rule.table, rule.chain)
}

fn name(rule: &DropRule) -> String {
    named_rule(&rule.family, &object(rule), rule.handle)
}

/// Family, table, chain and handle of a rule.
type Key<'r> = (&'r str, &'r str, &'r str, Option<u64>);

fn key(rule: &DropRule) -> Key<'_> {
    (&rule.family, &rule.table, &rule.chain, rule.handle)
}

/// Packets that a counter has counted. `None`: none, or the counter began anew.
fn increase(before: u64, after: u64) -> Option<u64> {
    after.checked_sub(before).filter(|count| *count > 0)
}

/// Packets that a rule dropped between the readings, by its place.
pub(super) fn dropped(
    namespace: &Namespace,
    (family, table, chain): (&str, &str, &str),
    handle: Option<u64>,
) -> Option<u64> {
    let pair = namespace.drop_rules.get()?;
    let wanted = (family, table, chain, handle);
    let packets = |rules: &[DropRule]| {
        rules.iter().find(|rule| !rule.untracks && key(rule) == wanted).map(|rule| rule.packets)
    };
    increase(packets(&pair.before)?, packets(&pair.after)?)
}

/// Whether OV071, OV073 or OV107 name the rule.
fn is_reported(namespace: &Namespace, rule: &DropRule) -> bool {
    let place = (&rule.family, &rule.table, &rule.chain, &rule.handle);
    namespace.passages.get().into_iter().flatten().any(|passage| match &passage.verdict {
        Filtered::Dropped { family, table, chain, handle, .. }
        | Filtered::Depends { family, table, chain, handle, .. } => {
            (family, table, chain, handle) == place
        }
        _ => false,
    })
}

/// Whether a rule exempts packets that have to be translated: to an address that no device has,
/// while rules translate destinations.
fn breaks(view: &View<'_>, namespace: &Namespace, rule: &DropRule) -> bool {
    let translates = namespace.translations.get().is_some_and(|all| !all.rules.is_empty());
    let is_own = |to| {
        let mut owners = view.with_address(to);
        owners.any(|owner| owner.namespace.inode == namespace.inode)
    };
    translates && rule.to.is_some_and(|to| !is_own(to))
}
