//! Where chains and sets are, while rules that name them are decoded.

use std::collections::HashMap;

/// Family, table and name.
pub(crate) type Name = (u8, String, String);

/// Where chains and sets are, by family, table and name.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) chains: HashMap<Name, usize>,
    pub(crate) sets: HashMap<Name, usize>,
}

impl Names {
    pub(crate) fn chain(&self, family: u8, table: &str, name: &str) -> Option<usize> {
        self.chains.get(&(family, table.to_owned(), name.to_owned())).copied()
    }

    pub(crate) fn set(&self, family: u8, table: &str, name: &str) -> Option<usize> {
        self.sets.get(&(family, table.to_owned(), name.to_owned())).copied()
    }
}
