//! Decodes the kernel's messages into a [`Ruleset`].
//!
//! Numbers and layouts are from `include/uapi/linux/netfilter/nf_tables.h`. An unknown attribute,
//! flag or value makes the object that carries it unsupported, so that no verdict depends on it.

use std::collections::HashMap;
use std::sync::Arc;

use crate::data::data;
use crate::expression;
use crate::model::{Base, Chain, Elements, Expression, Rule, Ruleset, Set, Shape, Value};
use crate::names::Names;
use crate::value::{Cause, Doubt};
use crate::wire::{Fields, UnsupportedContent, each};

/// A message of nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `NFT_MSG_NEW…` without the subsystem's number.
    pub kind: u16,
    /// `struct nfgenmsg` and attributes.
    pub payload: Vec<u8>,
}

pub(crate) const NEWTABLE: u16 = 0;
pub(crate) const NEWCHAIN: u16 = 3;
pub(crate) const DELCHAIN: u16 = 5;
pub(crate) const NEWRULE: u16 = 6;
pub(crate) const DELRULE: u16 = 8;
pub(crate) const NEWSET: u16 = 9;
pub(crate) const DELSET: u16 = 11;
pub(crate) const NEWSETELEM: u16 = 12;
pub(crate) const DELSETELEM: u16 = 14;
pub(crate) const NEWGEN: u16 = 15;
pub(crate) const NFPROTO_ARP: u8 = 3;
const NF_DROP: u32 = 0;

// Flags of tables, chains, sets and elements.
const TABLE_DORMANT: u32 = 1;
/// Dormant, owned, persistent.
const TABLE_KNOWN: u32 = 7;
/// Base chain and binding; not hardware offload.
const CHAIN_KNOWN: u32 = 1 | 4;
const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_TIMEOUT: u32 = 0x10;
const SET_EVAL: u32 = 0x20;
const SET_OBJECT: u32 = 0x40;
const SET_CONCAT: u32 = 0x80;
const SET_KNOWN: u32 = 0x1ff;
const ELEMENT_END: u32 = 1;
const ELEMENT_OTHERWISE: u32 = 2;
/// `NFT_OBJECT_COUNTER`.
const OBJECT_COUNTER: u32 = 1;

impl Ruleset {
    /// Decodes messages. Leaves out ARP tables, which do not affect IP packets. Never fails:
    /// unsupported content is recorded as such.
    pub fn from_messages(messages: &[Message]) -> Ruleset {
        Ruleset::decoded(messages, |family| family != NFPROTO_ARP)
    }

    /// The same with ARP tables.
    pub(crate) fn with_arp(messages: &[Message]) -> Ruleset {
        Ruleset::decoded(messages, |_| true)
    }

    fn decoded(messages: &[Message], is_wanted: fn(u8) -> bool) -> Ruleset {
        let (mut chains, mut sets) = (Vec::<Chain>::new(), Vec::<Set>::new());
        let mut names = Names::default();
        let mut tables: HashMap<(u8, String), bool> = HashMap::new();
        let of = |wanted: u16| {
            messages.iter().filter(move |message| {
                message.kind == wanted && message.payload.first().is_none_or(|of| is_wanted(*of))
            })
        };
        let parts = |message: &'_ Message| -> Option<(u8, Vec<u8>)> {
            Some((*message.payload.first()?, message.payload.get(4..)?.to_vec()))
        };
        let mut unsupported = Vec::new();
        for (family, payload) in of(NEWTABLE).filter_map(parts) {
            match table(&payload) {
                Ok((name, dormant)) => drop(tables.insert((family, name), dormant)),
                Err(why) => unsupported.push(format!("table: {why}")),
            }
        }
        for (family, payload) in of(NEWCHAIN).filter_map(parts) {
            match chain(family, &payload) {
                Ok(mut chain) => {
                    let table = (family, chain.table.clone());
                    match tables.get(&table) {
                        Some(dormant) => chain.is_dormant = *dormant,
                        None => chain.unsupported = Some("unlisted table".to_owned()),
                    }
                    let name = (family, chain.table.clone(), chain.name.clone());
                    names.chains.insert(name, chains.len());
                    chains.push(chain);
                }
                Err(why) => unsupported.push(format!("chain: {why}")),
            }
        }
        for (family, payload) in of(NEWSET).filter_map(parts) {
            match set(family, &payload) {
                Ok(set) => {
                    let name = (family, set.table.clone(), set.name.clone());
                    names.sets.insert(name, sets.len());
                    sets.push(set);
                }
                Err(why) => unsupported.push(format!("set: {why}")),
            }
        }
        for (family, payload) in of(NEWSETELEM).filter_map(parts) {
            let added = set_of(&names, family, &payload)
                .and_then(|at| elements(&mut sets[at], &names, &payload));
            if let Err(why) = added {
                unsupported.push(format!("elements: {why}"));
            }
        }
        sets.iter_mut().for_each(Set::order);
        for (family, payload) in of(NEWRULE).filter_map(parts) {
            match rule(&names, family, &payload) {
                Ok((at, rule)) => chains[at].rules.push(rule),
                Err(why) => unsupported.push(format!("rule: {why}")),
            }
        }
        for set in chains.iter().flat_map(|chain| &chain.rules).flat_map(changed_by) {
            sets[set].doubt = Some(PACKETS_CHANGE_IT);
        }
        let chains = chains.into_iter().map(Arc::new).collect();
        let sets = sets.into_iter().map(Arc::new).collect();
        let mut rules = Ruleset { chains, sets, unsupported, ..Ruleset::default() };
        rules.order();
        rules
    }
}

/// For every set that a `dynset` expression names, whatever its flags.
pub(crate) const PACKETS_CHANGE_IT: Doubt =
    Doubt { cause: Cause::Unannounced, what: "set that packets change" };

/// Returns the sets that a rule lets packets change.
pub(crate) fn changed_by(rule: &Rule) -> impl Iterator<Item = usize> {
    rule.expressions.iter().filter_map(|expression| match expression {
        Expression::Dynset { set } => Some(*set),
        _ => None,
    })
}

impl Set {
    /// Sorts the edges of ranges. At the same key, the start comes before the end of the range
    /// below.
    pub(crate) fn order(&mut self) {
        let edges = &mut self.elements.edges;
        edges.sort_by(|a, b| (&a.0, a.1.is_none()).cmp(&(&b.0, b.1.is_none())));
        edges.dedup_by(|later, kept| later.0 == kept.0);
    }
}

/// Returns the name and whether the table is dormant.
fn table(payload: &[u8]) -> Result<(String, bool), UnsupportedContent> {
    let fields = Fields::new(payload, &[1, 2, 3, 4, 5, 6, 7])?;
    let flags = fields.number(2)?.unwrap_or(0);
    let name = fields.text(1);
    // An unknown flag may change the meaning of the table.
    if flags & !TABLE_KNOWN != 0 {
        return Err(format!("{name}: flags {flags:#x}"));
    }
    Ok((name, flags & TABLE_DORMANT != 0))
}

pub(crate) fn chain(family: u8, payload: &[u8]) -> Result<Chain, UnsupportedContent> {
    let fields = Fields::new(payload, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])?;
    let flags = fields.number(10)?.unwrap_or(0);
    let mut chain = Chain {
        family,
        table: fields.text(1),
        name: fields.text(3),
        base: None,
        is_dormant: false,
        is_legacy: false,
        unsupported: None,
        rules: Vec::new(),
    };
    // Unknown flags and hardware offload are not evaluated.
    if flags & !CHAIN_KNOWN != 0 {
        chain.unsupported = Some(format!("flags {flags:#x}"));
    }
    if let Some(hook) = fields.get(4) {
        let hook = Fields::new(hook, &[1, 2, 3, 4])?;
        let mut devices: Vec<String> = hook.get(3).map(crate::wire::text).into_iter().collect();
        for (kind, name) in each(hook.get(4).unwrap_or_default())? {
            devices.push(match kind {
                1 => crate::wire::text(name),
                // NFTA_DEVICE_PREFIX.
                2 => crate::wire::text(name) + "*",
                kind => return Err(format!("unknown device attribute {kind}")),
            });
        }
        devices.sort();
        devices.dedup();
        chain.base = Some(Base {
            hook: hook.need_number(1)?,
            priority: hook.need_number(2)?.cast_signed(),
            devices,
            kind: fields.text(7),
            drops: fields.number(5)? == Some(NF_DROP),
        });
    }
    Ok(chain)
}

pub(crate) fn set(family: u8, payload: &[u8]) -> Result<Set, UnsupportedContent> {
    // The last two are the set's backend and its number of elements.
    let known: Vec<u16> = (1..=20).collect();
    let fields = Fields::new(payload, &known)?;
    let flags = fields.number(3)?.unwrap_or(0);
    let mut set = Set {
        family,
        table: fields.text(1),
        name: fields.text(2),
        key_length: fields.need_number(5)? as usize,
        shape: match flags {
            _ if flags & SET_INTERVAL == 0 => Shape::Keys,
            _ if flags & SET_CONCAT == 0 => Shape::Ranges,
            _ => Shape::Boxes,
        },
        fields: Vec::new(),
        doubt: None,
        unsupported: (flags & !SET_KNOWN != 0).then(|| format!("flags {flags:#x}")),
        elements: Elements::default(),
    };
    if let Some(description) = fields.get(9) {
        let description = Fields::new(description, &[1, 2])?;
        for (_, field) in each(description.get(2).unwrap_or_default())? {
            set.fields.push(Fields::new(field, &[1])?.need_number(1)? as usize);
        }
    }
    let doubt = |cause, what| Some(Doubt::new(cause, what));
    // The elements may change without a new generation.
    if flags & SET_EVAL != 0 {
        set.doubt = doubt(Cause::Unannounced, "set that packets change");
    } else if flags & SET_TIMEOUT != 0 || fields.get(11).is_some() {
        set.doubt = doubt(Cause::Time, "set with a timeout");
    } else if flags & SET_OBJECT != 0 && fields.number(15)? != Some(OBJECT_COUNTER) {
        set.doubt = doubt(Cause::Counting, "object map");
    } else if !only_counts(fields.get(17), fields.get(18))? {
        set.doubt = doubt(Cause::Counting, "set with stateful elements");
    }
    // A map needs a data type or objects.
    if flags & SET_MAP != 0 && fields.get(6).is_none() && flags & SET_OBJECT == 0 {
        set.unsupported = Some("map without a data type".to_owned());
    }
    // Each field is padded to whole registers.
    let bytes: usize = set.fields.iter().map(|field| field.next_multiple_of(4)).sum();
    if set.shape == Shape::Boxes && bytes != set.key_length {
        set.unsupported = Some(format!("fields of {bytes} bytes, expected {}", set.key_length));
    }
    Ok(set)
}

/// Whether the expressions of elements (`NFTA_SET_ELEM_EXPR`, `…_EXPRESSIONS`) only count.
fn only_counts(one: Option<&[u8]>, more: Option<&[u8]>) -> Result<bool, UnsupportedContent> {
    let mut all = Vec::from_iter(one);
    for (_, expression) in each(more.unwrap_or_default())? {
        all.push(expression);
    }
    for expression in all {
        let name = Fields::new(expression, &[1, 2])?.text(1);
        if !["counter", "last"].contains(&name.as_str()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the index of the set that an element message names.
pub(crate) fn set_of(
    names: &Names,
    family: u8,
    payload: &[u8],
) -> Result<usize, UnsupportedContent> {
    let fields = Fields::new(payload, &[1, 2, 3, 4])?;
    let (table, name) = (fields.text(1), fields.text(2));
    let at = names.set(family, &table, &name);
    at.ok_or_else(|| format!("unlisted set {table} {name}"))
}

pub(crate) fn elements(
    set: &mut Set,
    names: &Names,
    payload: &[u8],
) -> Result<(), UnsupportedContent> {
    let fields = Fields::new(payload, &[1, 2, 3, 4])?;
    for (_, bytes) in each(fields.get(3).unwrap_or_default())? {
        if let Err(why) = element(set, names, bytes) {
            set.unsupported = Some(format!("element: {why}"));
        }
    }
    Ok(())
}

fn element(set: &mut Set, names: &Names, bytes: &[u8]) -> Result<(), UnsupportedContent> {
    let fields = Fields::new(bytes, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])?;
    let flags = fields.number(3)?.unwrap_or(0);
    // An unknown flag may change the meaning of the element.
    if flags & !(ELEMENT_END | ELEMENT_OTHERWISE) != 0 {
        return Err(format!("flags {flags:#x}"));
    }
    // The element has a timeout or expires.
    if fields.get(4).is_some() || fields.get(5).is_some() {
        set.doubt = Some(Doubt::new(Cause::Time, "set with a timeout"));
    }
    if !only_counts(fields.get(7), fields.get(11))? {
        set.doubt = Some(Doubt::new(Cause::Counting, "set with stateful elements"));
    }
    let value = match fields.get(2) {
        None => Value::Member,
        Some(bytes) => data(bytes, |name| names.chain(set.family, &set.table, name))?,
    };
    // The catch-all element has no key.
    if flags & ELEMENT_OTHERWISE != 0 {
        set.elements.otherwise = Some(value);
        return Ok(());
    }
    let key = |bytes| match data(bytes, |_| None)? {
        Value::Data(bytes) if bytes.len() == set.key_length => Ok(bytes),
        Value::Data(bytes) => {
            Err(format!("key of {} bytes, expected {}", bytes.len(), set.key_length))
        }
        _ => Err("key is a verdict".to_owned()),
    };
    let first = key(fields.need(1)?)?;
    let last = fields.get(10).map(key).transpose()?;
    match (set.shape, last) {
        (Shape::Keys, None) if flags == 0 => drop(set.elements.exact.insert(first, value)),
        (Shape::Ranges, None) => {
            let value = (flags & ELEMENT_END == 0).then_some(value);
            set.elements.edges.push((first, value));
        }
        (Shape::Boxes, last) if flags == 0 => {
            let last = last.unwrap_or_else(|| first.clone());
            set.elements.boxes.push((first, last, value));
        }
        // An interval's end without a beginning: the set is not understood.
        _ => return Err("range end in a set without ranges".to_owned()),
    }
    Ok(())
}

/// Decodes a rule. Returns it with the index of its chain.
pub(crate) fn rule(
    names: &Names,
    family: u8,
    payload: &[u8],
) -> Result<(usize, Rule), UnsupportedContent> {
    // Find the chain first, so that unsupported content affects that chain only.
    let all = each(payload)?;
    let find = |wanted| all.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
    let name = |kind| find(kind).map(crate::wire::text).unwrap_or_default();
    let (table, chain) = (name(1), name(2));
    let Some(at) = names.chain(family, &table, &chain) else {
        // The chain was removed meanwhile, or could not be decoded.
        return Err(format!("unlisted chain {table} {chain}"));
    };
    let handle = find(3).and_then(|value| value.try_into().ok()).map_or(0, u64::from_be_bytes);
    let known: Vec<u16> = (1..=12).collect();
    let mut expressions = Vec::new();
    match Fields::new(payload, &known).and_then(|_| each(find(4).unwrap_or_default())) {
        Ok(bytes) => {
            for (_, bytes) in bytes {
                expressions.push(expression::decode(names, family, &table, bytes));
            }
        }
        // Keep the rule, so that flows that reach it get no verdict.
        Err(why) => expressions.push(Expression::UnsupportedContent(why)),
    }
    Ok((at, Rule { handle, expressions }))
}
