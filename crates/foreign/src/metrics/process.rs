//! Resource usage of this process.

use nix::unistd::{SysconfVar, sysconf};

/// Values from `/proc/self/stat`.
pub(crate) struct Process {
    /// CPU time in seconds.
    pub(crate) cpu: f64,
    /// Resident memory in bytes.
    pub(crate) memory: f64,
}

impl Process {
    /// Reads the values; `None` if `/proc` does not provide them.
    pub(crate) fn read() -> Option<Process> {
        // Without /proc the page only lacks these two metrics.
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // proc_pid_stat(5): the name may contain blanks and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // Field numbers of the manual page; the first one here is 3.
        let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        let ticks = sysconf(SysconfVar::CLK_TCK).ok()?? as f64;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok()?? as f64;
        Some(Process { cpu: (number(14)? + number(15)?) / ticks, memory: number(24)? * page })
    }
}
