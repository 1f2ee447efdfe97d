//! Packet counters of rules of iptables-legacy that drop packets, and addresses that they set.
//!
//! Each entry has its counter, which the kernel adds up over the CPUs when the table is read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use sys::xtables::{self, Table};

use super::{
    DROP, Entry, FAMILIES, HEAD, IPV4, NOT_DESTINATION, Walked, extension, until_zero, walk,
};
use crate::dropping::DropCounter;
use crate::flow::Place;
use crate::translation::{Translation, target};

/// `NF_INET_LOCAL_IN`.
const INPUT: u32 = 1;
/// `counters` follows the offsets and `comefrom` of an entry, aligned to 8 bytes.
const COUNTERS_BEHIND_TARGET: usize = 8;
const COUNTERS_BEHIND_TARGET6: usize = 12;

/// Reads the counters of rules that drop packets, or exempt them from tracking, in the tables of
/// iptables-legacy of the calling thread's namespace. Table `nat` is left out.
///
/// # Errors
/// If an existing table cannot be read.
pub fn legacy_drop_counters() -> netstate::Result<Vec<DropCounter>> {
    let mut all = Vec::new();
    for (ipv6, name, table) in tables(|name| name != "nat")? {
        all.extend(drop_counters(ipv6, &name, &table));
    }
    Ok(all)
}

/// Reads the rules of table `nat` of iptables-legacy that translate addresses.
pub fn legacy_translations() -> netstate::Result<Vec<Translation>> {
    let mut all = Vec::new();
    for (ipv6, name, table) in tables(|name| name == "nat")? {
        all.extend(translations(ipv6, &name, &table));
    }
    Ok(all)
}

fn tables(is_wanted: impl Fn(&str) -> bool) -> netstate::Result<Vec<(bool, String, Table)>> {
    let mut all = Vec::new();
    for ipv6 in [false, true] {
        for name in netstate::netfilter::legacy_table_names(ipv6) {
            if is_wanted(&name) {
                let table = xtables::table(ipv6, &name)?;
                all.push((ipv6, name, table));
            }
        }
    }
    Ok(all)
}

/// Calls a function for each rule, with the index and name of its chain and its number there.
fn rules<'a>(walked: &Walked<'a>, mut each: impl FnMut(usize, u64, &Entry<'a>)) {
    let mut numbers = vec![0_u64; walked.chains.len()];
    for (at, is_policy, entry) in &walked.entries {
        if !is_policy {
            numbers[*at] += 1;
            each(*at, numbers[*at], entry);
        }
    }
}

fn place(walked: &Walked<'_>, ipv6: bool, chain: usize, number: u64) -> Place {
    let chain = &walked.chains[chain];
    Place {
        family: FAMILIES[usize::from(ipv6)],
        table: chain.table.clone(),
        chain: chain.name.clone(),
        handle: Some(number),
        is_legacy: true,
    }
}

fn drop_counters(ipv6: bool, name: &str, table: &Table) -> Vec<DropCounter> {
    let walked = walk(ipv6, name, table);
    let for_host = for_host(&walked);
    let mut all = Vec::new();
    rules(&walked, |chain, number, entry| {
        let untracks = entry.untracks();
        if !entry.drops() && !untracks {
            return;
        }
        let Some(packets) = entry.packets() else { return };
        all.push(DropCounter {
            at: place(&walked, ipv6, chain, number),
            untracks,
            packets,
            to: entry.destination(),
            comment: entry.comment(),
            for_host: for_host.contains(&chain),
        });
    });
    all
}

fn translations(ipv6: bool, name: &str, table: &Table) -> Vec<Translation> {
    let walked = walk(ipv6, name, table);
    let mut all = Vec::new();
    rules(&walked, |chain, number, entry| {
        let Some((kind, revision, data)) = entry.named_target() else { return };
        if let Some((is_source, to, of_device)) = target(&kind, revision, ipv6, data) {
            let at = place(&walked, ipv6, chain, number);
            all.push(Translation { at, is_source, to, of_device });
        }
    });
    all
}

/// Chains to which only hook `INPUT` leads.
fn for_host(walked: &Walked<'_>) -> BTreeSet<usize> {
    // By chain: kube-proxy makes tens of thousands of jumps.
    let mut jumps = vec![Vec::new(); walked.chains.len()];
    for (from, _, entry) in &walked.entries {
        let to = entry.verdict().and_then(|verdict| usize::try_from(verdict).ok());
        jumps[*from].extend(to.and_then(|to| walked.starts.get(&to)).copied());
    }
    let hook = |at: usize| walked.chains[at].base.as_ref().map(|base| base.hook);
    let reached = |is_start: &dyn Fn(u32) -> bool| {
        let starts = (0..walked.chains.len()).filter(|at| hook(*at).is_some_and(is_start));
        let mut waiting: Vec<usize> = starts.collect();
        let mut found = BTreeSet::new();
        while let Some(at) = waiting.pop() {
            // Several rules may lead to one chain.
            if found.insert(at) {
                waiting.extend(&jumps[at]);
            }
        }
        found
    };
    let (input, others) = (reached(&|hook| hook == INPUT), reached(&|hook| hook != INPUT));
    input.difference(&others).copied().collect()
}

impl<'a> Entry<'a> {
    /// Name, revision and data of a target other than the standard one.
    fn named_target(&self) -> Option<(String, u32, &'a [u8])> {
        let found = extension(self.bytes.get(super::u16_at(self.bytes, self.layout.target)?..)?)?;
        (!found.name.is_empty()).then_some((found.name, found.revision, found.data))
    }

    fn drops(&self) -> bool {
        let named = self.named_target();
        self.verdict() == Some(DROP)
            || named.is_some_and(|(name, ..)| ["DROP", "REJECT"].contains(&name.as_str()))
    }

    fn untracks(&self) -> bool {
        // XT_CT_NOTRACK of `struct xt_ct_target_info`.
        self.named_target().is_some_and(|(name, _, data)| match name.as_str() {
            "NOTRACK" => true,
            "CT" => data.first().is_some_and(|flags| flags & 1 != 0),
            _ => false,
        })
    }

    /// Packets that the entry has counted (`struct xt_counters`).
    fn packets(&self) -> Option<u64> {
        let is_ipv4 = self.layout.address_bytes == 4;
        let behind = if is_ipv4 { COUNTERS_BEHIND_TARGET } else { COUNTERS_BEHIND_TARGET6 };
        let bytes = self.bytes.get(self.layout.target + behind..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    }

    /// Destination that it compares, if it is one address of IPv4.
    fn destination(&self) -> Option<IpAddr> {
        let is_ipv4 = self.layout.address_bytes == IPV4.address_bytes;
        let inverted = self.bytes.get(self.layout.inverted)? & NOT_DESTINATION != 0;
        let address: [u8; 4] = *self.bytes.get(4..)?.first_chunk()?;
        let mask: [u8; 4] = *self.bytes.get(12..)?.first_chunk()?;
        (is_ipv4 && !inverted && mask == [255; 4]).then_some(address.into())
    }

    fn comment(&self) -> Option<String> {
        let end = super::u16_at(self.bytes, self.layout.target)?;
        let mut at = self.layout.matches;
        while at < end {
            let found = extension(self.bytes.get(at..end)?)?;
            if found.name == "comment" {
                let text = String::from_utf8_lossy(until_zero(found.data)).into_owned();
                return Some(text).filter(|text| !text.is_empty());
            }
            at += found.length.max(HEAD);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{always, entry, table, udp};
    use super::*;

    /// A counter in an entry of IPv4, as `iptables-legacy -c 7 0` sets it.
    fn counted(bytes: &mut [u8]) {
        udp(bytes);
        bytes[16 + 80..][..8].copy_from_slice(&7_u64.to_ne_bytes());
    }

    #[test]
    fn rules_that_drop_have_their_counter_and_number() {
        let tail = [entry(false, always, Err("ERROR"))];
        let input = [
            entry(false, always, Ok(152)),
            entry(false, counted, Ok(DROP)),
            // The policy is no rule.
            entry(false, counted, Ok(DROP)),
        ];
        let all = drop_counters(false, "filter", &table(&input, &tail));
        let seen: Vec<_> =
            all.iter().map(|one| (one.at.to_string(), one.packets, one.for_host)).collect();
        assert_eq!(seen, [("iptables-legacy filter INPUT rule 2".to_owned(), 7, true)]);
    }
}
