//! Charts of response time against transactions per second, by number of clients.

use results::{Cell, Results, Role, Status, Unit};

use super::lines::{Axis, Lines, Point, Series, draw};
use super::scale::Kind;
use super::{Chart, groups, modes, offload_words, style_of};
use crate::panel::name;
use crate::style::plain;
use crate::work::Work;

/// Returns a chart for each request/response workload with varying flows or outstanding requests.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let clientless = |cell| Work { flows: 1, outstanding: 1, ..Work::of(cell) };
    let closed = |cell: &Cell| {
        cell.unit == Unit::Transactions
            && cell.offered.is_none()
            && cell.status == Status::Ok
            && cell.role != Role::Aa
    };
    let all = modes(results);
    let mut charts = Vec::new();
    for (work, offload, cells) in groups(results, closed, clientless) {
        let clients = |cell: &Cell| (cell.flows, cell.outstanding);
        // A single number of clients gives no curve.
        if cells.iter().all(|cell| clients(cell) == clients(cells[0])) {
            continue;
        }
        let mut series: Vec<Series> = Vec::new();
        let mut sorted = cells.clone();
        sorted.sort_by_key(|cell| clients(cell));
        for cell in sorted {
            // A failed cell has no rate.
            let Some(point) = point(cell) else { continue };
            match series.iter_mut().find(|series| series.name == name(cell)) {
                Some(series) => series.points.push(point),
                None => series.push(Series {
                    name: name(cell),
                    style: style_of(&all, cell),
                    points: vec![point],
                }),
            }
        }
        let axis = |words: &str| Axis { words: words.into(), kind: Kind::Linear, ticks: vec![] };
        let lines = Lines {
            x: axis("transactions per second"),
            y: axis("response time, µs (median)"),
            mark: None,
            markers: true,
            series,
        };
        charts.extend(Chart::new(
            "clients",
            format!("{}{}", work.title(), offload_words(results, &plain(offload))),
            "Labels: flows × outstanding requests. Right and low is better.",
            draw(&lines),
        ));
    }
    charts
}

fn point(cell: &Cell) -> Option<Point> {
    let rate = cell.median?;
    // Without recorded latency, use Little's law.
    let under_way = f64::from(cell.flows) * f64::from(cell.outstanding);
    let time = cell.latency_us.map_or(1e6 * under_way / rate, |latency| latency.p50);
    let label = match cell.outstanding {
        1 => cell.flows.to_string(),
        outstanding => format!("{}×{outstanding}", cell.flows),
    };
    Some(Point { x: rate, y: time, ends: None, label })
}
