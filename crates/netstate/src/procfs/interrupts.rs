//! Counts of interrupts and softirqs by CPU, from `/proc/interrupts` and `/proc/softirqs`, which
//! share a format.
//!
//! Source: `kernel/irq/proc.c` (`show_interrupts`), `fs/proc/softirqs.c`.

use std::collections::BTreeMap;

use crate::proc::{ParseError, ProcFile, Result, decimal};

/// Counts of hardware interrupts, by CPU.
pub const PROC_INTERRUPTS: &str = "/proc/interrupts";
/// Counts of softirqs, by CPU.
pub const PROC_SOFTIRQS: &str = "/proc/softirqs";

/// Interrupts or softirqs of each CPU since boot.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Interrupts {
    /// Name → CPU → count. A device's interrupt is named by its last word (`virtio0-input.0`), any
    /// other by its label (`CAL`, `NET_RX`). Interrupts of the same name are summed.
    pub counts: BTreeMap<String, BTreeMap<usize, u64>>,
}

impl Interrupts {
    /// Parses the text of either file.
    ///
    /// # Errors
    /// If the CPU heading is missing, a line has no name, or a count is not a number.
    pub fn parse(file: &str, text: &str) -> std::result::Result<Interrupts, ParseError> {
        let mut lines = text.lines().enumerate();
        let heading = lines.next().map_or("", |(_, line)| line);
        let cpus = heading
            .split_ascii_whitespace()
            .map(|word| {
                let number = word.strip_prefix("CPU").and_then(|number| number.parse().ok());
                number.ok_or_else(|| ParseError::new(file, 1, "heading", "CPU0 CPU1 …", word))
            })
            .collect::<std::result::Result<Vec<usize>, _>>()?;
        if cpus.is_empty() {
            return Err(ParseError::new(file, 1, "heading", "CPU0 CPU1 …", heading));
        }
        let mut counts: BTreeMap<String, BTreeMap<usize, u64>> = BTreeMap::new();
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let (label, rest) = line
                .split_once(':')
                .ok_or_else(|| ParseError::new(file, index + 1, "name", "NAME:", line))?;
            let label = label.trim();
            let words: Vec<&str> = rest.split_ascii_whitespace().collect();
            let (numbers, description) = words.split_at(words.len().min(cpus.len()));
            // ERR and MIS have a single number for all CPUs.
            if numbers.len() < cpus.len() {
                continue;
            }
            let is_a_device = label.bytes().all(|byte| byte.is_ascii_digit());
            let name = description.last().filter(|_| is_a_device).copied().unwrap_or(label);
            let entry = counts.entry(name.to_owned()).or_default();
            for (cpu, word) in cpus.iter().zip(numbers) {
                let count = decimal(file, index + 1, &format!("{label} CPU{cpu}"), Some(word))?;
                let sum = entry.entry(*cpu).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        Ok(Interrupts { counts })
    }

    /// Returns the increments of an interrupt since `before`, by CPU. Empty for a name that is new;
    /// a new CPU is left out.
    #[must_use]
    pub fn since(&self, before: &Interrupts, name: &str) -> BTreeMap<usize, u64> {
        let (Some(after), Some(before)) = (self.counts.get(name), before.counts.get(name)) else {
            return BTreeMap::new();
        };
        // The kernel's counts wrap at 32 bits. A sum of several counts may seem to go backwards by
        // less than that.
        let moved = |cpu: &usize, count: u64| {
            let before = *before.get(cpu)?;
            let wrapped = || count.saturating_add(1 << 32).saturating_sub(before);
            Some(count.checked_sub(before).unwrap_or_else(wrapped))
        };
        after.iter().filter_map(|(cpu, count)| Some((*cpu, moved(cpu, *count)?))).collect()
    }

    /// Reads an open file of this format.
    ///
    /// # Errors
    /// As [`ProcFile::read`] and [`Interrupts::parse`].
    pub fn read(name: &str, file: &ProcFile) -> Result<Interrupts> {
        Ok(Interrupts::parse(name, &file.read()?)?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    // Linux 6.18, shortened.
    const GOLDEN: &str = "           CPU0       CPU1       
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 27:          0        140  PCI-MSIX-0000:00:03.0   1-edge      virtio0-input.0
CAL:       2000        150   Function call interrupts
ERR:          0
";

    #[test]
    fn devices_and_kinds_are_named() {
        let interrupts = Interrupts::parse(PROC_INTERRUPTS, GOLDEN).unwrap();
        let names: Vec<&str> = interrupts.counts.keys().map(String::as_str).collect();
        assert_eq!(names, ["ACPI:Ged", "CAL", "virtio0-input.0"]);
        assert_eq!(interrupts.counts["virtio0-input.0"], BTreeMap::from([(0, 0), (1, 140)]));
        let softirqs = "   CPU0 CPU2\n  NET_RX:  44  17\n";
        let softirqs = Interrupts::parse(PROC_SOFTIRQS, softirqs).unwrap();
        assert_eq!(softirqs.counts["NET_RX"], BTreeMap::from([(0, 44), (2, 17)]));
    }

    #[test]
    fn differences_are_by_cpu_and_counters_wrap() {
        let at = |zero: u64, one: u64| Interrupts {
            counts: [("eth0-rx-0".to_owned(), [(0, zero), (1, one)].into())].into(),
        };
        let (before, mut after) = (at(5, (1 << 32) - 2), at(7, 3));
        assert_eq!(after.since(&before, "eth0-rx-0"), [(0, 2), (1, 5)].into());
        // A CPU that was added in between.
        after.counts.get_mut("eth0-rx-0").unwrap().insert(2, 9);
        assert_eq!(after.since(&before, "eth0-rx-0"), [(0, 2), (1, 5)].into());
        assert!(after.since(&before, "eth0-rx-1").is_empty());
    }

    #[test]
    fn both_files_of_this_machine_are_read() {
        for name in [PROC_INTERRUPTS, PROC_SOFTIRQS] {
            let file = ProcFile::open(name).unwrap();
            assert!(!Interrupts::read(name, &file).unwrap().counts.is_empty(), "{name}");
        }
    }

    #[test]
    fn damage_is_named() {
        for (text, named) in [
            ("", "heading"),
            ("CPU0 x\n", "heading"),
            ("CPU0\nCAL 3\n", "name"),
            ("CPU0\nCAL: x\n", "CAL CPU0"),
        ] {
            let error = Interrupts::parse(PROC_INTERRUPTS, text).unwrap_err();
            assert_eq!(error.field, named, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(CPU[0-9]{1,3} ?){0,3}\n([A-Z0-9]{0,3}:?( [0-9x]{0,22}){0,4}\n){0,4}") {
            let _ = Interrupts::parse(PROC_INTERRUPTS, &text);
        }
    }
}
