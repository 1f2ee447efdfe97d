//! CPU work for the network over a recording: time in softirqs, backlogs.

use std::collections::BTreeMap;

use maud::{Markup, html};
use observe::CpuSeen;

use crate::unit::{count, percent};

/// Most CPUs, because the recording may come from an untrusted party.
const MOST_CPUS: usize = 64;

/// A CPU over the whole recording.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Cpu {
    /// Percent of its time in softirqs, times seconds.
    softirq: f64,
    seconds: f64,
    /// Largest share in an interval, percent.
    most: f64,
    /// Largest backlog at the end of an interval, packets; `None` if the kernel does not report it.
    backlog: Option<u32>,
    dropped: u64,
    squeezed: u64,
}

impl Cpu {
    fn mean(&self) -> f64 {
        self.softirq / self.seconds.max(f64::MIN_POSITIVE)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cpus {
    by_number: BTreeMap<u32, Cpu>,
    /// Whether some CPUs were left out.
    is_more: bool,
}

impl Cpus {
    pub(crate) fn add(&mut self, seen: &[CpuSeen], seconds: f64) {
        for cpu in seen {
            if self.by_number.len() >= MOST_CPUS && !self.by_number.contains_key(&cpu.cpu) {
                self.is_more = true;
                continue;
            }
            let all = self.by_number.entry(cpu.cpu).or_default();
            // A file may hold any number.
            let softirq = cpu.softirq.clamp(0.0, 100.0);
            all.softirq += softirq * seconds;
            all.seconds += seconds;
            all.most = all.most.max(softirq);
            all.backlog = all.backlog.max(cpu.backlog);
            all.dropped = all.dropped.saturating_add(cpu.dropped);
            all.squeezed = all.squeezed.saturating_add(cpu.squeezed);
        }
    }

    /// Returns the CPUs, busiest first.
    fn sorted(&self) -> Vec<(u32, Cpu)> {
        let mut cpus: Vec<(u32, Cpu)> =
            self.by_number.iter().map(|(at, cpu)| (*at, *cpu)).collect();
        cpus.sort_by(|(_, one), (_, other)| other.mean().total_cmp(&one.mean()));
        cpus
    }

    fn left_out(&self) -> Option<String> {
        self.is_more.then(|| format!("CPUs beyond {} are left out", count(MOST_CPUS, "CPU")))
    }

    /// Formats the CPUs as lines; none if nothing is known.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |(number, cpu): (u32, Cpu)| {
            let backlog = cpu.backlog.map(|most| format!("; backlog at most {most}"));
            let mut line = format!(
                "CPU {number}: softirq {:.0}%, at most {:.0}%{}",
                cpu.mean(),
                cpu.most,
                backlog.unwrap_or_default()
            );
            for (packets, what) in [(cpu.dropped, "dropped"), (cpu.squeezed, "squeezed")] {
                if packets > 0 {
                    line += &format!(", {packets} {what}");
                }
            }
            line
        };
        self.sorted().into_iter().map(line).chain(self.left_out()).collect()
    }

    /// Renders the CPUs as a section of a page.
    pub(crate) fn section(&self) -> Markup {
        let share = |of: f64| percent(of / 100.0);
        html! {
            @if !self.by_number.is_empty() {
                section {
                    h2 { "CPUs" }
                    p.muted {
                        "Time in softirqs is counted in kernel ticks. The backlog is the largest \
                         at the end of an interval."
                    }
                    div.scroll { table {
                        thead { tr {
                            th.n { "CPU" } th.n { "softirq" } th.n { "at most" } th.n { "backlog" }
                            th.n { "dropped" } th.n { "squeezed" }
                        } }
                        tbody { @for (number, cpu) in self.sorted() { tr {
                            td.n { (number) } td.n { (share(cpu.mean())) } td.n { (share(cpu.most)) }
                            td.n { @if let Some(most) = cpu.backlog { (most) } @else { "-" } }
                            td.n { (cpu.dropped) } td.n { (cpu.squeezed) }
                        } } }
                    } }
                    @if let Some(line) = self.left_out() { p { (line) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(cpu: u32, softirq: f64, backlog: Option<u32>) -> CpuSeen {
        CpuSeen { cpu, softirq, backlog, dropped: 2, squeezed: 0 }
    }

    #[test]
    fn text_and_page_have_the_mean_and_the_most() {
        let mut cpus = Cpus::default();
        assert!(cpus.lines().is_empty() && cpus.section().into_string().is_empty());
        cpus.add(&[cpu(0, 10.0, Some(3)), cpu(1, 80.0, None)], 1.0);
        cpus.add(&[cpu(0, 40.0, Some(1)), cpu(1, 80.0, None)], 2.0);
        let lines = cpus.lines();
        assert_eq!(lines[0], "CPU 1: softirq 80%, at most 80%, 4 dropped");
        assert_eq!(lines[1], "CPU 0: softirq 30%, at most 40%; backlog at most 3, 4 dropped");
        let page = cpus.section().into_string();
        assert!(page.contains("30%") && page.contains("40%") && page.contains("backlog"), "{page}");
    }

    #[test]
    fn a_file_of_anybody_keeps_few() {
        let mut cpus = Cpus::default();
        let many: Vec<CpuSeen> = (0..10_000).map(|number| cpu(number, f64::MAX, None)).collect();
        cpus.add(&many, 1.0);
        assert_eq!(cpus.lines().len(), MOST_CPUS + 1);
        assert!(cpus.lines()[0].contains("softirq 100%"), "{:?}", cpus.lines());
    }
}
