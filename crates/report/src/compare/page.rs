//! Several files against the first one, as one page with one chart.

use maud::{Markup, html};

use super::many::{Row, fields, heads, letter, name_of, remarks, rows, title};
use super::text::figure_name;
use super::{Figure, Other};
use crate::chart::{Change, of_changes};
use crate::page::{cards, list, page};
use crate::style::plain;

/// Renders the comparisons as one page. The page loads and runs nothing.
pub fn compare_many_html(first: &str, others: &[Other]) -> String {
    let rows = rows(others);
    let groups: Vec<&[Row<'_>]> = rows.chunk_by(|a, b| title(a) == title(b)).collect();
    let files = others.iter().enumerate();
    let files = files.map(|(at, other)| format!("{}: {}", letter(at + 1), plain(&other.name)));
    let changes = groups.iter().filter_map(|group| {
        let changes = group.iter().map(change).filter(|change| !change.by_file.is_empty());
        Some((title(group.first()?), changes.collect()))
    });
    let heading = format!("Compared with {}", plain(first));
    let chart = of_changes(heading.clone(), files.collect(), changes.collect());
    let body = html! {
        section {
            h2 { "Changes" }
            (cards(chart.as_slice()))
        }
        section {
            h2 { "Tables" }
            @for group in &groups { (table(group, others)) }
        }
        section { (list("Files", remarks(first, others))) }
    };
    let count = others.len() + 1;
    page(&format!("overlane: {count} files"), &heading, &format!("{count} files"), &body)
}

/// Returns a figure of each file ÷ that of A, above 1 where it is better.
fn change(row: &Row<'_>) -> Change {
    let name = match row.of.figure {
        Figure::Value => name_of(row.of),
        _ => format!("{} {}", name_of(row.of), figure_name(row.of)),
    };
    let files = row.others.iter().enumerate();
    let by_file = files.filter_map(|(at, of)| {
        let of = (*of)?;
        Some((at, of.ratio?.worth(!of.higher_is_better)))
    });
    Change { name, by_file: by_file.collect() }
}

fn table(group: &[Row<'_>], others: &[Other]) -> Markup {
    html! {
        h3 { (group.first().map(title).unwrap_or_default()) }
        div.scroll { table {
            thead { tr {
                @for (at, head) in heads(others).iter().enumerate() { th.n[at > 1] { (head) } }
            } }
            tbody { @for row in group { tr {
                @for (at, field) in fields(row).iter().enumerate() { td.n[at > 1] { (field) } }
            } } }
        } }
    }
}
