//! First figures while a run goes on: medians of the samples so far. They have no intervals, since
//! one that is looked at after every block would not have its coverage.

use std::collections::BTreeMap;

use foreign::plain;
use measure::path_under_test::PathUnderTest;
use measure::plan::{Plan, PlannedCell};
use report::with_unit;
use results::stats::median;
use results::{Role, Sample, Unit};

/// Most lines: the terminal also shows other output.
const LINES: usize = 16;
/// Widest name of a cell, columns. A line has at most 60 columns.
const NAME: usize = 32;

/// Figures of a run so far.
pub struct Live {
    rows: Vec<Row>,
}

struct Row {
    /// `None`: not shown, because it only measures noise.
    name: Option<String>,
    /// Index of its baseline.
    baseline: usize,
    unit: Unit,
    /// Valid values by block.
    values: BTreeMap<u32, f64>,
}

impl Live {
    /// Without any sample.
    pub fn new(plan: &Plan, subjects: &[PathUnderTest]) -> Live {
        let row = |cell: &PlannedCell| Row {
            name: (cell.role != Role::Aa).then(|| name(plan, cell, &subjects[cell.subject])),
            baseline: cell.baseline,
            unit: cell.ask.unit(),
            values: BTreeMap::new(),
        };
        Live { rows: plan.cells.iter().map(row).collect() }
    }

    /// Takes a sample of the cell with this index. One of the same block replaces an earlier one.
    pub fn take(&mut self, cell: usize, sample: &Sample) {
        let Some(row) = self.rows.get_mut(cell) else { return };
        if sample.valid {
            row.values.insert(sample.block, sample.value);
        }
    }

    /// Returns the figures as lines; empty before the first sample.
    pub fn lines(&self) -> Vec<String> {
        let shown: Vec<(usize, &str)> = self
            .rows
            .iter()
            .enumerate()
            .filter_map(|(i, r)| Some((i, r.name.as_deref()?)))
            .collect();
        let mut lines: Vec<String> =
            shown.iter().take(LINES).filter_map(|(at, name)| self.line(*at, name)).collect();
        if lines.is_empty() {
            return lines;
        }
        if shown.len() > LINES {
            lines.push(format!("… {} more", shown.len() - LINES));
        }
        lines.insert(0, "so far, without intervals:".to_owned());
        lines
    }

    fn line(&self, at: usize, name: &str) -> Option<String> {
        let row = &self.rows[at];
        let value = median(&row.values.values().copied().collect::<Vec<_>>())?;
        let value = with_unit(value, row.unit);
        let below = &self.rows.get(row.baseline)?.values;
        let pairs = row.values.iter().filter_map(|(block, value)| Some((value, below.get(block)?)));
        let ratios: Vec<f64> =
            pairs.filter(|(_, below)| **below > 0.0).map(|(value, below)| value / below).collect();
        let ratio = median(&ratios).filter(|_| row.baseline != at);
        let ratio = ratio.map_or(String::new(), |ratio| format!("  {ratio:.2}"));
        Some(format!("  {name:<NAME$}  {value:>18}{ratio}"))
    }
}

/// Returns what differs between cells, in few words.
fn name(plan: &Plan, cell: &PlannedCell, subject: &PathUnderTest) -> String {
    let ask = &cell.ask;
    let mut name = format!("{} {} {}", subject.mode, subject.offload, ask.task);
    let sizes = plan.cells.iter().filter(|other| other.ask.task == ask.task);
    if sizes.map(|other| other.ask.message_bytes).any(|size| size != ask.message_bytes) {
        name += &format!(" {} B", ask.message_bytes);
    }
    if let Some(beside) = ask.beside {
        name += &format!(" beside {beside}");
    }
    if let Some(setting) = cell.setting {
        name += &format!(" {}", plan.settings[setting]);
    }
    plain(&name).chars().take(NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Live {
        let row = |name: Option<&str>| Row {
            name: name.map(str::to_owned),
            baseline: 0,
            unit: Unit::Bits,
            values: BTreeMap::new(),
        };
        Live { rows: vec![row(Some("host")), row(None), row(Some("vxlan"))] }
    }

    fn sample(block: u32, value: f64) -> Sample {
        Sample { block, value, valid: true, ..Sample::default() }
    }

    #[test]
    fn figures_so_far_are_medians_and_ratios_of_the_same_block() {
        let mut live = live();
        assert!(live.lines().is_empty());
        for (block, host, vxlan) in [(0, 10e9, 5e9), (1, 20e9, 12e9), (2, 10e9, 7e9)] {
            live.take(0, &sample(block, host));
            live.take(1, &sample(block, host));
            live.take(2, &sample(block, vxlan));
        }
        // The next block has no partner yet; void samples and unknown cells count for nothing.
        live.take(2, &sample(3, 1e9));
        live.take(2, &Sample { valid: false, ..sample(0, 1.0) });
        live.take(9, &sample(0, 1.0));
        let lines = live.lines();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].contains("host") && lines[1].ends_with("10.0 Gb/s"), "{lines:?}");
        assert!(lines[2].contains("6.00 Gb/s") && lines[2].ends_with("  0.60"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 60));
    }

    #[test]
    fn a_large_plan_does_not_fill_the_terminal() {
        let mut live = live();
        live.rows.extend((0..100).map(|i| Row {
            name: Some(format!("mode-{i}")),
            baseline: 0,
            unit: Unit::Transactions,
            values: BTreeMap::from([(0, 38_200.0)]),
        }));
        let lines = live.lines();
        assert!(lines.len() <= LINES + 2 && lines.last().unwrap() == "… 86 more", "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 62), "{lines:?}");
    }
}
