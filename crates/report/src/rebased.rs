//! Results with another baseline: every ratio refers to another mode of the same run, still within
//! blocks.

use std::collections::HashMap;

use results::stats::trend;
use results::{Cell, Results, Role, Sample, Status};

use crate::gain::quotient;
use crate::work::Work;

/// A mode that cannot be the baseline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{mode:?} was not measured; measured: {measured}")]
pub struct NoBaseline {
    mode: String,
    /// Names of the modes with figures.
    measured: String,
}

/// Returns the results with ratios to this mode. Cells of the old A/A test are left out, because
/// they say nothing about the noise of the new baseline. Ratios of varied settings stay: they refer
/// to the same mode as found.
pub fn rebased(mut results: Results, baseline: &str) -> Result<Results, NoBaseline> {
    if results.plan.baseline == baseline {
        return Ok(results);
    }
    results.cells = cells(&results, baseline)?;
    // Its marks are indices of cells.
    results.timeline = None;
    results.plan.baseline = baseline.to_owned();
    results.warnings.push(format!(
        "ratios are to {baseline}, chosen for this report; the run has no A/A test of it, so the \
         noise floor is unknown"
    ));
    Ok(results)
}

fn cells(results: &Results, baseline: &str) -> Result<Vec<Cell>, NoBaseline> {
    let as_found = |cell: &&Cell| cell.setting.is_none() && cell.role != Role::Aa;
    let measured = || results.cells.iter().filter(as_found).filter(|c| c.status == Status::Ok);
    let mut references: HashMap<(Work<'_>, &str), &Cell> = HashMap::new();
    for cell in measured().filter(|cell| cell.mode == baseline) {
        references.entry((Work::of(cell), cell.offload.name())).or_insert(cell);
    }
    if references.is_empty() {
        let mut names: Vec<&str> = measured().map(|cell| cell.mode.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        return Err(NoBaseline { mode: baseline.to_owned(), measured: names.join(", ") });
    }
    let cells = results.cells.iter().filter(|cell| cell.role != Role::Aa).map(|cell| {
        if cell.setting.is_some() {
            return cell.clone();
        }
        let reference = references.get(&(Work::of(cell), cell.offload.name())).copied();
        against(results, cell, reference)
    });
    Ok(cells.collect())
}

/// Returns a cell with ratios to another one of the same work; `None`: without ratios.
fn against(results: &Results, cell: &Cell, reference: Option<&Cell>) -> Cell {
    let is_baseline = reference.is_some_and(|reference| std::ptr::eq(reference, cell));
    let other = reference.filter(|_| !is_baseline);
    let samples = cell.samples.iter().map(|sample| Sample {
        ratio: of_block(sample, other, |sample| Some(sample.value)),
        service_demand_ratio: of_block(sample, other, |sample| sample.service_demand),
        ..sample.clone()
    });
    let ratio = |figure| other.and_then(|other| quotient(results, cell, other, figure));
    let mut rebased = Cell {
        role: if is_baseline { Role::Baseline } else { Role::Measured },
        samples: samples.collect(),
        ratio: ratio(|sample| Some(sample.value)),
        ..cell.clone()
    };
    if let Some(demand) = &mut rebased.service_demand {
        demand.ratio = ratio(|sample| sample.service_demand);
    }
    rebased.trend = drift(&rebased);
    rebased
}

/// Returns a sample's figure ÷ that of the other cell's valid sample of the same block.
fn of_block(
    sample: &Sample,
    other: Option<&Cell>,
    figure: fn(&Sample) -> Option<f64>,
) -> Option<f64> {
    let same = |other: &&Sample| other.valid && other.block == sample.block;
    let below = figure(other?.samples.iter().find(same)?).filter(|below| *below > 0.0)?;
    Some(figure(sample).filter(|_| sample.valid)? / below)
}

/// Describes a drift as the run does.
fn drift(cell: &Cell) -> Option<String> {
    let is_baseline = cell.role == Role::Baseline;
    let figure = |sample: &Sample| if is_baseline { Some(sample.value) } else { sample.ratio };
    let valid = cell.samples.iter().filter(|sample| sample.valid);
    let found = trend(&valid.filter_map(figure).collect::<Vec<_>>()).ok()?;
    let of = if is_baseline { "value" } else { "ratio" };
    found.is_significant().then(|| format!("{of}: {found}"))
}
