//! Rules that choose a routing table: `ip rule`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, Result};
use crate::route_table::RouteKind;

/// Rules of the kernel itself: priority and table (`fib_default_rules_init`).
const USUAL: [(u32, u32); 3] = [(0, 255), (MAIN, 254), (32767, 253)];
/// Priority of the kernel's rule for the table `main`.
pub const MAIN: u32 = 32766;

/// A rule that sends packets to a routing table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// It applies to IPv6 packets, else to IPv4 packets.
    #[serde(default)]
    pub ipv6: bool,
    /// Rules apply from the least priority to the greatest.
    pub priority: u32,
    /// The table whose routes are looked up; unused if `drops`.
    pub table: u32,
    /// The rule drops packets instead: blackhole, unreachable or prohibit.
    pub drops: Option<RouteKind>,
    /// Network of source addresses and its prefix length; `None`: any.
    pub from: Option<(IpAddr, u8)>,
    /// Network of destinations and its prefix length; `None`: any.
    pub to: Option<(IpAddr, u8)>,
    /// Device that the packets come from (`iif`).
    pub input: Option<String>,
    /// The rule asks for a mark, a user, a port or another property that no address has.
    pub marked: bool,
    /// Mark of packets and its mask, if the rule asks for a mark.
    #[serde(default)]
    pub mark: Option<(u32, u32)>,
    /// Longest prefix of routes that the rule does not take (`suppress_prefixlength`).
    pub suppress: Option<u8>,
}

impl Netlink {
    /// Lists the rules of IPv4 and IPv6 that look up a table or drop packets, except those that the kernel itself
    /// has.
    ///
    /// # Errors
    /// If the kernel refuses a dump.
    pub fn policy_rules(&self) -> Result<Vec<PolicyRule>> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RuleMessage::default();
            message.header.family = family;
            self.dump(RouteNetlinkMessage::GetRule(message), "list", "rules", |answer| {
                if let RouteNetlinkMessage::NewRule(rule) = answer {
                    all.extend(policy_rule(&rule));
                }
            })?;
        }
        Ok(all)
    }
}

fn policy_rule(message: &RuleMessage) -> Option<PolicyRule> {
    let header = &message.header;
    let drops = match header.action {
        RuleAction::ToTable => None,
        RuleAction::Blackhole => Some(RouteKind::Blackhole),
        RuleAction::Unreachable => Some(RouteKind::Unreachable),
        RuleAction::Prohibit => Some(RouteKind::Prohibit),
        // Jumps between rules.
        _ => return None,
    };
    let any: IpAddr = match header.family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    let network = |length: u8| (length > 0).then_some((any, length));
    let mut rule = PolicyRule {
        ipv6: header.family == AddressFamily::Inet6,
        priority: 0,
        table: header.table.into(),
        drops,
        from: network(header.src_len),
        to: network(header.dst_len),
        input: None,
        marked: header.tos != 0,
        mark: None,
        suppress: None,
    };
    let mut mask = u32::MAX;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::FwMark(mark) => {
                (rule.marked, rule.mark) = (true, Some((*mark, u32::MAX)));
            }
            RuleAttribute::FwMask(value) => mask = *value,
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(table) => rule.table = *table,
            RuleAttribute::Source(from) => rule.from = Some((*from, header.src_len)),
            RuleAttribute::Destination(to) => rule.to = Some((*to, header.dst_len)),
            RuleAttribute::Iifname(name) => rule.input = Some(name.clone()),
            // The kernel reports -1 for none.
            RuleAttribute::SuppressPrefixLen(length) => rule.suppress = u8::try_from(*length).ok(),
            RuleAttribute::SuppressIfGroup(u32::MAX)
            | RuleAttribute::Protocol(_)
            | RuleAttribute::Other(_) => {}
            _ => rule.marked = true,
        }
    }
    rule.mark = rule.mark.map(|(mark, _)| (mark, mask));
    let selects = rule.from.is_some() || rule.to.is_some() || rule.input.is_some() || rule.marked;
    (selects || !USUAL.contains(&(rule.priority, rule.table))).then_some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::rule::RuleHeader;

    fn rule(table: u8, src_len: u8, attributes: Vec<RuleAttribute>) -> Option<PolicyRule> {
        let mut message = RuleMessage::default();
        message.header = RuleHeader {
            family: AddressFamily::Inet,
            table,
            src_len,
            action: RuleAction::ToTable,
            ..RuleHeader::default()
        };
        message.attributes = attributes;
        policy_rule(&message)
    }

    #[test]
    fn rules_of_the_kernel_itself_are_left_out() {
        let main = vec![RuleAttribute::Priority(MAIN), RuleAttribute::SuppressPrefixLen(u32::MAX)];
        assert_eq!(rule(254, 0, main), None);
        assert!(rule(52, 0, vec![RuleAttribute::Priority(5270)]).is_some());
        let network: IpAddr = [10, 244, 2, 0].into();
        let from = vec![RuleAttribute::Priority(MAIN), RuleAttribute::Source(network)];
        assert_eq!(rule(254, 24, from).unwrap().from, Some((network, 24)));
        let marked = vec![RuleAttribute::FwMark(1), RuleAttribute::SuppressPrefixLen(0)];
        let marked = rule(254, 0, marked).unwrap();
        assert!(marked.marked);
        assert_eq!(marked.mark, Some((1, u32::MAX)));
        assert_eq!(marked.suppress, Some(0));
    }
}
