//! Draws named rows with marks on one axis: intervals, points, stacked bars.

use super::label::{beside, rows};
use super::scale::{Kind, Scale, short};
use super::svg::{Anchor, FONT, LINE, Svg, WIDTH, fitted, text_width};

/// Height of a row, pixels.
const ROW: f64 = 19.0;
/// Widest name of a row, pixels.
const NAME: f64 = 116.0;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mark {
    /// Index of colour and shape, and with [`Bars::legend`] of its entry.
    pub(crate) style: usize,
    pub(crate) at: f64,
    /// Ends of a horizontal interval.
    pub(crate) ends: Option<(f64, f64)>,
}

/// A row, or a heading if it has only a name.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) marks: Vec<Mark>,
    /// Lengths laid end to end from 0, each in the style of its index.
    pub(crate) stack: Vec<f64>,
    /// Text at the right end.
    pub(crate) figure: String,
    pub(crate) heading: bool,
}

impl Row {
    pub(crate) fn heading(name: String) -> Row {
        Row { name, heading: true, ..Row::default() }
    }
}

/// Rows of bars over one axis, with their legend.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bars {
    pub(crate) words: String,
    pub(crate) kind: Kind,
    /// A line at this figure.
    pub(crate) mark: Option<f64>,
    /// Names of the styles; empty if none are needed.
    pub(crate) legend: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// Returns the image and its height; `None` without any figure.
pub(crate) fn draw(bars: &Bars) -> Option<(String, f64)> {
    let usable = |value: &f64| value.is_finite() && (bars.kind != Kind::Log || *value > 0.0);
    let values: Vec<f64> =
        bars.rows
            .iter()
            .flat_map(|row| {
                let marks = row.marks.iter().flat_map(|mark| {
                    [Some(mark.at), mark.ends.map(|e| e.0), mark.ends.map(|e| e.1)]
                });
                marks.flatten().chain((!row.stack.is_empty()).then(|| row.stack.iter().sum()))
            })
            .chain(bars.mark)
            .filter(usable)
            .collect();
    let smallest = values.iter().copied().reduce(f64::min)?;
    let largest = values.iter().copied().fold(smallest, f64::max);
    let (low, high) = match bars.kind {
        Kind::Log => (smallest / 1.1, largest * 1.1),
        // Bars start at 0, so that their lengths are proportional to the figures.
        _ => (0.0, largest * 1.03),
    };
    let mut svg = Svg::default();
    let names = bars.rows.iter().filter(|row| !row.heading).map(|row| text_width(&row.name));
    // Long names are shortened, so that the bars keep their room.
    let left = names.fold(30.0, f64::max).min(NAME) + 8.0;
    let figures = bars.rows.iter().map(|row| text_width(&row.figure)).fold(0.0, f64::max);
    let right = WIDTH - 8.0 - if figures > 0.0 { figures + 6.0 } else { 0.0 };
    let scale = Scale::new(bars.kind, low, high, left, right);
    let top = 6.0;
    let bottom = top + ROW * bars.rows.len() as f64;
    let ticks: Vec<(f64, String)> =
        scale.ticks(5).into_iter().map(|(figure, label)| (scale.place(figure), label)).collect();
    for i in beside(&ticks) {
        let (at, label) = &ticks[i];
        svg.line("grid", (*at, top), (*at, bottom));
        let half = 0.5 * text_width(label);
        // A label at the end of the axis must stay inside the image.
        let at = at.clamp(half + 1.0, (WIDTH - half - 1.0).max(half + 1.0));
        svg.text("t", (at, bottom + LINE), Anchor::Middle, label);
    }
    if let Some(mark) = bars.mark {
        svg.line("mark", (scale.place(mark), top), (scale.place(mark), bottom));
    }
    for (i, row) in bars.rows.iter().enumerate() {
        let middle = top + ROW * (i as f64 + 0.5);
        // A heading spans the row and has no marks.
        if row.heading {
            svg.rect("band", (0.0, middle - 0.5 * ROW), (WIDTH, ROW), "");
            let name = fitted(&row.name, WIDTH - 8.0);
            svg.text("t b", (3.0, middle + 4.0), Anchor::Start, &name);
            // A heading has no bar.
            continue;
        }
        let name = fitted(&row.name, left - 8.0);
        svg.text("t", (left - 6.0, middle + 4.0), Anchor::End, &name);
        svg.text("t", (WIDTH - 3.0, middle + 4.0), Anchor::End, &row.figure);
        let mut begin = 0.0;
        for (style, length) in row.stack.iter().enumerate() {
            let (from, to) = (scale.place(begin), scale.place(begin + length.max(0.0)));
            // An edited file may hold negative lengths, which would draw backwards.
            begin += length.max(0.0);
            let name = bars.legend.get(style).map(String::as_str).unwrap_or_default();
            let title = format!("{}: {name} {}", row.name, short(*length));
            let size = (to - from, ROW - 6.0);
            svg.rect(&format!("k f{}", style % 8), (from, middle - 0.5 * size.1), size, &title);
            stripes(&mut svg, style, from, to, middle, size.1);
        }
        for mark in &row.marks {
            let style = mark.style % 8;
            // A log axis has no place for 0.
            if let Some((low, high)) = mark.ends.filter(|(low, high)| usable(low) && usable(high)) {
                let ends = [(scale.place(low), middle), (scale.place(high), middle)];
                svg.line(&format!("w s{style}"), ends[0], ends[1]);
                for (x, y) in ends {
                    svg.line(&format!("w s{style}"), (x, y - 3.0), (x, y + 3.0));
                }
            }
            if usable(&mark.at) {
                let ends =
                    mark.ends.map(|(low, high)| format!(" ({} – {})", short(low), short(high)));
                let title = format!("{}: {}{}", row.name, short(mark.at), ends.unwrap_or_default());
                svg.marker(mark.style, (scale.place(mark.at), middle), &title);
            }
        }
    }
    svg.line("axis", (left, bottom), (right, bottom));
    let words = fitted(&bars.words, WIDTH - 8.0);
    let centre = 0.5 * (left + right);
    let half = 0.5 * text_width(&words);
    // A long axis label must stay inside the image.
    let centre = centre.clamp(half + 2.0, (WIDTH - half - 2.0).max(half + 2.0));
    svg.text("t muted", (centre, bottom + 2.0 * LINE), Anchor::Middle, &words);
    let mut height = bottom + 2.0 * LINE + 6.0;
    let stacked = bars.rows.iter().any(|row| !row.stack.is_empty());
    let entries: Vec<String> = bars.legend.iter().map(|name| fitted(name, WIDTH - 40.0)).collect();
    let (places, rows_height) = rows(&entries, 24.0, WIDTH - 4.0);
    for (style, (name, (dx, dy))) in entries.iter().zip(places).enumerate() {
        let at = height + dy + 0.5 * LINE;
        if stacked {
            svg.rect(&format!("k f{}", style % 8), (dx + 2.0, at - 5.0), (16.0, 10.0), "");
            stripes(&mut svg, style, dx + 2.0, dx + 18.0, at, 10.0);
        } else {
            svg.marker(style, (dx + 10.0, at), "");
        }
        svg.text("t", (dx + 22.0, at + 4.0), Anchor::Start, name);
    }
    height += rows_height + if entries.is_empty() { 0.0 } else { FONT * 0.4 };
    Some(svg.finish(height))
}

/// Draws lines across a bar, so that kinds differ without colour: none for the first kind, then
/// increasingly dense.
fn stripes(svg: &mut Svg, style: usize, from: f64, to: f64, middle: f64, height: f64) {
    let every = match style {
        0 => return,
        1 => 9.0,
        2 => 5.0,
        _ => 2.6,
    };
    let mut x = from + 0.5 * every;
    while x < to {
        svg.line("stripe", (x, middle - 0.5 * height), (x, middle + 0.5 * height));
        x += every;
    }
}
