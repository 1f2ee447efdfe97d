//! Samples that are kept while a run goes on, so that a kill or a full disk costs at most one.
//!
//! Lines of JSON: first [`Begun`], then [`sample_line`] for each sample as it comes. [`restored`] makes
//! results of them.

use std::borrow::Cow;
use std::io;

use results::stats::StopRule;
use results::{Results, Sample};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::{ratios, summary};

/// Version of the format.
const FORMAT: u32 = 1;
/// Beginning of the first line.
pub const BEGINNING: &[u8] = b"{\"kept_samples\":";

/// First line: the run without its samples.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begun {
    /// Version of the format. First, so that the file can be recognised.
    kept_samples: u32,
    /// Index of each cell's baseline; null for a baseline.
    baselines: Vec<Option<usize>>,
    /// The run as if it had been interrupted before the first sample.
    results: Results,
}

impl Begun {
    /// `results` has the cells of [`not_begun`](crate::run::not_begun).
    pub fn new(plan: &Plan, results: Results) -> Begun {
        Begun { kept_samples: FORMAT, baselines: ratios::references(plan), results }
    }

    /// Returns the line.
    ///
    /// # Errors
    /// Results that are no JSON.
    pub fn line(&self) -> io::Result<Vec<u8>> {
        line(self)
    }
}

/// One sample.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept<'a> {
    /// Index of the cell.
    cell: usize,
    /// The sample, valid or not. One of the same cell and block replaces an earlier one.
    sample: Cow<'a, Sample>,
}

/// Returns the line of a sample of the cell with this index.
///
/// # Errors
/// A sample that is no JSON.
pub fn sample_line(cell: usize, sample: &Sample) -> io::Result<Vec<u8>> {
    line(&Kept { cell, sample: Cow::Borrowed(sample) })
}

fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Makes results of the lines of a file.
///
/// # Errors
/// A sentence that names the line and its problem. A last line that is cut is no error.
pub fn restored(lines: &[u8]) -> Result<Results, String> {
    let mut lines = lines.split_inclusive(|byte| *byte == b'\n').zip(1..);
    let wrong = |line: u32, problem: &dyn std::fmt::Display| format!("line {line}: {problem}");
    let (first, _) = lines.next().unwrap_or_default();
    let begun: Begun = serde_json::from_slice(first).map_err(|e| wrong(1, &e))?;
    let Begun { kept_samples, baselines, mut results } = begun;
    let cells = results.cells.len();
    // Samples of another version may lack fields, or have others.
    if kept_samples != FORMAT {
        return Err(wrong(1, &format!("format {kept_samples}, this version reads {FORMAT}")));
    }
    if baselines.len() != cells || baselines.iter().flatten().any(|at| *at >= cells) {
        return Err(wrong(1, &"a baseline that is not among the cells"));
    }
    let mut samples = vec![Vec::new(); cells];
    for (line, number) in lines {
        let kept: Kept<'_> = match serde_json::from_slice(line) {
            Ok(kept) => kept,
            // The process was killed while it wrote the line.
            Err(_) if !line.ends_with(b"\n") => break,
            Err(error) => return Err(wrong(number, &error)),
        };
        let place = samples.get_mut(kept.cell);
        let place = place.ok_or_else(|| wrong(number, &format!("no cell {}", kept.cell)))?;
        add(place, kept.sample.into_owned());
    }
    ratios::fill_by(&baselines, &mut samples);
    results.plan.blocks_done = whole_blocks(&samples);
    let level = results.plan.confidence.level;
    let rule = StopRule::Blocks { blocks: results.plan.blocks_done.max(1), level };
    let interval = |ratios: &[f64]| rule.interval(0, ratios).ok();
    let empty = std::mem::take(&mut results.cells);
    results.cells = empty
        .into_iter()
        .zip(samples)
        .map(|(cell, samples)| summary::filled(cell, samples, None, &interval))
        .collect();
    // The file may have been edited.
    results.check().map_err(|error| error.to_string())?;
    Ok(results)
}

/// Adds a sample. A valid one replaces an earlier one of its block, as in the run itself.
fn add(samples: &mut Vec<Sample>, sample: Sample) {
    if sample.valid {
        for earlier in samples.iter_mut().filter(|s| s.valid && s.block == sample.block) {
            earlier.valid = false;
            earlier.invalid_reason = Some("retaken".to_owned());
        }
    }
    samples.push(sample);
}

/// Returns the number of blocks in which every cell was sampled that was sampled at all.
fn whole_blocks(samples: &[Vec<Sample>]) -> u32 {
    let measured = samples.iter().filter(|samples| !samples.is_empty());
    let last = measured.filter_map(|samples| samples.iter().map(|sample| sample.block).max()).min();
    last.map_or(0, |block| block.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(block: u32, value: f64) -> Sample {
        Sample { block, value, valid: true, path_proved: true, ..Sample::default() }
    }

    #[test]
    fn a_retaken_sample_replaces_the_first_one() {
        let mut samples = Vec::new();
        add(&mut samples, sample(0, 1.0));
        add(&mut samples, sample(1, 2.0));
        add(&mut samples, sample(1, 3.0));
        add(&mut samples, Sample { valid: false, ..sample(0, 9.0) });
        let valid: Vec<f64> = samples.iter().filter(|s| s.valid).map(|s| s.value).collect();
        assert_eq!(valid, [1.0, 3.0]);
    }

    #[test]
    fn a_block_counts_once_all_cells_have_it() {
        let of = |blocks: u32| (0..blocks).map(|block| sample(block, 1.0)).collect::<Vec<_>>();
        assert_eq!(whole_blocks(&[of(3), of(2), Vec::new()]), 2);
        assert_eq!(whole_blocks(&[Vec::new()]), 0);
    }

    #[test]
    fn other_kinds_of_files_are_refused() {
        for (text, problem) in [
            ("", "line 1: EOF"),
            ("{\"kept_samples\":1}\n", "line 1: missing field"),
            ("[1]\n", "line 1: "),
        ] {
            let error = restored(text.as_bytes()).unwrap_err();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }
}
