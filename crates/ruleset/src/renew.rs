//! Rules brought up to date by what notifications name: reading a few chains takes less than a
//! hundredth of the time of reading all, where there are many.

use std::sync::Arc;

use netstate::netfilter::raw::Nftables;
use nix::errno::Errno;

use crate::decode::{self, Message, PACKETS_CHANGE_IT, changed_by};
use crate::model::{Chain, Elements, Rule, Ruleset, Set};
use crate::names::{Name, Names};
use crate::read::{Error, GETRULE, GETSETELEM};
use crate::touched::Touched;

/// Chains and sets that have gone leave their places empty; so many are put up with, beside
/// as many as there are others.
const EMPTY: usize = 1000;

/// What came of bringing rules up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The rules of now.
    Rules(Ruleset),
    /// More has changed: its notifications are still to come.
    Behind,
    /// What was told is more than is followed here: all are to be read.
    Beyond,
}

/// The rules of a namespace, where only what is touched differs from those
/// that are known.
///
/// The notifications from those of `known` on have to be in `touched`, every one of them.
///
/// # Errors
/// When the kernel refuses.
pub fn renew(
    nftables: &mut Nftables,
    known: &Ruleset,
    touched: &Touched,
) -> Result<Renewed, Error> {
    if nftables.generation()? != touched.generation {
        return Ok(Renewed::Behind);
    }
    let mut told = Vec::new();
    for (names, ask, object) in [
        (&touched.rules, GETRULE, "nftables rules"),
        (&touched.elements, GETSETELEM, "nftables elements"),
    ] {
        let is_gone = |name: &Name| match ask {
            GETRULE => touched.chains.get(name) == Some(&None),
            _ => touched.sets.get(name) == Some(&None),
        };
        for name in names.iter().filter(|name| !is_gone(name)) {
            let asked = nftables.objects(ask, name.0, &question(name), object, |kind, payload| {
                told.push(Message { kind, payload: payload.to_vec() });
            });
            match asked {
                Ok(()) => {}
                Err(error) if error.errno() == Some(Errno::ENOENT) => {
                    return Ok(Renewed::Behind);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    if nftables.generation()? != touched.generation {
        return Ok(Renewed::Behind);
    }
    Ok(known.renewed(touched, &told).map_or(Renewed::Beyond, Renewed::Rules))
}

/// The attributes that ask for the rules of a chain, the elements of a set: table and name,
/// which are `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_SET_ELEM_LIST_TABLE` and so on.
fn question((_, table, name): &Name) -> Vec<u8> {
    let mut attributes = Vec::new();
    for (kind, value) in [(1u16, table), (2, name)] {
        // With the terminating zero.
        attributes.extend((4 + value.len() as u16 + 1).to_ne_bytes());
        attributes.extend(kind.to_ne_bytes());
        attributes.extend(value.bytes());
        attributes.push(0);
        attributes.resize(attributes.len().next_multiple_of(4), 0);
    }
    attributes
}

impl Ruleset {
    /// These rules with what was told since; `None`: it does not fit them, or not all of it is
    /// understood. `told` has the rules and elements of what is touched, all of them.
    pub fn renewed(&self, touched: &Touched, told: &[Message]) -> Option<Ruleset> {
        if !self.odd.is_empty() {
            return None;
        }
        let mut rules = self.clone();
        let mut names = Names::of(self);
        rules.generation = touched.generation;
        for (name, payload) in &touched.chains {
            rules.chain(&mut names, name, payload.as_deref())?;
        }
        for (name, payload) in &touched.sets {
            rules.set(&mut names, name, payload.as_deref())?;
        }
        for name in &touched.elements {
            // Of a set that came and went between two readings nothing is left.
            if let Some(at) = names.sets.get(name) {
                let set = Arc::make_mut(&mut rules.sets[*at]);
                // What an element said of its set is not known to be over.
                if set.odd.is_some() || set.doubt.is_some() {
                    return None;
                }
                set.elements = Elements::default();
            }
        }
        for name in &touched.rules {
            if let Some(at) = names.chains.get(name) {
                let chain = Arc::make_mut(&mut rules.chains[*at]);
                // The sets of these would have to be cleared of it.
                if chain.rules.iter().flat_map(changed_by).next().is_some() {
                    return None;
                }
                chain.rules.clear();
            }
        }
        for Message { kind, payload } in told {
            let (family, payload) = (*payload.first()?, payload.get(4..)?);
            match *kind {
                decode::NEWSETELEM => {
                    let at = decode::set_of(&names, family, payload).ok()?;
                    let set = Arc::make_mut(&mut rules.sets[at]);
                    decode::elements(set, &names, payload).ok()?;
                }
                decode::NEWRULE => {
                    let (at, rule) = decode::rule(&names, family, payload).ok()?;
                    rules.mark_changed(&rule);
                    Arc::make_mut(&mut rules.chains[at]).rules.push(rule);
                }
                _ => return None,
            }
        }
        for name in &touched.elements {
            if let Some(at) = names.sets.get(name) {
                Arc::make_mut(&mut rules.sets[*at]).order();
            }
        }
        let empty = |all: usize, named: usize| all - named > named + EMPTY;
        let is_worn = empty(rules.chains.len(), names.chains.len())
            || empty(rules.sets.len(), names.sets.len());
        (!is_worn).then_some(rules)
    }

    /// A chain comes, with what describes it, or goes; one that is there stays as it is.
    fn chain(&mut self, names: &mut Names, name: &Name, payload: Option<&[u8]>) -> Option<()> {
        let known = names.chains.get(name).copied();
        if known.is_some_and(|at| self.chains[at].base.is_some()) {
            return None;
        }
        match (known, payload) {
            (None, None) => {}
            (Some(at), None) => {
                self.chains[at] = Arc::new(Chain::nothing());
                names.chains.remove(name);
            }
            (known, Some(payload)) => {
                let chain = decode::chain(name.0, payload).ok()?;
                // Whether a table without chains is dormant is not known here.
                let of_table =
                    |chain: &&Arc<Chain>| (chain.family, &chain.table) == (name.0, &name.1);
                let is_dormant = self.chains.iter().find(of_table)?.is_dormant;
                let at = known.unwrap_or(self.chains.len());
                if known.is_none() {
                    self.chains.push(Arc::new(Chain { is_dormant, ..chain }));
                } else if self.chains[at].odd != chain.odd {
                    return None;
                }
                names.chains.insert(name.clone(), at);
            }
        }
        Some(())
    }

    /// A set comes, with what describes it, or goes.
    fn set(&mut self, names: &mut Names, name: &Name, payload: Option<&[u8]>) -> Option<()> {
        match (names.sets.get(name).copied(), payload) {
            (None, None) => {}
            (Some(at), None) => {
                self.sets[at] = Arc::new(Set::nothing());
                names.sets.remove(name);
            }
            (None, Some(payload)) => {
                names.sets.insert(name.clone(), self.sets.len());
                self.sets.push(Arc::new(decode::set(name.0, payload).ok()?));
            }
            // Another of its name, or the same one with other options: that is not told.
            (Some(_), Some(_)) => return None,
        }
        Some(())
    }

    /// Sets that packets change by this rule cannot be remembered.
    fn mark_changed(&mut self, rule: &Rule) {
        for at in changed_by(rule) {
            if let Some(set) = self.sets.get_mut(at) {
                Arc::make_mut(set).doubt = Some(PACKETS_CHANGE_IT);
            }
        }
    }
}
