//! Rules that clamp the maximum segment size of TCP connections: `tcp option maxseg size set …` of
//! nftables, and the target `TCPMSS` of iptables, either in nftables (iptables-nft) or in a legacy
//! table.
//!
//! Limits: only the devices in a rule's conditions are evaluated. Whether a jump leads to its chain
//! is not checked. Rules for the host's own packets are left out, because they do not affect
//! forwarded packets.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sys::xtables::{self, Table};

use super::rule::{Rule, each_rule, rule};
use super::{BaseChain, big_endian, legacy_names};
use crate::dump::{attribute, text};
use crate::netlink::Result;

// include/uapi/linux/netfilter/nf_tables.h.
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFT_META_IIF: u32 = 4;
const NFT_META_OIF: u32 = 5;
const NFT_META_IIFNAME: u32 = 6;
const NFT_META_OIFNAME: u32 = 7;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFT_CMP_EQ: u32 = 0;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_EXTHDR_TYPE: u16 = 2;
const NFTA_EXTHDR_OP: u16 = 6;
const NFTA_EXTHDR_SREG: u16 = 7;
const NFT_EXTHDR_OP_TCPOPT: u32 = 1;
const NFTA_TARGET_NAME: u16 = 1;
const NFTA_TARGET_INFO: u16 = 3;
/// `TCPOPT_MSS` (RFC 9293, 3.2).
const TCPOPT_MAXSEG: u8 = 2;
/// `XT_TCPMSS_CLAMP_PMTU` of `xt_TCPMSS.h`.
const CLAMP_TO_PATH: u16 = 0xffff;
// include/uapi/linux/netfilter.h.
const NF_INET_LOCAL_IN: u32 = 1;
const NF_INET_LOCAL_OUT: u32 = 3;
/// `struct xt_entry_target` before its data: size, name, revision.
const TARGET_HEAD: usize = 32;
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
///
/// # Errors
/// If the kernel refuses the dump.
pub fn nft_clamps(chains: &[BaseChain]) -> Result<Vec<Clamp>> {
    let here = |chain: &BaseChain| [NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT].contains(&chain.hook);
    let local: BTreeSet<(&str, &str, &str)> = chains
        .iter()
        .filter(|chain| here(chain) && ["ip", "ip6", "inet"].contains(&chain.family))
        .map(|chain| (chain.family, chain.table.as_str(), chain.chain.as_str()))
        .collect();
    // A node with thousands of services has tens of thousands of rules: keep none of them.
    let mut clamps: Vec<Clamp> = Vec::new();
    each_rule(|rule| clamps.extend(nft_clamp(rule)))?;
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
    meta: Option<(u32, u32)>,
    /// Register and value of the last constant of two bytes.
    constant: Option<(u32, u16)>,
    input: Option<Match>,
    output: Option<Match>,
    /// `Some(None)`: clamps to the route's MTU.
    mss: Option<Option<u16>>,
}

/// Returns the clamp of a rule, if it is one. `payload` is an nftables answer (`struct nfgenmsg`
/// and attributes).
pub fn nft_clamp(payload: &[u8]) -> Option<Clamp> {
    clamp(rule(payload)?)
}

fn clamp(rule: Rule) -> Option<Clamp> {
    let mut seen = Examined::default();
    for expression in &rule.expressions {
        seen.expression(&expression.name, &expression.data);
    }
    Some(Clamp {
        family: rule.family.to_owned(),
        table: rule.table,
        chain: rule.chain,
        input: seen.input,
        output: seen.output,
        mss: seen.mss?,
    })
}

impl Examined {
    fn expression(&mut self, name: &str, data: &[u8]) {
        let number = |kind| big_endian(attribute(data, kind));
        let value = |kind| attribute(attribute(data, kind)?, NFTA_DATA_VALUE);
        match name {
            "meta" => self.meta = Some((number(NFTA_META_KEY), number(NFTA_META_DREG))),
            "cmp" => {
                let of = self.meta.filter(|(_, register)| *register == number(NFTA_CMP_SREG));
                // Other comparisons are complex conditions.
                let compared = value(NFTA_CMP_DATA).filter(|_| number(NFTA_CMP_OP) == NFT_CMP_EQ);
                if let (Some((key, _)), Some(compared)) = (of, compared) {
                    self.compared(key, compared);
                }
            }
            "immediate" => {
                let size = value(NFTA_IMMEDIATE_DATA).and_then(|value| value.first_chunk::<2>());
                let register = number(NFTA_IMMEDIATE_DREG);
                self.constant = size.map(|size| (register, u16::from_be_bytes(*size)));
            }
            "exthdr" => {
                let kind = attribute(data, NFTA_EXTHDR_TYPE).and_then(|kind| kind.first());
                let source = attribute(data, NFTA_EXTHDR_SREG).map(|_| number(NFTA_EXTHDR_SREG));
                let option = number(NFTA_EXTHDR_OP) == NFT_EXTHDR_OP_TCPOPT;
                if let Some(source) = source.filter(|_| option && kind == Some(&TCPOPT_MAXSEG)) {
                    let constant = self.constant.filter(|(register, _)| *register == source);
                    self.mss = Some(constant.map(|(_, size)| size));
                }
            }
            "target" if text(attribute(data, NFTA_TARGET_NAME).unwrap_or_default()) == "TCPMSS" => {
                let info = attribute(data, NFTA_TARGET_INFO).unwrap_or_default();
                self.mss = Some(target_mss(info));
            }
            // Other expressions do not change the segment size.
            _ => {}
        }
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
pub fn legacy_clamps() -> Result<Vec<Clamp>> {
    let mut clamps = Vec::new();
    for (file, ipv6) in [("ip_tables_names", false), ("ip6_tables_names", true)] {
        for name in legacy_names(file) {
            clamps.extend(table_clamps(ipv6, &name, &xtables::table(ipv6, &name)?));
        }
    }
    Ok(clamps)
}

/// Offsets in `struct ipt_entry` or `struct ip6t_entry`.
struct Layout {
    input: usize,
    output: usize,
    input_mask: usize,
    output_mask: usize,
    inverted: usize,
    target: usize,
    next: usize,
}

const IPV4: Layout = Layout {
    input: 16,
    output: 32,
    input_mask: 48,
    output_mask: 64,
    inverted: 83,
    target: 88,
    next: 90,
};
const IPV6: Layout = Layout {
    input: 64,
    output: 80,
    input_mask: 96,
    output_mask: 112,
    inverted: 132,
    target: 140,
    next: 142,
};
/// `IPT_INV_VIA_IN`, `IPT_INV_VIA_OUT`.
const INVERTED_INPUT: u8 = 1;
const INVERTED_OUTPUT: u8 = 2;

/// Lists the rules of a table that clamp. Stops at the first truncated entry.
pub fn table_clamps(ipv6: bool, name: &str, table: &Table) -> Vec<Clamp> {
    let layout = if ipv6 { IPV6 } else { IPV4 };
    let mut clamps = Vec::new();
    let mut offset = 0;
    while let Some(entry) = table.entries.get(offset..) {
        // An entry of length 0 would loop forever.
        let Some(step) = u16_at(entry, layout.next).map(usize::from).filter(|step| *step > 0)
        else {
            break;
        };
        let Some(entry) = entry.get(..step) else { break };
        let local = [NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT].into_iter().any(|hook| {
            let chain = table.hooks[hook as usize];
            chain.is_some_and(|(first, last)| (first as usize..=last as usize).contains(&offset))
        });
        // Rules of local hooks do not affect forwarded packets.
        if !local && let Some(mss) = entry_mss(entry, &layout) {
            let inverted = entry.get(layout.inverted).copied().unwrap_or_default();
            let device =
                |name, mask, flag| device(entry, name, mask).filter(|_| inverted & flag == 0);
            let program = if ipv6 { "ip6tables" } else { "iptables" };
            clamps.push(Clamp {
                family: format!("{program}-legacy"),
                table: name.to_owned(),
                chain: String::new(),
                input: device(layout.input, layout.input_mask, INVERTED_INPUT),
                output: device(layout.output, layout.output_mask, INVERTED_OUTPUT),
                mss,
            });
        }
        offset += step;
    }
    clamps
}

/// Returns the size to which an entry clamps; `None`: it has another target.
fn entry_mss(entry: &[u8], layout: &Layout) -> Option<Option<u16>> {
    let target = entry.get(usize::from(u16_at(entry, layout.target)?)..)?;
    let (head, data) = target.split_at_checked(TARGET_HEAD)?;
    (text_until_zero(&head[2..31]) == b"TCPMSS").then(|| target_mss(data))
}

/// Returns the device condition of an entry. The mask has the number of compared bytes.
fn device(entry: &[u8], name: usize, mask: usize) -> Option<Match> {
    let compared = entry.get(mask..mask + IFNAMSIZ)?.iter().take_while(|byte| **byte != 0).count();
    Match::of_name(entry.get(name..name + compared)?)
}

fn text_until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
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
