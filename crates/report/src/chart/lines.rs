//! Draws series of points joined by lines, on two axes, with a legend below.

use super::label::{Taken, beside, rows};
use super::scale::{Kind, Scale};
use super::svg::{Anchor, FONT, LINE, Svg, WIDTH, fitted, text_width};

/// Height of the field between the axes, pixels.
const FIELD: f64 = 190.0;

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Ends of a vertical interval.
    pub(crate) ends: Option<(f64, f64)>,
    /// Text beside it, if there is room.
    pub(crate) label: String,
}

/// Points with a common name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Index of colour, dash and marker.
    pub(crate) style: usize,
    pub(crate) points: Vec<Point>,
}

/// An axis: label, scale, and optional own ticks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    pub(crate) words: String,
    pub(crate) kind: Kind,
    /// Figures to mark, with labels. If empty, round figures are marked.
    pub(crate) ticks: Vec<(f64, String)>,
}

/// Series of points over two axes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Lines {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// A line across at this figure.
    pub(crate) mark: Option<f64>,
    pub(crate) markers: bool,
    pub(crate) series: Vec<Series>,
}

fn usable(value: f64, kind: Kind) -> bool {
    value.is_finite() && (kind != Kind::Log || value > 0.0)
}

/// Returns the image and its height; `None` without any point.
pub(crate) fn draw(lines: &Lines) -> Option<(String, f64)> {
    let points = || lines.series.iter().flat_map(|series| &series.points);
    let of = |kind: Kind, values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.filter(|value| usable(*value, kind)).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        Some((low, values.iter().copied().fold(low, f64::max)))
    };
    let (x_low, x_high) = of(lines.x.kind, &mut points().map(|point| point.x))?;
    let mut figures = points()
        .flat_map(|point| [Some(point.y), point.ends.map(|e| e.0), point.ends.map(|e| e.1)])
        .flatten()
        .chain(lines.mark);
    let (mut y_low, mut y_high) = of(lines.y.kind, &mut figures)?;
    match lines.y.kind {
        Kind::Log => (y_low, y_high) = (y_low / 1.15, y_high * 1.15),
        // A linear axis includes 0, so that differences are not exaggerated.
        _ => (y_low, y_high) = (y_low.min(0.0), y_high * 1.06),
    }
    let mut svg = Svg::default();
    let top = LINE + 8.0;
    let bottom = top + FIELD;
    let y = Scale::new(lines.y.kind, y_low, y_high, bottom, top);
    let y_ticks = y.ticks(5);
    let widest = y_ticks.iter().map(|(_, label)| text_width(label)).fold(0.0, f64::max);
    let (left, right) = (widest.min(70.0) + 8.0, WIDTH - 12.0);
    let x = Scale::new(lines.x.kind, x_low, x_high, left + 8.0, right - 6.0);
    svg.text("t muted", (2.0, FONT + 1.0), Anchor::Start, &fitted(&lines.y.words, WIDTH - 4.0));
    for (figure, label) in &y_ticks {
        let at = y.place(*figure);
        svg.line("grid", (left, at), (right, at));
        svg.text("t", (left - 4.0, at + 4.0), Anchor::End, label);
    }
    let x_ticks = if lines.x.ticks.is_empty() { x.ticks(6) } else { lines.x.ticks.clone() };
    let labels: Vec<(f64, String)> =
        x_ticks.iter().map(|(figure, label)| (x.place(*figure), label.clone())).collect();
    for i in beside(&labels) {
        let (at, label) = &labels[i];
        svg.line("axis", (*at, bottom), (*at, bottom + 4.0));
        // A label may extend beyond the field, but not beyond the image.
        let half = 0.5 * text_width(label);
        let at = at.clamp(half + 1.0, (WIDTH - half - 1.0).max(half + 1.0));
        svg.text("t", (at, bottom + LINE), Anchor::Middle, label);
    }
    svg.line("axis", (left, bottom), (right, bottom));
    let words = fitted(&lines.x.words, right - left);
    svg.text("t muted", (0.5 * (left + right), bottom + 2.0 * LINE), Anchor::Middle, &words);
    if let Some(mark) = lines.mark {
        svg.line("mark", (left, y.place(mark)), (right, y.place(mark)));
    }
    let mut taken = Taken::default();
    for series in &lines.series {
        let style = series.style % 8;
        let shown: Vec<&Point> = series
            .points
            .iter()
            .filter(|point| usable(point.x, lines.x.kind) && usable(point.y, lines.y.kind))
            .collect();
        let places: Vec<(f64, f64)> =
            shown.iter().map(|point| (x.place(point.x), y.place(point.y))).collect();
        svg.polyline(&format!("l s{style} d{}", series.style % 16), &places);
        for (point, place) in shown.iter().zip(&places) {
            if let Some((low, high)) = point.ends {
                svg.line(&format!("w s{style}"), (place.0, y.place(low)), (place.0, y.place(high)));
            }
            if lines.markers {
                let title = format!("{} {}: {}", series.name, point.label, short_pair(point));
                svg.marker(series.style, *place, &title);
                // Labels must not cover markers.
                taken.take(place.0 - 4.0, place.1 - 4.0, place.0 + 4.0, place.1 + 4.0);
            }
        }
    }
    // Labels come last, when all markers have their places.
    for (series, point) in lines.series.iter().flat_map(|s| s.points.iter().map(move |p| (s, p))) {
        if point.label.is_empty()
            || !usable(point.x, lines.x.kind)
            || !usable(point.y, lines.y.kind)
        {
            // A logarithmic axis has no place for 0.
            continue;
        }
        let place = (x.place(point.x), y.place(point.y));
        if let Some(at) = taken.near(place, &point.label, (left, WIDTH), (top - 6.0, bottom)) {
            svg.text(&format!("t c{}", series.style % 8), at, Anchor::Start, &point.label);
        }
    }
    let names: Vec<String> =
        lines.series.iter().map(|series| fitted(&series.name, WIDTH - 50.0)).collect();
    let below = bottom + 2.0 * LINE + 8.0;
    let (places, height) = rows(&names, 34.0, WIDTH - 4.0);
    for ((series, name), (dx, dy)) in lines.series.iter().zip(&names).zip(places) {
        let at = below + dy + 0.5 * LINE;
        let style = series.style % 8;
        let ends = [(dx + 2.0, at), (dx + 26.0, at)];
        svg.polyline(&format!("l s{style} d{}", series.style % 16), &ends);
        if lines.markers {
            svg.marker(series.style, (dx + 14.0, at), "");
        }
        svg.text("t", (dx + 31.0, at + 4.0), Anchor::Start, name);
    }
    Some(svg.finish(below + height + 4.0))
}

fn short_pair(point: &Point) -> String {
    use super::scale::short;
    let ends = point.ends.map(|(low, high)| format!(" ({} – {})", short(low), short(high)));
    format!("{} at {}{}", short(point.y), short(point.x), ends.unwrap_or_default())
}
