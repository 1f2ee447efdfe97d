//! Charts of latency by percentile, one line per mode.

use results::{Bin, Results};

use super::lines::{Axis, Lines, Point, Series, draw};
use super::scale::Kind;
use super::{Chart, modes, offload_words, style_of};
use crate::beside;
use crate::panel::{name, panels};
use crate::style::plain;
use crate::work::Work;

/// Most points of a line. A histogram may have thousands of bins.
const POINTS: usize = 160;

/// Returns a chart for each table and offload profile with histograms.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let modes = modes(results);
    let mut charts = Vec::new();
    for panel in panels(results) {
        for group in &panel.groups {
            let series: Vec<Series> = group
                .cells
                .iter()
                .filter(|cell| !cell.histogram.is_empty())
                .map(|cell| Series {
                    name: name(cell),
                    style: style_of(&modes, cell),
                    points: curve(&cell.histogram),
                })
                .collect();
            let offload = offload_words(results, &plain(group.offload));
            charts.extend(chart("latency", format!("{}{offload}", panel.title()), series));
        }
    }
    charts.extend(beside_charts(results));
    charts
}

fn chart(slug: &'static str, title: String, series: Vec<Series>) -> Option<Chart> {
    let lines = Lines {
        x: Axis { words: "percentile".into(), kind: Kind::Tail, ticks: Vec::new() },
        y: Axis { words: "latency, µs".into(), kind: Kind::Log, ticks: Vec::new() },
        mark: None,
        markers: false,
        series,
    };
    Chart::new(slug, title, "Each line ends where only ten requests were slower.", draw(&lines))
}

/// Returns a chart for each mode whose requests were measured alone and beside bulk traffic.
fn beside_charts(results: &Results) -> Vec<Chart> {
    let of_mode = |(work, path): (&Work<'_>, &beside::Path<'_>)| {
        let series = path.cells.iter().enumerate().filter(|(_, cell)| !cell.histogram.is_empty());
        let series = series.map(|(style, cell)| Series {
            name: beside::name(cell).to_owned(),
            style,
            points: curve(&cell.histogram),
        });
        let offload = offload_words(results, &plain(path.offload));
        let title = format!("{}: {}{offload}, beside bulk traffic", work.title(), plain(path.mode));
        chart("latency-beside", title, series.collect())
    };
    let all = beside::compared(results);
    let paths = all.iter().flat_map(|(work, paths)| paths.iter().map(move |path| (work, path)));
    paths.filter_map(of_mode).collect()
}

/// Returns points (percentile, latency), up to where only ten transactions are slower.
fn curve(bins: &[Bin]) -> Vec<Point> {
    let total = bins.iter().fold(0_u64, |sum, bin| sum.saturating_add(bin.count));
    let mut seen = 0_u64;
    let mut points: Vec<Point> = Vec::new();
    for bin in bins {
        // The bin covers the percentiles from the end of the bins below it to its own end.
        let x = seen as f64 / total.max(1) as f64;
        seen = seen.saturating_add(bin.count);
        // Percentiles beyond depend on single requests.
        if total - seen.min(total) < 10 && !points.is_empty() {
            break;
        }
        points.push(Point { x, y: bin.us, ..Point::default() });
        let x = seen as f64 / total.max(1) as f64;
        points.push(Point { x, y: bin.us, ..Point::default() });
    }
    // Steps are even along the axis, not along the bins.
    let spread = |p: f64| -(1.0 - p.min(1.0 - 1e-12)).ln();
    let end = points.last().map_or(0.0, |point| spread(point.x));
    let mut last = f64::NEG_INFINITY;
    points.retain(|point| {
        let keep = spread(point.x) - last >= end / POINTS as f64;
        if keep {
            last = spread(point.x);
        }
        keep
    });
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_and_ends_where_ten_are_slower() {
        let bins: Vec<Bin> =
            (1..2000).map(|i| Bin { us: f64::from(i), count: 4000 / i as u64 }).collect();
        let curve = curve(&bins);
        assert!(curve.len() <= POINTS + 1 && curve.len() > 20);
        assert!(curve.windows(2).all(|pair| pair[0].x <= pair[1].x && pair[0].y <= pair[1].y));
        assert!(curve.last().unwrap().x < 1.0);
        assert!(super::curve(&[]).is_empty());
    }
}
