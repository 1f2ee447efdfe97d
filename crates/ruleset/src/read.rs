//! Reads all rules of a namespace, consistently from one generation.

use std::collections::BTreeSet;
use std::sync::Arc;

use netstate::netfilter::raw::Nftables;
use netstate::netfilter::to_attribute;
use nix::errno::Errno;

use crate::decode::{Message, NEWCHAIN, NEWSET};
use crate::model::Ruleset;
use crate::translation::{Translation, translations};
use crate::wire::each;

// `NFT_MSG_GET…`, in the order of the requests.
const GETTABLE: u16 = 1;
pub(crate) const GETCHAIN: u16 = 4;
pub(crate) const GETRULE: u16 = 7;
const GETSET: u16 = 10;
pub(crate) const GETSETELEM: u16 = 13;
/// Attempts to read a consistent generation.
const ATTEMPTS: usize = 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a request, or its answer could not be parsed.
    #[error(transparent)]
    Netlink(#[from] netstate::Error),
    /// The rules changed during every attempt.
    #[error("read nftables: rules changed during each of {ATTEMPTS} attempts")]
    Changing,
}

/// Reads the rules of the calling thread's namespace.
///
/// # Errors
/// If the kernel refuses, or the rules change during every attempt.
pub fn read() -> Result<Ruleset, Error> {
    read_by(&mut Nftables::open()?)
}

/// Reads the rules of a namespace.
pub fn read_by(nftables: &mut Nftables) -> Result<Ruleset, Error> {
    let (generation, messages) = messages(nftables)?;
    Ok(Ruleset { generation, ..Ruleset::from_messages(&messages) })
}

/// As [`read_by`], without the rules of tables that only translate addresses. Those never drop a
/// packet of a flow that does not ask for translation ([`Flow::asks_nat`](crate::Flow::asks_nat)),
/// and a node of Kubernetes has tens of thousands of them.
pub fn read_filters(nftables: &mut Nftables) -> Result<Ruleset, Error> {
    let (generation, messages) = consistent(nftables, Extent::Filters)?;
    Ok(Ruleset { generation, ..Ruleset::from_messages(&messages) })
}

/// As [`read_filters`], with the rules of ARP, and with those that translate addresses, if the namespace has at most
/// `most` chains; else `None` in their place.
pub fn read_translating(
    nftables: &mut Nftables,
    most: usize,
) -> Result<(Ruleset, Option<Vec<Translation>>), Error> {
    let (generation, messages) = consistent(nftables, Extent::Small(most))?;
    let rules = Ruleset { generation, ..Ruleset::with_arp(&messages) };
    let is_small = chains(&messages) <= most;
    Ok((rules, is_small.then(|| translations(&messages))))
}

/// Rules to read.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    All,
    /// All, if there are not more chains; else as `Filters`.
    Small(usize),
    /// Chains and rules of tables that have a base chain of another type than `nat`.
    Filters,
}

/// Returns the rules of a namespace. Reuses the known rules if their generation is current.
pub fn refresh(nftables: &mut Nftables, known: &Arc<Ruleset>) -> Result<Arc<Ruleset>, Error> {
    // On errors, read the rules, which reports the error.
    if !is_behind(nftables, known).unwrap_or(true) {
        return Ok(known.clone());
    }
    let new = read_by(nftables)?;
    // Keep the known value if the rules are equal, so that comparing pointers suffices.
    Ok(if new == **known { known.clone() } else { Arc::new(new) })
}

/// Whether the namespace's rules have another generation.
pub fn is_behind(nftables: &mut Nftables, known: &Ruleset) -> Result<bool, Error> {
    match nftables.generation() {
        Ok(generation) => Ok(generation != known.generation),
        Err(error) if is_absent(&error) => Ok(known.generation != 0),
        Err(error) => Err(error.into()),
    }
}

/// Returns the generation and all its messages. A kernel without nftables has generation 0 and no
/// messages.
pub fn messages(nftables: &mut Nftables) -> Result<(u32, Vec<Message>), Error> {
    consistent(nftables, Extent::All)
}

fn consistent(nftables: &mut Nftables, extent: Extent) -> Result<(u32, Vec<Message>), Error> {
    for _ in 0..ATTEMPTS {
        let before = match nftables.generation() {
            Ok(generation) => generation,
            // Without nftables in the kernel there are no rules.
            Err(error) if is_absent(&error) => return Ok((0, Vec::new())),
            Err(error) => return Err(error.into()),
        };
        match all(nftables, extent) {
            Ok(messages) if nftables.generation()? == before => return Ok((before, messages)),
            // The rules changed during the read: try again.
            Ok(_) => {}
            // A set was removed meanwhile, or each attempt of a dump was interrupted.
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            Err(netstate::Error::Answer { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Changing)
}

/// Whether the error means that the kernel has no nftables.
fn is_absent(error: &netstate::Error) -> bool {
    matches!(error.errno(), Some(Errno::EOPNOTSUPP | Errno::EINVAL | Errno::EPROTONOSUPPORT))
}

fn all(nftables: &mut Nftables, extent: Extent) -> Result<Vec<Message>, netstate::Error> {
    let mut messages = Vec::new();
    let mut ask = |what, family, attributes: &[u8], object| {
        nftables.objects(what, family, attributes, object, |kind, payload| {
            messages.push(Message { kind, payload: payload.to_vec() });
        })
    };
    ask(GETTABLE, 0, &[], "nftables tables")?;
    ask(GETCHAIN, 0, &[], "nftables chains")?;
    ask(GETSET, 0, &[], "nftables sets")?;
    let extent = match extent {
        Extent::Small(most) if chains(&messages) <= most => Extent::All,
        Extent::Small(_) => Extent::Filters,
        other => other,
    };
    if extent == Extent::All {
        nftables.objects(GETRULE, 0, &[], "nftables rules", |kind, payload| {
            messages.push(Message { kind, payload: payload.to_vec() });
        })?;
    }
    let tables = filter_tables(&messages);
    if extent == Extent::Filters {
        for (family, table) in &tables {
            nftables.objects(GETRULE, *family, table, "nftables rules", |kind, payload| {
                messages.push(Message { kind, payload: payload.to_vec() });
            })?;
        }
    }
    let is_wanted = |set: &&Message| {
        let of = table(set).is_some_and(|table| tables.contains(&table));
        set.kind == NEWSET && (extent == Extent::All || of)
    };
    let sets: Vec<(u8, Vec<u8>)> = messages.iter().filter(is_wanted).filter_map(question).collect();
    for (family, attributes) in sets {
        nftables.objects(
            GETSETELEM,
            family,
            &attributes,
            "nftables elements",
            |kind, payload| {
                messages.push(Message { kind, payload: payload.to_vec() });
            },
        )?;
    }
    Ok(messages)
}

fn chains(messages: &[Message]) -> usize {
    messages.iter().filter(|message| message.kind == NEWCHAIN).count()
}

/// Returns the tables with a base chain of another type than `nat`, as family and attribute.
pub(crate) fn filter_tables(messages: &[Message]) -> BTreeSet<(u8, Vec<u8>)> {
    // NFTA_CHAIN_HOOK, NFTA_CHAIN_TYPE.
    const HOOK: u16 = 4;
    const TYPE: u16 = 7;
    let is_filter = |chain: &&Message| {
        let attributes = chain.payload.get(4..).and_then(|rest| each(rest).ok());
        let attributes = attributes.unwrap_or_default();
        let value = |wanted| attributes.iter().find(|(kind, _)| *kind == wanted);
        value(HOOK).is_some() && value(TYPE).is_none_or(|(_, kind)| *kind != b"nat\0")
    };
    let chains = messages.iter().filter(|message| message.kind == NEWCHAIN);
    chains.filter(is_filter).filter_map(table).collect()
}

/// Returns family and table of a chain or set. `NFTA_CHAIN_TABLE`, `NFTA_SET_TABLE` and
/// `NFTA_RULE_TABLE` are equal.
fn table(of: &Message) -> Option<(u8, Vec<u8>)> {
    let all = each(of.payload.get(4..)?).ok()?;
    let (kind, name) = all.into_iter().find(|(kind, _)| *kind == 1)?;
    Some((*of.payload.first()?, to_attribute(kind, name)))
}

/// Returns the attributes of a request for a set's elements: table and name. `NFTA_SET_TABLE`
/// equals `NFTA_SET_ELEM_LIST_TABLE`, and so on.
fn question(set: &Message) -> Option<(u8, Vec<u8>)> {
    let mut attributes = Vec::new();
    for (kind, value) in each(set.payload.get(4..)?).ok()? {
        if kind == 1 || kind == 2 {
            attributes.extend(to_attribute(kind, value));
        }
    }
    Some((*set.payload.first()?, attributes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(family: u8, table: &[u8], base: Option<&[u8]>) -> Message {
        let mut payload = vec![family, 0, 0, 0];
        payload.extend(to_attribute(1, table));
        if let Some(kind) = base {
            payload.extend([to_attribute(4, &[]), to_attribute(7, kind)].concat());
        }
        Message { kind: NEWCHAIN, payload }
    }

    #[test]
    fn tables_that_only_translate_are_left_out() {
        let messages = [
            chain(2, b"nat\0", Some(b"nat\0")),
            chain(2, b"nat\0", None),
            chain(2, b"filter\0", Some(b"filter\0")),
            chain(10, b"nat\0", Some(b"nat\0")),
            // One table for both, as kube-proxy makes it for nftables.
            chain(1, b"both\0", Some(b"nat\0")),
            chain(1, b"both\0", Some(b"route\0")),
            chain(1, b"empty\0", None),
            Message { kind: NEWCHAIN, payload: vec![2, 0, 0, 0, 9] },
        ];
        let expected = [(1, to_attribute(1, b"both\0")), (2, to_attribute(1, b"filter\0"))];
        assert_eq!(filter_tables(&messages), expected.into());
    }
}
