//! Charts of latency against offered load.

use results::{Cell, Offered, Results, Role, Status};

use super::lines::{Axis, Lines, Point, Series, draw};
use super::scale::Kind;
use super::{Chart, groups, modes, offload_words, style_of};
use crate::detail::quantile;
use crate::panel::name;
use crate::style::plain;
use crate::work::Work;

/// Percentiles shown, one chart each.
const SHOWN: [(f64, &str); 3] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];

/// Returns charts for each workload measured at several loads.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let loadless = |cell| Work { load: None, ..Work::of(cell) };
    let open =
        |cell: &Cell| cell.offered.is_some() && cell.status == Status::Ok && cell.role != Role::Aa;
    let mut charts = Vec::new();
    for (work, offload, cells) in groups(results, open, loadless) {
        let in_percent = cells.iter().all(|c| c.offered.is_some_and(|o| o.percent.is_some()));
        let load = |offered: Offered| match offered.percent {
            Some(percent) if in_percent => percent,
            // Cells with loads in different units share only the rate.
            _ => offered.per_s,
        };
        for (p, label) in SHOWN {
            let title =
                format!("{}{}: {label}", work.title(), offload_words(results, &plain(offload)));
            let words = if in_percent {
                "load, percent of each path's own maximum"
            } else {
                "load, per second"
            };
            let lines = Lines {
                x: Axis { words: words.into(), kind: Kind::Linear, ticks: Vec::new() },
                y: Axis { words: format!("{label}, µs"), kind: Kind::Log, ticks: Vec::new() },
                mark: None,
                markers: true,
                series: series(results, &cells, p, &load),
            };
            // A single load gives no curve.
            if lines.series.iter().any(|series| series.points.len() > 1) {
                let caption = "Measured from the intended time of sending.";
                charts.extend(Chart::new("load", title, caption, draw(&lines)));
            }
        }
    }
    charts
}

fn series(
    results: &Results,
    cells: &[&Cell],
    p: f64,
    load: &dyn Fn(Offered) -> f64,
) -> Vec<Series> {
    let modes = modes(results);
    let mut series: Vec<Series> = Vec::new();
    for cell in cells {
        let summary = || {
            let latency = cell.latency_us?;
            Some(match p {
                0.5 => latency.p50,
                0.99 => latency.p99,
                _ => latency.p99_9,
            })
        };
        let figure = match cell.histogram.is_empty() {
            true => summary(),
            // The histogram combines all samples, so its tail is more precise.
            false => quantile(&cell.histogram, p),
        };
        // Too few requests for this percentile.
        let (Some(y), Some(offered)) = (figure, cell.offered) else { continue };
        let point = Point { x: load(offered), y, ..Point::default() };
        match series.iter_mut().find(|series| series.name == name(cell)) {
            Some(series) => series.points.push(point),
            None => {
                let style = style_of(&modes, cell);
                series.push(Series { name: name(cell), style, points: vec![point] });
            }
        }
    }
    for series in &mut series {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    series
}
