//! nftables rules as the kernel stores them.

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

/// An nftables rule and its chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// Address family, as in [`BaseChain`](super::BaseChain).
    pub(super) family: &'static str,
    /// Table of the rule.
    pub(super) table: String,
    /// Chain of the rule.
    pub(super) chain: String,
    /// Expressions in the order of evaluation.
    pub(super) expressions: Vec<Expression>,
}

/// An expression of a rule: `cmp`, `payload`, `counter` …
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expression {
    /// Kind of the expression, as the kernel names it.
    pub(super) name: String,
    /// Attributes (`NFTA_EXPR_DATA`).
    pub(super) data: Vec<u8>,
}

/// Passes the answer (`struct nfgenmsg` and attributes) of each rule of the calling thread's namespace
/// to `each`, in order within each chain.
///
/// # Errors
/// If the kernel refuses the dump, unless it has no nftables.
pub(super) fn each_rule(mut each: impl FnMut(&[u8])) -> Result<()> {
    dump_all(NFT_MSG_GETRULE, "nftables rules", |kind, payload| {
        if kind == NFT_MSG_NEWRULE {
            each(payload);
        }
    })
}

/// Decodes a rule from an answer (`struct nfgenmsg` and attributes).
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
