//! Ratios within a block: a cell's sample divided by another cell's sample of the same block, so
//! that common disturbances cancel.

use crate::plan::{Plan, PlannedCell};
use load::ask::{Ask, Engine};
use results::{Role, Sample};

/// Sets every sample's ratio to the baseline's sample of the same block.
pub(crate) fn fill(plan: &Plan, samples: &mut [Vec<Sample>]) {
    fill_by(&references(plan), samples);
}

/// Returns the index of each cell's baseline; `None` for a baseline.
pub(crate) fn references(plan: &Plan) -> Vec<Option<usize>> {
    let of = |cell: &PlannedCell| (cell.role != Role::Baseline).then_some(cell.baseline);
    plan.cells.iter().map(of).collect()
}

/// As [`fill`], with the index of each cell's baseline.
pub(crate) fn fill_by(references: &[Option<usize>], samples: &mut [Vec<Sample>]) {
    for (at, reference) in references.iter().enumerate() {
        let Some(reference) = *reference else { continue };
        let (mut own, baseline) = (std::mem::take(&mut samples[at]), &samples[reference]);
        for sample in own.iter_mut().filter(|sample| sample.valid) {
            let reference =
                baseline.iter().find(|other| other.block == sample.block && other.valid);
            // Without a valid baseline in this block, the sample has no ratio.
            let Some(reference) = reference else { continue };
            sample.ratio = ratio(sample.value, reference.value);
            sample.service_demand_ratio = sample
                .service_demand
                .zip(reference.service_demand)
                .and_then(|(own, reference)| quotient(own, reference));
        }
        samples[at] = own;
    }
}

/// Returns the ratio of two values; 0 if nothing arrived, as with a flood.
fn ratio(value: f64, reference: f64) -> Option<f64> {
    if value == 0.0 && reference > 0.0 { Some(0.0) } else { quotient(value, reference) }
}

/// Returns the quotient; `None` unless both values are positive. A baseline that moved nothing
/// has no ratio.
fn quotient(value: f64, reference: f64) -> Option<f64> {
    let ratio = value / reference;
    (value > 0.0 && reference > 0.0 && ratio.is_finite()).then_some(ratio)
}

/// Returns the ratios of a tool's values to those of the built-in engine on the same path with
/// the same request in the same block. Empty if the run has no such cell.
pub(crate) fn against_built_in(plan: &Plan, samples: &[Vec<Sample>], at: usize) -> Vec<f64> {
    let cell = &plan.cells[at];
    let twin = |other: &PlannedCell| {
        let ask = Ask { engine: Engine::Overlane, ..cell.ask };
        (other.subject, other.role, other.setting, other.ask)
            == (cell.subject, cell.role, cell.setting, ask)
    };
    let Some(twin) = plan.cells.iter().position(twin).filter(|twin| *twin != at) else {
        return Vec::new();
    };
    let valid = |sample: &&Sample| sample.valid;
    samples[at]
        .iter()
        .filter(valid)
        .filter_map(|own| {
            let other = samples[twin].iter().filter(valid).find(|s| s.block == own.block)?;
            ratio(own.value, other.value)
        })
        .collect()
}
