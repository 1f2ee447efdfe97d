//! CPU time by kind from `/proc/stat`, in ticks of `USER_HZ`.
//!
//! Source: `fs/proc/stat.c`, `Documentation/filesystems/proc.rst` 1.8. Without
//! `CONFIG_IRQ_TIME_ACCOUNTING`, the timer tick charges a whole tick to the context it interrupts,
//! so the values are samples, not measurements.

use std::collections::{BTreeMap, BTreeSet};

use crate::proc::{ParseError, ProcFile, Result, decimal};

/// Source of [`CpuStat`].
pub const PROC_STAT: &str = "/proc/stat";

/// Parses a list of CPUs or nodes as the kernel prints it: `0-3,8`; empty: none.
///
/// Source: `Documentation/admin-guide/kernel-parameters.rst`, "cpu lists". `None` for another
/// format, and for more than 2^16 CPUs.
pub fn parse_list(text: &str) -> Option<BTreeSet<u32>> {
    let mut all = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        // Not a list of the kernel.
        if first > last {
            return None;
        }
        all.extend(u32::from(first)..=u32::from(last));
    }
    Some(all)
}

/// CPU time by kind since boot, in ticks of [`user_hz`].
///
/// The kernel counts guest time in `user` and `nice` as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CpuTicks {
    /// Programs, in user mode.
    pub user: u64,
    /// User mode of niced tasks.
    pub nice: u64,
    /// Kernel mode outside interrupts.
    pub system: u64,
    /// Idle, with no task of this CPU waiting for I/O.
    pub idle: u64,
    /// Idle while a task of this CPU waits for I/O.
    pub iowait: u64,
    /// Handlers of hardware interrupts.
    pub irq: u64,
    /// Softirqs, most of the network stack's receive path among them.
    pub softirq: u64,
    /// Taken by the hypervisor while the CPU had work.
    pub steal: u64,
    /// Running a guest's virtual CPU.
    pub guest: u64,
    /// Running a niced guest.
    pub guest_nice: u64,
}

impl CpuTicks {
    /// Returns the increments since `before`. Idle and iowait may run backwards by a tick in the
    /// kernel, which counts as zero.
    #[must_use]
    pub fn since(&self, before: &CpuTicks) -> CpuTicks {
        CpuTicks {
            user: self.user.saturating_sub(before.user),
            nice: self.nice.saturating_sub(before.nice),
            system: self.system.saturating_sub(before.system),
            idle: self.idle.saturating_sub(before.idle),
            iowait: self.iowait.saturating_sub(before.iowait),
            irq: self.irq.saturating_sub(before.irq),
            softirq: self.softirq.saturating_sub(before.softirq),
            steal: self.steal.saturating_sub(before.steal),
            guest: self.guest.saturating_sub(before.guest),
            guest_nice: self.guest_nice.saturating_sub(before.guest_nice),
        }
    }

    /// Divides by `parts`, rounding down.
    ///
    /// # Panics
    /// If `parts` is 0.
    #[must_use]
    pub fn part(&self, parts: u64) -> CpuTicks {
        CpuTicks {
            user: self.user / parts,
            nice: self.nice / parts,
            system: self.system / parts,
            idle: self.idle / parts,
            iowait: self.iowait / parts,
            irq: self.irq / parts,
            softirq: self.softirq / parts,
            steal: self.steal / parts,
            guest: self.guest / parts,
            guest_nice: self.guest_nice / parts,
        }
    }

    /// Returns the sum of all kinds. Guest time is part of `user` and `nice`.
    pub fn total(&self) -> u64 {
        [
            self.user,
            self.nice,
            self.system,
            self.idle,
            self.iowait,
            self.irq,
            self.softirq,
            self.steal,
        ]
        .into_iter()
        // Damaged values must not overflow.
        .fold(0, u64::saturating_add)
    }
}

/// `/proc/stat`: the sum of all CPUs, and each online CPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CpuStat {
    /// Sum over all possible CPUs.
    pub total: CpuTicks,
    /// Online CPUs by number.
    pub cpus: BTreeMap<usize, CpuTicks>,
}

impl CpuStat {
    /// Parses the text of `/proc/stat`.
    ///
    /// # Errors
    /// If there is no `cpu` line, a line has fewer than the eight columns up to `steal` (Linux
    /// 2.6.11), or a column is not a number.
    pub fn parse(text: &str) -> std::result::Result<CpuStat, ParseError> {
        let mut total = None;
        let mut cpus = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let mut words = line.split_ascii_whitespace();
            let Some(number) = words.next().and_then(|word| word.strip_prefix("cpu")) else {
                // Other lines are no CPU's.
                continue;
            };
            let ticks = parse_columns(line_number, words)?;
            // The line without a number is the sum of all CPUs.
            if number.is_empty() {
                total = Some(ticks);
            } else {
                let number = decimal(PROC_STAT, line_number, "CPU number", Some(number))?;
                let number = usize::try_from(number).map_err(|_| {
                    ParseError::new(PROC_STAT, line_number, "CPU number", "a CPU number", line)
                })?;
                cpus.insert(number, ticks);
            }
        }
        let total = total.ok_or_else(|| {
            ParseError::new(PROC_STAT, 0, "cpu", "a line that starts with \"cpu \"", "none")
        })?;
        Ok(CpuStat { total, cpus })
    }

    /// Reads an open `/proc/stat`.
    ///
    /// # Errors
    /// As [`ProcFile::read`] and [`CpuStat::parse`].
    pub fn read(file: &ProcFile) -> Result<CpuStat> {
        Ok(CpuStat::parse(&file.read()?)?)
    }
}

fn parse_columns<'a>(
    line: usize,
    mut words: impl Iterator<Item = &'a str>,
) -> std::result::Result<CpuTicks, ParseError> {
    let mut required = |field| decimal(PROC_STAT, line, field, words.next());
    let mut ticks = CpuTicks {
        user: required("user")?,
        nice: required("nice")?,
        system: required("system")?,
        idle: required("idle")?,
        iowait: required("iowait")?,
        irq: required("irq")?,
        softirq: required("softirq")?,
        steal: required("steal")?,
        guest: 0,
        guest_nice: 0,
    };
    // guest since Linux 2.6.24, guest_nice since 2.6.33. Later columns are ignored.
    if let Some(word) = words.next() {
        ticks.guest = decimal(PROC_STAT, line, "guest", Some(word))?;
    }
    if let Some(word) = words.next() {
        ticks.guest_nice = decimal(PROC_STAT, line, "guest_nice", Some(word))?;
    }
    Ok(ticks)
}

/// Returns the ticks per second in `/proc` (`USER_HZ`, `sysconf(_SC_CLK_TCK)`): 100 on every Linux
/// architecture except alpha and ia64.
pub fn user_hz() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)
        .ok()
        .flatten()
        .and_then(|ticks| u64::try_from(ticks).ok())
        .filter(|ticks| *ticks > 0)
        // The value of every common architecture.
        .unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18, two CPUs; the long `intr` line is shortened.
    const GOLDEN: &str = "\
cpu  11371 0 4306 173969 588 0 56 35 0 0
cpu0 5111 0 1712 88239 74 0 10 13 0 0
cpu1 6260 0 2593 85730 513 0 45 22 0 0
intr 243501 0 0 0 0 1 1 14
ctxt 447007
btime 1795209519
softirq 172032 0 19024 4 7722 75595 0 188 33502 0 35997
";

    #[test]
    fn lists_of_cpus_are_parsed() {
        assert_eq!(parse_list("0-2,8\n"), Some([0, 1, 2, 8].into()));
        assert_eq!(parse_list("\n"), Some([].into()));
        for wrong in ["3-1", "a", "0-", "99999999"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_kernels_file_is_parsed() {
        let stat = CpuStat::parse(GOLDEN).unwrap();
        assert_eq!(stat.total.user, 11371);
        assert_eq!(stat.total.steal, 35);
        assert_eq!(stat.cpus.keys().copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(
            stat.cpus[&1],
            CpuTicks {
                user: 6260,
                system: 2593,
                idle: 85730,
                iowait: 513,
                softirq: 45,
                steal: 22,
                ..CpuTicks::default()
            }
        );
        assert_eq!(stat.cpus[&0].total(), 5111 + 1712 + 88239 + 74 + 10 + 13);
    }

    #[test]
    fn guest_columns_may_be_absent_and_offline_cpus_leave_gaps() {
        let stat = CpuStat::parse("cpu 1 2 3 4 5 6 7 8\ncpu5 1 2 3 4 5 6 7 8 9 10 11\n").unwrap();
        assert_eq!(stat.total.guest, 0);
        assert_eq!(stat.cpus[&5].guest_nice, 10);
    }

    #[test]
    fn errors_name_line_and_field() {
        let error = CpuStat::parse("cpu 1 2 3 4 5 6 7 8\ncpu0 1 2 x 4 5 6 7 8\n").unwrap_err();
        assert_eq!((error.line, error.field.as_str(), error.got.as_str()), (2, "system", "x"));
        let error = CpuStat::parse("cpu 1 2 3 4 5 6 7\n").unwrap_err();
        assert_eq!((error.line, error.field.as_str()), (1, "steal"));
        assert_eq!(CpuStat::parse("ctxt 1\n").unwrap_err().field, "cpu");
        assert_eq!(CpuStat::parse("cpux 1 2 3 4 5 6 7 8\n").unwrap_err().field, "CPU number");
    }

    #[test]
    fn counters_that_run_backwards_count_as_nothing() {
        let before = CpuTicks { idle: 10, user: 1, ..CpuTicks::default() };
        let after = CpuTicks { idle: 9, user: 3, ..CpuTicks::default() };
        assert_eq!(after.since(&before), CpuTicks { user: 2, ..CpuTicks::default() });
    }

    #[test]
    fn this_machines_file_is_parsed() {
        let stat = CpuStat::read(&ProcFile::open(PROC_STAT).unwrap()).unwrap();
        assert!(!stat.cpus.is_empty());
        assert!(stat.total.total() > 0);
        assert!(user_hz() > 0);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(text in "(cpu[0-9]{0,25}|[a-z ]{0,6})( [0-9x+-]{0,22}){0,12}\n?.{0,40}") {
            let _ = CpuStat::parse(&text);
        }

        #[test]
        fn any_counters_survive(values in prop::array::uniform10(any::<u64>())) {
            let columns = values.map(|v| v.to_string()).join(" ");
            let stat = CpuStat::parse(&format!("cpu  {columns}\ncpu3 {columns}\n")).unwrap();
            prop_assert_eq!(stat.total, stat.cpus[&3]);
            prop_assert_eq!(stat.total.guest_nice, values[9]);
            prop_assert_eq!(stat.total.since(&CpuTicks::default()), stat.total);
            let _ = stat.total.total();
        }
    }
}
