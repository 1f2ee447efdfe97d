//! Connection tracking of one network namespace: size of the table, and counters of refusals.
//!
//! Source: `net/netfilter/nf_conntrack_standalone.c`. The files are missing if the kernel has no
//! conntrack or its module is not loaded. Counters are unknown then, which differs from zero.

use nix::errno::Errno;
use sys::netns::NetNs;

use crate::proc::{ParseError, ProcFile, Result, decimal, hexadecimal};

/// Entries in the namespace's table.
pub const NF_CONNTRACK_COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Limit of entries in the namespace's table (sysctl).
pub const NF_CONNTRACK_MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Per-CPU counters of the namespace (`CONFIG_NF_CONNTRACK_PROCFS`).
pub const PROC_NF_CONNTRACK: &str = "/proc/thread-self/net/stat/nf_conntrack";

/// Refusals of one CPU; 32-bit counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ConntrackCpu {
    /// Entries that could not be inserted, mostly because of a clash. The packet is dropped.
    pub insert_failed: u32,
    /// Packets dropped because tracking failed.
    pub drop: u32,
    /// Entries removed to make room in a full table. The new packet is kept.
    pub early_drop: u32,
}

/// Increments between two reads, summed over CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ConntrackDelta {
    /// Entries that could not be inserted.
    pub insert_failed: u64,
    /// Packets dropped because tracking failed.
    pub drop: u64,
    /// Entries removed to make room.
    pub early_drop: u64,
}

/// Table size and counters of one namespace at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Conntrack {
    /// Entries in the table (`nf_conntrack_count`).
    pub count: u64,
    /// Limit of entries in the table (`nf_conntrack_max`).
    pub max: u64,
    /// By possible CPU; `None` if the kernel has no counters.
    pub cpus: Option<Vec<ConntrackCpu>>,
}

impl Conntrack {
    /// Returns the increments of all CPUs since `before`; `None` if the kernel has no counters.
    #[must_use]
    pub fn since(&self, before: &Conntrack) -> Option<ConntrackDelta> {
        let (after, before) = (self.cpus.as_ref()?, before.cpus.as_ref()?);
        let mut delta = ConntrackDelta::default();
        for (after, before) in after.iter().zip(before) {
            delta.insert_failed +=
                // The counters wrap at 32 bits.
                u64::from(after.insert_failed.wrapping_sub(before.insert_failed));
            delta.drop += u64::from(after.drop.wrapping_sub(before.drop));
            delta.early_drop += u64::from(after.early_drop.wrapping_sub(before.early_drop));
        }
        Some(delta)
    }
}

/// Parses `/proc/net/stat/nf_conntrack`: a line of names, then a line of
/// hexadecimal values for each possible CPU.
///
/// # Errors
/// A missing name, a line whose number of values differs from the names, or a value that is not a
/// 32-bit hexadecimal number.
pub fn parse_stat(text: &str) -> std::result::Result<Vec<ConntrackCpu>, ParseError> {
    let mut lines = text.lines().enumerate();
    let names: Vec<&str> =
        lines.next().map(|(_, line)| line.split_ascii_whitespace().collect()).unwrap_or_default();
    let column = |name: &'static str| {
        let expected = "a column of this name";
        let found = names.iter().position(|n| *n == name);
        found.ok_or_else(|| ParseError::new(PROC_NF_CONNTRACK, 1, name, expected, "none"))
    };
    let (insert_failed, drop, early_drop) =
        (column("insert_failed")?, column("drop")?, column("early_drop")?);
    lines
        .map(|(index, line)| {
            let values: Vec<&str> = line.split_ascii_whitespace().collect();
            // A shifted column would be read under a wrong name.
            if values.len() != names.len() {
                let got = format!("{} names, {} values", names.len(), values.len());
                let expected = "as many values as names";
                let error = ParseError::new(PROC_NF_CONNTRACK, index + 1, "line", expected, &got);
                return Err(error);
            }
            let value = |column: usize| {
                let (name, word) = (names[column], values[column]);
                let value = hexadecimal(PROC_NF_CONNTRACK, index + 1, name, Some(word))?;
                u32::try_from(value).map_err(|_| {
                    ParseError::new(PROC_NF_CONNTRACK, index + 1, name, "32 bits", word)
                })
            };
            Ok(ConntrackCpu {
                insert_failed: value(insert_failed)?,
                drop: value(drop)?,
                early_drop: value(early_drop)?,
            })
        })
        .collect()
}

/// The files of one namespace, open and bound to it.
#[derive(Debug)]
pub struct ConntrackFiles {
    count: ProcFile,
    max: ProcFile,
    stat: Option<ProcFile>,
}

/// Reason why connection tracking of a namespace cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// The missing file and its meaning, as text.
    pub reason: String,
}

impl ConntrackFiles {
    /// Opens the files of the calling thread's namespace, or returns why there are none.
    ///
    /// # Errors
    /// Errors of `open`, except `ENOENT`.
    pub fn open() -> std::result::Result<std::result::Result<Self, Absent>, sys::Error> {
        let optional = |path| match ProcFile::open(path) {
            Ok(file) => Ok(Some(file)),
            // The kernel has no conntrack, or no counters.
            Err(e) if e.errno == Errno::ENOENT => Ok(None),
            Err(e) => Err(e),
        };
        let (Some(count), Some(max)) = (optional(NF_CONNTRACK_COUNT)?, optional(NF_CONNTRACK_MAX)?)
        else {
            let reason = format!(
                "{NF_CONNTRACK_COUNT} does not exist: conntrack is not in this kernel, or its \
                 module nf_conntrack is not loaded"
            );
            return Ok(Err(Absent { reason }));
        };
        Ok(Ok(ConntrackFiles { count, max, stat: optional(PROC_NF_CONNTRACK)? }))
    }

    /// Opens the files of a namespace, or returns why there are none.
    ///
    /// # Errors
    /// As [`ConntrackFiles::open`], and if the namespace cannot be entered.
    pub fn open_in(
        namespace: &NetNs,
    ) -> std::result::Result<std::result::Result<Self, Absent>, sys::Error> {
        namespace.run(ConntrackFiles::open)?
    }

    /// Reads the files. Any thread may call this.
    ///
    /// # Errors
    /// As [`ProcFile::read`] and [`parse_stat`].
    pub fn read(&self) -> Result<Conntrack> {
        let value = |path, file: &ProcFile| -> Result<u64> {
            let text = file.read()?;
            Ok(decimal(path, 1, "value", Some(text.trim_end()))?)
        };
        Ok(Conntrack {
            count: value(NF_CONNTRACK_COUNT, &self.count)?,
            max: value(NF_CONNTRACK_MAX, &self.max)?,
            cpus: match &self.stat {
                Some(file) => Some(parse_stat(&file.read()?)?),
                None => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18, two CPUs; the kernel's double spaces kept.
    const GOLDEN: &str = "\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
00000004  00000000 00000000 00000000 00000000 0000000e 00000000 00000000 00000000 00000003 00000000 00000001 00000000  00000000 00000000 00000000 00000000
00000004  00000000 00000000 00000000 00000000 00000001 00000000 00000000 00000000 00000000 ffffffff 00000000 00000000  00000000 00000000 00000000 00000000
";

    #[test]
    fn the_kernels_file_is_parsed() {
        assert_eq!(
            parse_stat(GOLDEN).unwrap(),
            [
                ConntrackCpu { insert_failed: 3, drop: 0, early_drop: 1 },
                ConntrackCpu { insert_failed: 0, drop: u32::MAX, early_drop: 0 },
            ]
        );
    }

    #[test]
    fn counters_wrap_at_32_bits() {
        let before = Conntrack { cpus: Some(parse_stat(GOLDEN).unwrap()), ..Conntrack::default() };
        let mut after = before.clone();
        after.cpus.as_mut().unwrap()[1].drop = 4;
        assert_eq!(after.since(&before).unwrap().drop, 5);
        assert_eq!(after.since(&Conntrack::default()), None);
    }

    #[test]
    fn errors_name_line_and_column() {
        let error = parse_stat(&GOLDEN.replace("early_drop", "late_drop")).unwrap_err();
        assert_eq!((error.line, error.field.as_str()), (1, "early_drop"));
        let error = parse_stat(&GOLDEN.replace("ffffffff", "fffffffff")).unwrap_err();
        assert_eq!((error.line, error.field.as_str(), error.expected), (3, "drop", "32 bits"));
        let error = parse_stat(&GOLDEN.replace("00000003", "")).unwrap_err();
        assert_eq!((error.line, error.got.as_str()), (2, "17 names, 16 values"));
        assert_eq!(parse_stat("").unwrap_err().got, "none");
    }

    #[test]
    fn a_namespaces_files_are_read_from_outside_or_said_to_be_absent() {
        test_support::require!(test_support::need::networks());
        let namespace = NetNs::new().unwrap();
        match ConntrackFiles::open_in(&namespace).unwrap() {
            Ok(files) => {
                let reading = files.read().unwrap();
                assert_eq!(reading.count, 0);
                assert!(reading.max > 0);
            }
            Err(absent) => assert!(absent.reason.contains("nf_conntrack"), "{}", absent.reason),
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            text in "(insert_failed|drop|early_drop|[a-z]{0,4}| ){0,9}\n([0-9a-fx]{0,10} ?){0,9}",
            cut in 0_usize..1000,
        ) {
            let _ = parse_stat(&text);
            let _ = parse_stat(&GOLDEN[..cut.min(GOLDEN.len())]);
        }
    }
}
