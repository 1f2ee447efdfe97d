//! Fill level and limits of the machine's ARP table: `/proc/net/stat/arp_cache`.
//!
//! Source: `neigh_stat_seq_show()` in `net/core/neighbour.c`. One table serves all network
//! namespaces. The files exist in the initial one only.

use serde::{Deserialize, Serialize};

use crate::proc::{ParseError, ProcFile, Result, hexadecimal};

/// Counters of the ARP table.
pub const ARP_CACHE: &str = "/proc/thread-self/net/stat/arp_cache";

/// Counters of one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NeighbourTable {
    /// Current entries of all namespaces.
    pub entries: u64,
    /// Times the table was full (`table_fulls`), summed over CPUs. Each CPU's counter wraps at 32
    /// bits.
    pub fulls: u64,
}

impl NeighbourTable {
    /// Parses the text of either file: a line of names, then a line of
    /// hexadecimal numbers for each possible CPU.
    ///
    /// # Errors
    /// A missing name, a short line, or a value that is not a number. Kernels before 3.18 have no
    /// `table_fulls`: that is an error, not zero.
    pub fn parse(file: &str, text: &str) -> std::result::Result<NeighbourTable, ParseError> {
        let mut lines = text.lines().enumerate();
        let names: Vec<&str> = lines
            .next()
            .map(|(_, line)| line.split_ascii_whitespace().collect())
            .unwrap_or_default();
        let column = |name: &'static str| {
            names.iter().position(|known| *known == name).ok_or_else(|| {
                ParseError::new(file, 1, name, "a column of this name", &names.join(" "))
            })
        };
        let (entries, fulls) = (column("entries")?, column("table_fulls")?);
        let mut table = NeighbourTable::default();
        for (index, line) in lines {
            let values: Vec<&str> = line.split_ascii_whitespace().collect();
            let value = |column: usize| {
                hexadecimal(file, index + 1, names[column], values.get(column).copied())
            };
            // Every line has the total number of entries.
            table.entries = value(entries)?;
            table.fulls = table.fulls.saturating_add(value(fulls)?);
        }
        Ok(table)
    }

    /// Reads one of the files.
    ///
    /// # Errors
    /// As [`ProcFile::read`] and [`NeighbourTable::parse`]; `ENOENT` outside the initial namespace.
    pub fn read(path: &str) -> Result<NeighbourTable> {
        Ok(NeighbourTable::parse(path, &ProcFile::open(path)?.read()?)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18, two CPUs.
    const GOLDEN: &str = "entries  allocs   destroys hash_grows lookups  hits     res_failed \
        rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards \
        table_fulls\n0000001f 00000bb8 00000bb6 00000001 0001e5 00000e 00000000 00000000 00000000 \
        0000006f 00000000 00000002 00000003\n0000001f 00000b5c 00000b5c 00000000 0001 000012 \
        00000000 00000000 00000000 00000000 00000000 00000000 00000001\n";

    #[test]
    fn entries_are_of_all_cpus_and_fulls_of_each() {
        let table = NeighbourTable::parse(ARP_CACHE, GOLDEN).unwrap();
        assert_eq!(table, NeighbourTable { entries: 31, fulls: 4 });
    }

    #[test]
    fn damage_is_named() {
        let field = |text: &str| NeighbourTable::parse(ARP_CACHE, text).unwrap_err().field;
        assert_eq!(field(""), "entries");
        assert_eq!(field(&GOLDEN.replace("table_fulls", "x")), "table_fulls");
        assert_eq!(field("entries table_fulls\n1\n"), "table_fulls");
        assert_eq!(field("entries table_fulls\nx 1\n"), "entries");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(entries|table_fulls| ){0,3}\n([0-9a-fx]{0,20} ?){0,4}\n") {
            let _ = NeighbourTable::parse(ARP_CACHE, &text);
        }
    }
}
