//! Rules that clamp the maximum segment size of TCP connections: `tcp option maxseg size set …` of
//! nftables, and the target `TCPMSS` of iptables, either in nftables (iptables-nft) or in a legacy
//! table.
//!
//! Limits: only the devices in a rule's conditions are evaluated. Whether a jump leads to its chain
//! is not checked. Rules for the host's own packets are left out, because they do not affect
//! forwarded packets.

use std::collections::BTreeSet;

use netstate::netfilter::BaseChain;
use netstate::netfilter::raw::Nftables;
use serde::{Deserialize, Serialize};
use sys::xtables::{self, Table};

use crate::decode::NEWRULE;
use crate::expression::{self, register};
use crate::flow::Place;
use crate::legacy;
use crate::model::{Expression, Register};
use crate::names::Names;
use crate::read::GETRULE;
use crate::value::Comparison;
use crate::wire::{Fields, each, text};

// `NFPROTO_*`.
const NFPROTO_IPV4: u8 = 2;
const NFPROTO_ARP: u8 = 3;
const NFPROTO_IPV6: u8 = 10;
// include/uapi/linux/netfilter/nf_tables.h.
const NFT_META_IIF: u32 = 4;
const NFT_META_OIF: u32 = 5;
const NFT_META_IIFNAME: u32 = 6;
const NFT_META_OIFNAME: u32 = 7;
const NFT_EXTHDR_OP_TCPOPT: u32 = 1;
/// `TCPOPT_MSS` (RFC 9293, 3.2).
const TCPOPT_MAXSEG: u8 = 2;
/// `XT_TCPMSS_CLAMP_PMTU` of `xt_TCPMSS.h`.
const CLAMP_TO_PATH: u16 = 0xffff;
// include/uapi/linux/netfilter.h.
const NF_INET_LOCAL_IN: u32 = 1;
const NF_INET_LOCAL_OUT: u32 = 3;
const IFNAMSIZ: usize = 16;

/// A rule that clamps the MSS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clamp {
    /// `ip`, `ip6`, `inet`, `iptables-legacy`, `ip6tables-legacy`.
    pub family: String,
    /// Table of the rule.
    pub table: String,
    /// Chain; empty if it is known only by number.
    pub chain: String,
    /// Input device that the rule requires; `None`: any, or a complex condition.
    pub input: Option<Match>,
    /// Output device that the rule requires.
    pub output: Option<Match>,
    /// Size, bytes; `None`: derived from the route's MTU.
    pub mss: Option<u16>,
}

/// Condition on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Match {
    /// The exact name.
    Name(String),
    /// A prefix of the name.
    Prefix(String),
    /// The interface index.
    Index(u32),
}

impl Match {
    /// Whether the condition selects a device.
    pub fn is(&self, name: &str, index: u32) -> bool {
        match self {
            Match::Name(wanted) => wanted == name,
            Match::Prefix(beginning) => name.starts_with(beginning.as_str()),
            Match::Index(wanted) => *wanted == index,
        }
    }

    /// Decodes the compared bytes of a name: with a terminating zero, or only a common prefix.
    fn of_name(compared: &[u8]) -> Option<Match> {
        let length = compared.iter().position(|byte| *byte == 0);
        let name = String::from_utf8_lossy(&compared[..length.unwrap_or(compared.len())]);
        match length {
            // Nothing to compare: any device.
            _ if name.is_empty() => None,
            Some(_) => Some(Match::Name(name.into_owned())),
            None if compared.len() >= IFNAMSIZ => Some(Match::Name(name.into_owned())),
            None => Some(Match::Prefix(name.into_owned())),
        }
    }
}

/// Lists the nftables rules that clamp, in the calling thread's namespace. `chains` are its base
/// chains.
pub fn nft_clamps(chains: &[BaseChain]) -> netstate::Result<Vec<Clamp>> {
    let here = |chain: &BaseChain| [NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT].contains(&chain.hook);
    let local: BTreeSet<(&str, &str, &str)> = chains
        .iter()
        .filter(|chain| here(chain) && ["ip", "ip6", "inet"].contains(&chain.family))
        .map(|chain| (chain.family, chain.table.as_str(), chain.chain.as_str()))
        .collect();
    // A node with thousands of services has tens of thousands of rules: keep none of them.
    let mut clamps: Vec<Clamp> = Vec::new();
    Nftables::open()?.objects(GETRULE, 0, &[], "nftables rules", |kind, payload| {
        clamps.extend((kind == NEWRULE).then(|| nft_clamp(payload)).flatten());
    })?;
    // Leave out rules for the host's own packets.
    clamps.retain(|clamp| {
        let place = (clamp.family.as_str(), clamp.table.as_str(), clamp.chain.as_str());
        !local.contains(&place)
    });
    Ok(clamps)
}

/// State while reading a rule's expressions in order.
#[derive(Debug, Default)]
struct Examined {
    /// Key of `meta`, and its register.
    meta: Option<(u32, Register)>,
    /// Register and value of the last constant of two bytes.
    constant: Option<(Register, u16)>,
    input: Option<Match>,
    output: Option<Match>,
    /// `Some(None)`: clamps to the route's MTU.
    mss: Option<Option<u16>>,
}

/// Returns the clamp of a rule, if it is one. `payload` is an nftables answer (`struct nfgenmsg`
/// and attributes).
pub fn nft_clamp(payload: &[u8]) -> Option<Clamp> {
    let (family, rule) = (*payload.first()?, each(payload.get(4..)?).ok()?);
    let find = |wanted| rule.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
    // NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS.
    let (table, chain) = (find(1).map(text)?, find(2).map(text)?);
    let expressions = each(find(4)?).ok()?;
    let name = |bytes| Fields::new(bytes, &[1, 2]).map(|named| named.text(1)).unwrap_or_default();
    // Most rules need no decoding.
    if !expressions.iter().any(|(_, bytes)| ["exthdr", "target"].contains(&&*name(bytes))) {
        return None;
    }
    let mut seen = Examined::default();
    for (_, bytes) in expressions {
        let data = Fields::new(bytes, &[1, 2]).ok()?.get(2).unwrap_or_default();
        match name(bytes).as_str() {
            "exthdr" => seen.option(data),
            // NFTA_TARGET_NAME, NFTA_TARGET_INFO.
            "target" => {
                let target = Fields::new(data, &[1, 2, 3]).ok()?;
                seen.target(target.text(1).as_bytes(), target.get(3).unwrap_or_default());
            }
            // Sets and jumps are complex conditions: their names need no index.
            _ => seen.expression(&expression::decode(&Names::default(), family, &table, bytes)),
        }
    }
    // ARP chains do not affect IP packets.
    seen.clamp(Place { family, table, chain, handle: None, is_legacy: false })
        .filter(|_| family != NFPROTO_ARP)
}

impl Examined {
    fn expression(&mut self, expression: &Expression) {
        match expression {
            Expression::Meta { key, to } => self.meta = Some((*key, *to)),
            Expression::Compare { from, how: Comparison::Equal, with } => {
                if let Some((key, _)) = self.meta.filter(|(_, register)| register == from) {
                    self.compared(key, with);
                }
            }
            Expression::Immediate { to, value } => {
                let size = value.first_chunk::<2>();
                self.constant = size.map(|size| (*to, u16::from_be_bytes(*size)));
            }
            // Other expressions and comparisons are complex conditions.
            _ => {}
        }
    }

    /// Reads an `exthdr` expression, which may set a TCP option.
    fn option(&mut self, data: &[u8]) {
        let known: Vec<u16> = (1..24).collect();
        let Ok(fields) = Fields::new(data, &known) else { return };
        // NFTA_EXTHDR_TYPE, NFTA_EXTHDR_OP, NFTA_EXTHDR_SREG.
        let (kind, operation) = (fields.get(2), fields.number(6).ok().flatten());
        let source = fields.number(7).ok().flatten().and_then(|source| register(source).ok());
        let is_mss = operation == Some(NFT_EXTHDR_OP_TCPOPT) && kind == Some(&[TCPOPT_MAXSEG]);
        if let Some(source) = source.filter(|_| is_mss) {
            let constant = self.constant.filter(|(register, _)| *register == source);
            self.mss = Some(constant.map(|(_, size)| size));
        }
    }

    fn target(&mut self, name: &[u8], info: &[u8]) {
        if name == b"TCPMSS" {
            self.mss = Some(target_mss(info));
        }
    }

    fn clamp(self, at: Place) -> Option<Clamp> {
        let Examined { input, output, mss, .. } = self;
        let family = at.family_name().to_owned();
        Some(Clamp { family, table: at.table, chain: at.chain, input, output, mss: mss? })
    }

    fn compared(&mut self, key: u32, with: &[u8]) {
        let index = || Some(Match::Index(u32::from_ne_bytes(*with.first_chunk()?)));
        match key {
            NFT_META_IIFNAME => self.input = Match::of_name(with),
            NFT_META_OIFNAME => self.output = Match::of_name(with),
            NFT_META_IIF => self.input = index(),
            NFT_META_OIF => self.output = index(),
            // Other fields do not name a device.
            _ => {}
        }
    }
}

/// Decodes `struct xt_tcpmss_info`.
fn target_mss(info: &[u8]) -> Option<u16> {
    let mss = info.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    // The special value stands for the route's MTU.
    mss.filter(|mss| *mss != CLAMP_TO_PATH)
}

/// Lists the rules of iptables-legacy and ip6tables-legacy that clamp, in the calling thread's
/// namespace.
///
/// # Errors
/// If an existing table cannot be read.
pub fn legacy_clamps() -> netstate::Result<Vec<Clamp>> {
    let mut clamps = Vec::new();
    for ipv6 in [false, true] {
        for name in netstate::netfilter::legacy_table_names(ipv6) {
            clamps.extend(table_clamps(ipv6, &name, &xtables::table(ipv6, &name)?));
        }
    }
    Ok(clamps)
}

/// Lists the rules of a table that clamp. Stops at the first truncated entry.
pub fn table_clamps(ipv6: bool, name: &str, table: &Table) -> Vec<Clamp> {
    let mut clamps = Vec::new();
    for entry in legacy::entries(&table.entries, ipv6) {
        let local = [NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT].into_iter().any(|hook| {
            let chain = table.hooks[hook as usize];
            chain.is_some_and(|(first, last)| {
                (first as usize..=last as usize).contains(&entry.offset)
            })
        });
        let mut seen = Examined::default();
        if let Some((target, data)) = entry.target() {
            seen.target(target, data);
        }
        for condition in entry.device_conditions() {
            seen.expression(&condition);
        }
        let family = if ipv6 { NFPROTO_IPV6 } else { NFPROTO_IPV4 };
        let (table, chain) = (name.to_owned(), String::new());
        let clamp = seen.clamp(Place { family, table, chain, handle: None, is_legacy: true });
        // Rules of local hooks do not affect forwarded packets.
        clamps.extend(clamp.filter(|_| !local));
    }
    clamps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_compared_as_the_kernel_does() {
        assert_eq!(Match::of_name(b"ppp0\0\0\0\0"), Some(Match::Name("ppp0".to_owned())));
        assert_eq!(Match::of_name(b"ppp"), Some(Match::Prefix("ppp".to_owned())));
        assert_eq!(Match::of_name(b""), None);
        assert!(Match::Prefix("ppp".to_owned()).is("ppp7", 3));
        assert!(!Match::Name("ppp".to_owned()).is("ppp7", 3));
        assert!(Match::Index(3).is("ppp7", 3));
    }

    #[test]
    fn a_table_that_ends_early_is_read_as_far_as_it_goes() {
        let table = |entries: Vec<u8>| Table { hooks: [None; 5], entries };
        for length in [0, 91, 92, 150] {
            assert!(table_clamps(false, "mangle", &table(vec![0; length])).is_empty());
            assert!(table_clamps(true, "mangle", &table(vec![0xff; length])).is_empty());
        }
    }
}
