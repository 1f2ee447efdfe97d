//! Rules of nftables, as the kernel has them.

use super::{dump_all, family};
use crate::dump::{attribute, attributes, text};
use crate::netlink::Result;

// include/uapi/linux/netfilter/nf_tables.h.
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_GETRULE: u16 = 7;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;

/// A rule of nftables, with the chain that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Address family, as [`BaseChain`](super::BaseChain) has it.
    pub family: &'static str,
    /// Name of its table.
    pub table: String,
    /// Name of its chain.
    pub chain: String,
    /// What it matches and does, in the order of evaluation.
    pub expressions: Vec<Expression>,
}

/// A rule's expression: `cmp`, `payload`, `counter` …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// Kind of the expression, as the kernel names it.
    pub name: String,
    /// Its attributes (`NFTA_EXPR_DATA`).
    pub data: Vec<u8>,
}

/// Rules of every chain in the calling thread's namespace, ARP's left out, a chain's in
/// order.
///
/// # Errors
/// When the kernel refuses the dump for another reason than not having nftables.
pub fn rules() -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    dump_all(NFT_MSG_GETRULE, "nftables rules", |kind, payload| {
        if kind == NFT_MSG_NEWRULE {
            rules.extend(rule(payload));
        }
    })?;
    Ok(rules)
}

/// A rule from an answer (`struct nfgenmsg` and attributes).
pub(super) fn rule(payload: &[u8]) -> Option<Rule> {
    let family = family(payload)?;
    let rule = payload.get(4..)?;
    let named = |kind| text(attribute(rule, kind).unwrap_or_default());
    let expression = |(_, element)| Expression {
        name: text(attribute(element, NFTA_EXPR_NAME).unwrap_or_default()),
        data: attribute(element, NFTA_EXPR_DATA).unwrap_or_default().to_vec(),
    };
    let expressions = attribute(rule, NFTA_RULE_EXPRESSIONS).unwrap_or_default();
    Some(Rule {
        family,
        table: named(NFTA_RULE_TABLE),
        chain: named(NFTA_RULE_CHAIN),
        expressions: attributes(expressions).map(expression).collect(),
    })
}
