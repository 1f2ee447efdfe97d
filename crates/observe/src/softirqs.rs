//! The CPUs' network work in an interval: time in softirqs, backlogs.

use netstate::cpu::{CpuStat, PROC_STAT};
use netstate::proc::ProcFile;
use netstate::softnet::{PROC_SOFTNET_STAT, SoftnetStat};

use crate::snapshot::CpuSeen;

/// The kernel's counters of the CPUs.
#[derive(Debug)]
pub(crate) struct Softirqs {
    stat: ProcFile,
    softnet: ProcFile,
    before: (CpuStat, SoftnetStat),
}

impl Softirqs {
    pub fn open() -> Result<Softirqs, String> {
        let open = |path| ProcFile::open(path).map_err(|error| error.to_string());
        let (stat, softnet) = (open(PROC_STAT)?, open(PROC_SOFTNET_STAT)?);
        let before = read(&stat, &softnet)?;
        Ok(Softirqs { stat, softnet, before })
    }

    /// Returns the work since the last call; empty if the counters cannot be read any more.
    pub fn since(&mut self) -> Vec<CpuSeen> {
        let Ok(now) = read(&self.stat, &self.softnet) else { return Vec::new() };
        let (stat, softnet) = std::mem::replace(&mut self.before, now);
        difference((&stat, &softnet), (&self.before.0, &self.before.1))
    }
}

fn read(stat: &ProcFile, softnet: &ProcFile) -> Result<(CpuStat, SoftnetStat), String> {
    let stat = CpuStat::read(stat).map_err(|error| error.to_string())?;
    let softnet = SoftnetStat::read(softnet).map_err(|error| error.to_string())?;
    Ok((stat, softnet))
}

fn difference(before: (&CpuStat, &SoftnetStat), after: (&CpuStat, &SoftnetStat)) -> Vec<CpuSeen> {
    let cpu = |(number, ticks): (&usize, _)| {
        // A CPU that came online meanwhile has no previous count.
        let ticks = netstate::cpu::CpuTicks::since(ticks, before.0.cpus.get(number)?);
        let cpu = u32::try_from(*number).ok()?;
        let softnet = after.1.cpus.get(&cpu).copied().unwrap_or_default();
        let earlier = before.1.cpus.get(&cpu).copied().unwrap_or(softnet);
        Some(CpuSeen {
            cpu,
            softirq: 100.0 * ticks.softirq as f64 / ticks.total().max(1) as f64,
            backlog: softnet.backlog,
            dropped: softnet.dropped.wrapping_sub(earlier.dropped).into(),
            squeezed: softnet.time_squeeze.wrapping_sub(earlier.time_squeeze).into(),
        })
    };
    let mut cpus: Vec<CpuSeen> = after.0.cpus.iter().filter_map(cpu).collect();
    cpus.sort_by(|one, other| other.softirq.total_cmp(&one.softirq));
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(of: [(u64, u64); 2]) -> CpuStat {
        let line = |name: &str, (idle, softirq): (u64, u64)| {
            format!("{name} 0 0 0 {idle} 0 0 {softirq} 0 0 0\n")
        };
        let all = line("cpu", (of[0].0 + of[1].0, of[0].1 + of[1].1));
        CpuStat::parse(&(all + &line("cpu0", of[0]) + &line("cpu1", of[1]))).unwrap()
    }

    fn softnet(dropped: [u32; 2], backlog: [u32; 2]) -> SoftnetStat {
        let line = |cpu: usize| {
            let (dropped, backlog) = (dropped[cpu], backlog[cpu]);
            format!(
                "0 {dropped:x} {:x} 0 0 0 0 0 0 0 0 {backlog:x} {cpu:x}\n",
                dropped.wrapping_mul(2)
            )
        };
        SoftnetStat::parse(&(line(0) + &line(1))).unwrap()
    }

    #[test]
    fn the_busiest_cpu_comes_first_with_what_it_holds() {
        let before = (stat([(100, 0), (100, 0)]), softnet([u32::MAX, 7], [0, 0]));
        let after = (stat([(190, 10), (140, 60)]), softnet([4, 7], [0, 300]));
        let seen = difference((&before.0, &before.1), (&after.0, &after.1));
        let cpu = |cpu, softirq, backlog, dropped, squeezed| CpuSeen {
            cpu,
            softirq,
            backlog: Some(backlog),
            dropped,
            squeezed,
        };
        // Counters of 32 bits wrap.
        assert_eq!(seen, [cpu(1, 60.0, 300, 0, 0), cpu(0, 10.0, 0, 5, 10)]);
    }

    #[test]
    fn this_machine_tells() {
        let mut softirqs = Softirqs::open().unwrap();
        assert!(!softirqs.since().is_empty());
    }
}
