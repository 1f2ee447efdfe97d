//! Findings about verdicts of packet filters, and commands that change their rules.

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

/// A rule that lets packets pass.
pub(super) struct Accept {
    /// For `nft insert rule`.
    pub(super) nft: String,
    /// For `iptables -I`.
    pub(super) iptables: String,
}

/// Whether the kernel evaluates a family's rules in iptables-legacy's tables, which number rules.
pub(super) fn is_legacy(family: &str) -> bool {
    family.ends_with("-legacy")
}

/// Source of a verdict on the rules of a family.
pub(super) fn source(family: &str) -> &'static str {
    if is_legacy(family) { "IPT_SO_GET_ENTRIES, evaluated" } else { "nftables, evaluated" }
}

/// Source of rules of a family with their contents.
pub(super) fn rules_source(family: &str) -> &'static str {
    if is_legacy(family) { "IPT_SO_GET_ENTRIES" } else { "NFT_MSG_GETRULE" }
}

/// A rule by handle, or by number in iptables-legacy, or a chain's policy.
pub(super) fn named_rule(family: &str, object: &str, handle: Option<u64>) -> String {
    match handle {
        Some(number) if is_legacy(family) => format!("rule {number} of {object}"),
        Some(handle) => format!("rule with handle {handle} of {object}"),
        None => object.to_owned(),
    }
}

/// Commands that delete a rule whose purpose is unknown, after its chain was saved below /run, where
/// only root can write, and that load the saved chain again.
pub(super) fn delete_rule(
    namespace: &Namespace,
    (family, table, chain): (&str, &str, &str),
    handle: u64,
) -> (String, String) {
    let path = namespace.path.as_deref();
    let shell = |script: String| inside(path, &format!("sh -c {}", quote(&script)));
    // Each rule has a file of its own. A name may have any characters.
    let plain = |name: &str| name.replace(|one: char| !one.is_ascii_alphanumeric(), "-");
    let file = format!("/run/overlane-{family}-{}-{}-{handle}", plain(table), plain(chain));
    let (table, chain) = (quote(table), quote(chain));
    if is_legacy(family) {
        return (
            shell(format!(
                "{family}-save -t {table} > {file} && {family} -t {table} -D {chain} {handle}"
            )),
            shell(format!("{family}-restore -T {table} < {file} && rm {file}")),
        );
    }
    let name = format!("{family} {table} {chain}");
    (
        shell(format!(
            "nft -s list chain {name} > {file} && nft delete rule {name} handle {handle}"
        )),
        shell(format!("{{ echo flush chain {name}; cat {file}; }} | nft -f - && rm {file}")),
    )
}

/// Adds a finding. `accept` is a rule that lets the packets pass.
pub(super) fn add(
    check: &Check,
    outcome: &mut CheckOutcome,
    namespace: &Namespace,
    passage: &Passage,
    packets: &str,
    (severity, share): (Severity, f64),
    accept: &Accept,
) {
    let Filtered::Dropped { family, table, chain, handle, .. } = &passage.verdict else { return };
    let object = format!("{family} {table} {chain}");
    let cause = match handle {
        Some(_) => format!("{} drops {packets}", named_rule(family, &object, *handle)),
        None => format!("policy of {object} is drop, and no rule accepts {packets}"),
    };
    let (insert, delete) = commands(namespace, (family, table, chain), accept);
    outcome.add(
        check
            .in_namespace(namespace, object)
            .severity(severity)
            .evidence(cause, source(family))
            .cost(Cost::estimated(share, "these packets"))
            .by_hand(
                insert,
                "the filter then accepts these packets; a program that manages the rules may \
                 remove the rule, and should add its own",
                delete,
            ),
    );
}

/// Commands that insert a rule as the first of a chain, and remove it.
pub(super) fn commands(
    namespace: &Namespace,
    (family, table, chain): (&str, &str, &str),
    accept: &Accept,
) -> (String, String) {
    let path = namespace.path.as_deref();
    let (table, chain) = (quote(table), quote(chain));
    if is_legacy(family) {
        let rule = &accept.iptables;
        let command =
            |verb| inside(path, &format!("{family} -t {table} {verb} {chain} {rule} -j ACCEPT"));
        return (command("-I"), command("-D"));
    }
    let nft = |command: String| inside(path, &format!("nft {command}"));
    let rule = quote(&format!("{} comment \"overlane\"", accept.nft));
    let insert = nft(format!("insert rule {family} {table} {chain} {rule}"));
    let list = nft(format!("-a list chain {family} {table} {chain}"));
    let find = "sed -n 's/.*comment \"overlane\" # handle //p' | head -n 1";
    let delete = nft(format!("delete rule {family} {table} {chain} handle $({list} | {find})"));
    (insert, delete)
}
