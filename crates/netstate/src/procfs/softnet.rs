//! Per-CPU counters of the network softirq: `/proc/net/softnet_stat`.
//!
//! Source: `softnet_seq_show()` in `net/core/net-procfs.c`. One line of hexadecimal columns per
//! online CPU. The counters wrap at 32 bits. The number of columns grew from 9:
//! - 10 in Linux 2.6.35: `received_rps`;
//! - 11 in 3.11: `flow_limit_count`;
//! - 13 in 5.10: backlog length and CPU number;
//! - 15 in 6.9: lengths of the two queues.

use std::collections::BTreeMap;

use crate::proc::{ParseError, ProcFile, Result, hexadecimal};

/// Source of [`SoftnetStat`]. The file is the same in every network namespace: the counters belong
/// to the CPUs.
pub const PROC_SOFTNET_STAT: &str = "/proc/net/softnet_stat";

/// Counters of a CPU since boot; they wrap at 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SoftnetCpu {
    /// Packets processed by the stack on this CPU (`processed`).
    pub processed: u32,
    /// Packets dropped because the backlog queue was full
    /// (`net.core.netdev_max_backlog`) or the flow limit was reached.
    pub dropped: u32,
    /// Times the softirq stopped with work left (`time_squeeze`), because `net.core.netdev_budget`
    /// or `netdev_budget_usecs` was used up.
    pub time_squeeze: u32,
    /// Packets of heavy flows dropped at the flow limit (part of `dropped`). `None` before Linux
    /// 3.11, 0 if no CPU has a limit (`net.core.flow_limit_cpu_bitmap`).
    #[serde(default)]
    pub flow_limit: Option<u32>,
    /// Packets waiting in the backlog now; `None` before Linux 5.10.
    pub backlog: Option<u32>,
}

/// `softnet_stat` of all online CPUs, by CPU number.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct SoftnetStat {
    /// By CPU number. Linux before 5.10 prints none, so by line: a CPU that goes offline renumbers
    /// those after it.
    pub cpus: BTreeMap<u32, SoftnetCpu>,
}

/// Increments between two reads, summed over CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SoftnetDelta {
    /// Packets processed by the stack.
    pub processed: u64,
    /// Packets dropped because the backlog was full.
    pub dropped: u64,
    /// Times the budget was used up.
    pub time_squeeze: u64,
    /// Packets dropped at the flow limit.
    pub flow_limit: u64,
}

impl SoftnetStat {
    /// Parses the text of `/proc/net/softnet_stat`.
    ///
    /// # Errors
    /// An empty file, fewer than three columns, a column that is not a 32-bit hexadecimal number,
    /// or a duplicate CPU.
    pub fn parse(text: &str) -> std::result::Result<SoftnetStat, ParseError> {
        let mut cpus = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let columns = line
                .split_ascii_whitespace()
                .enumerate()
                .map(|(column, word)| {
                    let field = format!("column {}", column + 1);
                    let value = hexadecimal(PROC_SOFTNET_STAT, index + 1, &field, Some(word))?;
                    u32::try_from(value).map_err(|_| {
                        ParseError::new(PROC_SOFTNET_STAT, index + 1, field, "32 bits", word)
                    })
                })
                .collect::<std::result::Result<Vec<u32>, ParseError>>()?;
            let [processed, dropped, time_squeeze, ..] = columns[..] else {
                return Err(ParseError::new(
                    PROC_SOFTNET_STAT,
                    index + 1,
                    "columns",
                    "at least processed, dropped and time_squeeze",
                    line,
                ));
            };
            // There are at most as many lines as CPUs, far fewer than 2^32.
            let cpu = columns.get(12).copied().unwrap_or(index as u32);
            let counters = SoftnetCpu {
                processed,
                dropped,
                time_squeeze,
                flow_limit: columns.get(10).copied(),
                backlog: columns.get(11).copied(),
            };
            // The kernel lists each CPU once, so the columns were misread.
            if cpus.insert(cpu, counters).is_some() {
                return Err(ParseError::new(
                    PROC_SOFTNET_STAT,
                    index + 1,
                    "column 13 (CPU)",
                    "each CPU once",
                    line,
                ));
            }
        }
        // At least one CPU is online.
        if cpus.is_empty() {
            return Err(ParseError::new(PROC_SOFTNET_STAT, 0, "lines", "one for each CPU", ""));
        }
        Ok(SoftnetStat { cpus })
    }

    /// Reads an open `/proc/net/softnet_stat`.
    ///
    /// # Errors
    /// As [`ProcFile::read`] and [`SoftnetStat::parse`].
    pub fn read(file: &ProcFile) -> Result<SoftnetStat> {
        Ok(SoftnetStat::parse(&file.read()?)?)
    }

    /// Returns the increments of all CPUs since `before`, with wrap-around of the 32-bit counters.
    /// A CPU that came online in between is left out, because its earlier counts do not belong to
    /// the interval.
    #[must_use]
    pub fn since(&self, before: &SoftnetStat) -> SoftnetDelta {
        let mut delta = SoftnetDelta::default();
        for (cpu, after) in &self.cpus {
            // Online since the first read: its earlier counts are unknown.
            let Some(before) = before.cpus.get(cpu) else { continue };
            delta.processed += u64::from(after.processed.wrapping_sub(before.processed));
            delta.dropped += u64::from(after.dropped.wrapping_sub(before.dropped));
            delta.time_squeeze += u64::from(after.time_squeeze.wrapping_sub(before.time_squeeze));
            let limit = |cpu: &SoftnetCpu| cpu.flow_limit.unwrap_or_default();
            delta.flow_limit += u64::from(limit(after).wrapping_sub(limit(before)));
        }
        delta
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18, CPUs 0 and 2 online.
    const GOLDEN: &str = "\
00000011 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000003 00000000 00000000 00000000
000017a0 0000001f 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000002 00000000 00000000
";

    #[test]
    fn the_kernels_file_is_parsed_by_its_cpu_column() {
        let stat = SoftnetStat::parse(GOLDEN).unwrap();
        assert_eq!(stat.cpus.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(stat.cpus[&0].backlog, Some(3));
        assert_eq!(
            stat.cpus[&2],
            SoftnetCpu {
                processed: 0x17a0,
                dropped: 31,
                time_squeeze: 2,
                flow_limit: Some(0),
                backlog: Some(0)
            }
        );
    }

    #[test]
    fn older_kernels_print_fewer_columns() {
        let eleven = "00000001 00000002 00000003 0 0 0 0 0 0 0 0\n".repeat(2);
        let stat = SoftnetStat::parse(&eleven).unwrap();
        assert_eq!(stat.cpus.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(stat.cpus[&1].backlog, None);
    }

    #[test]
    fn counters_wrap_at_32_bits() {
        let before = SoftnetStat::parse("fffffffe 0 0\n1 0 0").unwrap();
        let after = SoftnetStat::parse("00000003 2 1\n1 0 4").unwrap();
        let expected = SoftnetDelta { processed: 5, dropped: 2, time_squeeze: 5, flow_limit: 0 };
        assert_eq!(after.since(&before), expected);
    }

    #[test]
    fn errors_name_line_and_column() {
        let error = SoftnetStat::parse("1 2 3\n1 zz 3\n").unwrap_err();
        assert_eq!((error.line, error.field.as_str(), error.got.as_str()), (2, "column 2", "zz"));
        assert_eq!(SoftnetStat::parse("1 100000000 0\n").unwrap_err().expected, "32 bits");
        assert_eq!(SoftnetStat::parse("1 2\n").unwrap_err().field, "columns");
        assert_eq!(SoftnetStat::parse("").unwrap_err().line, 0);
        let twice = GOLDEN.replace("00000002 00000000 00000000\n", "00000000 00000000 00000000\n");
        assert_eq!(SoftnetStat::parse(&twice).unwrap_err().field, "column 13 (CPU)");
    }

    #[test]
    fn this_machines_file_is_parsed() {
        let file = ProcFile::open(PROC_SOFTNET_STAT).unwrap();
        let before = SoftnetStat::read(&file).unwrap();
        assert!(!before.cpus.is_empty());
        let _ = SoftnetStat::read(&file).unwrap().since(&before);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "([0-9a-f+g]{0,10} ){0,16}\n?.{0,30}") {
            let _ = SoftnetStat::parse(&text);
        }
    }
}
