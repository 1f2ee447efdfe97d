//! CSV cells that spreadsheets can open safely.

use std::borrow::Cow;

use crate::plain::plain;

/// Returns a cell as [`crate::Plain`] text, quoted by RFC 4180 if needed.
///
/// A cell that starts with `=`, `+`, `-` or `@` and is not a number gets a leading single quote, so
/// that spreadsheets do not evaluate it (OWASP, "CSV Injection"; tabs and carriage returns, which
/// that page also mentions, are shown as escapes). The same applies to the full-width forms of
/// these characters, which some programs normalise.
///
/// ```
/// assert_eq!(foreign::csv_cell("=1+1"), "'=1+1");
/// assert_eq!(foreign::csv_cell("-1.5e-3"), "-1.5e-3");
/// ```
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    let mut cell = plain(text);
    let starts = |c: char| "=+-@＝＋－＠".contains(c);
    // Some programs remove leading spaces.
    let is_formula = cell.trim_start().starts_with(starts) && !is_number(&cell);
    if is_formula {
        cell = Cow::Owned(format!("'{cell}"));
    }
    if cell.contains([',', '"', '\n', '\r', ';']) {
        cell = Cow::Owned(format!("\"{}\"", cell.replace('"', "\"\"")));
    }
    cell
}

/// Returns whether the cell is a number or a list of numbers; `-` alone means a missing value.
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
