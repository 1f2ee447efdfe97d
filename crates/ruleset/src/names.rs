//! Indices of chains and sets, for decoding rules that refer to them by name.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{Chain, Ruleset, Set};

/// Family, table and name.
pub(crate) type Name = (u8, String, String);

/// Indices of chains and sets, by family, table and name.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) chains: HashMap<Name, usize>,
    pub(crate) sets: HashMap<Name, usize>,
}

impl Names {
    /// Collects the names of decoded rules. Nameless objects are placeholders.
    pub(crate) fn of(rules: &Ruleset) -> Names {
        let chains = rules.chains.iter().enumerate().filter(|(_, chain)| !chain.name.is_empty());
        let chain = |(at, chain): (usize, &Arc<Chain>)| {
            ((chain.family, chain.table.clone(), chain.name.clone()), at)
        };
        let sets = rules.sets.iter().enumerate().filter(|(_, set)| !set.name.is_empty());
        let set =
            |(at, set): (usize, &Arc<Set>)| ((set.family, set.table.clone(), set.name.clone()), at);
        Names { chains: chains.map(chain).collect(), sets: sets.map(set).collect() }
    }

    pub(crate) fn chain(&self, family: u8, table: &str, name: &str) -> Option<usize> {
        self.chains.get(&(family, table.to_owned(), name.to_owned())).copied()
    }

    pub(crate) fn set(&self, family: u8, table: &str, name: &str) -> Option<usize> {
        self.sets.get(&(family, table.to_owned(), name.to_owned())).copied()
    }
}
