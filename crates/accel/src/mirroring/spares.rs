//! Preloaded programs for future sandboxes.
//!
//! A confined process cannot load programs. It preloads several sets, each with the number of a
//! namespace compiled in, and reuses those of removed sandboxes.

use std::collections::VecDeque;

use crate::programs::{Programs, SandboxPrograms};
use crate::{Error, Result};

/// Preloaded sets of programs.
pub(crate) struct Spares {
    /// The programs that all sets share. `None`: not needed yet.
    shared: Option<SandboxPrograms>,
    /// Unused sets. The one unused for the longest time comes first.
    ready: VecDeque<(u16, Programs)>,
    /// Total number of sets, used ones included. 0: load sets on demand.
    prepared: u16,
    /// Number of the next set to load. 0 is the NICs' namespace.
    next: u16,
}

impl Spares {
    /// Preloads this number of sets.
    pub(crate) fn new(home: &Programs, prepared: u16) -> Result<Spares> {
        let mut spares = Spares { shared: None, ready: VecDeque::new(), prepared, next: 1 };
        for number in 1..=prepared {
            let programs = spares.load(number, home)?;
            spares.ready.push_back((number, programs));
        }
        Ok(spares)
    }

    fn load(&mut self, number: u16, home: &Programs) -> Result<Programs> {
        let shared = match &mut self.shared {
            Some(shared) => shared,
            none => none.insert(SandboxPrograms::load(home)?),
        };
        shared.load_for(number, home)
    }

    /// Takes a set for a sandbox, with its namespace number.
    ///
    /// # Errors
    /// If all sets are in use, or one cannot be loaded.
    pub(crate) fn take(&mut self, home: &Programs) -> Result<(u16, Programs)> {
        if self.prepared > 0 {
            return self.ready.pop_front().ok_or(Error::NoSpares { prepared: self.prepared });
        }
        let number = self.next;
        let programs = self.load(number, home)?;
        // Namespace numbers have 16 bits.
        self.next = number.checked_add(1).ok_or(Error::NoSpares { prepared: number })?;
        Ok((number, programs))
    }

    /// Returns a set to which nothing is attached. Returns whether its number will be reused.
    pub(crate) fn give_back(&mut self, number: u16, programs: Programs) -> bool {
        if self.prepared > 0 {
            self.ready.push_back((number, programs));
        }
        self.prepared > 0
    }
}
