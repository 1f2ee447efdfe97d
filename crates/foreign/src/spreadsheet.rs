//! Cells of CSV, which spreadsheets open.

use std::borrow::Cow;

use crate::plain::plain;

/// A cell as [`crate::Plain`] text, quoted by RFC 4180 where it must be.
///
/// A cell that begins with `=`, `+`, `-` or `@` and is no number gets a single quote in
/// front, so that no spreadsheet computes it (OWASP, "CSV Injection"; a tab and a carriage
/// return, which that page names, too, are shown as escapes). So does one whose first
/// character is such a sign in its full-width form, which some programs fold.
///
/// ```
/// assert_eq!(foreign::csv_cell("=1+1"), "'=1+1");
/// assert_eq!(foreign::csv_cell("-1.5e-3"), "-1.5e-3");
/// ```
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    let mut cell = plain(text);
    let starts = |c: char| "=+-@＝＋－＠".contains(c);
    // Spaces in front are taken off by some programs.
    let is_formula = cell.trim_start().starts_with(starts) && !is_number(&cell);
    if is_formula {
        cell = Cow::Owned(format!("'{cell}"));
    }
    if cell.contains([',', '"', '\n', '\r', ';']) {
        cell = Cow::Owned(format!("\"{}\"", cell.replace('"', "\"\"")));
    }
    cell
}

/// A number, or a list of numbers; `-` alone stands for a missing one.
fn is_number(cell: &str) -> bool {
    cell.split(' ').all(|word| word == "-" || word.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_words() {
        for (raw, cell) in [
            ("vxlan", "vxlan"),
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("+1+cmd", "'+1+cmd"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            (" =1", "' =1"),
            ("\t=1", "\\t=1"),
            ("\r=1", "\\r=1"),
            ("＝1", "'＝1"),
            ("-1.5", "-1.5"),
            ("+3e9", "+3e9"),
            ("- 12 -", "- 12 -"),
            ("a,b", "\"a,b\""),
            ("a\nb", "a\\nb"),
        ] {
            assert_eq!(csv_cell(raw), cell, "{raw:?}");
        }
    }
}
