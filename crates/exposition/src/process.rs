//! What this process takes of the machine.

use nix::unistd::{SysconfVar, sysconf};

/// By `/proc/self/stat`.
pub(crate) struct Process {
    /// CPU time, seconds.
    pub(crate) cpu: f64,
    /// Memory, bytes.
    pub(crate) memory: f64,
}

impl Process {
    /// `None` where `/proc` does not tell.
    pub(crate) fn read() -> Option<Process> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // proc_pid_stat(5): the name may have blanks and parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        let ticks = sysconf(SysconfVar::CLK_TCK).ok()?? as f64;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok()?? as f64;
        Some(Process { cpu: (number(14)? + number(15)?) / ticks, memory: number(24)? * page })
    }
}
