//! Several files against the first one, for kernels, CNIs or machines: a row per figure, a column per
//! file.

use std::collections::HashMap;

use results::Role;

use super::text::{figure_name, verdict};
use super::{Basis, Compared, Comparison, Judgement, table};
use crate::remark::some_of;
use crate::style::{Style, plain, wrap};
use crate::unit::{of_interval, ratio, three_digits};
use crate::work::round;

/// A file and its comparison with the first one.
#[derive(Debug)]
pub struct Other {
    /// Name of the file.
    pub name: String,
    /// Comparison of the first file (A) with it (B).
    pub comparison: Comparison,
}

/// Identity of a figure.
type Key<'a> = (&'a str, &'a str, &'a str, Role, &'static str);

fn key(of: &Compared) -> Key<'_> {
    (&of.work, &of.offload, &of.mode, of.role, figure_name(of))
}

/// One figure of all files.
pub(super) struct Row<'a> {
    pub(super) of: &'a Compared,
    /// By file; `None`: the file lacks the cell.
    pub(super) others: Vec<Option<&'a Compared>>,
}

pub(super) fn rows(others: &[Other]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut places: HashMap<Key<'_>, usize> = HashMap::new();
    for (at, other) in others.iter().enumerate() {
        for figure in &other.comparison.figures {
            let place = *places.entry(key(figure)).or_insert_with(|| {
                rows.push(Row { of: figure, others: vec![None; others.len()] });
                rows.len() - 1
            });
            rows[place].others[at] = Some(figure);
        }
    }
    // Files that lack cells must not scatter a group.
    let mut groups: HashMap<(&str, &str), usize> = HashMap::new();
    for (at, row) in rows.iter().enumerate() {
        groups.entry((row.of.work.as_str(), row.of.offload.as_str())).or_insert(at);
    }
    rows.sort_by_key(|row| groups[&(row.of.work.as_str(), row.of.offload.as_str())]);
    rows
}

/// Letter of a file; the first is A.
pub(super) fn letter(at: usize) -> String {
    let letter = u8::try_from(at).ok().filter(|at| *at < 26).map(|at| char::from(b'A' + at));
    letter.map_or_else(|| format!("F{at}"), String::from)
}

pub(super) fn name_of(of: &Compared) -> String {
    match of.role {
        Role::Aa => format!("{} (A/A)", plain(&of.mode)),
        _ => plain(&of.mode),
    }
}

fn own(of: &Compared) -> String {
    match (of.a, of.basis) {
        (Some(value), Basis::RatioToBaseline) => ratio(value),
        (Some(value), Basis::Absolute) => three_digits(value),
        (None, _) => String::new(),
    }
}

fn change(of: Option<&Compared>) -> String {
    let Some(of) = of else { return String::new() };
    let ratio = of.ratio.as_ref().map(of_interval).unwrap_or_default();
    match of.verdict {
        Judgement::Better | Judgement::Worse => format!("{ratio} {}", verdict(of.verdict)),
        Judgement::NoProvenChange => format!("≈ {ratio}"),
        Judgement::NotEnoughData => "?".to_owned(),
    }
}

pub(super) fn heads(others: &[Other]) -> Vec<String> {
    let fixed = ["mode", "figure", "A"].map(String::from);
    let changes = (0..others.len()).map(|at| format!("{} ÷ A", letter(at + 1)));
    fixed.into_iter().chain(changes).collect()
}

pub(super) fn fields(row: &Row<'_>) -> Vec<String> {
    let fixed = [name_of(row.of), figure_name(row.of).to_owned(), own(row.of)];
    fixed.into_iter().chain(row.others.iter().map(|other| change(*other))).collect()
}

pub(super) fn title(row: &Row<'_>) -> String {
    format!("{}, offload {}", plain(&row.of.work), plain(&row.of.offload))
}

/// Names the files, and explains the table.
pub(super) fn remarks(first: &str, others: &[Other]) -> Vec<String> {
    let names = std::iter::once(first).chain(others.iter().map(|other| other.name.as_str()));
    let mut remarks: Vec<String> =
        names.enumerate().map(|(at, name)| format!("{}: {}", letter(at), plain(name))).collect();
    for (at, other) in others.iter().enumerate() {
        let comparison = &other.comparison;
        let (a, b) = (letter(0), letter(at + 1));
        if !comparison.same_machine {
            remarks.push(format!("{a} and {b} are from different machines: only ratios compare."));
        }
        for difference in &comparison.differences {
            remarks.push(format!("Different {} ({a} and {b}).", plain(difference)));
        }
    }
    for (at, other) in others.iter().enumerate() {
        let (a, b) = (letter(0), letter(at + 1));
        let lacking = [(a, &other.comparison.only_in_b), (b, &other.comparison.only_in_a)];
        for (file, cells) in lacking.iter().filter(|(_, cells)| !cells.is_empty()) {
            let cells: Vec<String> = cells.iter().map(|cell| plain(cell)).collect();
            remarks.push(format!("Not in {file}: {}.", some_of(&cells, 3)));
        }
    }
    let level = others.iter().map(|other| other.comparison.level).fold(0.0, f64::max);
    remarks.push(format!(
        "Better and worse are proven at {}%, corrected for all figures of a column. ≈: no proven \
         change; ?: not enough data. Rates, CPU and p99 are ratios to the baseline of the same \
         block, except for the baseline itself.",
        round(100.0 * level)
    ));
    remarks
}

/// Renders the comparisons for a terminal.
pub fn compare_many_text(first: &str, others: &[Other], style: Style) -> String {
    let mut out = String::new();
    let rows = rows(others);
    for group in rows.chunk_by(|a, b| title(a) == title(b)) {
        let Some(head) = group.first() else { continue };
        for line in wrap("", &title(head), style.columns()) {
            out.push_str(&style.bold(&line));
            out.push('\n');
        }
        let fields: Vec<Vec<String>> = group.iter().map(fields).collect();
        let heads = heads(others);
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        for line in table::lines(&heads, &fields, None, style.columns()) {
            out.push_str(&line);
            out.push('\n');
        }
        out.push('\n');
    }
    for remark in remarks(first, others) {
        for line in wrap("", &remark, style.columns()) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out
}

/// Renders the comparisons as GitHub Markdown.
pub fn compare_many_markdown(first: &str, others: &[Other]) -> String {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('|', "\\|");
    let line = |fields: Vec<String>| {
        format!("| {} |\n", fields.iter().map(|f| escaped(f)).collect::<Vec<_>>().join(" | "))
    };
    let mut out = String::new();
    let rows = rows(others);
    for group in rows.chunk_by(|a, b| title(a) == title(b)) {
        let Some(head) = group.first() else { continue };
        out.push_str(&format!("### {}\n\n", escaped(&title(head))));
        out.push_str(&line(heads(others)));
        out.push_str(&format!("| --- | --- |{}\n", " ---: |".repeat(others.len() + 1)));
        group.iter().for_each(|row| out.push_str(&line(fields(row))));
        out.push('\n');
    }
    for remark in remarks(first, others) {
        out.push_str(&format!("- {}\n", escaped(&remark)));
    }
    out
}

/// Renders a row per figure and file as CSV.
pub fn compare_many_csv(others: &[Other]) -> String {
    let heads = "work,offload,mode,role,figure,file,a,b,ratio,ratio_low,ratio_high,p,verdict";
    let mut out = format!("{heads}\r\n");
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for other in others {
        for of in &other.comparison.figures {
            let role = match of.role {
                Role::Baseline => "baseline",
                Role::Aa => "aa",
                Role::Measured => "measured",
            };
            let proof = match of.verdict {
                Judgement::Better => "better",
                Judgement::Worse => "worse",
                Judgement::NoProvenChange => "no proven change",
                Judgement::NotEnoughData => "not enough data",
            };
            let fields = [
                of.work.clone(),
                of.offload.clone(),
                of.mode.clone(),
                role.to_owned(),
                figure_name(of).to_owned(),
                other.name.clone(),
                number(of.a),
                number(of.b),
                number(of.ratio.map(|ratio| ratio.median)),
                number(of.ratio.map(|ratio| ratio.low)),
                number(of.ratio.map(|ratio| ratio.high)),
                number(of.p_corrected),
                proof.to_owned(),
            ];
            let fields: Vec<String> =
                fields.iter().map(|field| foreign::csv_cell(field).into_owned()).collect();
            out.push_str(&fields.join(","));
            out.push_str("\r\n");
        }
    }
    out
}
