//! Findings about verdicts of packet filters, for OV071 and OV073.

use super::{Check, CheckOutcome, Cost, Severity, View};
use crate::host::{Filtered, Namespace, Passage};
use settings::command::{inside, quote};

/// Returns the packets that a namespace's filter drops.
pub(super) fn dropped<'a>(
    view: &View<'a>,
    outcome: &mut CheckOutcome,
) -> Vec<(&'a Namespace, &'a Passage)> {
    let mut all = Vec::new();
    for namespace in &view.host().namespaces {
        let Some(passages) = outcome.need(&namespace.label, &namespace.passages) else { continue };
        let dropped = passages.iter().filter(|one| matches!(one.verdict, Filtered::Dropped { .. }));
        all.extend(dropped.map(|passage| (namespace, passage)));
    }
    all
}

/// Adds a finding. `accept` is a rule that lets the packets pass.
pub(super) fn add(
    check: &Check,
    outcome: &mut CheckOutcome,
    namespace: &Namespace,
    passage: &Passage,
    packets: &str,
    (severity, share): (Severity, f64),
    accept: &str,
) {
    let Filtered::Dropped { family, table, chain, handle, .. } = &passage.verdict else { return };
    let object = format!("{family} {table} {chain}");
    let cause = match handle {
        Some(handle) => format!("rule with handle {handle} of {object} drops {packets}"),
        None => format!("policy of {object} is drop, and no rule accepts {packets}"),
    };
    let path = namespace.path.as_deref();
    let (table, chain) = (quote(table), quote(chain));
    let nft = |command: String| inside(path, &format!("nft {command}"));
    // The first rule of the chain comes before whatever drops.
    let rule = quote(&format!("{accept} comment \"overlane\""));
    let insert = nft(format!("insert rule {family} {table} {chain} {rule}"));
    let list = nft(format!("-a list chain {family} {table} {chain}"));
    let find = "sed -n 's/.*comment \"overlane\" # handle //p' | head -n 1";
    let delete = nft(format!("delete rule {family} {table} {chain} handle $({list} | {find})"));
    outcome.add(
        check
            .in_namespace(namespace, object)
            .severity(severity)
            .evidence(cause, "nftables, evaluated")
            .cost(Cost::estimated(share, "these packets"))
            .by_hand(
                insert,
                "opens the filter for these packets; a program that manages the rules may remove \
                 it, and should allow them itself",
                delete,
            ),
    );
}
