//! Charts of each mode's ratio to the baseline, with its interval.

use results::{Results, Role, Unit};

use super::bars::{Bars, Mark, Row, draw};
use super::scale::Kind;
use super::{Chart, modes, style_of};
use crate::panel::{name, panels};
use crate::style::plain;
use crate::unit::ratio;

/// Returns a chart per table. Ratios far apart get a logarithmic axis.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let modes = modes(results);
    let chart = |panel: &crate::panel::Panel<'_>| {
        let mut rows = Vec::new();
        for group in &panel.groups {
            rows.push(Row::heading(format!("offload {}", plain(group.offload))));
            // The baseline's ratio to itself is always 1.
            let cells = group.cells.iter().filter(|cell| cell.role != Role::Baseline);
            rows.extend(cells.filter_map(|cell| {
                let interval = cell.ratio?;
                Some(Row {
                    name: name(cell),
                    marks: vec![Mark {
                        style: style_of(&modes, cell),
                        at: interval.median,
                        ends: Some((interval.low, interval.high)),
                    }],
                    figure: ratio(interval.median),
                    ..Row::default()
                })
            }));
        }
        let medians = || panel.cells().filter_map(|cell| cell.ratio).map(|ratio| ratio.median);
        let smallest = medians().fold(1.0, f64::min);
        let largest = medians().fold(1.0, f64::max);
        let kind = if largest > 4.0 && largest / smallest > 8.0 { Kind::Log } else { Kind::Linear };
        let baseline = plain(&results.plan.baseline);
        let is_time = panel.first().unit == Unit::Microseconds;
        let words = if is_time { "latency, " } else { "" };
        let words = format!("{words}ratio to {baseline}");
        let bars = Bars { words, kind, mark: Some(1.0), legend: Vec::new(), rows };
        medians().next()?;
        let caption = if is_time {
            "Latency: right of 1 is worse."
        } else {
            "Left of 1 is less than the baseline."
        };
        Chart::new("ratio", panel.title(), caption, draw(&bars))
    };
    panels(results).iter().filter_map(chart).collect()
}
