//! Unusual routing rules: those that may affect packets of devices outside of VRFs.

use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};

/// `RT_TABLE_LOCAL`, `RT_TABLE_MAIN` and `RT_TABLE_DEFAULT`, in the order of the default rules
/// (`fib_default_rules_init`). IPv6 has the first two (`fib6_rules_net_init`).
const DEFAULT_TABLES: [(u32, &str); 3] = [(255, "local"), (254, "main"), (253, "default")];

/// Describes the rules of one family that differ from its default rules. `rules` are in the
/// kernel's order.
///
/// Priorities do not matter: users of VRFs move the rule for table `local` behind the VRFs' rule.
pub(super) fn unusual(rules: &[RuleMessage], is_ipv6: bool) -> Vec<String> {
    let mut due = if is_ipv6 { &DEFAULT_TABLES[..2] } else { &DEFAULT_TABLES[..] };
    let mut unusual = Vec::new();
    for rule in rules.iter().filter(|rule| !is_of_vrfs(rule)) {
        match due {
            [(table, _), rest @ ..] if table_for_all(rule) == Some(*table) => due = rest,
            _ => unusual.push(format!("rule {} (table {})", priority(rule), table(rule))),
        }
    }
    // Table `default` is empty unless somebody fills it, so its rule may be missing.
    let missing = due.iter().filter(|(table, _)| *table != 253);
    unusual.extend(missing.map(|(_, name)| format!("no rule for table {name}")));
    unusual
}

/// Whether a rule matches only packets that enter or leave through a VRF (`l3mdev_fib_rule_match`).
fn is_of_vrfs(rule: &RuleMessage) -> bool {
    // All selectors of a rule must match. The flag `not` inverts the result.
    rule.attributes.contains(&RuleAttribute::L3MDev(true))
        && !rule.header.flags.contains(RuleFlags::Invert)
}

/// Returns the table that a rule looks up for all packets, or `None` if it does anything else.
fn table_for_all(rule: &RuleMessage) -> Option<u32> {
    let header = &rule.header;
    let selects = header.dst_len > 0
        || header.src_len > 0
        || header.tos > 0
        || header.action != RuleAction::ToTable
        || header.flags.contains(RuleFlags::Invert);
    let is_neutral = |attribute: &RuleAttribute| {
        matches!(
            attribute,
            RuleAttribute::Priority(_)
                | RuleAttribute::Table(_)
                | RuleAttribute::Protocol(_)
                | RuleAttribute::SuppressPrefixLen(u32::MAX)
                | RuleAttribute::L3MDev(false)
        )
    };
    // An unknown attribute may be a selector of a newer kernel.
    (!selects && rule.attributes.iter().all(is_neutral)).then(|| table(rule))
}

fn table(rule: &RuleMessage) -> u32 {
    let table = rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::Table(table) => Some(*table),
        _ => None,
    });
    // The header has one byte for the table's number.
    table.unwrap_or(rule.header.table.into())
}

fn priority(rule: &RuleMessage) -> u32 {
    let priority = rule.attributes.iter().find_map(|attribute| match attribute {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    // The kernel leaves out priority 0.
    priority.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(priority: u32, table: u32) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.action = RuleAction::ToTable;
        rule.header.table = u8::try_from(table).unwrap_or(252);
        rule.attributes = vec![
            RuleAttribute::Table(table),
            RuleAttribute::SuppressPrefixLen(u32::MAX),
            RuleAttribute::Priority(priority),
        ];
        rule
    }

    fn with(mut rule: RuleMessage, attribute: RuleAttribute) -> RuleMessage {
        rule.attributes.push(attribute);
        rule
    }

    fn of_vrfs() -> RuleMessage {
        with(rule(1000, 0), RuleAttribute::L3MDev(true))
    }

    fn inverted(mut rule: RuleMessage) -> RuleMessage {
        rule.header.flags = RuleFlags::Invert;
        rule
    }

    #[test]
    fn default_rules_and_those_of_vrfs_are_usual() {
        let [local, main, last] = [rule(0, 255), rule(32766, 254), rule(32767, 253)];
        let moved = rule(32765, 255);
        for rules in [
            vec![local.clone(), main.clone(), last.clone()],
            vec![local.clone(), main.clone()],
            vec![local.clone(), of_vrfs(), main.clone(), last.clone()],
            vec![of_vrfs(), moved, main.clone(), last.clone()],
        ] {
            assert!(unusual(&rules, false).is_empty(), "{rules:?}");
        }
        assert!(unusual(&[of_vrfs(), local.clone(), main.clone()], true).is_empty());
        // Not a default rule of IPv6: the types of addresses may depend on its table.
        assert_eq!(unusual(&[local, main, last], true), ["rule 32767 (table 253)"]);
    }

    #[test]
    fn any_other_rule_is_unusual() {
        let [local, main] = [rule(0, 255), rule(32766, 254)];
        let mut of_one_network = main.clone();
        of_one_network.header.dst_len = 8;
        let mut blackhole = main.clone();
        blackhole.header.action = RuleAction::Blackhole;
        let other = netlink_packet_core::DefaultNla::new(25, vec![1]);
        for odd in [
            of_one_network,
            blackhole,
            inverted(main.clone()),
            with(main.clone(), RuleAttribute::FwMark(1)),
            with(main.clone(), RuleAttribute::Other(other)),
            with(main.clone(), RuleAttribute::SuppressPrefixLen(0)),
        ] {
            let described = "rule 32766 (table 254)";
            let rules = [local.clone(), odd.clone(), main.clone()];
            assert_eq!(unusual(&rules, false), [described], "{odd:?}");
            // It does not take the place of a default rule either.
            let rules = [local.clone(), odd];
            assert_eq!(unusual(&rules, false), [described, "no rule for table main"]);
        }
        let rules = [local.clone(), rule(100, 7), main.clone()];
        assert_eq!(unusual(&rules, false), ["rule 100 (table 7)"]);
        // All packets but those of VRFs.
        let rules = [local.clone(), inverted(of_vrfs()), main.clone()];
        assert_eq!(unusual(&rules, false), ["rule 1000 (table 0)"]);
        let swapped = [main, rule(32767, 255)];
        assert!(!unusual(&swapped, false).is_empty());
        assert_eq!(unusual(&[local], false), ["no rule for table main"]);
        assert_eq!(unusual(&[], false), ["no rule for table local", "no rule for table main"]);
    }
}
