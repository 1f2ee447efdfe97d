//! Copies of the programs for sandboxes to come.
//!
//! A confined process loads no programs. It has some copies from before, each with the number
//! of a namespace in it. Those of sandboxes that have gone are used again.

use std::collections::VecDeque;

use crate::programs::Programs;
use crate::{Error, Result};

/// Copies of the programs.
pub(crate) struct Spares {
    /// The one that has not been used for the longest time comes first.
    ready: VecDeque<(u16, Programs)>,
    /// How many there are, used ones among them; none: they are loaded when they are needed.
    prepared: u16,
    /// Number of the next one that is loaded; 0 is that of the NICs' namespace.
    next: u16,
}

impl Spares {
    /// Loads so many.
    pub(crate) fn new(home: &Programs, prepared: u16) -> Result<Spares> {
        let ready = (1..=prepared).map(|number| Ok((number, home.load_for(number)?)));
        Ok(Spares { ready: ready.collect::<Result<_>>()?, prepared, next: 1 })
    }

    /// One for a sandbox, and the number that it has.
    ///
    /// # Errors
    /// When all are in use, or one cannot be loaded.
    pub(crate) fn take(&mut self, home: &Programs) -> Result<(u16, Programs)> {
        if self.prepared > 0 {
            return self.ready.pop_front().ok_or(Error::NoSpares { prepared: self.prepared });
        }
        let number = self.next;
        let programs = home.load_for(number)?;
        self.next = number.checked_add(1).ok_or(Error::NoSpares { prepared: number })?;
        Ok((number, programs))
    }

    /// Gives one back that nothing is attached of; whether its number will be used again.
    pub(crate) fn give_back(&mut self, number: u16, programs: Programs) -> bool {
        if self.prepared > 0 {
            self.ready.push_back((number, programs));
        }
        self.prepared > 0
    }
}
