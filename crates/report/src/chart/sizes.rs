//! Charts of a figure against the message size, one line per mode, or per mode and number of flows.

use results::{Cell, Results, Role, Status};

use super::lines::{Axis, Lines, Point, Series, draw};
use super::scale::Kind;
use super::{Chart, distinct, groups, modes, offload_words, spread, style_of, unit_words};
use crate::panel::name;
use crate::style::plain;
use crate::unit::{bytes, count};
use crate::work::Work;

/// Returns two charts (values, and ratios to the baseline) for each kind of work with varying
/// message size, and a chart of all numbers of flows if these vary, too.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let unsized_ = |cell| Work { message_bytes: 0, ..Work::of(cell) };
    let shown = |cell: &Cell| cell.status == Status::Ok;
    let groups = groups(results, shown, unsized_);
    let mut charts: Vec<Chart> =
        groups.iter().flat_map(|(_, offload, cells)| of(results, cells, offload)).collect();
    let shown = |cell: &Cell| cell.status == Status::Ok && cell.role != Role::Aa;
    let of_all_flows = |cell| Work { message_bytes: 0, flows: 1, ..Work::of(cell) };
    for (_, offload, cells) in super::groups(results, shown, of_all_flows) {
        charts.extend(by_flows(results, &cells, offload));
    }
    charts
}

/// Returns a chart with a line for each mode and number of flows; `None` if sizes or flows do not
/// vary.
fn by_flows(results: &Results, cells: &[&Cell], offload: &str) -> Option<Chart> {
    let flows = distinct(cells.iter().map(|cell| cell.flows));
    let sizes = sizes(cells);
    let first = cells.first().filter(|_| flows.len() > 1 && sizes.len() > 1)?;
    let mut series: Vec<Series> = Vec::new();
    for cell in cells {
        let Some(y) = cell.median else { continue };
        let x = f64::from(cell.message_bytes);
        let point = Point { x, y, ends: spread(cell), label: String::new() };
        let name = format!("{}, {}", name(cell), count(cell.flows as usize, "flow"));
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series { name, style: series.len(), points: vec![point] }),
        }
    }
    for series in &mut series {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    let work = Work { flows: 1, ..Work::of(first) }.described(false, true);
    Chart::new(
        "sizes-flows",
        format!("{work}{}: by message size and flows", offload_words(results, &plain(offload))),
        "Medians. Vertical lines extend from the smallest to the largest sample.",
        draw(&Lines {
            x: axis_of(&sizes),
            y: values_of(cells, first),
            mark: None,
            markers: true,
            series,
        }),
    )
}

/// Returns the message sizes of cells, ascending.
fn sizes(cells: &[&Cell]) -> Vec<u32> {
    let mut sizes: Vec<u32> = cells.iter().map(|cell| cell.message_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn axis_of(sizes: &[u32]) -> Axis {
    Axis {
        words: "message size".to_string(),
        kind: Kind::Log,
        ticks: sizes.iter().map(|size| (f64::from(*size), bytes(f64::from(*size)))).collect(),
    }
}

/// Returns the axis of the cells' values.
fn values_of(cells: &[&Cell], first: &Cell) -> Axis {
    let medians: Vec<f64> = cells.iter().filter_map(|cell| cell.median).collect();
    let largest = medians.iter().copied().fold(0.0, f64::max);
    let smallest = medians.iter().copied().fold(largest, f64::min);
    // Values that span more than a factor of 20 need a log axis.
    let kind = if largest > 20.0 * smallest { Kind::Log } else { Kind::Linear };
    Axis { words: unit_words(first.unit), kind, ticks: Vec::new() }
}

/// A figure and the ends of its interval.
type Figure = (f64, Option<(f64, f64)>);

fn of(results: &Results, cells: &[&Cell], offload: &str) -> Vec<Chart> {
    let sizes = sizes(cells);
    // A single size gives no curve.
    let Some(first) = cells.first().filter(|_| sizes.len() > 1) else { return Vec::new() };
    let modes = modes(results);
    let title = |what: &str| {
        let work = Work::of(first).described(false, true);
        format!("{work}{}: {what}", offload_words(results, &plain(offload)))
    };
    let x = axis_of(&sizes);
    let series = |figure: &dyn Fn(&Cell) -> Option<Figure>, aa: bool| {
        let mut series: Vec<Series> = Vec::new();
        for cell in cells.iter().filter(|cell| aa || cell.role != Role::Aa) {
            // The cell has no such figure: it failed, or it has no ratio.
            let Some((y, ends)) = figure(cell) else { continue };
            let point = Point { x: f64::from(cell.message_bytes), y, ends, label: String::new() };
            let name = name(cell);
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push(point),
                None => {
                    let style = style_of(&modes, cell);
                    series.push(Series { name, style, points: vec![point] });
                }
            }
        }
        for series in &mut series {
            series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        series
    };
    let y = values_of(cells, first);
    let values = Lines {
        x: x.clone(),
        y,
        mark: None,
        markers: true,
        series: series(&|cell| Some((cell.median?, spread(cell))), false),
    };
    let words = format!("ratio to {}", plain(&results.plan.baseline));
    let ratios = Lines {
        x,
        y: Axis { words, kind: Kind::Linear, ticks: Vec::new() },
        mark: Some(1.0),
        markers: true,
        series: series(&|cell| cell.ratio.map(|r| (r.median, Some((r.low, r.high)))), true),
    };
    let drawn = [
        Chart::new(
            "sizes",
            title("by message size"),
            "Medians. Vertical lines extend from the smallest to the largest sample.",
            draw(&values),
        ),
        Chart::new(
            "sizes-ratio",
            title("ratio by message size"),
            "Median ratios with their intervals.",
            draw(&ratios),
        ),
    ];
    drawn.into_iter().flatten().collect()
}
