//! An SVG image while it is drawn. Every text from a file is escaped here and only here; every
//! coordinate is checked to be finite.

use std::fmt::Write;

use crate::style::plain;

/// Size of every text, pixels. Images are at least [`WIDTH`] wide on a phone of 390 pixels, so a
/// pixel here is at least a pixel there.
pub(crate) const FONT: f64 = 11.0;
/// Width of an image, pixels.
pub(crate) const WIDTH: f64 = 350.0;
/// Height of a line of text, pixels.
pub(crate) const LINE: f64 = 16.0;

/// Alignment of a text at its x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Estimates the width of a text in common sans-serif fonts, pixels. Overestimates cost space;
/// underestimates cause overlaps.
pub(crate) fn text_width(text: &str) -> f64 {
    let wide = |c: char| match c {
        'i' | 'l' | 'j' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' => 0.38,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 1.02,
        'A'..='Z' => 0.76,
        c if (c as u32) >= 0x1100 => 1.1,
        _ => 0.66,
    };
    FONT * text.chars().map(wide).sum::<f64>()
}

/// Shortens a text to a width, with an ellipsis.
pub(crate) fn fitted(text: &str, width: f64) -> String {
    let text = plain(text);
    if text_width(&text) <= width {
        return text;
    }
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        // The sign for the cut needs room, too.
        if text_width(&cut) + FONT > width {
            cut.pop();
            break;
        }
    }
    cut.push('…');
    cut
}

/// Escapes for text and double-quoted attributes.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Not valid in XML.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Formats a coordinate: finite, with one decimal.
fn n(value: f64) -> f64 {
    // Browsers reject NaN and infinity, and misplace huge numbers.
    let value = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    (value * 10.0).round() / 10.0
}

/// An image while it is drawn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Svg {
    body: String,
}

impl Svg {
    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (n(from.0), n(from.1), n(to.0), n(to.1));
        let _ = write!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"
        );
    }

    /// Adds a rectangle; `title` is its tooltip.
    pub(crate) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), title: &str) {
        let (x, y, w, h) = (n(at.0), n(at.1), n(size.0.max(0.0)), n(size.1.max(0.0)));
        let _ = write!(
            self.body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\""
        );
        self.close("rect", title);
    }

    /// Adds a line through points.
    pub(crate) fn polyline(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", n(*x), n(*y))).collect();
        let _ = write!(self.body, "<polyline class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// Adds a closed area; points are in pixels.
    pub(crate) fn polygon(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> =
            points.iter().map(|(x, y)| format!("{},{}", n(*x), n(*y))).collect();
        let _ = write!(self.body, "<polygon class=\"{class}\" points=\"{}\"/>", points.join(" "));
    }

    /// Adds one of eight shapes, so that series differ without colour.
    pub(crate) fn marker(&mut self, series: usize, at: (f64, f64), title: &str) {
        let (x, y) = (n(at.0), n(at.1));
        let d = match series % 8 {
            0 => format!("M{x} {y}m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z"),
            1 => format!("M{x} {y}m-3-3h6v6h-6z"),
            2 => format!("M{x} {y}m0-4l3.8 6.6h-7.6z"),
            3 => format!("M{x} {y}m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z"),
            4 => format!("M{x} {y}m0 4l3.8-6.6h-7.6z"),
            5 => format!("M{x} {y}m-1.2-4h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8v-2.4h2.8z"),
            6 => format!("M{x} {y}m-4-1.5h8v3h-8z"),
            _ => format!("M{x} {y}m-1.5-4h3v8h-3z"),
        };
        let _ = write!(self.body, "<path class=\"m f{}\" d=\"{d}\"", series % 8);
        self.close("path", title);
    }

    fn close(&mut self, element: &str, title: &str) {
        if title.is_empty() {
            self.body.push_str("/>");
        } else {
            let _ = write!(self.body, "><title>{}</title></{element}>", escaped(title));
        }
    }

    /// Adds text with its baseline at y.
    pub(crate) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y) = (n(at.0), n(at.1));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let text = escaped(text);
        let _ =
            write!(self.body, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>");
    }

    /// Returns the drawn elements, and the height in pixels.
    pub(crate) fn finish(self, height: f64) -> (String, f64) {
        (self.body, n(height))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_a_file_is_rendered_as_text_only() {
        let mut svg = Svg::default();
        svg.text("t", (1.0, 2.0), Anchor::End, "</text><script>\"&\x1b");
        svg.rect("r", (f64::NAN, f64::INFINITY), (-1.0, 1e300), "<b>");
        let (body, _) = svg.finish(10.0);
        assert_eq!(
            body,
            "<text class=\"t\" x=\"1\" y=\"2\" text-anchor=\"end\">&lt;/text&gt;&lt;script&gt;&quot;&amp;\\x1b\
             </text><rect class=\"r\" x=\"0\" y=\"0\" width=\"0\" height=\"100000\">\
             <title>&lt;b&gt;</title></rect>"
        );
    }

    #[test]
    fn long_names_are_cut_to_their_place() {
        assert_eq!(fitted("host", 100.0), "host");
        let cut = fitted(&"wide-name-".repeat(9), 100.0);
        assert!(cut.ends_with('…') && text_width(&cut) <= 100.0 + FONT, "{cut}");
    }
}
