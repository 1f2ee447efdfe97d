//! Tables of iptables-legacy and ip6tables-legacy as rules (`linux/netfilter_ipv4/ip_tables.h`,
//! `…_ipv6/ip6_tables.h`). Their matches and targets are those that iptables-nft passes on.

mod counted;

use std::collections::BTreeMap;
use std::sync::Arc;

use sys::xtables::{self, Table};

use crate::model::{Action, Base, Chain, Expression, Header, Rule, Ruleset};
use crate::value::Comparison;
use crate::xt;

pub use counted::{legacy_drop_counters, legacy_translations};

/// Chains of the hooks, by their numbers.
const CHAINS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// Tables with the priority of their chains (`NF_IP_PRI_*`).
const PRIORITIES: [(&str, i32); 5] =
    [("raw", -300), ("mangle", -150), ("nat", -100), ("filter", 0), ("security", 50)];
/// Hooks of table `nat` that translate sources, `INPUT` and `POSTROUTING`, and their priority.
const SOURCE_NAT: ([usize; 2], i32) = ([1, 4], 100);
/// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
const FAMILIES: [u8; 2] = [2, 10];
/// `NFT_META_IIFNAME`, `NFT_META_OIFNAME`, `NFT_META_L4PROTO`.
const IIFNAME: u32 = 6;
const OIFNAME: u32 = 7;
const L4PROTO: u32 = 16;
/// `IPT_INV_*`.
const NOT_INPUT: u8 = 0x01;
const NOT_OUTPUT: u8 = 0x02;
const NOT_SOURCE: u8 = 0x08;
const NOT_DESTINATION: u8 = 0x10;
const NOT_FRAGMENT: u8 = 0x20;
const NOT_PROTOCOL: u8 = 0x40;
/// `IPT_F_FRAG`: fragments other than the first. IPv6 has another flag with this value.
const FRAGMENTS: u8 = 0x01;
/// `IFNAMSIZ`.
const NAME_BYTES: usize = 16;
/// `struct xt_entry_match` and `struct xt_entry_target` before their data.
const HEAD: usize = 32;
/// `XT_RETURN`, and `-NF_DROP - 1`, `-NF_ACCEPT - 1`, `-NF_QUEUE - 1` of a standard target.
const RETURN: i32 = -5;
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const QUEUE: i32 = -4;

/// Offsets in an entry of the family.
struct Layout {
    address_bytes: usize,
    /// Offset of the source in the header of a packet.
    source_in_packet: usize,
    input: usize,
    protocol: usize,
    flags: usize,
    inverted: usize,
    target: usize,
    matches: usize,
    /// `IPT_F_GOTO`.
    goto: u8,
}

const IPV4: Layout = Layout {
    address_bytes: 4,
    source_in_packet: 12,
    input: 16,
    protocol: 80,
    flags: 82,
    inverted: 83,
    target: 88,
    matches: 112,
    goto: 0x02,
};
const IPV6: Layout = Layout {
    address_bytes: 16,
    source_in_packet: 8,
    input: 64,
    protocol: 128,
    flags: 131,
    inverted: 132,
    target: 140,
    matches: 168,
    goto: 0x04,
};

/// Contents that are not evaluated.
type Odd = String;

/// An entry of a table.
pub(crate) struct Entry<'a> {
    bytes: &'a [u8],
    /// Offset in the table.
    pub(crate) offset: usize,
    layout: &'static Layout,
}

impl Ruleset {
    /// Adds the rules of iptables-legacy and ip6tables-legacy of the calling thread's namespace.
    /// They follow chains of nftables with the same priority.
    ///
    /// # Errors
    /// If an existing table cannot be read.
    pub fn join_legacy(&mut self) -> netstate::Result<()> {
        for ipv6 in [false, true] {
            for name in netstate::netfilter::legacy_table_names(ipv6) {
                let table = xtables::table(ipv6, &name)?;
                self.add_table(ipv6, &name, &table);
            }
        }
        Ok(())
    }

    /// Adds the chains of a table. A truncated table ends with its last whole entry.
    pub fn add_table(&mut self, ipv6: bool, name: &str, table: &Table) {
        let Walked { mut chains, starts, entries } = walk(ipv6, name, table);
        // Jumps need a chain's index among all chains.
        let first = self.chains.len();
        let jumps = starts.iter().map(|(start, at)| (*start, first + at)).collect();
        for (at, is_policy, entry) in entries {
            let chain = &mut chains[at];
            if is_policy {
                if let Some(base) = &mut chain.base {
                    base.drops = entry.verdict() == Some(DROP);
                }
                continue;
            }
            let expressions = entry.rule(&jumps).unwrap_or_else(|unsupported| {
                vec![Expression::UnsupportedContent(format!("iptables-legacy: {unsupported}"))]
            });
            let handle = chain.rules.len() as u64 + 1;
            chain.rules.push(Rule { handle, expressions });
        }
        self.chains.extend(chains.into_iter().map(Arc::new));
        self.order();
    }
}

/// A table's chains, without their rules, and its entries.
struct Walked<'a> {
    chains: Vec<Chain>,
    /// Chains by the offset of their first entry.
    starts: BTreeMap<usize, usize>,
    /// Entries with the index of their chain, and whether they are its policy.
    entries: Vec<(usize, bool, Entry<'a>)>,
}

fn walk<'a>(ipv6: bool, name: &str, table: &'a Table) -> Walked<'a> {
    let entries = entries(&table.entries, ipv6);
    let base = base_chains(ipv6, name, table);
    let (mut starts, mut ends) = (BTreeMap::new(), BTreeMap::new());
    for (at, (start, end, _)) in base.iter().enumerate() {
        starts.insert(*start, at);
        ends.insert(*end, at);
    }
    let mut chains: Vec<Chain> = base.into_iter().map(|(_, _, chain)| chain).collect();
    for entry in &entries {
        // The head of a chain; the last one ends the table.
        if let Some((b"ERROR", data)) = entry.target() {
            let of = String::from_utf8_lossy(until_zero(data)).into_owned();
            starts.insert(entry.offset + entry.bytes.len(), chains.len());
            chains.push(chain(ipv6, name, of));
        }
    }
    let (mut here, mut all) = (None, Vec::with_capacity(entries.len()));
    for entry in entries {
        here = starts.get(&entry.offset).copied().or(here);
        let Some(at) = here else { continue };
        let is_head = matches!(entry.target(), Some((b"ERROR", _)));
        // The last entry of a base chain is its policy.
        let is_policy = !is_head && ends.get(&entry.offset) == Some(&at);
        if is_head || is_policy {
            here = None;
        }
        if !is_head {
            all.push((at, is_policy, entry));
        }
    }
    Walked { chains, starts, entries: all }
}

fn chain(ipv6: bool, table: &str, name: String) -> Chain {
    Chain {
        family: FAMILIES[usize::from(ipv6)],
        table: table.to_owned(),
        name,
        base: None,
        is_dormant: false,
        is_legacy: true,
        unsupported: None,
        rules: Vec::new(),
    }
}

/// Returns the base chains of a table, each with the offsets of its first and last entry.
fn base_chains(ipv6: bool, name: &str, table: &Table) -> Vec<(usize, usize, Chain)> {
    let known = PRIORITIES.iter().find(|(of, _)| *of == name);
    let mut chains = Vec::new();
    for (hook, ends) in table.hooks.iter().enumerate() {
        let Some((first, last)) = ends else { continue };
        let mut chain = chain(ipv6, name, CHAINS[hook].to_owned());
        // The order of an unknown table's chains is unknown.
        if known.is_none() {
            chain.unsupported = Some(format!("table {name} of iptables-legacy"));
        }
        let (is_nat, mut priority) = (name == "nat", known.map_or(0, |(_, is)| *is));
        if is_nat && SOURCE_NAT.0.contains(&hook) {
            priority = SOURCE_NAT.1;
        }
        chain.base = Some(Base {
            hook: hook as u32,
            priority,
            devices: Vec::new(),
            kind: if is_nat { "nat" } else { "filter" }.to_owned(),
            drops: false,
        });
        chains.push((*first as usize, *last as usize, chain));
    }
    chains
}

/// Returns the entries up to the first truncated one.
pub(crate) fn entries(all: &[u8], ipv6: bool) -> Vec<Entry<'_>> {
    let layout = if ipv6 { &IPV6 } else { &IPV4 };
    let (mut found, mut offset) = (Vec::new(), 0);
    while let Some(rest) = all.get(offset..) {
        // An entry of length 0 would loop forever.
        let Some(length) = u16_at(rest, layout.target + 2).filter(|length| *length > 0) else {
            break;
        };
        let Some(bytes) = rest.get(..length) else { break };
        found.push(Entry { bytes, offset, layout });
        offset += length;
    }
    found
}

impl<'a> Entry<'a> {
    /// Returns the name and data of the target.
    pub(crate) fn target(&self) -> Option<(&'a [u8], &'a [u8])> {
        let target = self.bytes.get(u16_at(self.bytes, self.layout.target)?..)?;
        Some((until_zero(target.get(2..HEAD - 1)?), target.get(HEAD..)?))
    }

    /// Returns the verdict of a standard target, which has no name.
    fn verdict(&self) -> Option<i32> {
        let (name, data) = self.target()?;
        let verdict = data.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
        verdict.filter(|_| name.is_empty())
    }

    /// Decodes a rule. `jumps` has the chains by the offset of their first rule.
    fn rule(&self, jumps: &BTreeMap<usize, usize>) -> Result<Vec<Expression>, Odd> {
        let byte = |at: usize| self.bytes.get(at).copied().ok_or("truncated entry");
        let (flags, inverted) = (byte(self.layout.flags)?, byte(self.layout.inverted)?);
        let is_of_fragments = self.layout.address_bytes == 4 && flags & FRAGMENTS != 0;
        if is_of_fragments && inverted & NOT_FRAGMENT == 0 {
            // A flow has no fragments, so the rule does not match.
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        self.addresses(inverted, &mut all)?;
        self.devices(inverted, &mut all)?;
        match u16_at(self.bytes, self.layout.protocol).map(u8::try_from) {
            // 0 stands for all protocols.
            Some(Ok(0)) => {}
            Some(Ok(protocol)) => {
                all.push(Expression::Meta { key: L4PROTO, to: 0 });
                let (how, with) = (equal(inverted, NOT_PROTOCOL), vec![protocol]);
                all.push(Expression::Compare { from: 0, how, with });
            }
            _ => return Err("protocol".to_owned()),
        }
        self.matches(&mut all)?;
        all.push(self.action(flags, jumps)?);
        Ok(all)
    }

    fn addresses(&self, inverted: u8, all: &mut Vec<Expression>) -> Result<(), Odd> {
        let bytes = self.layout.address_bytes;
        let part = |at: usize| {
            let part = self.bytes.get(at * bytes..).and_then(|all| all.get(..bytes));
            part.map(<[u8]>::to_vec).ok_or("truncated address")
        };
        for (at, not) in [(0, NOT_SOURCE), (1, NOT_DESTINATION)] {
            let (with, mask) = (part(at)?, part(at + 2)?);
            // Any address.
            if mask.iter().all(|byte| *byte == 0) && inverted & not == 0 {
                continue;
            }
            let offset = self.layout.source_in_packet + at * bytes;
            all.push(Expression::Payload { base: Header::Network, offset, length: bytes, to: 0 });
            all.push(Expression::MaskXor { from: 0, to: 0, mask, xor: vec![0; bytes] });
            all.push(Expression::Compare { from: 0, how: equal(inverted, not), with });
        }
        Ok(())
    }

    /// Returns the conditions on devices, as far as the entry is whole.
    pub(crate) fn device_conditions(&self) -> Vec<Expression> {
        let mut all = Vec::new();
        if let Some(inverted) = self.bytes.get(self.layout.inverted) {
            let _ = self.devices(*inverted, &mut all);
        }
        all
    }

    fn devices(&self, inverted: u8, all: &mut Vec<Expression>) -> Result<(), Odd> {
        for (key, at, not) in [(IIFNAME, 0, NOT_INPUT), (OIFNAME, 1, NOT_OUTPUT)] {
            let part = |at: usize| {
                let part = self.bytes.get(self.layout.input + at * NAME_BYTES..);
                part.and_then(|part| part.get(..NAME_BYTES)).ok_or("truncated device")
            };
            let (name, mask) = (part(at)?, part(at + 2)?);
            // The mask covers the name, and its final zero if it is no prefix.
            let compared = mask.iter().take_while(|byte| **byte != 0).count();
            if compared > 0 {
                let (how, with) = (equal(inverted, not), name[..compared].to_vec());
                all.push(Expression::Meta { key, to: 0 });
                all.push(Expression::Compare { from: 0, how, with });
            }
        }
        Ok(())
    }

    fn matches(&self, all: &mut Vec<Expression>) -> Result<(), Odd> {
        let end = u16_at(self.bytes, self.layout.target).ok_or("truncated entry")?;
        let mut at = self.layout.matches;
        while at < end {
            let found = self.bytes.get(at..).and_then(extension).ok_or("truncated match")?;
            let matches = xt::matches(&found.name, found.revision, found.data)?;
            all.push(Expression::Match(matches));
            at += found.length;
        }
        Ok(())
    }

    fn action(&self, flags: u8, jumps: &BTreeMap<usize, usize>) -> Result<Expression, Odd> {
        let at = u16_at(self.bytes, self.layout.target).ok_or("truncated entry")?;
        let found = self.bytes.get(at..).and_then(extension).ok_or("truncated target")?;
        if !found.name.is_empty() {
            let target = xt::target(&found.name, found.revision, found.data)?;
            return Ok(Expression::Target(target));
        }
        let is_goto = flags & self.layout.goto != 0;
        let to = match self.verdict().ok_or("truncated target")? {
            DROP => return Ok(Expression::Verdict(Action::Drop)),
            ACCEPT => return Ok(Expression::Verdict(Action::Accept)),
            RETURN => return Ok(Expression::Verdict(Action::Return)),
            QUEUE => return Ok(Expression::Verdict(Action::Queue)),
            // Other verdicts are offsets of chains.
            to => usize::try_from(to).map_err(|_| format!("verdict {to}"))?,
        };
        // A rule without a target continues behind itself.
        if to == self.offset + self.bytes.len() && !is_goto {
            return Ok(Expression::Nothing);
        }
        let chain = *jumps.get(&to).ok_or("jump into a chain")?;
        Ok(Expression::Verdict(if is_goto { Action::Goto(chain) } else { Action::Jump(chain) }))
    }
}

fn equal(inverted: u8, not: u8) -> Comparison {
    if inverted & not == 0 { Comparison::Equal } else { Comparison::NotEqual }
}

/// A match or target.
struct Extension<'a> {
    name: String,
    revision: u32,
    data: &'a [u8],
    length: usize,
}

fn extension(bytes: &[u8]) -> Option<Extension<'_>> {
    let length = u16_at(bytes, 0).filter(|length| *length >= HEAD)?;
    let bytes = bytes.get(..length)?;
    let name = String::from_utf8_lossy(until_zero(&bytes[2..HEAD - 1])).into_owned();
    Some(Extension { name, revision: bytes[HEAD - 1].into(), data: &bytes[HEAD..], length })
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<usize> {
    Some(u16::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?).into())
}

#[cfg(test)]
mod tests;
