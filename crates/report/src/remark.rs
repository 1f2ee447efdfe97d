//! Texts below the tables: unmeasured modes with reasons, and cautions about the figures.

use std::collections::BTreeMap;

use results::stats::relative_half_width;
use results::{EcnCounts, EndedBy, Results, Role, Status};

use crate::fault;
use crate::panel::{is_undecided, noise_floor};
use crate::style::plain;
use crate::unit::{count, percent, ratio};
use crate::work::place;

/// A mode, some of its cells, or trials of a fault without a figure.
pub(crate) struct Missing {
    /// Mode, with its cells or trials if not all are affected.
    pub(crate) what: String,
    /// Unsupported or failed; never `Ok`.
    pub(crate) status: Status,
    /// Why it has no figure.
    pub(crate) reason: String,
    pub(crate) remedy: Option<String>,
}

/// Returns requested modes and cells without a figure, modes first. Cells of a mode that failed for
/// the same reason share an entry.
pub(crate) fn missing(results: &Results) -> Vec<Missing> {
    let mut missing: Vec<Missing> = results
        .modes
        .iter()
        .filter(|mode| mode.status != Status::Ok)
        .map(|mode| Missing {
            what: plain(&mode.mode),
            status: mode.status,
            reason: plain(mode.reason.as_deref().unwrap_or("no reason given")),
            remedy: mode.remedy.as_deref().map(plain),
        })
        .collect();
    let whole: Vec<&str> = results
        .modes
        .iter()
        .filter(|mode| mode.status != Status::Ok)
        .map(|mode| mode.mode.as_str())
        .collect();
    let mut cells: BTreeMap<(&str, &str), (Status, Vec<String>)> = BTreeMap::new();
    for cell in &results.cells {
        // Cells of a mode that failed as a whole are covered by its entry.
        if cell.status != Status::Ok && !cell.never_ran() && !whole.contains(&cell.mode.as_str()) {
            let reason = cell.reason.as_deref().unwrap_or("no reason given");
            let entry = cells.entry((&cell.mode, reason)).or_insert((cell.status, Vec::new()));
            entry.1.push(place(results, cell));
        }
    }
    missing.extend(cells.into_iter().map(|((mode, reason), (status, places))| Missing {
        what: format!("{} in {}", plain(mode), some_of(&places, 3)),
        status,
        reason: plain(reason),
        remedy: None,
    }));
    missing.extend(failed_trials(results));
    let never_ran = results.cells.iter().filter(|cell| cell.never_ran()).count();
    if never_ran > 0 {
        missing.push(Missing {
            what: count(never_ran, "cell"),
            status: Status::Unsupported,
            reason: "the run ended before the first sample".to_owned(),
            remedy: None,
        });
    }
    missing
}

/// Returns failed trials of faults. Trials of one fault with the same reason share an entry.
fn failed_trials(results: &Results) -> Vec<Missing> {
    let mut missing = Vec::new();
    for record in &results.faults {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        for reason in record.trials.iter().filter_map(|trial| trial.reason.as_deref()) {
            *reasons.entry(reason).or_default() += 1;
        }
        missing.extend(reasons.into_iter().map(|(reason, times)| Missing {
            what: format!(
                "{}, fault {}, {times} of {}",
                fault::place(record),
                plain(&record.fault),
                count(record.trials.len(), "trial")
            ),
            status: Status::Failed,
            reason: plain(reason),
            remedy: None,
        }));
    }
    missing
}

pub(crate) fn notes(results: &Results) -> Vec<String> {
    let noted = results.modes.iter().filter(|mode| mode.status == Status::Ok);
    noted
        .filter(|mode| !mode.notes.is_empty())
        .map(|mode| format!("{}: {}", plain(&mode.mode), plain(&mode.notes.join("; "))))
        .collect()
}

/// Returns the run's own warnings, and warnings derived from its figures.
pub(crate) fn warnings(results: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    // Figures of an unfinished run have fewer samples than planned.
    if !results.complete {
        let of_faults = match fault::trials(results) {
            (_, 0) => String::new(),
            (done, asked) => format!(", and {done} of {asked} trials of faults"),
        };
        let without_end = [EndedBy::Interrupted, EndedBy::Failed].contains(&results.ended_by);
        warnings.push(match without_end {
            true => format!(
                "The run did not finish ({}): these figures contain {} of {} blocks{of_faults}.",
                results.ended_by,
                results.plan.blocks_done,
                results.plan.blocks.max(results.plan.blocks_done),
            ),
            false => "No cell has a valid sample: this run has no result.".to_string(),
        });
    }
    if [EndedBy::MaxBlocks, EndedBy::OutOfReach].contains(&results.ended_by)
        && let Some(goal) = results.plan.confidence.half_width
    {
        warnings.push(format!(
            "Not every ratio reached ±{} within {} blocks.",
            percent(goal),
            results.plan.max_blocks
        ));
    }
    warnings.extend(results.warnings.iter().map(|warning| plain(warning)));
    for cell in &results.cells {
        // The A/A cell compares the baseline with itself, so a proven difference there is an
        // artefact.
        if cell.role == Role::Aa
            && !is_undecided(cell)
            && let Some(floor) = cell.ratio
        {
            warnings.push(format!(
                "Noise floor: {} differs from itself in {} (ratio {} to {}). Something other than \
                 the mode varies between samples there: ignore differences below {}.",
                plain(&cell.mode),
                place(results, cell),
                ratio(floor.low),
                ratio(floor.high),
                percent(noise_floor(&floor))
            ));
        }
    }
    warnings.extend(cleared(results));
    warnings.extend(unknown_cpu(results));
    warnings.extend(void_samples(results));
    warnings.extend(trends(results));
    warnings
}

/// Returns the cells whose CPU time is unknown, with the reason of the first.
fn unknown_cpu(results: &Results) -> Option<String> {
    let cells = results.cells.iter().filter(|cell| cell.status == Status::Ok);
    let unknown: Vec<&str> =
        cells.filter_map(|cell| cell.service_demand_reason.as_deref()).collect();
    let first = unknown.first()?;
    let cells = count(unknown.len(), "cell");
    Some(format!("CPU time per unit of {cells} is unknown: {}.", plain(first)))
}

/// Returns the cells whose path clears the codepoint of datagrams.
fn cleared(results: &Results) -> Option<String> {
    let cells = results.cells.iter().filter(|cell| cell.status == Status::Ok);
    let cleared: Vec<String> = cells
        .filter_map(|cell| {
            let EcnCounts { arrived, not_ect, .. } = crate::ecn::counts(cell)?;
            let cleared = not_ect.filter(|cleared| *cleared > 0)?;
            let share = percent(cleared as f64 / arrived.max(1) as f64);
            Some(format!("{share} in {} in {}", crate::panel::name(cell), place(results, cell)))
        })
        .collect();
    (!cleared.is_empty()).then(|| {
        format!("ECN: datagrams arrived without their codepoint: {}.", some_of(&cleared, 3))
    })
}

/// Returns the number of discarded samples, by reason.
fn void_samples(results: &Results) -> Option<String> {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let mut taken = 0;
    for sample in results.cells.iter().flat_map(|cell| &cell.samples) {
        taken += 1;
        if !sample.valid {
            let reason = sample.invalid_reason.as_deref().unwrap_or("no reason given");
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let void: usize = reasons.values().sum();
    let mut by_count: Vec<(&str, usize)> = reasons.into_iter().collect();
    // Most frequent reason first.
    by_count.sort_by_key(|(reason, times)| (std::cmp::Reverse(*times), *reason));
    let named: Vec<String> =
        by_count.iter().map(|(reason, times)| format!("{} ({times})", plain(reason))).collect();
    (void > 0).then(|| {
        let verb = if void == 1 { "was" } else { "were" };
        format!("{void} of {} {verb} discarded: {}.", count(taken, "sample"), some_of(&named, 3))
    })
}

/// Returns the cells that drift over the run.
fn trends(results: &Results) -> Option<String> {
    let drifting: Vec<String> = results
        .cells
        .iter()
        .filter_map(|cell| {
            let trend = cell.trend.as_deref()?;
            Some(format!(
                "{} in {} {}",
                crate::panel::name(cell),
                place(results, cell),
                plain(trend)
            ))
        })
        .collect();
    (!drifting.is_empty()).then(|| {
        let verb = if drifting.len() == 1 { "drifts" } else { "drift" };
        format!("{} {verb} over the run: {}.", count(drifting.len(), "cell"), some_of(&drifting, 3))
    })
}

/// Returns the widest interval, as ± of its median. More blocks would narrow it.
pub(crate) fn widest(results: &Results) -> Option<f64> {
    results
        .cells
        .iter()
        .filter_map(|cell| cell.ratio.as_ref())
        .map(relative_half_width)
        // A median of 0 makes the relative width infinite.
        .filter(|width| width.is_finite())
        .reduce(f64::max)
}

/// Joins the first `shown` items, and counts the rest.
pub(crate) fn some_of(items: &[String], shown: usize) -> String {
    if items.len() <= shown {
        return items.join(", ");
    }
    format!("{} and {} more", items[..shown].join(", "), items.len() - shown)
}
