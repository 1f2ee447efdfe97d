//! An interval as text, 80 columns wide if names are short.

use std::fmt::Write;

use crate::snapshot::{CpuSeen, DropSeen, HopSeen, PathSeen, Snapshot};

/// Smallest share that is worth a note.
const WORTH_TELLING: f64 = 0.01;

impl Snapshot {
    /// Renders the interval as text.
    pub fn text(&self) -> String {
        self.text_within(usize::MAX)
    }

    /// Renders the interval as text, with tables for a terminal of `columns`, at least 60. Other lines
    /// may be longer.
    pub fn text_within(&self, columns: usize) -> String {
        let mut text = self.head();
        for path in &self.paths {
            text.push('\n');
            text.push_str(&path.text_within(columns));
        }
        if self.paths.is_empty() {
            text.push_str("no followed packet ended in this interval\n");
        }
        if self.other_paths > 0 {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n{} packets took paths that are not shown", self.other_paths);
        }
        if let Some(drops) = &self.flow_drops {
            text.push_str("\ndropped, of the filter's packets\n");
            drops.iter().for_each(|drop| text.push_str(&drop.text(self.seconds)));
            if drops.is_empty() {
                text.push_str("none\n");
            }
        }
        if !self.drops.is_empty() {
            let of_all = if self.flow_drops.is_some() { ", all packets" } else { "" };
            let _ = writeln!(text, "\ndropped{of_all}");
            self.drops.iter().for_each(|drop| text.push_str(&drop.text(self.seconds)));
        }
        if let Some(peer) = &self.peer {
            text.push('\n');
            text.push_str(&peer.text());
        }
        for not_seen in &self.not_seen {
            let _ = writeln!(text, "not seen: {not_seen}");
        }
        text
    }

    /// Describes the sampling and its cost.
    pub fn head(&self) -> String {
        let clock = clock(self.time_s);
        let softirqs = self.softirqs().map(|line| line + "\n").unwrap_or_default();
        format!(
            "{clock} UTC, {:.1} s: 1 packet in {} followed ({} packets), {} events, {} lost\n\
             window open {} of the time, own CPU {:.1}% of one, limit {:.1}%\n{softirqs}",
            self.seconds,
            self.sample,
            self.followed,
            self.events,
            self.events_lost,
            share(self.looked),
            self.own_cpu,
            self.budget
        )
    }
}

impl Snapshot {
    /// Describes the CPUs' network work in a line; `None` if unknown.
    pub fn softirqs(&self) -> Option<String> {
        let busiest = self.cpus.iter().take(2);
        let busiest: Vec<String> =
            busiest.map(|cpu| format!("CPU {} {:.0}%", cpu.cpu, cpu.softirq)).collect();
        let sum = |of: fn(&CpuSeen) -> u64| self.cpus.iter().map(of).fold(0, u64::saturating_add);
        let mut line = format!("softirq {}", busiest.join(", "));
        let backlog = sum(|cpu| cpu.backlog.unwrap_or(0).into());
        if self.cpus.iter().any(|cpu| cpu.backlog.is_some()) {
            let _ = write!(line, "; backlog {}", whole(backlog));
        }
        for (count, what) in
            [(sum(|cpu| cpu.dropped), "dropped there"), (sum(|cpu| cpu.squeezed), "times squeezed")]
        {
            if count > 0 {
                let _ = write!(line, ", {} {what}", whole(count));
            }
        }
        (!self.cpus.is_empty()).then_some(line)
    }
}

/// Formats a share as a percentage, with a decimal if it is below 10%.
pub fn share(share: f64) -> String {
    let percent = 100.0 * share.clamp(0.0, 1.0);
    if percent < 10.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

/// Formats the time of day, UTC. `time_s` is in seconds since 1970 and may come from a file.
pub fn clock(time_s: f64) -> String {
    // The cast saturates, so that invalid times do not panic.
    let since = time_s as u64;
    let (hours, minutes, seconds) = (since / 3600 % 24, since / 60 % 60, since % 60);
    format!("{hours:02}:{minutes:02}:{seconds:02}")
}

/// Returns the rate of a count in an interval, whose length may be 0 in a changed file.
pub fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(f64::MIN_POSITIVE)
}

impl PathSeen {
    /// Renders a table of the hops.
    pub fn text(&self) -> String {
        self.text_within(usize::MAX)
    }

    /// Renders a table of the hops for a terminal of `columns`, at least 60.
    pub fn text_within(&self, columns: usize) -> String {
        let mut text = String::new();
        let example = self.example.as_ref().map_or("not IP".to_owned(), ToString::to_string);
        let _ = writeln!(text, "{} followed, such as {example}: {}", self.packets, self.ending);
        text += &self.hop_table(columns);
        let took = |ns: u64| ns as f64 / 1000.0;
        let all = &self.took;
        let _ = writeln!(
            text,
            "all: {:.1} µs p50, {:.1} p99, {:.1} p99.9",
            took(all.p50_ns),
            took(all.p99_ns),
            took(all.p999_ns)
        );
        text
    }
}

impl HopSeen {
    /// Returns notes on what happens to packets there.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(encapsulation) = self.encapsulation {
            notes.push(format!("in {}", encapsulation.within(self.vni)));
        }
        let percent = |share: f64| format!("{:.0}%", 100.0 * share);
        for (share, what) in [
            (self.cut, "segmented by the CPU"),
            (self.merged, "merged"),
            (self.checksummed, "checksummed by the CPU"),
        ] {
            if share >= WORTH_TELLING {
                notes.push(format!("{} {what}", percent(share)));
            }
        }
        if self.waited.count > 0 {
            let us = |ns: u64| ns as f64 / 1000.0;
            let (p50, p99) = (us(self.waited.p50_ns), us(self.waited.p99_ns));
            notes.push(format!("waited {p50:.1} µs p50, {p99:.1} p99"));
        }
        if let Some(queued) = self.queued.filter(|queued| *queued > 0) {
            notes.push(format!("{} packets in its queue", whole(queued.into())));
        }
        if let Some(rates) = self.counted.as_ref().filter(|rates| rates.dropped_per_s > 0.0) {
            notes.push(format!("the device dropped {}/s", short(rates.dropped_per_s)));
        }
        notes
    }
}

impl DropSeen {
    /// Renders it in two or three lines.
    pub fn text(&self, seconds: f64) -> String {
        let mut text = String::new();
        let device = self.device.as_deref().unwrap_or("-");
        let rate = short(per_second(self.packets, seconds));
        let function = self.function.as_ref().map(|function| format!(" in {function}"));
        let _ = writeln!(
            text,
            "{:<13}{device:<11}{} packets, {rate}/s: {}{}",
            self.namespace,
            self.packets,
            self.reason,
            function.unwrap_or_default()
        );
        if let Some(meaning) = &self.meaning {
            let _ = writeln!(text, "    {meaning}");
        }
        if let Some(check) = &self.check {
            let _ = writeln!(text, "    overlane doctor explain {check}");
        }
        text
    }
}

/// Formats a number in at most 7 characters.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v >= 1e10 => format!("{:.0}G", v / 1e9),
        v if v >= 1e7 => format!("{:.1}M", v / 1e6),
        v if v >= 1e5 => format!("{:.0}k", v / 1e3),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// Formats a count in at most 7 characters.
fn whole(count: u64) -> String {
    if count < 10 { count.to_string() } else { short(count as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_time_has_a_clock() {
        assert_eq!(clock(f64::MAX).len(), 8);
        assert_eq!(clock(-1.0), "00:00:00");
    }
}
