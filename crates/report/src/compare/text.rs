//! A comparison as text.

use std::collections::HashMap;

use super::{Basis, Compared, Comparison, Figure, Judgement, table};
use crate::style::{Style, plain, wrap};
use crate::unit::{count, of_interval, percent, range, ratio, three_digits};
use crate::work::round;

/// Renders the comparison for a terminal: a table per kind of work, then a conclusion.
pub fn compare_text(comparison: &Comparison, style: Style) -> String {
    let mut out = String::new();
    if !comparison.same_machine {
        push(
            &mut out,
            style,
            "The files are from different machines: only ratios to the baseline are compared, no \
             absolute figures.",
        );
    }
    for difference in &comparison.differences {
        push(&mut out, style, &format!("Different {difference}."));
    }
    if !out.is_empty() {
        out.push('\n');
    }
    // Keep the order of each group's first figure.
    let mut groups: Vec<((&str, &str), Vec<&Compared>)> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for figure in &comparison.figures {
        let key = (figure.work.as_str(), figure.offload.as_str());
        let place = *places.entry(key).or_insert_with(|| {
            groups.push((key, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(figure);
    }
    for ((work, offload), rows) in groups {
        let title = format!("{}, offload {}", plain(work), plain(offload));
        for line in wrap("", &title, style.columns()) {
            out.push_str(&style.bold(&line));
            out.push('\n');
        }
        push_table(&mut out, comparison, &rows, style);
        out.push('\n');
    }
    push_reasons(&mut out, comparison, style);
    for (file, cells) in [("first", &comparison.only_in_a), ("second", &comparison.only_in_b)] {
        for cell in cells {
            push(&mut out, style, &format!("In the {file} file only: {cell}."));
        }
    }
    push(&mut out, style, &conclusion(comparison));
    out
}

fn push(out: &mut String, style: Style, text: &str) {
    for line in wrap("", &plain(text), style.columns()) {
        out.push_str(&line);
        out.push('\n');
    }
}

fn push_table(out: &mut String, comparison: &Comparison, rows: &[&Compared], style: Style) {
    let interval = format!("{}% interval", round(100.0 * comparison.level));
    let mut heads = vec!["mode", "figure", "A", "B", "B ÷ A", &interval, "p", ""];
    let mut fields: Vec<Vec<String>> = rows.iter().map(|row| fields(row)).collect();
    // The verdict says whether p is small enough.
    let needed: usize = (0..heads.len()).map(|at| table::widest(&heads, &fields, at) + 2).sum();
    if needed - 2 > style.columns() {
        heads.remove(P);
        fields.iter_mut().for_each(|row| drop(row.remove(P)));
    }
    for line in table::lines(&heads, &fields, Some(heads.len() - 1), style.columns()) {
        // Highlight proven changes only.
        let marked = line.ends_with("worse") || line.ends_with("better");
        out.push_str(&if marked { style.bold(&line) } else { line });
        out.push('\n');
    }
}

/// Column of the p-value.
const P: usize = 6;

fn fields(row: &Compared) -> Vec<String> {
    let name = match row.role {
        results::Role::Aa => format!("{} (A/A)", plain(&row.mode)),
        _ => plain(&row.mode),
    };
    let shown = |value: Option<f64>| match (value, row.basis) {
        (Some(value), Basis::RatioToBaseline) => ratio(value),
        (Some(value), Basis::Absolute) => three_digits(value),
        (None, _) => String::new(),
    };
    vec![
        name,
        figure_name(row).to_string(),
        shown(row.a),
        shown(row.b),
        row.ratio.as_ref().map(of_interval).unwrap_or_default(),
        row.ratio.as_ref().map(range).unwrap_or_default(),
        row.p_corrected.map(probability).unwrap_or_default(),
        verdict(row.verdict).to_string(),
    ]
}

fn probability(p: f64) -> String {
    if p < 0.001 { "<0.001".to_string() } else { format!("{p:.3}") }
}

/// Names the figure in a table.
pub(super) fn figure_name(row: &Compared) -> &'static str {
    match row.figure {
        Figure::Value if row.higher_is_better => "rate",
        Figure::Value => "latency",
        Figure::ServiceDemand => "CPU",
        Figure::LatencyP99 => "p99",
    }
}

pub(super) fn verdict(verdict: Judgement) -> &'static str {
    match verdict {
        Judgement::Better => "better",
        Judgement::Worse => "worse",
        Judgement::NoProvenChange => "–",
        Judgement::NotEnoughData => "?",
    }
}

/// Appends each reason once, with the number of figures it applies to.
fn push_reasons(out: &mut String, comparison: &Comparison, style: Style) {
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for reason in comparison.figures.iter().filter_map(|figure| figure.reason.as_deref()) {
        let place = *places.entry(reason).or_insert_with(|| {
            reasons.push((reason, 0));
            reasons.len() - 1
        });
        reasons[place].1 += 1;
    }
    for (reason, times) in reasons {
        push(out, style, &format!("? Not enough data ({}): {reason}.", count(times, "figure")));
    }
}

fn conclusion(comparison: &Comparison) -> String {
    let of =
        |verdict: Judgement| comparison.figures.iter().filter(|f| f.verdict == verdict).count();
    let mut text = format!(
        "{}: {} proven worse, {} proven better, {} without a proven change, {} without enough \
         data. p is the Mann-Whitney p-value, corrected for all comparisons; a change is proven if \
         p ≤ {} and the interval excludes 1. Rates, CPU and p99 are ratios to the baseline of the \
         same block, except for the baseline itself.",
        count(comparison.figures.len(), "figure"),
        of(Judgement::Worse),
        of(Judgement::Better),
        of(Judgement::NoProvenChange),
        of(Judgement::NotEnoughData),
        round(1.0 - comparison.level),
    );
    if let Some(limit) = comparison.fail_on {
        let share = percent(limit);
        text.push_str(&if comparison.failed {
            format!(" A proven regression exceeds {share}.")
        } else {
            format!(" No proven regression exceeds {share}.")
        });
    }
    text
}
