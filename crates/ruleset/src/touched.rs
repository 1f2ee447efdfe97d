//! Collects from nf_tables notifications the names of changed objects.
//!
//! Notifications only name objects; their content is not used, because the position of a rule in
//! its chain is ambiguous. A chain that a notification names is read again.

use std::collections::{BTreeMap, BTreeSet};

use crate::decode::{
    DELCHAIN, DELRULE, DELSET, DELSETELEM, NEWCHAIN, NEWGEN, NEWRULE, NEWSET, NEWSETELEM,
    NFPROTO_ARP,
};
use crate::names::Name;
use crate::wire::{each, text};

const NFNL_SUBSYS_NFTABLES: u16 = 10;
/// `struct nlmsghdr`, `struct nfgenmsg`.
const HEADERS: usize = 16 + 4;
/// `NFTA_CHAIN_HOOK`.
const CHAIN_HOOK: u16 = 4;

/// Chains and sets that changed since the rules were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touched {
    /// Generation of the last notification; 0: none.
    pub(crate) generation: u32,
    /// Added chains with their payload; `None`: removed.
    pub(crate) chains: BTreeMap<Name, Option<Vec<u8>>>,
    /// Chains whose rules have changed.
    pub(crate) rules: BTreeSet<Name>,
    /// Added sets with their payload; `None`: removed.
    pub(crate) sets: BTreeMap<Name, Option<Vec<u8>>>,
    pub(crate) elements: BTreeSet<Name>,
}

impl Touched {
    /// Adds the notifications of a datagram. Returns false if they affect more than chains, rules
    /// and sets: tables, base chains, objects or flowtables.
    pub fn add(&mut self, datagram: &[u8]) -> bool {
        let mut rest = datagram;
        while !rest.is_empty() {
            let Some(length) = rest.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes))
            else {
                // A cut message: everything is read again.
                return false;
            };
            let Some(message) = rest.get(..length as usize).filter(|all| all.len() >= HEADERS)
            else {
                // A cut message: everything is read again.
                return false;
            };
            rest = rest.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
            let kind = u16::from_ne_bytes([message[4], message[5]]);
            // Messages of other subsystems, or unsupported ones, need a full read.
            let known = kind >> 8 == NFNL_SUBSYS_NFTABLES
                && self.message(kind & 0xff, message[16], &message[HEADERS..]);
            // An unknown message may concern any rule: everything is read again.
            if !known {
                return false;
            }
        }
        true
    }

    pub fn extend(&mut self, later: Touched) {
        let Touched { generation, chains, rules, sets, elements } = later;
        if generation != 0 {
            self.generation = generation;
        }
        self.chains.extend(chains);
        self.rules.extend(rules);
        self.sets.extend(sets);
        self.elements.extend(elements);
    }

    fn message(&mut self, kind: u16, family: u8, payload: &[u8]) -> bool {
        // Attributes that cannot be parsed may name any object.
        let Ok(fields) = each(payload) else { return false };
        let find =
            |wanted| fields.iter().find(|(kind, _)| *kind == wanted).map(|(_, value)| *value);
        let name = |of: u16| match (find(1), find(of)) {
            (Some(table), Some(name)) => Some((family, text(table), text(name))),
            _ => None,
        };
        // ARP tables do not affect IP packets.
        if family == NFPROTO_ARP {
            return true;
        }
        match kind {
            NEWGEN => match find(1).and_then(|id| id.try_into().ok()) {
                Some(id) => self.generation = u32::from_be_bytes(id),
                None => return false,
            },
            // A hook is registered or unregistered.
            NEWCHAIN | DELCHAIN if find(CHAIN_HOOK).is_some() => return false,
            NEWCHAIN | DELCHAIN => match name(3) {
                Some(name) => {
                    let payload = (kind == NEWCHAIN).then(|| payload.to_vec());
                    self.chains.insert(name, payload);
                }
                None => return false,
            },
            NEWRULE | DELRULE => match name(2) {
                Some(name) => drop(self.rules.insert(name)),
                None => return false,
            },
            NEWSET | DELSET => match name(2) {
                Some(name) => {
                    let payload = (kind == NEWSET).then(|| payload.to_vec());
                    self.sets.insert(name, payload);
                }
                None => return false,
            },
            NEWSETELEM | DELSETELEM => match name(2) {
                Some(name) => drop(self.elements.insert(name)),
                None => return false,
            },
            _ => return false,
        }
        true
    }
}
