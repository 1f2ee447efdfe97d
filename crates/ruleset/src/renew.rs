//! Updates rules with the content that notifications name. With many rules, reading a few chains
//! takes less than a hundredth of the time of reading all.

use std::sync::Arc;

use netstate::netfilter::raw::Nftables;
use nix::errno::Errno;

use crate::decode::{self, Message, PACKETS_CHANGE_IT, changed_by};
use crate::model::{Chain, Elements, Rule, Ruleset, Set};
use crate::names::{Name, Names};
use crate::read::{Error, GETRULE, GETSETELEM};
use crate::touched::Touched;

/// Removed chains and sets leave placeholders. Allow this many, plus as many as there are named
/// objects.
const EMPTY: usize = 1000;

/// Result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    Rules(Ruleset),
    /// The rules have changed again, and the notifications are still to come.
    Behind,
    /// The changes need a full read.
    Beyond,
}

/// Reads the touched rules of a namespace and merges them with the known rules.
///
/// `touched` must have all notifications since `known` was read.
pub fn renew(
    nftables: &mut Nftables,
    known: &Ruleset,
    touched: &Touched,
) -> Result<Renewed, Error> {
    if nftables.generation()? != touched.generation {
        return Ok(Renewed::Behind);
    }
    let mut messages = Vec::new();
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
                messages.push(Message { kind, payload: payload.to_vec() });
            });
            match asked {
                Ok(()) => {}
                // The object was removed after these notifications.
                Err(error) if error.errno() == Some(Errno::ENOENT) => {
                    return Ok(Renewed::Behind);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    // The rules changed during the read.
    if nftables.generation()? != touched.generation {
        return Ok(Renewed::Behind);
    }
    Ok(known.renewed(touched, &messages).map_or(Renewed::Beyond, Renewed::Rules))
}

/// Returns the attributes of a request for the rules of a chain or the elements of a set: table and
/// name, which are `NFTA_RULE_TABLE`, `NFTA_RULE_CHAIN`, `NFTA_SET_ELEM_LIST_TABLE` and so on.
fn question((_, table, name): &Name) -> Vec<u8> {
    let mut attributes = Vec::new();
    for (kind, value) in [(1u16, table), (2, name)] {
        // Strings are zero-terminated.
        attributes.extend((4 + value.len() as u16 + 1).to_ne_bytes());
        attributes.extend(kind.to_ne_bytes());
        attributes.extend(value.bytes());
        attributes.push(0);
        attributes.resize(attributes.len().next_multiple_of(4), 0);
    }
    attributes
}

impl Ruleset {
    /// Merges an update into these rules. `messages` must have all rules and elements of the
    /// touched objects. `None`: the update does not fit, or is unsupported.
    pub fn renewed(&self, touched: &Touched, messages: &[Message]) -> Option<Ruleset> {
        // The update might resolve unsupported content, which only a full read shows.
        if !self.unsupported.is_empty() {
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
            // A set that was added and removed between two reads leaves nothing.
            if let Some(at) = names.sets.get(name) {
                let set = Arc::make_mut(&mut rules.sets[*at]);
                // An element may have caused this, and may still be there.
                if set.unsupported.is_some() || set.doubt.is_some() {
                    return None;
                }
                set.elements = Elements::default();
            }
        }
        for name in &touched.rules {
            if let Some(at) = names.chains.get(name) {
                let chain = Arc::make_mut(&mut rules.chains[*at]);
                // The sets that these rules change would have to be re-evaluated.
                if chain.rules.iter().flat_map(changed_by).next().is_some() {
                    return None;
                }
                chain.rules.clear();
            }
        }
        for Message { kind, payload } in messages {
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
                // Another kind of object changed: everything is read again.
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

    /// Adds or removes a chain. An existing chain stays as it is.
    fn chain(&mut self, names: &mut Names, name: &Name, payload: Option<&[u8]>) -> Option<()> {
        let known = names.chains.get(name).copied();
        // Changes of base chains need a full read.
        if known.is_some_and(|at| self.chains[at].base.is_some()) {
            return None;
        }
        match (known, payload) {
            // Added and removed since the last read: nothing changes.
            (None, None) => {}
            (Some(at), None) => {
                self.chains[at] = Arc::new(Chain::nothing());
                names.chains.remove(name);
            }
            (known, Some(payload)) => {
                let chain = decode::chain(name.0, payload).ok()?;
                // Whether a table without chains is dormant is unknown here.
                let of_table =
                    |chain: &&Arc<Chain>| (chain.family, &chain.table) == (name.0, &name.1);
                let is_dormant = self.chains.iter().find(of_table)?.is_dormant;
                let at = known.unwrap_or(self.chains.len());
                if known.is_none() {
                    self.chains.push(Arc::new(Chain { is_dormant, ..chain }));
                } else if self.chains[at].unsupported != chain.unsupported {
                    // A chain that is understood no longer, or again: everything is read again.
                    return None;
                }
                names.chains.insert(name.clone(), at);
            }
        }
        Some(())
    }

    fn set(&mut self, names: &mut Names, name: &Name, payload: Option<&[u8]>) -> Option<()> {
        match (names.sets.get(name).copied(), payload) {
            // Added and removed since the last read: nothing changes.
            (None, None) => {}
            (Some(at), None) => {
                self.sets[at] = Arc::new(Set::nothing());
                names.sets.remove(name);
            }
            (None, Some(payload)) => {
                names.sets.insert(name.clone(), self.sets.len());
                self.sets.push(Arc::new(decode::set(name.0, payload).ok()?));
            }
            // Another set of the same name, or changed options: notifications do not distinguish
            // them.
            (Some(_), Some(_)) => return None,
        }
        Some(())
    }

    /// Marks sets that this rule lets packets change as uncacheable.
    fn mark_changed(&mut self, rule: &Rule) {
        for at in changed_by(rule) {
            if let Some(set) = self.sets.get_mut(at) {
                Arc::make_mut(set).doubt = Some(PACKETS_CHANGE_IT);
            }
        }
    }
}
